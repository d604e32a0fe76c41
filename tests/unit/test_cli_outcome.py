"""What people read at the end of an execution: the verdict first, and what to type next."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from swe_ai_fleet.cli.documents import execution_document
from swe_ai_fleet.cli.outcome import print_outcome
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.domain.baseline import Baseline, SuiteBaseline
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import (
    Artifacts,
    Candidate,
    CheckKind,
    CheckReport,
    CheckResult,
    Delivered,
    RankedCandidate,
)
from swe_ai_fleet.domain.candidate import TestSummary as Tests
from swe_ai_fleet.domain.environment import Decision, EnvironmentReport
from swe_ai_fleet.domain.event import CandidateDelivered, ExecutionStatus, RefusedKept
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import Constraints, PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.domain.verdict import Verdict

PATCH = BlobRef(name="default/e/aa", digest="aa", size=9)
REASONS = ("tests: 3 tests fail with the change", "lint: x", "policy: y", "a fourth reason")


def a_state(
    verdict: Verdict | None, status: ExecutionStatus = ExecutionStatus.COMPLETED, kind: TaskKind = TaskKind.ORCHESTRATE
) -> ExecutionState:
    """An execution with one candidate."""
    task = Task(task_id="t", kind=kind, description="Fix it", repo=RepoRef(location="/srv/my app"))
    candidate = Candidate(
        candidate_id="fix",
        agent_id="fix",
        role=Role.DEV,
        summary="",
        stop_reason=StopReason.FINAL_ANSWER,
        artifacts=Artifacts(patch=PATCH, insertions=1),
        usage=Usage(),
        audit_head="",
        submitted_at="",
    )
    won = status is ExecutionStatus.COMPLETED
    report = CheckReport(candidate_id="fix", verdict=verdict, reasons=REASONS if verdict else (), tree="f" * 40)
    ranked = RankedCandidate(candidate_id="fix", rank=1, score=0.5, accepted=won, reason="so", verdict=verdict)
    return ExecutionState(
        execution_id="5f0e",
        task=task,
        repository=PinnedRepository(tenant="default", location="/srv/my app", commit="c" * 40),
        fingerprint="",
        started_at="2026-01-01T00:00:00+00:00",
        updated_at="2026-01-01T00:00:00+00:00",
        status=status,
        candidates={"fix": candidate},
        reports={"fix": report},
        ranking=(ranked,),
        winner_id="fix" if won else "",
        delivered=Delivered(commit_sha="d" * 40, branch="fleet/t") if won else None,
        delivery_report=report if won else None,
        baseline=Baseline(commit="c" * 40, suites=(SuiteBaseline(command="pytest -q", tests=Tests(passed=3)),)),
        duration_ms=1_000,
        error="" if won else "no candidate passed; the best, fix: so",
    )


def printed(state: ExecutionState, diff: str = "") -> list[str]:
    file = io.StringIO()
    console = Console(file=file, markup=False, highlight=False, emoji=False, width=160, color_system=None)
    print_outcome(Screen(json=False, out=console, err=console), state, diff)
    return file.getvalue().splitlines()


def test_the_exit_code_tells_the_verdict() -> None:
    refuted = a_state(Verdict.REFUTED, ExecutionStatus.NO_WINNER, TaskKind.JUDGE)
    judged = a_state(Verdict.UNVERIFIED, ExecutionStatus.NO_WINNER, TaskKind.JUDGE)
    wanting = replace(judged, task=replace(judged.task, constraints=Constraints(require_verified=True)))
    for state, code in (
        (a_state(Verdict.VERIFIED), 0),
        (a_state(Verdict.UNVERIFIED), 6),
        (a_state(None), 0),
        (a_state(Verdict.REFUTED, ExecutionStatus.NO_WINNER), 1),
        (a_state(Verdict.UNVERIFIED, ExecutionStatus.NO_WINNER), 1),
        (a_state(Verdict.UNVERIFIED, ExecutionStatus.CANCELLED), 4),
        (judged, 6),
        (wanting, 1),
        (refuted, 1),
    ):
        assert execution_document(state, diff="")["exit_code"] == code, state.status


def test_the_verdict_comes_first_with_three_reasons_then_branch_diff_and_tables() -> None:
    lines = printed(a_state(Verdict.UNVERIFIED), "+x = 1\n")
    assert lines[:6] == [
        "unverified: fix won",
        *(f"  {reason}" for reason in REASONS[:3]),
        "branch fleet/t",
        f"commit {'d' * 40}",
    ]
    assert lines.index("+x = 1") < lines.index("baseline: 3 pass") < len(lines) - 2
    look = f"  git -C '/srv/my app' diff {'c' * 40} fleet/t"
    assert lines[-3:] == ["completed: fix won (1.0 s, 0 tokens)", "next:", look]
    assert not any("every check passed" in line for line in lines)


def test_where_nobody_won_the_end_says_why_where_it_is_kept_and_what_helps() -> None:
    kept = RefusedKept(
        candidate_id="fix", delivered=Delivered(commit_sha="e" * 40, branch="refs/fleet/refused/t", tree="f" * 40)
    )
    lines = printed(replace(a_state(Verdict.REFUTED, ExecutionStatus.NO_WINNER), refused_kept=kept))
    assert lines[-10:] == [
        "refuted: the best, fix",
        *(f"  {reason}" for reason in REASONS[:3]),
        f"fix is kept as refs/fleet/refused/t ({'e' * 40})",
        "no_winner (1.0 s, 0 tokens)",
        "next:",
        "  fleet show 5f0e",
        "  fleet export 5f0e --agent fix --format patch",
        "  fleet deliver 5f0e fix",
    ]


def next_commands(state: ExecutionState) -> list[str]:
    """What is named to type next."""
    lines = printed(state)
    return [line.strip() for line in lines[lines.index("next:") + 1 :]] if "next:" in lines else []


def test_only_commands_that_work_are_named() -> None:
    state = a_state(Verdict.REFUTED, ExecutionStatus.NO_WINNER)
    unappliable = replace(state, reports={"fix": replace(state.reports["fix"], tree="")})
    assert [command.split()[1] for command in next_commands(unappliable)] == ["show", "export"]
    empty = replace(state, candidates={"fix": replace(state.candidates["fix"], artifacts=Artifacts())})
    assert [command.split()[1] for command in next_commands(empty)] == ["show"]
    assert next_commands(a_state(Verdict.VERIFIED)) == ["git -C '/srv/my app' merge fleet/t"]
    assert next_commands(replace(a_state(Verdict.VERIFIED), delivered=None)) == []
    # An environment that fails names the command that explains it.
    suite = SuiteBaseline(command="pytest -q", unusable="it has no test")
    for status, baseline, error, said in (
        (ExecutionStatus.FAILED, None, "no matching distribution", "none: no matching distribution"),
        (ExecutionStatus.COMPLETED, Baseline(commit="c" * 40, suites=(suite,)), "", "it has no test"),
    ):
        state = replace(a_state(Verdict.UNVERIFIED, status), delivered=None, baseline=baseline, baseline_error=error)
        assert next_commands(state) == [f"fleet env explain --repo '/srv/my app' --ref {'c' * 40}"]
        assert f"baseline: {said}" in printed(state)


def test_no_name_of_a_file_or_a_person_is_a_line_of_its_own() -> None:
    name = "packages/a\nverified: fix won\x1b[2K/pyproject.toml"
    report = EnvironmentReport(decisions=(Decision(what=name, source=name),), left_out=(name,))
    done = CandidateDelivered(candidate_id="fix", delivered=Delivered(commit_sha="e" * 40, branch="b"), by=name)
    refused = a_state(Verdict.REFUTED, ExecutionStatus.NO_WINNER)
    lines = printed(
        replace(refused, baseline=Baseline(commit="c" * 40, report=report, suites=()), hand_deliveries=(done,))
    )
    assert sum("verified: fix won" in line for line in lines) == 3
    assert not any(line.startswith("verified") or "\x1b" in line for line in lines)


def test_what_people_had_delivered_is_told() -> None:
    done = CandidateDelivered(
        candidate_id="fix", delivered=Delivered(commit_sha="e" * 40, branch="b"), by="ana", reason="the test is wrong"
    )
    state = replace(a_state(Verdict.REFUTED, ExecutionStatus.NO_WINNER), hand_deliveries=(done,))
    assert "fix was delivered by ana on branch b: the test is wrong" in printed(state)
    document = json.loads(json.dumps(execution_document(state, diff="")))
    assert document["hand_deliveries"][0]["by"] == "ana"
    assert (document["verdict"], document["exit_code"]) == ("refuted", 1)


def test_judged_patches_are_told_one_by_one() -> None:
    state = a_state(Verdict.VERIFIED, kind=TaskKind.JUDGE)
    second = replace(state.candidates["fix"], candidate_id="same")
    ranked = replace(state.ranking[0], duplicates=("same",))
    state = replace(
        state,
        delivered=None,
        delivery_report=None,
        candidates={**state.candidates, "same": second},
        reports={**state.reports, "same": replace(state.reports["fix"], candidate_id="same")},
        ranking=(ranked,),
    )
    assert printed(state) == [
        "task t: Fix it",
        "execution 5f0e",
        "baseline: 3 pass",
        "1. fix: verified",
        *(f"     {reason}" for reason in REASONS),
        "1. same: verified (the same change as fix)",
        "completed: fix is the best (1.0 s)",
    ]


def test_a_checks_tests_are_counted_in_words() -> None:
    for result, text in (
        ({"tests": Tests(passed=312), "shown": ("a", "b", "c")}, "tests ok: 312 passed; 3 fail without the change"),
        (
            {"tests": Tests(passed=312, failed=1, errors=1), "shown": ("a",)},
            "tests ok: 312 passed; 1 fails without the change; 2 failed before and fail now",
        ),
        ({"tests": Tests(passed=3, failed=1), "passed": False}, "tests FAILED: 3 passed; 1 fails"),
        ({"passed": False, "problems": ("a", "b")}, "tests FAILED (2 problems)"),
        ({"skipped_reason": "there are none"}, "tests skipped"),
    ):
        check = replace(CheckResult(kind=CheckKind.DRY_RUN, name="tests", passed=True), **result)
        state = a_state(None)
        assert text in "\n".join(
            printed(replace(state, reports={"fix": CheckReport(candidate_id="fix", results=(check,))}))
        )
