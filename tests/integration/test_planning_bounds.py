"""Where plans end and wait: limits hit in the middle, steps and whole plans that people decide on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.agents.approval_gate import PolicyGate, Ruling, Verdict
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.call_preview import CallPreview
from swe_ai_fleet.agents.conduct import Rules
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.planning import ModeRules, PlanRules
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.event import (
    HistoryCondensed,
    RunStarted,
)
from swe_ai_fleet.domain.message import (
    Message,
    ToolCall,
    UserMessage,
)
from swe_ai_fleet.domain.run import fold_run
from swe_ai_fleet.domain.task import ApprovalPolicy, PlanningMode
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.testing import Conversation, Turn
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools.secrets import Secrets
from tests.plan_bench import (
    AGAIN,
    ALONE,
    CHANGE,
    CORRECT,
    LOOK,
    Bench,
    _text,
    bench,
    opening,
    plan,
    said,
    statuses,
    step,
    verdict,
)


class Gate:
    """Rules as it was told to, by the name of the operation."""

    def __init__(self, **rulings: Ruling) -> None:
        self.rulings = rulings
        self.seen: list[ToolCall] = []

    async def review(self, calls: Sequence[ToolCall], *, step: int, truncated: bool = False) -> Sequence[Ruling]:
        self.seen += calls
        return [self.rulings.get(call.name, Ruling()) for call in calls]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("template") / "clone", {"a.py": "def one():\n    return 1\n"})


@pytest.fixture
def place(template: Path, tmp_path: Path) -> Path:
    """A directory with a clone in it."""
    shutil.copytree(template, tmp_path / "clone")
    return tmp_path


async def test_a_limit_hit_in_the_middle_ends_with_what_was_done(place: Path) -> None:
    async with bench(place, plan(LOOK, LOOK, LOOK, LOOK), max_tool_calls=2) as run:
        trajectory = await run.run()
        assert trajectory.stop_reason is StopReason.MAX_TOOL_CALLS
        assert statuses(trajectory) == ["done", "done", "unreached", "unreached"]
        assert trajectory.answer.splitlines()[-1] == "4. lab look: unreached"
        assert run.lab.calls == ["look x", "look x"]
        assert trajectory.usage.tool_calls == 2
        assert run.budget.limits.max_iterations == Limits().max_iterations


async def test_at_a_limit_the_model_is_asked_for_an_answer_where_the_rules_say_so(place: Path) -> None:
    words = said("The run ends here", "Half of it is done.")
    async with bench(place, words, plan(LOOK, LOOK, LOOK), max_tool_calls=2) as run:
        trajectory = await run.run(rules=Rules(answer_at_limit=True))
        assert (trajectory.stop_reason, trajectory.answer) == (StopReason.MAX_TOOL_CALLS, "Half of it is done.")


async def test_a_step_is_no_iteration_but_a_reply_is(place: Path) -> None:
    async with bench(place, plan(*[LOOK] * 8), verdict("Seen."), max_iterations=2) as run:
        assert (await run.run()).stop_reason is StopReason.FINAL_ANSWER
    async with bench(place, plan(LOOK), verdict("Seen."), max_iterations=1) as run:
        trajectory = await run.run()
        assert trajectory.stop_reason is StopReason.MAX_ITERATIONS
        assert statuses(trajectory) == ["done"]


async def test_tokens_are_limited_while_planning(place: Path) -> None:
    wrong = plan(step("oven_bake"))
    async with bench(place, wrong, plan(LOOK, marker=CORRECT), max_tokens=10) as run:
        trajectory = await run.run()
        assert trajectory.stop_reason is StopReason.MAX_TOKENS
        assert run.asked == 1


async def test_time_runs_out_in_the_middle(place: Path) -> None:
    async with bench(place, plan(LOOK, step("lab_wait"), LOOK)) as run:
        await run.model.probe()
        run.budget = Budget(Limits(timeout_seconds=1.5))
        trajectory = await run.run()
        assert trajectory.stop_reason is StopReason.TIMEOUT
        assert statuses(trajectory) == ["done", "unreached", "unreached"]
        assert run.lab.calls == ["look x", "wait"]


async def test_a_prompt_that_can_be_made_to_fit_is(place: Path) -> None:
    long = step("lab_look", at="x" * 4000)
    again = plan(LOOK, marker=AGAIN)
    broken = plan(long, long, step("lab_flaky", on_failure="replan"))
    async with bench(place, again, broken, verdict("Done."), fails=1, context=4500) as run:
        trajectory = await run.run()
        assert (trajectory.stop_reason, trajectory.answer) == (StopReason.FINAL_ANSWER, "Done.")
        assert any(isinstance(event.body, HistoryCondensed) for event in run.events)
        assert statuses(trajectory) == ["done", "done", "failed", "done"]


async def test_a_prompt_that_never_fits_ends_the_run_with_that_reason(place: Path) -> None:
    async with bench(place, plan(LOOK), context=500) as run:
        trajectory = await run.run()
        assert trajectory.stop_reason is StopReason.CONTEXT_TOO_LONG
        assert trajectory.plan is not None and trajectory.plan.steps == ()


async def test_a_step_waits_for_a_person_and_the_plan_goes_on_from_there(place: Path) -> None:
    steps = (LOOK, step("files_write_file", path="b.py", content="x = 1\n"), step("lab_look", at="y"))
    async with bench(place, plan(*steps), verdict("Done."), task=CHANGE) as run:
        run.journal.post(RunStarted(role="DEV", model="scripted", messages=tuple(run.history.messages), tools=()))
        waiting = Gate(files_write_file=Ruling(verdict=Verdict.WAIT))
        first = await run.run(gate=waiting)
        assert first.stop_reason is StopReason.AWAITING_APPROVAL
        assert statuses(first) == ["done", "unreached", "unreached"]
        assert [call.name for call in run.history.unanswered()] == ["files_write_file"]
        assert not (run.root / "b.py").exists()

        # Another process goes on from the log alone.
        state = fold_run(run.events, "agent")
        later = replace_history(run, state.messages)
        approving = Gate(files_write_file=Ruling(text="Approved by somebody."))
        second = await later.run(gate=approving, steps=state.steps, budget=Budget(Limits(), spent=state.usage))
        assert second.stop_reason is StopReason.FINAL_ANSWER
        assert statuses(second) == ["done", "done", "done"]
        assert run.lab.calls == ["look x", "look y"]
        assert (run.root / "b.py").read_text() == "x = 1\n"
        assert run.asked == 2
        assert any("Approved by somebody." in message.content for message in later.history.messages)


def replace_history(run: Bench, messages: Sequence[Message]) -> Bench:
    return replace(run, history=History(messages))


async def test_a_look_that_waits_for_a_person_is_gone_on_with(place: Path) -> None:
    steps = (step("files_write_file", path="b.py", content="x = 1\n"),)
    async with bench(place, plan(*steps), verdict("Done."), task=CHANGE) as run:
        run.journal.post(RunStarted(role="DEV", model="scripted", messages=tuple(run.history.messages), tools=()))
        first = await run.run(gate=Gate(tests_run=Ruling(verdict=Verdict.WAIT)))
        assert (first.stop_reason, statuses(first)) == (StopReason.AWAITING_APPROVAL, ["done"])
        state = fold_run(run.events, "agent")
        later = replace_history(run, state.messages)
        refusing = Gate(tests_run=Ruling(verdict=Verdict.REFUSE, text="not now"))
        second = await later.run(gate=refusing, steps=state.steps)
        assert (second.stop_reason, second.answer) == (StopReason.FINAL_ANSWER, "Done.")
        assert [call.name for call in refusing.seen] == ["tests_run", "git_diff", "final_answer"]


async def test_a_condensed_history_does_not_make_the_plan_unknown(place: Path) -> None:
    steps = (LOOK, step("files_write_file", path="b.py", content="x = 1\n"), step("lab_look", at="y"))
    async with bench(place, plan(*steps), verdict("Done."), task=CHANGE) as run:
        first = await run.run(gate=Gate(files_write_file=Ruling(verdict=Verdict.WAIT)))
        # What a condensed history keeps: the task, and the last reply.
        later = replace_history(run, (*run.history.messages[:2], run.history.messages[-1]))
        second = await later.run(steps=first.steps)
        assert second.stop_reason is StopReason.FINAL_ANSWER
        assert statuses(second) == ["done"] * 3
        assert run.lab.calls == ["look x", "look y"]


async def test_an_earlier_run_of_the_same_conversation_is_none_of_this_ones_plan(place: Path) -> None:
    async with bench(
        place, plan(LOOK), plan(step("lab_look", at="y"), nth=2), verdict("x"), verdict("y", nth=2)
    ) as run:
        assert (await run.run()).answer == "x"
        run.history.add(UserMessage(content="And y?"))
        second = await run.run(task_text="And y?")
        assert (second.answer, statuses(second)) == ("y", ["done"])
        assert run.lab.calls == ["look x", "look y"]


async def test_a_request_without_a_model_that_waited_is_answered_without_one(place: Path) -> None:
    async with bench(place) as run:
        run.history = opening("run the tests")
        first = await run.run(task_text="run the tests", gate=Gate(tests_run=Ruling(verdict=Verdict.WAIT)))
        assert first.stop_reason is StopReason.AWAITING_APPROVAL
        gate = Gate(tests_run=Ruling(verdict=Verdict.END, text="no"))
        assert (
            await run.run(task_text="run the tests", gate=gate, steps=first.steps)
        ).stop_reason is StopReason.REJECTED
        assert run.server.requests == 0


async def test_a_hybrid_run_that_was_handed_over_goes_on_step_by_step(place: Path) -> None:
    write = ("files_write_file", {"path": "b.py", "content": "x"})
    alone = Conversation(
        predicate=lambda request: any(ALONE in _text(message) for message in request.payload["messages"]),
        turns=(
            Turn(tool_calls=(write,)),
            Turn(tool_calls=(write,)),
            Turn(tool_calls=(("final_answer", {"result": "By hand."}),)),
        ),
    )
    async with bench(place, alone, plan(step("lab_flaky", on_failure="replan")), fails=1) as run:
        rules = ModeRules(plans=PlanRules(max_replans=0))
        waiting = Gate(files_write_file=Ruling(verdict=Verdict.WAIT))
        first = await run.run(PlanningMode.HYBRID, mode_rules=rules, gate=waiting)
        assert (first.stop_reason, statuses(first)) == (StopReason.AWAITING_APPROVAL, ["failed"])
        second = await run.run(PlanningMode.HYBRID, mode_rules=rules, steps=first.steps)
        assert (second.stop_reason, second.answer) == (StopReason.FINAL_ANSWER, "By hand.")
        assert run.lab.calls == ["flaky"]


async def test_a_refused_step_is_planned_for_anew_with_the_reason(place: Path) -> None:
    first = plan(step("files_write_file", path="b.py", content="x"))
    async with bench(place, plan(LOOK, marker=AGAIN), first, verdict("Only looked.")) as run:
        gate = Gate(files_write_file=Ruling(verdict=Verdict.REFUSE, text="write nothing, only look"))
        trajectory = await run.run(gate=gate)
        assert trajectory.stop_reason is StopReason.FINAL_ANSWER
        assert statuses(trajectory) == ["failed", "done"]
        assert any("write nothing, only look" in message.content for message in run.history.messages)
        assert not (run.root / "b.py").exists()


async def test_a_rejection_ends_the_run(place: Path) -> None:
    async with bench(place, plan(step("files_write_file", path="b.py", content="x"), LOOK)) as run:
        trajectory = await run.run(gate=Gate(files_write_file=Ruling(verdict=Verdict.END, text="no")))
        assert trajectory.stop_reason is StopReason.REJECTED
        assert statuses(trajectory) == ["failed", "unreached"]


async def test_the_plan_itself_is_put_before_the_gate_and_adjusted(place: Path) -> None:
    replies = (plan(step("lab_look", at="y"), marker=AGAIN), plan(LOOK), verdict("Seen."))
    async with bench(place, *replies) as run:
        gate = Gate(propose_approach=Ruling(verdict=Verdict.REFUSE, text="look at y instead"))

        def once(_: object) -> None:
            gate.rulings.clear()

        rules = ModeRules(plans=PlanRules(proposes=True))
        trajectory = await run.run(gate=gate, mode_rules=rules, on_step=once)
        assert trajectory.stop_reason is StopReason.FINAL_ANSWER
        assert [call.name for call in gate.seen] == [
            "propose_approach",
            "propose_approach",
            "lab_look",
            "final_answer",
        ]
        assert json.loads(gate.seen[0].arguments)["approach"] == '1. lab look {"at": "x"} why not'
        assert run.lab.calls == ["look y"]
        assert statuses(trajectory) == ["replaced", "done"]


class Desk:
    """Somebody who decides at once, in the order of their decisions."""

    def __init__(self, *decisions: ApprovalDecision) -> None:
        self.decisions = list(decisions)
        self.asked: list[str] = []

    async def ask(self, requests: Sequence[ApprovalRequest]) -> Mapping[str, ApprovalResolution]:
        self.asked += [request.approach for request in requests]
        return {
            request.approval_id: ApprovalResolution(
                approval_id=request.approval_id, decision=self.decisions.pop(0), text="call it c.py", approver="Ann"
            )
            for request in requests
        }

    def decided(self, request: ApprovalRequest, resolution: ApprovalResolution) -> None:
        """Nothing is recorded here."""


async def test_with_the_policy_plan_a_person_adjusts_and_approves_the_plan(place: Path) -> None:
    first, second = (step("files_write_file", path=name, content="x = 1\n") for name in ("b.py", "c.py"))
    async with bench(place, plan(second, marker=AGAIN), plan(first), verdict("Done."), task=CHANGE) as run:
        desk = Desk(ApprovalDecision.ADJUSTED, ApprovalDecision.APPROVED)
        gate = PolicyGate(
            ApprovalPolicy.PLAN,
            agent_id="agent",
            goal=CHANGE,
            read=CallPreview(run.toolbox, run.lab.pipeline),
            desk=desk,
            mask=Secrets(),
        )
        trajectory = await run.run(gate=gate, mode_rules=ModeRules(plans=PlanRules(proposes=True)), task_text=CHANGE)
        assert (trajectory.stop_reason, trajectory.error) == (StopReason.FINAL_ANSWER, "")
        assert [name in approach for name, approach in zip(("b.py", "c.py"), desk.asked, strict=True)] == [True, True]
        assert any("call it c.py" in text and AGAIN in text for text in run.told)
        assert not (run.root / "b.py").exists() and (run.root / "c.py").exists()
