"""The fleet on a real Ray: one actor an agent, faults across the boundary, cancellation."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import psutil
import pytest

from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.message import ModelRequest, UserMessage
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.runtime.factories import open_model, workspace_provider
from swe_ai_fleet.runtime.ray_fleet import open_ray_fleet
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.testing.script import Conversation, Script, ScriptRequest, Turn
from tests.confinement import until
from tests.conftest import FleetUnderTest
from tests.scripts import HELLO, HELLO_FILES, SLEEP, SLEEPING


@pytest.fixture
def settings(fleet: FleetUnderTest) -> Settings:
    address = {"nats_url": fleet.running.nats_url, "nats_token": fleet.running.nats_token}
    return fleet.settings.model_copy(update={**address, "agents_per_actor": 1})


@pytest.fixture
async def repository(settings: Settings, tmp_path: Path) -> PinnedRepository:
    path = make_repository(tmp_path / "repository", HELLO_FILES)
    return await workspace_provider(settings).pin("default", RepoRef(location=str(path)))


def _assignment(repository: PinnedRepository, description: str, **changes: object) -> CodingAssignment:
    task = Task(
        task_id=f"ray-{uuid.uuid4().hex[:8]}",
        kind=TaskKind.DELIBERATE,
        description=description,
        repo=RepoRef(location=repository.location),
        **changes,
    )
    return CodingAssignment(execution_id=task.execution_id, agent_id="agent-dev-1", task=task, repository=repository)


def _actors() -> set[int]:
    """Process ids of actors that serve one agent alone."""
    found: set[int] = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if "VLLMAgentJob" in "".join(child.cmdline()):
                found.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


async def _gone(before: set[int]) -> None:
    await until(lambda: not (_actors() - before))


@pytest.mark.slow  # quick: cancelling a run
async def test_one_actor_an_agent_and_faults_keep_their_type_across_ray(
    settings: Settings, repository: PinnedRepository
) -> None:
    before = _actors()
    async with open_ray_fleet(settings) as alone:
        running = asyncio.create_task(alone.run(_assignment(repository, HELLO)))
        await until(lambda: _actors() - before)
        candidate = await running
        assert candidate.stop_reason is StopReason.FINAL_ANSWER
        assert candidate.artifacts.files_changed == ("utils.py",)
        broken = _assignment(repository, HELLO, environment=EnvironmentSpec(setup=("exit 3",)))
        with pytest.raises(PreconditionFailed) as failed:
            await alone.run(broken)
        assert failed.value.field.startswith("environment.setup")
        assert alone.hosts == ()
    await _gone(before)


async def test_cancelling_a_run_ends_its_processes(settings: Settings, repository: PinnedRepository) -> None:
    before, others = _actors(), _sleeping()
    async with open_ray_fleet(settings) as alone:
        running = asyncio.create_task(alone.run(_assignment(repository, SLEEP)))
        # On a busy machine a host takes long to begin, longer still beside one who looks all the time.
        async with asyncio.timeout(120):
            while not await asyncio.to_thread(_sleeping) - others:
                assert not running.done(), running
                await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not _sleeping() - others
    await _gone(before)


def _sleeping() -> set[int]:
    """The processes that sleep as the script says; runs of other tests may be among them."""
    found: set[int] = set()
    for process in psutil.process_iter():
        try:
            if process.cmdline()[-2:] == SLEEPING.split():
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


# --- the fleet's limits on calls to models, kept by a real Ray actor for all of its hosts ---


AGENTS, CALLS, LIMIT = 20, 4, 6


async def _agents(settings: Settings) -> int:
    """What one host of the fleet does; how many calls were answered."""
    async with open_model(settings) as model:

        async def agent(number: int) -> int:
            session = model.session(f"agent-{number}")
            replies = [await session.reply(ModelRequest((UserMessage(content="go"),))) for _ in range(CALLS)]
            return sum(reply.message.content == "done" for reply in replies)

        return sum(await asyncio.gather(*(agent(number) for number in range(AGENTS))))


async def test_hosts_keep_to_the_limit_together(fleet: FleetUnderTest) -> None:
    most = 0

    def note(asked: ScriptRequest) -> bool:
        nonlocal most
        most = max(most, server.in_flight)
        return True

    script = Script(conversations=(Conversation(turns=(Turn(content="done"),), predicate=note),))
    async with ScriptedModelServer(script, latency_seconds=0.05) as server:
        settings = Settings(model_url=server.url, model_max_in_flight=LIMIT)
        answered = await asyncio.gather(*(_agents(settings) for _ in range(2)))
    assert answered == [AGENTS * CALLS] * 2
    assert LIMIT - 2 <= most <= LIMIT
