"""Plans over a real model server, their modes, their bounds, and where they wait for people."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.agents.agent_run import RunParts
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.planning.plan_run import ModeRules, drive
from swe_ai_fleet.agents.toolbox import CallVerdict, Ruling, Toolbox
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.event import (
    Event,
    MessageAdded,
    PlanMade,
    RunStarted,
    Writer,
)
from swe_ai_fleet.domain.message import SystemMessage, ToolCall, UserMessage
from swe_ai_fleet.domain.run import fold_run
from swe_ai_fleet.domain.task import PlanningMode
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import StopReason, Trajectory
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.ports import Journal
from swe_ai_fleet.sandbox import open_workspace
from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, ScriptRequest, Turn
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools import (
    BuiltinTools,
    FileTool,
    GitTool,
    Pipeline,
    TestTool,
    ToolFailure,
    Toolkit,
    operation,
)
from swe_ai_fleet.tools.audit import AuditTrail
from tests.environments import WITH_PYTEST
from tests.planning_requests import COMPLEX, FAST, FILES, SCRIPT, SIMPLE

TASK = "Look at a.py and say what one() returns."

CHANGE = "Create the file b.py."

PLAN, CORRECT, AGAIN, VERIFY, ALONE = (
    "# Operations",
    "cannot be carried out",
    "The plan no longer holds",
    "Is the goal met?",
    "choose each next step yourself",
)

WRITER = Writer(tenant="default", execution_id="e", task_id="t", agent_id="agent", generation=1)


class Lab(Toolkit):
    """Operations that do as they are told."""

    name: ClassVar[str] = "lab"

    def __init__(self, workspace: Any, pipeline: Pipeline, *, fails: int = 0) -> None:
        super().__init__(workspace, pipeline)
        self.fails = fails
        self.calls: list[str] = []

    @operation(read_only=True)
    async def look(self, at: str = "") -> ToolResult:
        """Look at something."""
        self.calls.append(f"look {at}".strip())
        return ToolResult(success=True, operation="lab_look", content=f"saw {at}")

    @operation(read_only=True)
    async def flaky(self) -> ToolResult:
        """Fail as often as the lab says."""
        self.calls.append("flaky")
        if self.calls.count("flaky") <= self.fails:
            raise ToolFailure("it is out of order")
        return ToolResult(success=True, operation="lab_flaky", content="works")


@dataclass(kw_only=True)
class Bench:
    """One agent's surroundings: a repository, tools, a log, a scripted model."""

    server: ScriptedModelServer
    model: OpenAIChatModel
    toolbox: Toolbox
    lab: Lab
    root: Path
    log: MemoryLog
    journal: Journal
    budget: Budget
    history: History = field(default_factory=lambda: opening(TASK))

    async def run(
        self,
        mode: PlanningMode = PlanningMode.SIMPLE,
        *,
        task_text: str = TASK,
        mode_rules: ModeRules | None = None,
        **others: Any,
    ) -> Trajectory:
        parts = RunParts(
            model=self.model, toolbox=self.toolbox, history=self.history, budget=self.budget, journal=self.journal
        )
        trajectory = await drive(mode, replace(parts, **others), task_text=task_text, mode_rules=mode_rules)
        await self.journal.flush()
        return trajectory

    @property
    def asked(self) -> int:
        """How many requests the model server got, its probing left out."""
        return len([body for body in self.server.bodies if any(m["role"] == "system" for m in body["messages"])])

    @property
    def told(self) -> list[str]:
        """What the fleet itself said to the model."""
        added = [event.body.message for event in self.log.events if isinstance(event.body, MessageAdded)]
        return [message.content for message in added if isinstance(message, UserMessage)]

    @property
    def events(self) -> list[Event]:
        return self.log.events


@asynccontextmanager
async def bench(
    place: Path,
    *conversations: Conversation,
    fails: int = 0,
    task: str = TASK,
    **limits: Any,
) -> AsyncIterator[Bench]:
    root = place / "clone"
    log = MemoryLog()
    async with (
        ScriptedModelServer(Script(conversations=conversations)) as server,
        OpenAIChatModel(base_url=server.url) as model,
        open_workspace(root, environment=WITH_PYTEST) as workspace,
        log.journal(WRITER) as journal,
    ):
        pipeline = Pipeline(trail=AuditTrail(execution_id="e", agent_id="agent", journal=journal))
        lab = Lab(workspace, pipeline, fails=fails)
        kits: list[Toolkit] = [
            FileTool(workspace, pipeline),
            GitTool(workspace, pipeline),
            TestTool(workspace, pipeline),
            BuiltinTools(workspace, pipeline),
            lab,
        ]
        toolbox = Toolbox({kit.name: kit for kit in kits}, pipeline)
        yield Bench(
            server=server,
            model=model,
            toolbox=toolbox,
            lab=lab,
            root=root,
            log=log,
            journal=journal,
            budget=Budget(Limits(**limits)),
            history=opening(task),
        )


def opening(task: str) -> History:
    return History((SystemMessage(content="You are an agent."), UserMessage(content=task)))


def said(marker: str, content: object, *, nth: int = 1) -> Conversation:
    """What the model answers where the last thing it was told holds the marker, for the nth time."""

    def fits(request: ScriptRequest) -> bool:
        told = [_text(message) for message in request.payload["messages"] if message["role"] == "user"]
        return marker in told[-1] and len([text for text in told if marker in text]) == nth

    text = content if isinstance(content, str) else json.dumps(content)
    return Conversation(predicate=fits, turns=(Turn(content=text),))


def _text(message: dict[str, Any]) -> str:
    return message["content"] if isinstance(message["content"], str) else json.dumps(message["content"])


def plan(*steps: dict[str, Any], marker: str = PLAN, nth: int = 1) -> Conversation:
    return said(marker, {"reasoning": "so", "steps": steps}, nth=nth)


def step(name: str, *, on_failure: str = "", expect: str = "", **params: object) -> dict[str, Any]:
    tool, _, rest = name.partition("_")
    given = {"tool": tool, "operation": rest, "params": params, "why": "why not"}
    return given | ({"on_failure": on_failure} if on_failure else {}) | ({"expect": expect} if expect else {})


def verdict(answer: str, *, met: bool = True, missing: str = "", nth: int = 1) -> Conversation:
    return said(VERIFY, {"met": met, "missing": missing, "answer": answer}, nth=nth)


def statuses(trajectory: Trajectory) -> list[str]:
    assert trajectory.plan is not None
    return [str(report.status) for report in trajectory.plan.steps]


LOOK = step("lab_look", at="x")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("template") / "clone", {"a.py": FILES["a.py"]})


@pytest.fixture
def place(template: Path, tmp_path: Path) -> Path:
    """A directory with a clone in it."""
    shutil.copytree(template, tmp_path / "clone")
    return tmp_path


class Gate:
    """Rules as it was told to, by the name of the operation."""

    def __init__(self, **rulings: Ruling) -> None:
        self.rulings = rulings

    async def review(self, calls: Sequence[ToolCall], *, step: int, truncated: bool = False) -> Sequence[Ruling]:
        return [self.rulings.get(call.name, Ruling()) for call in calls]


async def test_a_plan_is_carried_out_step_by_step_and_verified(place: Path) -> None:
    steps = (step("files_read_file", path="a.py"), step("files_search_in_files", pattern="return"))
    async with bench(place, plan(*steps), verdict("It returns 1.")) as run:
        trajectory = await run.run()
    assert (trajectory.stop_reason, trajectory.answer, trajectory.error) == (
        StopReason.FINAL_ANSWER, "It returns 1.", "",
    )  # fmt: skip
    assert statuses(trajectory) == ["done", "done"]
    assert trajectory.plan is not None and trajectory.plan.met is True
    assert run.asked == trajectory.usage.model_calls == 2
    names = [call.name for taken in trajectory.steps for call in taken.reply.tool_calls]
    assert names == ["files_read_file", "files_search_in_files", "final_answer"]
    bodies = [body for body in run.server.bodies if len(body["messages"]) > 1]
    # The model was sent what the steps gave, as calls and their answers.
    assert [m["role"] for m in bodies[-1]["messages"][3:]] == ["assistant", "tool", "assistant", "tool", "user"]
    assert "return 1" in _text(bodies[-1]["messages"][4])
    assert all("tools" not in body for body in bodies)
    made = [event.body.plan for event in run.events if isinstance(event.body, PlanMade)]
    assert [planned.operation for planned in made[0].steps] == ["read_file", "search_in_files"]


def gone(on_failure: str = "") -> dict[str, Any]:
    """A step that fails: there is no such file."""
    return step("files_read_file", path="missing.py", on_failure=on_failure)


def anew(*steps: dict[str, Any], marker: str = AGAIN, times: int = 2) -> list[Conversation]:
    """The same plan, as often as it is asked for."""
    return [plan(*steps, marker=marker, nth=nth + 1) for nth in range(times)]


OVEN, SEEN = step("oven_bake"), verdict("Seen.")
UNREAD = plan(LOOK, LOOK, step("files_read_file", file_name_of_it="a.py"))
RETRIED = plan(step("lab_flaky", on_failure="retry"))
REPLANNED = (plan(step("files_read_file", path="a.py"), marker=AGAIN), plan(LOOK, gone("replan"), LOOK), SEEN)
UNMET = [verdict("No luck.", met=False, missing="everything", nth=nth) for nth in (1, 2, 3)]
PLANS: dict[str, tuple[Sequence[Conversation], dict[str, Any], dict[str, Any]]] = {
    "the whole plan is checked before its first step": (
        [UNREAD, said(CORRECT, "No."), said(CORRECT, "No.", nth=2)],
        {},
        {
            "stop": "plan_failed",
            "calls": [],
            "told": "step 3: files_read_file: |Signature: files_read_file(path: string",
        },
    ),
    "a wrong plan goes back at most twice": (
        [plan(OVEN), *anew(OVEN, marker=CORRECT, times=3)],
        {},
        {"stop": "plan_failed", "asked": 3, "replies": 3, "error": "there is no operation 'oven bake'"},
    ),
    "a failed step aborts unless it says otherwise": (
        [plan(LOOK, gone(), LOOK)],
        {},
        {"stop": "tool_error", "steps": "done failed unreached", "calls": ["look x"], "asked": 1}
        | {"error": "step 2 (files read_file)", "answer": "3. lab look: unreached"},
    ),
    "a step may be skipped, and the model judges it, too": (
        [plan(gone("skip"), LOOK), SEEN],
        {},
        {"steps": "skipped done", "faults": "missing.py", "told": "1. files read_file: skipped"},
    ),
    "a step is retried twice": (
        [RETRIED, SEEN],
        {"fails": 3},
        {"stop": "tool_error", "steps": "failed", "attempts": [3]},
    ),
    "the rest is planned anew": (
        REPLANNED,
        {},
        {"steps": "done failed replaced done", "calls": ["look x"], "reasons": "missing.py"}
        | {"told": "step 2 (files read_file): |1. lab look: done"},
    ),
    "a result that contradicts the plan triggers what the step says": (
        [plan(step("files_read_file", path="a.py", expect="def two", on_failure="skip"), LOOK), SEEN],
        {},
        {"steps": "skipped done", "faults": "its result does not show 'def two'"},
    ),
    "a goal that is never met is an honest end": (
        [*UNMET, *anew(LOOK), plan(LOOK)],
        {},
        {"stop": "plan_failed", "answer": "No luck.", "error": "the goal is not met: everything", "met": False},
    ),
    "what the last step gave answers for a verdict without an answer": (
        [said(VERIFY, '{"met": true, "missing": ""}'), plan(LOOK)],
        {},
        {"answer": "saw x"},
    ),
    "at a limit what was done is told": (
        [plan(LOOK, LOOK, LOOK, LOOK)],
        {"max_tool_calls": 2},
        {"stop": "max_tool_calls", "steps": "done done unreached unreached", "answer": "4. lab look: unreached"},
    ),
}


@pytest.mark.parametrize("case", PLANS)
async def test_a_plan_goes_on_or_ends_as_its_steps_say(place: Path, case: str) -> None:
    conversations, options, expected = PLANS[case]
    async with bench(place, *conversations, **options) as run:
        trajectory = await run.run()
    done = trajectory.plan
    reports = done.steps if done else ()
    facts: dict[str, Any] = {
        "stop": str(trajectory.stop_reason),
        "steps": " ".join(str(report.status) for report in reports),
        "calls": run.lab.calls,
        "asked": run.asked,
        "replies": trajectory.usage.model_calls,
        "attempts": [report.attempts for report in reports],
        "met": done and done.met,
    }
    texts = {
        "error": trajectory.error,
        "answer": trajectory.answer,
        "told": "\n".join(run.told),
        "faults": "\n".join(report.error for report in reports),
        "reasons": "\n".join(event.body.reason for event in run.events if isinstance(event.body, PlanMade)),
    }
    for name, value in ({"stop": "final_answer"} | expected).items():
        if name in texts:
            assert all(part in texts[name] for part in value.split("|")), (name, texts[name])
        else:
            assert facts[name] == value, (name, trajectory.error)


async def test_tests_and_diff_are_looked_at_after_a_change_that_nobody_tested(place: Path) -> None:
    code = "import a\n\n\ndef test_one():\n    assert a.one() == 1\n"
    steps = (step("files_write_file", path="test_a.py", content=code),)
    async with bench(place, plan(*steps), verdict("Written, the test passes."), task=CHANGE) as run:
        trajectory = await run.run(task_text=CHANGE)
    assert trajectory.stop_reason is StopReason.FINAL_ANSWER
    names = [call.name for taken in trajectory.steps for call in taken.reply.tool_calls]
    assert names == ["files_write_file", "tests_run", "git_diff", "final_answer"]
    seen = {one.call_id.partition("n")[0]: one.result for taken in trajectory.steps for one in taken.observations}
    assert seen["p1v1t1"].success and "1 passed" in seen["p1v1t1"].content


async def test_a_step_waits_for_a_person_and_the_plan_goes_on_from_there(place: Path) -> None:
    steps = (LOOK, step("files_write_file", path="b.py", content="x = 1\n"), step("lab_look", at="y"))
    async with bench(place, plan(*steps), verdict("Done."), task=CHANGE) as run:
        run.journal.post(RunStarted(role="DEV", model="scripted", messages=tuple(run.history.messages), tools=()))
        waiting = Gate(files_write_file=Ruling(verdict=CallVerdict.WAIT))
        first = await run.run(gate=waiting)
        assert first.stop_reason is StopReason.AWAITING_APPROVAL
        assert statuses(first) == ["done", "unreached", "unreached"]
        assert [call.name for call in run.history.unanswered()] == ["files_write_file"]
        assert not (run.root / "b.py").exists()

        # Another process goes on from the log alone.
        state = fold_run(run.events, "agent")
        later = replace(run, history=History(state.messages))
        approving = Gate(files_write_file=Ruling(text="Approved by somebody."))
        second = await later.run(gate=approving, steps=state.steps, budget=Budget(Limits(), spent=state.usage))
        assert second.stop_reason is StopReason.FINAL_ANSWER
        assert statuses(second) == ["done", "done", "done"]
        assert run.lab.calls == ["look x", "look y"]
        assert (run.root / "b.py").read_text() == "x = 1\n"
        assert run.asked == 2
        assert any("Approved by somebody." in message.content for message in later.history.messages)


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


async def test_agentic_chooses_each_step_and_hybrid_goes_by_complexity(place: Path) -> None:
    turns = (Turn(tool_calls=(("lab_look", {"at": "x"}),)), Turn(tool_calls=(("final_answer", {"result": "Built."}),)))
    async with bench(place, plan(LOOK), verdict("Seen."), Conversation(match="You are an agent", turns=turns)) as run:
        simple = await run.run(PlanningMode.HYBRID)
        assert (simple.answer, simple.plan is not None, run.lab.calls) == ("Seen.", True, ["look x"])
        text = "Implement a cache for the HTTP client."
        # The threshold is a setting.
        for mode, told, rules in (
            (PlanningMode.AGENTIC, TASK, None),
            (PlanningMode.HYBRID, text, None),
            (PlanningMode.HYBRID, TASK, ModeRules(threshold=0.0)),
        ):
            run.history = opening(told)
            stepwise = await run.run(mode, task_text=told, mode_rules=rules)
            assert (stepwise.answer, stepwise.plan, len(stepwise.steps)) == ("Built.", None, 2)
            assert "tools" in run.server.bodies[-1]
        assert run.lab.calls == ["look x"] * 4


async def test_a_person_may_refuse_a_step_or_end_the_run(place: Path) -> None:
    write = step("files_write_file", path="b.py", content="x")
    async with bench(place, plan(LOOK, marker=AGAIN), plan(write), verdict("Only looked.")) as run:
        trajectory = await run.run(gate=Gate(files_write_file=Ruling(verdict=CallVerdict.REFUSE, text="only look")))
        assert (trajectory.stop_reason, statuses(trajectory)) == (StopReason.FINAL_ANSWER, ["failed", "done"])
        assert any("only look" in message.content for message in run.history.messages)
    async with bench(place, plan(write, LOOK)) as run:
        trajectory = await run.run(gate=Gate(files_write_file=Ruling(verdict=CallVerdict.END, text="no")))
        assert (trajectory.stop_reason, statuses(trajectory)) == (StopReason.REJECTED, ["failed", "unreached"])
        assert not (run.root / "b.py").exists()


@pytest.mark.parametrize(("request_", "replies"), [(FAST, 0), (SIMPLE, 2), (COMPLEX, 5)])
async def test_how_many_replies_a_request_takes(place: Path, request_: str, replies: int) -> None:
    (place / "clone/b.py").write_text(FILES["b.py"])
    async with bench(place, *SCRIPT.conversations, task=request_, max_iterations=5, max_tool_calls=20) as run:
        await run.model.probe()
        trajectory = await run.run(PlanningMode.HYBRID, task_text=request_)
        assert (trajectory.stop_reason, run.asked) == (StopReason.FINAL_ANSWER, replies)
