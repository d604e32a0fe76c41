"""Harnesses in the workspace, over the Agent Client Protocol: real sandbox, git and log, a small agent of our own."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.assignment import CodingAssignment

from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.candidate import Candidate, Perspective
from swe_ai_fleet.domain.event import EventBody, PlanMade, RunFinished, ToolFinished
from swe_ai_fleet.domain.run import RunState, fold_run
from swe_ai_fleet.domain.task import ApprovalPolicy, Constraints, RepoRef, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.runtime.agent_worker import AgentWorker, open_worker
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests import acp_agent
from tests.scripts import HELLO_FILES

SECONDS = 60
AGENT = "harness"


def harness(behaviour: str, directory: Path) -> dict[str, object]:
    """The settings of the small agent as a harness that behaves so."""
    return {
        "command": ["python3", "/opt/harness/acp_agent.py", behaviour],
        "version": "0.1",
        "directory": str(directory),
        "home": str(directory / "home"),
        "variables": {"MODEL_NAME": "{model}", "OPENAI_BASE_URL": "{model_url}", "OPENAI_MODEL": "{model}"},
    }


def install(directory: Path) -> Path:
    """The small agent, installed in a directory."""
    (directory / "home/.config").mkdir(parents=True)
    (directory / "home/.config/agent.json").write_text('{"url": "{model_url}"}\n')
    shutil.copy(acp_agent.__file__, directory / "acp_agent.py")
    return directory


BEHAVIOURS = (
    *("good", "asking", "planning", "dying", "hanging", "talking", "flooding", "bloating", "escaping", "chatting"),
    *("absent", "strange", "locked"),
)


@dataclass(kw_only=True)
class Place:
    """A worker of this process that has harnesses."""

    worker: AgentWorker
    log: JetStream
    repository: Path

    async def assignment(self, behaviour: str, **changes: object) -> CodingAssignment:
        limits = Limits(timeout_seconds=changes.pop("seconds", 40.0), max_tool_calls=changes.pop("calls", 50))
        task = Task(
            **{
                "task_id": f"harness-{uuid.uuid4().hex[:8]}",
                "kind": TaskKind.DELIBERATE,
                "description": "Greet the world.",
                "repo": RepoRef(location=str(self.repository)),
                "num_agents": 0,
                "rounds": 0,
                "constraints": Constraints(limits=limits),
                **changes,
            }
        )
        return CodingAssignment(
            execution_id=task.execution_id,
            agent_id=AGENT,
            task=task,
            repository=await self.worker.workspaces.pin("default", task.repo),
            perspective=Perspective(endpoint=f"acp:{behaviour}"),
        )

    async def run(self, behaviour: str, **changes: object) -> tuple[Candidate, list[EventBody]]:
        assignment = await self.assignment(behaviour, **changes)
        candidate = await self.worker.run(assignment)
        return candidate, await self.bodies(assignment)

    async def bodies(self, assignment: CodingAssignment) -> list[EventBody]:
        events = self.log.read("default", assignment.execution_id, agent_id=AGENT)
        return [one.event.body async for one in events]

    async def state(self, assignment: CodingAssignment) -> RunState:
        events = self.log.read("default", assignment.execution_id)
        return fold_run([one.event async for one in events], AGENT)


@pytest.fixture(scope="module")
async def place(
    nats_server: EmbeddedNats, model_server: ScriptedModelServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Place]:
    directory = install(tmp_path_factory.mktemp("installed"))
    settings = Settings(
        home=tmp_path_factory.mktemp("home"),
        model_url=model_server.url,
        model="scripted",
        model_api_key=acp_agent.HIDDEN,
        harnesses={name: harness(name, directory) for name in BEHAVIOURS},
        nats_url=nats_server.address.url,
        nats_token=nats_server.address.token,
    )
    repository = make_repository(tmp_path_factory.mktemp("repository"), HELLO_FILES)
    async with connect_log(settings, name="reader") as log:
        await log.ensure_streams()
        async with open_worker(settings, host="test") as worker:
            yield Place(worker=worker, log=log, repository=repository)


@pytest.fixture(autouse=True)
async def bounded() -> AsyncIterator[None]:
    async with asyncio.timeout(SECONDS):
        yield


def operations(bodies: list[EventBody]) -> list[tuple[str, str]]:
    return [(body.entry.name, str(body.entry.outcome)) for body in bodies if isinstance(body, ToolFinished)]


async def test_what_a_harness_does_is_a_candidate_and_stands_in_the_log(place: Place) -> None:
    candidate, bodies = await place.run("good")
    assert (candidate.stop_reason, candidate.error, candidate.model) == (StopReason.FINAL_ANSWER, "", "acp:good 0.1")
    assert candidate.artifacts.files_changed == ("silent.txt", "told.txt", "utils.py")
    assert "Terminal: 42 0. Network: closed" in candidate.summary
    assert '{"url": "http' in candidate.summary
    # By the fleet's own tools, and by the agent's own word; what it never spoke of is found on disk.
    assert operations(bodies) == [
        ("files_read_text_file", "success"),
        ("files_write_file", "success"),
        ("harness_edit", "success"),
        ("harness_execute", "success"),
        ("shell_run_command", "success"),
        ("harness_left", "success"),
    ]
    ended = [body for body in bodies if isinstance(body, ToolFinished)]
    assert ended[3].result.content == "Hello, World!" and ended[3].result.metadata["own_word"]
    assert ended[-1].result.content == "not spoken of: silent.txt"
    assert [body.plan.steps[0].why for body in bodies if isinstance(body, PlanMade)] == ["Add it"]
    assert acp_agent.HIDDEN not in repr(bodies)
    assert candidate.usage.tool_calls == 5
