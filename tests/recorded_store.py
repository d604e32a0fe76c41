"""A fleet on the store of an earlier version, with work under way; `labs/recorded_store.py` records one."""

from __future__ import annotations

import fcntl
import json
import shutil
import tarfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.watching.events import verify_events
from tests.chat_script import called, final
from tests.environments import home_at
from tests.fleet_client import Client, bodies, connected, serving

ROOT = Path("/tmp/fleet-recorded-store")
REPOSITORY = ROOT / "repository"
"""Of the tasks. The log names it by its path, and is sealed."""
HALF, PROPOSED, RISKY, GOAL = "[half-run]", "[proposed]", "[risky]", "Work out what the squares come to"
TASKS = {"half-run": HALF, "proposed": PROPOSED, "risky": RISKY}
SESSION = "squares"
FLOW = "flow"
WORKFLOW = """
name: recorded
nodes:
  - {id: one, type: agent, query: "[recorded] one"}
  - {id: ask, type: approval, prompt: "Go on after ${nodes.one.output.answer}"}
  - {id: two, type: agent, query: "[recorded] two"}
edges:
  - {source: one, target: ask}
  - {source: ask, target: two}
"""
ACCEPTED = "accepted.json"
"""In the home: the executions of the tasks, by name."""
STORES = sorted((Path(__file__).parent / "e2e").glob("store_*.tar.xz"))
"""Each named by the commit whose fleet wrote it."""
VARIABLES = {
    "FLEET_MODEL": "scripted",
    "FLEET_LISTEN": "127.0.0.1:0",
    "FLEET_LEASE_SECONDS": "3",
    "FLEET_EVENT_DAYS": "0",
    "FLEET_APPROVAL_TIMEOUT_SECONDS": "0",
    "FLEET_CHECKPOINT_SECONDS": "0",
}
_GOOD = "\n\ndef hello_world():\n    return 'Hello, World!'\n"
_APPEND = called("files_append_file", path="utils.py", content=_GOOD)
_LOOK = called("files_read_file", path="utils.py")
SCRIPT = Script(
    conversations=(
        Conversation(
            match=HALF, turns=(_LOOK, _APPEND, called("shell_run_command", command="sleep 61"), final("Done."))
        ),
        Conversation(
            match=PROPOSED,
            turns=(
                _LOOK,
                called("propose_approach", approach="Append hello_world to utils.py.", reasoning="It is missing."),
                _APPEND,
                final("Did what was approved."),
            ),
        ),
        Conversation(
            match=RISKY,
            turns=(_APPEND, called("shell_run_command", command="rm -rf test_utils.py"), final("Cleaned up.")),
        ),
        Conversation(
            match=f"# Goal\n{GOAL}",
            turns=(
                called("propose_approach", approach="Add them up.", reasoning="Two numbers."),
                called("calculator", expression="9 + 16"),
                final("They come to 25."),
            ),
        ),
        Conversation(match="[recorded]", turns=(final("At once."),)),
    ),
    default=Conversation(turns=(Turn(content='{"requirements": []}'),)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A fleet of this version on a recorded store; `accepted` has the executions by task."""

    client: Client
    accepted: dict[str, str]

    async def ended(self, task_id: str) -> list[pb.ExecutionEvent]:
        """All events of a task, once it has ended as it should, nothing of it changed or missing."""
        events = await self.client.events(self.accepted[task_id])
        assert [body["status"] for body in bodies(events, "execution_finished")] == ["completed"]
        assert {verdict.fault for verdict in verify_events(events)} == {None}
        assert len(bodies(events, "execution_started")) == 1
        return events

    async def resolved(self, task_id: str, decision: str) -> list[pb.ExecutionEvent]:
        """The same of a task that waits for people, who decide now."""
        execution = await self.client.execution(self.accepted[task_id])
        assert execution.status == pb.DELIBERATION_STATUS_AWAITING_APPROVAL
        await self.client.resolve(execution.execution_id, decision)
        events = await self.ended(task_id)
        assert len(bodies(events, "approval_resolved")) == 1
        return events


@asynccontextmanager
async def serving_store(file: Path) -> AsyncGenerator[Site]:
    """A fleet of this version on a recorded store."""
    with room():
        with tarfile.open(file) as archive:
            archive.extractall(ROOT, filter="data")
        home = home_at(ROOT / "home")
        async with (
            ScriptedModelServer(SCRIPT) as model,
            serving(home, model.url, **VARIABLES) as (_, card),
            connected(card) as client,
        ):
            accepted = json.loads((home / ACCEPTED).read_text())
            yield Site(client=client, accepted=accepted)


@contextmanager
def room() -> Generator[Path]:
    """The directory that the store names, empty, and of this process alone: an earlier one is waited for."""
    ROOT.mkdir(mode=0o700, exist_ok=True)
    with (ROOT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            _clear()
            yield ROOT
        finally:
            _clear()


def _clear() -> None:
    for path in ROOT.iterdir():
        if path.name != "lock":
            shutil.rmtree(path)
