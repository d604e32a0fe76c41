"""The modes of planning: the fast path, hybrid, without a model, step by step; and one plan over all tools."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from swe_ai_fleet.agents.planning import ModeRules, PlanRules
from swe_ai_fleet.domain.event import (
    ToolFinished,
)
from swe_ai_fleet.domain.plan import StepStatus
from swe_ai_fleet.domain.run import fold_run
from swe_ai_fleet.domain.task import PlanningMode
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.sandbox import LocalWorkspace
from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools.db import DatabaseTool
from swe_ai_fleet.tools.docker import DockerPolicy, DockerTool
from swe_ai_fleet.tools.http import HttpTool
from swe_ai_fleet.tools.http.transport import HttpPolicy
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline
from tests.plan_bench import (
    AGAIN,
    ALONE,
    CHANGE,
    LOOK,
    TASK,
    _text,
    bench,
    opening,
    plan,
    said,
    statuses,
    step,
    verdict,
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("template") / "clone", {"a.py": "def one():\n    return 1\n"})


@pytest.fixture
def place(template: Path, tmp_path: Path) -> Path:
    """A directory with a clone in it."""
    shutil.copytree(template, tmp_path / "clone")
    return tmp_path


@asynccontextmanager
async def engine(socket: Path) -> AsyncIterator[str]:
    """As much of a docker engine as listing containers takes."""

    async def answer(request: web.Request) -> web.Response:
        body: object = [] if request.path.endswith("/containers/json") else {"ApiVersion": "1.44", "Version": "27"}
        return web.json_response(body)

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(socket)).start()
        yield f"unix://{socket}"
    finally:
        await runner.cleanup()


async def test_one_plan_uses_files_git_tests_docker_http_and_a_database(place: Path) -> None:
    async with engine(place / "engine.sock") as host, ScriptedModelServer(Script()) as site:
        port = int(site.url.split(":")[2].split("/")[0])

        def extra(workspace: LocalWorkspace, pipeline: Pipeline) -> Sequence[Toolkit]:
            pages = HttpPolicy(private_hosts=("127.0.0.1",), ports=(port,))
            return (
                DockerTool(workspace, pipeline, policy=DockerPolicy(host=host)),
                HttpTool(workspace, pipeline, policy=pages),
                DatabaseTool(workspace, pipeline),
            )

        test = "def test_it():\n    assert True\n"
        steps = (
            step("files_write_file", path="test_a.py", content=test),
            step("git_status", expect="test_a.py"),
            step("tests_run", expect="exit 0"),
            step("docker_ps"),
            step("http_get", url=f"{site.url}/models", expect="scripted"),
            step("db_sqlite_query", path="data.db", sql="create table t (x)", read_only=False),
        )
        async with bench(place, plan(*steps), verdict("All six."), task=CHANGE, extra=extra) as run:
            trajectory = await run.run(task_text=CHANGE)
            assert (trajectory.stop_reason, trajectory.error) == (StopReason.FINAL_ANSWER, "")
            assert statuses(trajectory) == ["done"] * 6
            audited = [event.body.entry.tool for event in run.events if isinstance(event.body, ToolFinished)]
            assert audited[:6] == ["files", "git", "tests", "docker", "http", "db"]


async def test_a_single_operation_is_answered_without_a_model(place: Path) -> None:
    async with bench(place) as run:
        for mode in (PlanningMode.SIMPLE, PlanningMode.HYBRID):
            run.history, text = opening("read file a.py"), "read file a.py"
            trajectory = await run.run(mode, task_text=text)
            assert trajectory.stop_reason is StopReason.FINAL_ANSWER
            assert "return 1" in trajectory.answer
        run.history = opening("what is 2+3*4")
        assert (await run.run(task_text="what is 2+3*4")).answer == "2+3*4 = 14"
        assert run.server.requests == 0


async def test_a_fast_path_that_fails_goes_to_the_model(place: Path) -> None:
    again = plan(step("files_read_file", path="a.py"), marker=AGAIN)
    async with bench(place, again, verdict("You mean a.py.")) as run:
        trajectory = await run.run(task_text="read file aa.py")
        assert (trajectory.stop_reason, trajectory.answer) == (StopReason.FINAL_ANSWER, "You mean a.py.")
        assert statuses(trajectory) == ["failed", "done"]
        assert run.asked == 2


async def test_hybrid_goes_by_complexity(place: Path) -> None:
    agentic = Conversation(match="Implement", turns=(Turn(tool_calls=(("final_answer", {"result": "Built."}),)),))
    async with bench(place, plan(LOOK), verdict("Seen."), agentic) as run:
        simple = await run.run(PlanningMode.HYBRID)
        assert (simple.answer, simple.plan is not None) == ("Seen.", True)
        text = "Implement a cache for the HTTP client."
        run.history = opening(text)
        stepwise = await run.run(PlanningMode.HYBRID, task_text=text)
        assert (stepwise.answer, stepwise.plan) == ("Built.", None)
        assert all("tools" in body for body in run.server.bodies[-1:])
        # The threshold is a setting.
        run.history = opening(TASK)
        low = await run.run(PlanningMode.HYBRID, mode_rules=ModeRules(threshold=0.0))
        assert low.plan is None


async def test_hybrid_hands_a_plan_that_fails_over(place: Path) -> None:
    broken = step("files_read_file", path="missing.py", on_failure="replan")
    alone = Conversation(
        predicate=lambda request: any(ALONE in _text(message) for message in request.payload["messages"]),
        turns=(Turn(tool_calls=(("final_answer", {"result": "By hand."}),)),),
    )
    rules = ModeRules(plans=PlanRules(max_replans=0))
    async with bench(place, alone, plan(broken), max_iterations=2) as run:
        trajectory = await run.run(PlanningMode.HYBRID, mode_rules=rules)
        assert (trajectory.stop_reason, trajectory.answer) == (StopReason.FINAL_ANSWER, "By hand.")
        assert statuses(trajectory) == ["failed"]
        assert [taken.number for taken in trajectory.steps] == [1, 2]
        assert run.asked == 2


async def test_without_a_model_what_can_be_answered_is(place: Path) -> None:
    async with bench(place) as run:
        await run.model.probe()
        run.server.fail_next(Failure(status=503, times=0))
        for mode in PlanningMode:
            run.history = opening("git status")
            trajectory = await run.run(mode, task_text="git status")
            assert trajectory.stop_reason is StopReason.FINAL_ANSWER, mode
            assert "branch" in trajectory.answer.lower() or "clean" in trajectory.answer.lower()
            run.history = opening(TASK)
            trajectory = await run.run(mode)
            assert trajectory.stop_reason is StopReason.MODEL_ERROR, mode
            assert trajectory.error


async def test_agentic_chooses_each_step(place: Path) -> None:
    turns = (Turn(tool_calls=(("lab_look", {"at": "x"}),)), Turn(tool_calls=(("final_answer", {"result": "Seen."}),)))
    async with bench(place, Conversation(match="You are an agent", turns=turns)) as run:
        trajectory = await run.run(PlanningMode.AGENTIC)
        assert (trajectory.answer, trajectory.plan) == ("Seen.", None)
        assert run.lab.calls == ["look x"]


async def test_step_by_step_begins_with_an_outline_where_that_is_wanted(place: Path) -> None:
    done = Conversation(
        predicate=lambda request: "Carry it out now" in _text(request.payload["messages"][-1]),
        turns=(Turn(tool_calls=(("final_answer", {"result": "Seen."}),)),),
    )
    async with bench(place, done, said("Before you begin", "1. Look.\n2. Answer.")) as run:
        trajectory = await run.run(PlanningMode.AGENTIC, mode_rules=ModeRules(outline=True))
        assert (trajectory.answer, trajectory.plan) == ("Seen.", None)
        assert [type(message).__name__ for message in run.history.messages[2:5]] == [
            "UserMessage",
            "AssistantMessage",
            "UserMessage",
        ]
        assert "lab_look" in run.told[0]
        assert trajectory.usage.model_calls == 2
        # A run that goes on writes no second one.
        assert len(fold_run(run.events, "agent").steps) == 2


async def test_a_cancellation_is_raised(place: Path) -> None:
    slow = Conversation(match="You are an agent", turns=(Turn(content="{}", delay_seconds=30),))
    async with bench(place, slow) as run:
        task = asyncio.create_task(run.run())
        await run.server.wait_until(in_flight=1)
        while not run.asked:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_statuses_have_names_for_people() -> None:
    assert [str(status) for status in StepStatus] == ["done", "skipped", "failed", "replaced", "unreached"]
