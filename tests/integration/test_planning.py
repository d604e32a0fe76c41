"""Plans over a real model server: made, checked, carried out step by step, and mended where a step fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from swe_ai_fleet.domain.event import (
    ModelReplied,
    PlanMade,
    ToolFinished,
)
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.testing.repositories import make_repository
from tests.plan_bench import (
    AGAIN,
    CHANGE,
    CORRECT,
    LOOK,
    PLAN,
    VERIFY,
    _text,
    bench,
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


async def test_a_plan_is_carried_out_step_by_step_and_verified(place: Path) -> None:
    steps = (step("files_read_file", path="a.py"), step("files_search_in_files", pattern="return"))
    async with bench(place, plan(*steps), verdict("It returns 1.")) as run:
        trajectory = await run.run()
        assert trajectory.stop_reason is StopReason.FINAL_ANSWER
        assert (trajectory.answer, trajectory.error) == ("It returns 1.", "")
        assert statuses(trajectory) == ["done", "done"]
        assert trajectory.plan is not None and trajectory.plan.met is True
        assert run.asked == 2
        assert trajectory.usage.model_calls == 2
        names = [call.name for taken in trajectory.steps for call in taken.reply.tool_calls]
        assert names == ["files_read_file", "files_search_in_files", "final_answer"]
        bodies = [body for body in run.server.bodies if len(body["messages"]) > 1]
        # The model was sent what the steps gave, as calls and their answers.
        assert [m["role"] for m in bodies[-1]["messages"][3:]] == ["assistant", "tool", "assistant", "tool", "user"]
        assert "return 1" in _text(bodies[-1]["messages"][4])
        assert all("tools" not in body for body in bodies)
        made = [event.body for event in run.events if isinstance(event.body, PlanMade)]
        assert [planned.operation for planned in made[0].plan.steps] == ["read_file", "search_in_files"]
        replied = [event.body.reply.usage.model_calls for event in run.events if isinstance(event.body, ModelReplied)]
        assert sum(replied) == 2
        told = run.told
        assert [PLAN in told[0], VERIFY in told[1]] == [True, True]
        audited = [event.body.entry.call_id for event in run.events if isinstance(event.body, ToolFinished)]
        assert [call_id.partition("n")[0] for call_id in audited] == ["p1s1t1", "p1s2t1"]


async def test_the_whole_plan_is_checked_before_its_first_step(place: Path) -> None:
    wrong = (LOOK, LOOK, step("files_read_file", file_name_of_it="a.py"))
    async with bench(place, plan(*wrong), said(CORRECT, "I give up."), said(CORRECT, "I give up.", nth=2)) as run:
        trajectory = await run.run()
        assert trajectory.stop_reason is StopReason.PLAN_FAILED
        assert run.lab.calls == []
        assert not [event for event in run.events if isinstance(event.body, ToolFinished)]
        told = run.told
        assert "step 3: files_read_file: " in told[1]
        assert "Signature: files_read_file(path: string" in told[1]


async def test_a_wrong_plan_goes_back_to_the_model_at_most_twice(place: Path) -> None:
    bad = plan(step("oven_bake"))
    corrections = [plan(step("oven_bake"), marker=CORRECT, nth=nth) for nth in (1, 2, 3)]
    async with bench(place, bad, *corrections) as run:
        trajectory = await run.run()
        assert trajectory.stop_reason is StopReason.PLAN_FAILED
        assert run.asked == 3
        assert "there is no operation 'oven bake'" in trajectory.error
        assert trajectory.steps == ()
        assert trajectory.usage.model_calls == 3


async def test_the_second_correction_is_taken(place: Path) -> None:
    replies = (plan(step("oven_bake")), said(CORRECT, "Sorry?"), plan(LOOK, marker=CORRECT, nth=2), verdict("Seen."))
    async with bench(place, *replies) as run:
        trajectory = await run.run()
        assert (trajectory.stop_reason, trajectory.answer) == (StopReason.FINAL_ANSWER, "Seen.")
        assert run.lab.calls == ["look x"]


@pytest.mark.parametrize(
    "text",
    [
        "```json\n%s\n```",
        "Here you are: %s Shall I?",
        "<think>[{]</think>\n%s",
        '{"plan": {"reasoning": "r", "steps": %s}}',
    ],
)
async def test_a_plan_is_read_however_it_is_wrapped(place: Path, text: str) -> None:
    wrapped = said(PLAN, text.replace("%s", json.dumps([LOOK])))
    async with bench(place, wrapped, verdict("Seen.")) as run:
        assert (await run.run()).stop_reason is StopReason.FINAL_ANSWER
        assert run.lab.calls == ["look x"]


async def test_a_task_that_needs_no_step_is_answered(place: Path) -> None:
    async with bench(place, plan(), verdict("Forty-two.")) as run:
        trajectory = await run.run()
        assert (trajectory.stop_reason, trajectory.answer) == (StopReason.FINAL_ANSWER, "Forty-two.")
        assert run.asked == 2


async def test_a_failed_step_aborts_unless_it_says_otherwise(place: Path) -> None:
    steps = (LOOK, step("files_read_file", path="missing.py"), LOOK)
    async with bench(place, plan(*steps)) as run:
        trajectory = await run.run()
        assert trajectory.stop_reason is StopReason.TOOL_ERROR
        assert "step 2 (files read_file)" in trajectory.error
        assert statuses(trajectory) == ["done", "failed", "unreached"]
        assert trajectory.answer.splitlines()[2] == "3. lab look: unreached"
        assert run.lab.calls == ["look x"]
        assert run.asked == 1


async def test_a_step_that_may_be_skipped_is(place: Path) -> None:
    steps = (step("files_read_file", path="missing.py", on_failure="skip"), LOOK)
    async with bench(place, plan(*steps), verdict("Seen.")) as run:
        trajectory = await run.run()
        assert trajectory.stop_reason is StopReason.FINAL_ANSWER
        assert statuses(trajectory) == ["skipped", "done"]
        assert trajectory.plan is not None and "missing.py" in trajectory.plan.steps[0].error
        # The model judges the skipped step too.
        assert "1. files read_file: skipped" in _text(run.server.bodies[-1]["messages"][-1])


@pytest.mark.parametrize(("fails", "reason"), [(2, StopReason.FINAL_ANSWER), (3, StopReason.TOOL_ERROR)])
async def test_a_step_is_retried_twice_and_no_more(place: Path, fails: int, reason: StopReason) -> None:
    async with bench(place, plan(step("lab_flaky", on_failure="retry")), verdict("Ok."), fails=fails) as run:
        trajectory = await run.run()
        assert trajectory.stop_reason is reason
        assert run.lab.calls == ["flaky"] * 3
        assert trajectory.plan is not None and trajectory.plan.steps[0].attempts == 3


async def test_a_step_that_says_so_has_the_rest_planned_anew(place: Path) -> None:
    first = plan(LOOK, step("files_read_file", path="b.py", on_failure="replan"), step("lab_look", at="never"))
    second = plan(step("files_read_file", path="a.py"), marker=AGAIN)
    async with bench(place, second, first, verdict("It returns 1.")) as run:
        trajectory = await run.run()
        assert trajectory.stop_reason is StopReason.FINAL_ANSWER
        assert statuses(trajectory) == ["done", "failed", "replaced", "done"]
        assert run.lab.calls == ["look x"]
        asked = next(_text(body["messages"][-1]) for body in run.server.bodies if AGAIN in _text(body["messages"][-1]))
        assert "step 2 (files read_file): " in asked
        assert "1. lab look: done" in asked
        reasons = [event.body.reason for event in run.events if isinstance(event.body, PlanMade)]
        assert reasons[0] == "" and "b.py" in reasons[1]


async def test_a_plan_is_made_anew_at_most_twice(place: Path) -> None:
    broken = step("files_read_file", path="missing.py", on_failure="replan")
    replies = [plan(broken, marker=AGAIN, nth=nth) for nth in (1, 2, 3)]
    async with bench(place, *replies, plan(broken)) as run:
        trajectory = await run.run()
        assert trajectory.stop_reason is StopReason.PLAN_FAILED
        assert trajectory.plan is not None and trajectory.plan.plans == 3
        assert statuses(trajectory) == ["failed"] * 3
        assert run.asked == 3


async def test_a_result_that_contradicts_the_plan_triggers_what_the_step_says(place: Path) -> None:
    steps = (
        step("files_read_file", path="a.py", expect="def two", on_failure="skip"),
        step("lab_check", code=1, expect="exit 1"),
        step("lab_check", code=0, expect="exit 1", on_failure="replan"),
        step("lab_look", at="never"),
    )
    async with bench(place, plan(LOOK, marker=AGAIN), plan(*steps), verdict("Ok.")) as run:
        trajectory = await run.run()
        assert trajectory.plan is not None
        assert statuses(trajectory) == ["skipped", "done", "failed", "replaced", "done"]
        assert trajectory.plan.steps[0].error == "its result does not show 'def two'"
        assert trajectory.plan.steps[2].error == "expected exit 1, it was 0."
        # An expected exit code is no contradiction, and what was changed by commands is looked at before the end.
        assert run.lab.calls == ["check 1", "check 0", "look x"]


async def test_a_goal_that_is_not_met_is_planned_for_anew(place: Path) -> None:
    replies = (
        plan(step("lab_look", at="y"), marker=AGAIN),
        plan(LOOK),
        verdict("", met=False, missing="y was not looked at"),
        verdict("Both seen.", nth=2),
    )
    async with bench(place, *replies) as run:
        trajectory = await run.run()
        assert (trajectory.stop_reason, trajectory.answer) == (StopReason.FINAL_ANSWER, "Both seen.")
        assert run.lab.calls == ["look x", "look y"]


async def test_a_goal_that_is_never_met_is_an_honest_end(place: Path) -> None:
    replies = [verdict("No luck.", met=False, missing="everything", nth=nth) for nth in (1, 2, 3)]
    plans = [plan(LOOK, marker=AGAIN, nth=nth) for nth in (1, 2)]
    async with bench(place, *replies, *plans, plan(LOOK)) as run:
        trajectory = await run.run()
        assert (trajectory.stop_reason, trajectory.answer) == (StopReason.PLAN_FAILED, "No luck.")
        assert "the goal is not met: everything" in trajectory.error
        assert trajectory.plan is not None and trajectory.plan.met is False


async def test_tests_and_diff_are_looked_at_after_a_change_that_nobody_tested(place: Path) -> None:
    code = "import a\n\n\ndef test_one():\n    assert a.one() == 1\n"
    steps = (step("files_write_file", path="test_a.py", content=code),)
    async with bench(place, plan(*steps), verdict("Written, the test passes."), task=CHANGE) as run:
        trajectory = await run.run(task_text=CHANGE)
        assert trajectory.stop_reason is StopReason.FINAL_ANSWER
        assert [call.name for taken in trajectory.steps for call in taken.reply.tool_calls] == [
            "files_write_file",
            "tests_run",
            "git_diff",
            "final_answer",
        ]
        tests = next(
            seen for taken in trajectory.steps for seen in taken.observations if seen.call_id.startswith("p1v1t1n")
        )
        assert tests.result.success and "1 passed" in tests.result.content


async def test_a_plan_that_tests_by_itself_is_not_tested_again(place: Path) -> None:
    test = "def test_it():\n    assert True\n"
    steps = (step("files_write_file", path="test_a.py", content=test), step("tests_pytest"))
    async with bench(place, plan(*steps), verdict("Done."), task=CHANGE) as run:
        trajectory = await run.run(task_text=CHANGE)
        assert [call.name for taken in trajectory.steps for call in taken.reply.tool_calls][2:] == [
            "git_diff",
            "final_answer",
        ]
