"""Jobs in processes beside a runner: real NATS, real git, real agents; only the model is scripted."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import nats
import psutil
import pytest

from services.orchestrator.main import open_fleet
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.event import RunClaimed, ToolFinished, WorkspaceCheckpointed
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.extensions.kubernetes_jobs.settings import RunnerSettings
from swe_ai_fleet.orchestrator.evidence.test_runs import TEST_RUNS_BUCKET
from swe_ai_fleet.orchestrator.recipes import RECIPES_BUCKET
from swe_ai_fleet.runtime.factories import connect_log, workspace_provider
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import make_repository
from tests.environments import home_at
from tests.fleet_command import program
from tests.scripts import HELLO, HELLO_FILES, SCRIPT
from workers.workspace_runner.main import RunningRunner, open_runner

SECONDS = 150
COUNTING = "[counting]"


def _shell(command: str) -> Turn:
    return Turn(tool_calls=(("shell_run_command", {"command": command}),))


COUNT = Conversation(
    match=COUNTING,
    turns=(
        _shell("echo 1 >> count.txt"),
        _shell("echo 2 >> count.txt"),
        _shell("test -e /tmp/never || while test ! -e go.txt; do sleep 0.05; done"),
        _shell("rm -f go.txt; echo 3 >> count.txt"),
        Turn(tool_calls=(("final_answer", {"result": "counted"}),)),
    ),
)


@dataclass(kw_only=True)
class World:
    """A NATS server of the test's own, a repository, and what runs jobs."""

    settings: Settings
    chosen: RunnerSettings
    log: JetStream
    repository: PinnedRepository

    @property
    def variables(self) -> dict[str, str]:
        names = ("home", "model_url", "model", "nats_url", "nats_token", "checkpoint_seconds")
        return {f"FLEET_{name.upper()}": str(getattr(self.settings, name)) for name in names}

    def task(self, text: str, **more: Any) -> Task:
        repo = RepoRef(location=self.repository.location)
        name = f"t-{uuid.uuid4().hex[:8]}"
        return Task(task_id=name, kind=TaskKind.DELIBERATE, description=text, repo=repo, num_agents=1, **more)

    def assignment(self, text: str, **more: Any) -> CodingAssignment:
        task = self.task(text, **more)
        return CodingAssignment(
            execution_id=task.execution_id, agent_id="agent-1", task=task, repository=self.repository
        )

    def processes(self, module: str) -> list[psutil.Process]:
        """The living processes of this world's jobs that run a module."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter(["cmdline"]):
            line: list[str] = process.info["cmdline"] or []
            if module in line and str(self.settings.home) in _variable(process, "FLEET_HOME"):
                found.append(process)
        return found

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                # Looking through all processes takes time that those which are waited for could use.
                await asyncio.sleep(0.1)

    async def results(self, task_id: str) -> dict[str, Any]:
        """The result of a task, once it stands."""
        async with await nats.connect(self.settings.nats_url) as client:
            stream, subject = client.jetstream(), f"agent.results.{task_id}"
            message = await (await stream.subscribe(subject, ordered_consumer=True)).next_msg(timeout=SECONDS)
            told = await stream.stream_info("AGENT_RESULTS", subjects_filter=subject)
            assert (told.state.subjects or {}) == {subject: 1}
            return json.loads(message.data)

    async def command(self, task: Task) -> None:
        asked = {
            "taskId": task.task_id,
            "taskDescription": task.description,
            "repo": {"path": task.repo.location},
            "numAgents": task.num_agents,
            "constraints": {"checks": [{"name": one.name, "command": one.command} for one in task.constraints.checks]},
        }
        async with await nats.connect(self.settings.nats_url) as client:
            await client.jetstream().publish("agent.cmd.execute", json.dumps({"deliberate": asked}).encode())


def _variable(process: psutil.Process, name: str) -> str:
    try:
        return process.environ().get(name, "")
    except psutil.Error:
        return ""


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[ScriptedModelServer]:
    script = Script(conversations=(COUNT, *SCRIPT.conversations))
    async with ScriptedModelServer(script) as server:
        yield server


@pytest.fixture
async def world(tmp_path: Path, model: ScriptedModelServer) -> AsyncIterator[World]:
    repository = make_repository(tmp_path / "repository", HELLO_FILES)
    async with EmbeddedNats(tmp_path / "nats") as server:
        settings = Settings(
            home=home_at(tmp_path / "home"), model_url=model.url, model="scripted", nats_url=server.address.url,
            nats_token=server.address.token, checkpoint_seconds=0.0,
        )  # fmt: skip
        chosen = RunnerSettings(backend="local", protocols="file", concurrency=4, ack_wait_seconds=2.0)
        async with connect_log(settings, name="test") as log:
            await log.ensure_streams()
            # An orchestrator makes them.
            for name in (TEST_RUNS_BUCKET, RECIPES_BUCKET):
                await log.bucket(name)
            pinned = await workspace_provider(settings, log).pin("default", RepoRef(location=str(repository)))
            yield World(settings=settings, chosen=chosen, log=log, repository=pinned)


@asynccontextmanager
async def runner(world: World, **changes: object) -> AsyncGenerator[RunningRunner]:
    async with open_runner(world.settings, world.chosen.model_copy(update=changes)) as running:
        yield running


@asynccontextmanager
async def runner_process(world: World, *arguments: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A runner that can be killed."""
    plain = {
        f"FLEET_RUNNER_{name.upper()}": str(value)
        for name, value in world.chosen.model_dump(exclude_defaults=True).items()
    }
    command, log = (sys.executable, "-m", "workers.workspace_runner", *arguments), world.settings.home / "runner.log"
    async with program(*command, log=log, **world.variables, **plain) as process:
        yield process


_TASK = {"taskId": "t", "taskDescription": "d", "repo": {"url": "https://git.example/a"}}
NO_TASKS: tuple[tuple[object, str, str], ...] = (
    (b"{", "", "message"),
    ({"deliberate": _TASK}, ".default.urgent", "subject"),
    ({"deliberate": {**_TASK, "approval": "APPROVAL_POLICY_PLAN"}}, "", "approval"),
    ({"deliberate": {**_TASK, "numAgents": 3}}, "", "deliberate.num_agents"),
    ({"orchestrate": {**_TASK, "delivery": {"branch": "topic"}}}, "", "orchestrate.delivery"),
)


async def test_what_cannot_be_done_is_a_dead_letter_or_a_result_that_says_so(world: World) -> None:
    task = world.task(HELLO)
    task = replace(task, repo=RepoRef(location=f"{world.repository.location}-none"))
    async with runner(world, takes="commands"), asyncio.timeout(SECONDS):
        async with await nats.connect(world.settings.nats_url) as client:
            letters = await client.jetstream().subscribe("agent.dlq.>", ordered_consumer=True)
            for body, subject, field in NO_TASKS:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                await client.jetstream().publish(f"agent.cmd.execute{subject}", data)
                letter = await letters.next_msg(timeout=SECONDS)
                told = letter.headers or {}
                assert (letter.subject, told["Fleet-Deliveries"]) == ("agent.dlq.workspace-runner-tasks", "1")
                assert told["Fleet-Reason"].startswith(f"{field}: "), (body, told)
        await world.command(task)
        result = await world.results(task.task_id)
    jsonschema.validate(result, json.loads((Path(__file__).parents[3] / "docs/schemas/result.json").read_text()))
    assert (result["success"], result["status"]) == (False, "error")
    assert "repo" in result["error"]


@pytest.mark.slow
async def test_the_job_of_a_runner_that_ended_is_adopted_by_another_one(world: World) -> None:
    task = world.task(COUNTING)
    world.chosen = world.chosen.model_copy(update={"drain_seconds": 0.0})
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(runner_process(world, "--takes", "commands"))
        await world.command(task)
        await _counted_two(world, task)
        first.send_signal(signal.SIGKILL)
        assert await first.wait() == -signal.SIGKILL
        agents = world.processes("workers.agent")
        assert len(agents) == 1
        await stack.enter_async_context(runner_process(world, "--takes", "commands"))
        _go(world)
        result = await world.results(task.task_id)
    assert result["success"], result
    assert "+1\n+2\n+3\n" in result["artifacts"]["patch"]
    assert len(await _claims(world, task)) == 1


async def _counted_two(world: World, task: Task) -> None:
    """Wait until the agent has counted to two and waits to be let go."""
    counted = False
    async with asyncio.timeout(SECONDS):
        async for stored in world.log.read("default", task.execution_id, agent_id="agent-1", follow=True):
            body = stored.event.body
            counted |= isinstance(body, ToolFinished) and "echo 2" in str(body.entry.arguments)
            if counted and isinstance(body, WorkspaceCheckpointed):
                return


def _go(world: World) -> None:
    for workspace in (world.settings.home / "jobs").glob("*/workspace"):
        (workspace / "go.txt").write_text("go\n")


async def _claims(world: World, task: Task) -> list[RunClaimed]:
    return [
        stored.event.body
        async for stored in world.log.read("default", task.execution_id, agent_id="agent-1")
        if isinstance(stored.event.body, RunClaimed)
    ]


@pytest.mark.slow
async def test_an_orchestrator_without_ray_hands_its_agents_and_checks_out_as_jobs(world: World) -> None:
    import ray

    settings = world.settings.model_copy(
        update={"executor": "kubernetes", "listen": "127.0.0.1:0", "http_listen": "off"}
    )
    started = ray.is_initialized()
    task = world.task(HELLO)
    async with runner(world) as running, open_fleet(settings):
        assert ray.is_initialized() == started
        await world.command(task)
        result = await world.results(task.task_id)
        await running.runner.slots.idle()
        figures = running.runner.figures()
    assert result["kind"] == "execution"
    assert result["success"], result
    assert "+def hello_world():" in result["artifacts"]["patch"]
    assert figures["settled"] == {"baseline": 1, "run": 1, "check": 1}
