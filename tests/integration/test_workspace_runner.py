"""Jobs in processes beside a runner: real NATS, real git, real agents; only the model is scripted."""

from __future__ import annotations

import asyncio
import json
import os
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
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.assignment import AssignmentKind, CheckAssignment, CodingAssignment, Job, JobOutcome
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.event import RunClaimed, ToolFinished, WorkspaceCheckpointed
from swe_ai_fleet.domain.task import CheckSpec, Constraints, EnvironmentSpec, PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.evidence.test_runs import TEST_RUNS_BUCKET
from swe_ai_fleet.orchestrator.recipes import RECIPES_BUCKET
from swe_ai_fleet.runtime.factories import connect_log, workspace_provider
from swe_ai_fleet.runtime.job_board import JOBS_BUCKET, JobBoard
from swe_ai_fleet.runtime.job_fleet import open_job_fleet
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import make_repository
from tests.scripts import FAILING, HELLO, HELLO_FILES, SCRIPT, SLEEP, SLEEPING
from workers.workspace_runner.main import RunningRunner, open_runner
from workers.workspace_runner.settings import RunnerSettings

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
            home=tmp_path / "home", model_url=model.url, model="scripted", nats_url=server.address.url,
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
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "workers.workspace_runner", *arguments),
        env={**os.environ, **world.variables, **plain},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest.mark.slow  # quick: what cannot be done; unit/test_workspace_runner_parts.py
async def test_assignments_go_through_jobs_and_back(world: World) -> None:
    async with asyncio.timeout(SECONDS), runner(world) as running, open_job_fleet(world.log) as fleet:
        jobs = world.settings.home / "jobs"
        assignment = world.assignment(
            HELLO, constraints=Constraints(checks=(CheckSpec(name="tests", command="python -m pytest -q"),))
        )
        # Asked for twice, it is run once.
        candidate, same = await asyncio.gather(fleet.run(assignment), fleet.run(assignment))
        assert candidate == same
        assert len(await _claims(world, assignment.task)) == 1
        assert candidate.stop_reason is StopReason.FINAL_ANSWER
        assert (candidate.artifacts.files_changed, candidate.artifacts.branch) == (("utils.py",), "fleet/work")
        report = await fleet.run(
            CheckAssignment(
                execution_id=assignment.execution_id, candidate_id=candidate.candidate_id, task=assignment.task,
                repository=world.repository, patch=candidate.artifacts.patch,
            )
        )  # fmt: skip
        assert report.accepted
        await running.idle()
        figures = running.runner.figures()
        assert (figures["started"], figures["settled"]) == ({"run": 1, "check": 1}, {"run": 1, "check": 1})
        assert figures["failed"] == {}
        assert not list(jobs.iterdir())
        # A fault keeps its type and field.
        with pytest.raises(PreconditionFailed) as failed:
            await fleet.run(world.assignment(HELLO, environment=EnvironmentSpec(setup=("exit 3",))))
        assert failed.value.field.startswith("environment.setup")
        # One that is cancelled ends its processes.
        sleeping = asyncio.create_task(fleet.run(world.assignment(SLEEP)))
        await world.until(lambda: _sleeping())
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
        await world.until(lambda: not _sleeping())
        await running.idle()
        assert not list(jobs.iterdir())
    # The board keeps the first outcome of a job, and large ones beside it.
    board = JobBoard(await world.log.bucket(JOBS_BUCKET), world.log)
    job = Job(job_id="j1", kind=AssignmentKind.RUN, tenant="a.b%c", task_id="t", execution_id="e", agent_id="a")
    assert await board.settle(job, JobOutcome(value="1")) and not await board.settle(job, JobOutcome(value="2"))
    await board.settle(replace(job, job_id="j2"), JobOutcome(value='"' + "x" * 600_000 + '"'))
    first, second = await board.outcome("a.b%c", "j1"), await board.outcome("a.b%c", "j2")
    assert first is not None and second is not None and len(to_json(second)) < 1_000
    assert (await board.value(first), len(await board.value(second))) == (b"1", 600_002)


_TASK = {"taskId": "t", "taskDescription": "d", "repo": {"url": "https://git.example/a"}}
NO_TASKS: tuple[tuple[object, str, str], ...] = (
    ({"deliberate": {}}, "", "task_id"),
    (b"{", "", "message"),
    (b"\xff", "", "message"),
    ({}, "", "task"),
    ({"deliberate": _TASK}, ".default.urgent", "subject"),
    ({"deliberate": _TASK}, ".a.1.b", "subject"),
    ({"deliberate": {**_TASK, "approval": "APPROVAL_POLICY_PLAN"}}, "", "approval"),
    ({"deliberate": {**_TASK, "numAgents": 3}}, "", "deliberate.num_agents"),
    ({"deliberate": {**_TASK, "maxAgents": 2}}, "", "deliberate.max_agents"),
    ({"deliberate": {**_TASK, "rounds": 1}}, "", "deliberate.rounds"),
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
        # An agent that is sure, and whose change the task's own check refutes.
        greets = CheckSpec(name="greets", command="python3 -c 'import utils; assert utils.hello_world() == \"Hello\"'")
        wrong = world.task(FAILING, constraints=Constraints(checks=(greets,)))
        await world.command(wrong)
        checked = await world.results(wrong.task_id)
    assert (checked["success"], checked["verdict"], checked["status"]) == (False, "refuted", "final_answer")
    assert checked["error"] == f"refuted: {checked['verdict_reasons'][0]}" and "greets" in checked["error"]
    jsonschema.validate(result, json.loads((Path(__file__).parents[2] / "docs/schemas/result.json").read_text()))
    assert (result["success"], result["status"]) == (False, "error")
    assert "repo" in result["error"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_job_of_a_runner_that_ended_is_adopted_by_another_one(number: int, world: World) -> None:
    task = world.task(COUNTING)
    world.chosen = world.chosen.model_copy(update={"drain_seconds": 0.0})
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(runner_process(world, "--takes", "commands"))
        await world.command(task)
        await _counted_two(world, task)
        first.send_signal(number)
        assert await first.wait() == (-number if number == signal.SIGKILL else 0)
        agents = world.processes("workers.agent")
        assert len(agents) == 1
        await stack.enter_async_context(runner_process(world, "--takes", "commands"))
        _go(world)
        result = await world.results(task.task_id)
    assert result["success"], result
    assert "+1\n+2\n+3\n" in result["artifacts"]["patch"]
    assert len(await _claims(world, task)) == 1


@pytest.mark.slow
async def test_a_job_that_was_told_while_no_runner_was_there_is_cleared_up(world: World) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(runner_process(world))
        fleet = await stack.enter_async_context(open_job_fleet(world.log))
        assignment = world.assignment(COUNTING)
        running = asyncio.create_task(fleet.run(assignment))
        await _counted_two(world, assignment.task)
        first.send_signal(signal.SIGKILL)
        await first.wait()
        _go(world)
        async with asyncio.timeout(SECONDS):
            # Its outcome comes from the container itself: no runner is needed for that.
            assert (await running).stop_reason is StopReason.FINAL_ANSWER
        await world.until(lambda: not world.processes("workers.agent"))
        async with runner(world):
            await world.until(lambda: not list((world.settings.home / "jobs").iterdir()))


def _sleeping() -> bool:
    return any((one.info["cmdline"] or [])[-2:] == SLEEPING.split() for one in psutil.process_iter(["cmdline"]))


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
        await running.idle()
        figures = running.runner.figures()
    assert result["kind"] == "execution"
    assert result["success"], result
    assert "+def hello_world():" in result["artifacts"]["patch"]
    assert figures["settled"] == {"baseline": 1, "run": 1, "check": 1}
