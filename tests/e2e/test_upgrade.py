"""docs/upgrading.md, step by step: from one version to the next beside it and back again, with work under way."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import nats
import pytest
from nats.js import JetStreamContext

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.planning.v1 import planning_pb2 as plan_pb
from fleet.planning.v1.planning_pb2_grpc import PlanningServiceStub
from swe_ai_fleet.domain.job import this_release
from swe_ai_fleet.extension_registry import extensions
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.watching.events import verify_events
from tests.e2e.test_releases import Cluster, cluster
from tests.fleet_client import Client, bodies, serving, to_orchestrate
from tests.fleet_command import Ran, Shell
from tests.scripts import HELLO, PROPOSING, SCRIPT, SLEEPING

pytestmark = [pytest.mark.slow, pytest.mark.timeout(800)]
ROOT = Path(__file__).parents[2]
LATER = "0.2.0"
GOAL = "Work out what the sides come to"
LONG = "[long]"
_CONVERSATIONS = (
    Conversation(
        match=f"# Goal\n{GOAL}",
        turns=(
            Turn(tool_calls=(("propose_approach", {"approach": "Add them up."}),)),
            Turn(tool_calls=(("python_executor", {"code": "result = 9 + 16"}),)),
            Turn(tool_calls=(("final_answer", {"result": "They come to 25."}),)),
        ),
    ),
    # Moved while its command runs, whose interruption it is told.
    Conversation(
        match=LONG,
        turns=(
            Turn(tool_calls=(("shell_run_command", {"command": SLEEPING}),)),
            Turn(
                tool_calls=(
                    (
                        "files_append_file",
                        {"path": "utils.py", "content": "\n\ndef hello_world():\n    return 'Hello, World!'\n"},
                    ),
                )
            ),
            Turn(tool_calls=(("final_answer", {"result": "Took my time."}),)),
        ),
    ),
)
# What each event of a claim says in the later version, which the earlier one does not know.
FIELD = ('    resumes: bool = False\n    type: Literal["run_claimed"]', '    zone: str = "b"\n')


def steps(section: str) -> list[str]:
    """The words that a section's numbered steps begin with."""
    text = (ROOT / "docs" / "upgrading.md").read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. \*\*([\w ]+):?\*\*", text, flags=re.MULTILINE)


def later_version(directory: Path) -> Mapping[str, str]:
    """The product once more, installed at another place, of a later version; what a process of it needs."""
    programs = [name for extension in extensions().values() for name in extension.programs]
    for part in ("src/swe_ai_fleet", "src/fleet", "services", *programs):
        shutil.copytree(ROOT / part, directory / Path(part).name)
    events = directory / "swe_ai_fleet" / "domain" / "event.py"
    place, added = FIELD
    text = events.read_text()
    assert text.count(place) == 1
    events.write_text(text.replace(place, added + place))
    (about := directory / f"swe_ai_fleet-{LATER}.dist-info").mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: swe-ai-fleet\nVersion: {LATER}\n")
    return {"PYTHONPATH": str(directory)}


@dataclass(kw_only=True)
class Site:
    """One NATS, a model, and what stands on it."""

    directory: Path
    nats: EmbeddedNats
    model: str
    stack: AsyncExitStack

    async def ray(self, version: Mapping[str, str], token: str) -> Ray:
        """A Ray with a token of its own, of one node that takes hosts of a version."""
        made = await self.stack.enter_async_context(cluster(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token))
        await made.add(**version)
        return Ray(cluster=made, token=token)

    @asynccontextmanager
    async def stored(self) -> AsyncIterator[JetStreamContext]:
        """What lies in NATS, whichever version wrote it."""
        async with await nats.connect(self.nats.address.url) as client:
            yield client.jetstream()

    @property
    def variables(self) -> Mapping[str, str]:
        login = {"FLEET_NATS_URL": self.nats.address.url, "FLEET_NATS_TOKEN": self.nats.address.token}
        return {**login, "FLEET_LEASE_SECONDS": "3", "FLEET_CHECKPOINT_SECONDS": "0"}

    async def orchestrator(self, name: str, version: Mapping[str, str], ray: Ray | None = None) -> Running:
        """One more orchestrator of a version, on a Ray of that version or with Jobs."""
        (home := self.directory / name).mkdir()
        variables = {**self.variables, "FLEET_EXECUTOR": "kubernetes"}
        if (key := self.directory / "old" / "audit" / "signing-key.pem").exists():
            variables["FLEET_AUDIT_SIGNING_KEY_FILE"] = str(key)
        if ray is not None:
            variables |= {
                "FLEET_EXECUTOR": "ray",
                "FLEET_RAY_ADDRESS": ray.cluster.address,
                "FLEET_RAY_TOKEN": ray.token,
                "FLEET_RAY_RESOURCES": '{"agent_host": 1}',
                "FLEET_AGENTS_PER_ACTOR": "4",
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
            }
        shown = serving(home, self.model, **variables, **version)
        process, card = await self.stack.enter_async_context(shown)
        channel = await self.stack.enter_async_context(grpc.aio.insecure_channel(card["address"]))
        return Running(channel, card["token"], process, Shell(home=home, more={**variables, **version}))


@dataclass(frozen=True, kw_only=True)
class Ray:
    cluster: Cluster
    token: str


class Running(Client):
    """An orchestrator of a version, and the command line that came with it."""

    def __init__(self, channel: grpc.aio.Channel, token: str, process: asyncio.subprocess.Process, shell: Shell):
        super().__init__(channel, token)
        self.plans, self.process, self.shell = PlanningServiceStub(channel), process, shell

    async def fleet(self, *arguments: str) -> Ran:
        ran = await self.shell.fleet(*arguments)
        assert ran.code == 0, ran.out + ran.err
        return ran

    async def versions(self) -> dict[str, str]:
        """The releases of all orchestrators that have told theirs, by name."""
        told = await self.stub.GetStatus(pb.GetStatusRequest(include_fleet=True), **self.call)
        return {one.name: one.version for one in told.replicas if one.version}

    async def joined(self, count: int) -> dict[str, str]:
        async with asyncio.timeout(60):
            while len(told := await self.versions()) != count:
                await asyncio.sleep(0.2)
        return told

    async def approve(self, execution_id: str) -> None:
        (asked,) = (await self.execution(execution_id)).pending_approvals
        await self.resolve(execution_id, "APPROVED", approval_id=asked.approval_id, approver="ada")

    async def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await self.process.wait() == 0


@asynccontextmanager
async def opened(directory: Path) -> AsyncGenerator[Site]:
    """A site in a directory, until the context ends."""
    async with AsyncExitStack() as stack:
        script = Script(conversations=(*_CONVERSATIONS, *SCRIPT.conversations))
        model = await stack.enter_async_context(ScriptedModelServer(script))
        server = await stack.enter_async_context(EmbeddedNats(directory / "nats"))
        yield Site(directory=directory, nats=server, model=model.url, stack=stack)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with opened(tmp_path) as site:
        yield site


def claims(events: list[pb.ExecutionEvent]) -> list[int]:
    """The generations of an execution's drivers."""
    return [body["generation"] for body in bodies(events, "execution_claimed")]


def begun_once(events: list[pb.ExecutionEvent]) -> bool:
    """Whether nothing was accepted, started or asked of the model twice, and every chain holds."""
    kinds = [(event.type, event.agent_id) for event in events]
    once = [kind for kind in kinds if kind[0] in ("execution_accepted", "run_started", "execution_finished")]
    steps = [
        (event.agent_id, json.loads(event.payload_json)["step"]) for event in events if event.type == "model_replied"
    ]
    generations = claims(events)
    return (
        len(once) == len(set(once))
        and len(steps) == len(set(steps))
        and generations == list(range(1, len(generations) + 1))
        and all(verdict.intact for verdict in verify_events(events))
    )


async def test_a_fleet_goes_to_the_next_version_and_back_with_work_under_way(
    site: Site, repository: Path, tmp_path: Path
) -> None:
    page = iter(steps("On machines of your own"))
    old_ray = await site.ray({}, "a" * 64)
    old = await site.orchestrator("old", {}, old_ray)

    # What there is before: something that has ended, a run, what waits for people, a plan.
    done = await old.submit(to_orchestrate(HELLO, repository))
    assert begun_once(await old.events(done))
    asking = await old.submit(to_orchestrate(PROPOSING, repository, approval=pb.APPROVAL_POLICY_PLAN))
    await old.until(asking, "approval_requested")
    goal = plan_pb.ExecutePlanRequest(goal=GOAL, session_id="upgraded")
    proposed = await old.plans.ExecutePlan(goal, **old.call)
    assert proposed.status == "awaiting_approval"

    assert next(page) == "Look"
    assert set((await old.joined(1)).values()) == {str(this_release())}
    assert "manifest.json" in os.listdir(await backup(old, tmp_path / "saved"))

    assert next(page) == "Start"
    later = later_version(tmp_path / "later")
    new_ray = await site.ray(later, "b" * 64)
    new = await site.orchestrator("new", later, new_ray)
    told = await new.joined(2)
    (old_name,) = [name for name, version in told.items() if version == str(this_release())]
    (other,) = [version for version in told.values() if version != str(this_release())]
    assert other.startswith(f"{LATER}+") and not other.endswith(this_release().wire)

    under_way = await old.submit(to_orchestrate(LONG, repository))
    await old.until(under_way, "tool_started")

    assert next(page) == "Drain"
    drained = await new.fleet("drain", "orchestrator", old_name, "--within", "1s")
    assert "can be ended" in drained.out

    assert next(page) == "End"
    await old.end()
    assert list(await new.joined(1)) != [old_name]
    moved = await new.events(under_way)
    assert begun_once(moved) and claims(moved)[-1] > 1
    assert (await new.execution(under_way)).status == pb.DELIBERATION_STATUS_COMPLETED
    await new.approve(asking)
    assert begun_once(await new.events(asking))
    assert (await new.execution(asking)).status == pb.DELIBERATION_STATUS_COMPLETED
    answer = plan_pb.ApproveApproachRequest(session_id="upgraded", decision="approved")
    assert (await new.plans.ApproveApproach(answer, **new.call)).status == "approved"

    assert next(page) == "Try"
    tried = await new.submit(to_orchestrate(HELLO, repository))
    assert begun_once(await new.events(tried))
    async with site.stored() as stored:
        claim = await stored.get_msg("AGENT_EVENTS", 1, f"agent.events.default.{tried}.agent-dev-1", next=True)
    assert b'"zone":"b"' in (claim.data or b"")
    for execution_id in (done, under_way, asking):
        await new.fleet("audit", "verify", execution_id)
    waiting = await new.submit(to_orchestrate(PROPOSING, repository, approval=pb.APPROVAL_POLICY_PLAN))
    await new.until(waiting, "approval_requested")

    assert next(page) == "Back again"
    again = await site.orchestrator("again", {}, old_ray)
    (new_name,) = [name for name, version in (await again.joined(2)).items() if version == other]
    await again.fleet("drain", "orchestrator", new_name, "--within", "1s")
    await new.end()
    await again.approve(waiting)
    assert begun_once(await again.events(waiting))
    assert (await again.execution(waiting)).status == pb.DELIBERATION_STATUS_COMPLETED
    assert not any("zone" in event.payload_json for event in await again.events(tried))
    continued = plan_pb.ContinuePlanRequest(session_id="upgraded")
    result = await again.plans.ContinuePlan(continued, **again.call)
    assert (result.status, result.results) == ("completed", "They come to 25.")
    async with site.stored() as stored:
        published = await stored.stream_info("AGENT_RESULTS", subjects_filter="agent.results.*")
    assert set((published.state.subjects or {}).values()) == {1}

    assert next(page) == "Clean up"
    assert list(page) == []


async def backup(one: Running, directory: Path) -> Path:
    await one.fleet("backup", str(directory))
    return directory
