"""What is kept of an execution once it has ended."""

from __future__ import annotations

from dataclasses import replace

from swe_ai_fleet.context.work import work_record
from swe_ai_fleet.domain.audit import AuditEntry
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
from swe_ai_fleet.domain.candidate import TestSummary as Summary
from swe_ai_fleet.domain.context import WorkRecord
from swe_ai_fleet.domain.event import (
    CandidatesRanked,
    CandidateSubmitted,
    ChecksFinished,
    Event,
    EventBody,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    StoredEvent,
    ToolFinished,
    WinnerDelivered,
)
from swe_ai_fleet.domain.execution import APPROVAL_TOOL, fold
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.domain.verdict import Verdict

COMMIT = "c" * 40
LOCATION = "https://ana:secret@example.org/billing.git"
TASK = Task(
    task_id="T-1",
    kind=TaskKind.ORCHESTRATE,
    description="Round the totals.",
    repo=RepoRef(location=LOCATION),
    role=Role.DEV,
    case_id="C-1",
    story_id="S-1",
    plan_id="P-1",
)
TESTS = Summary(passed=3)
FAILING = Summary(passed=2, failed=1, failing=("test_half",))


def stored(bodies: list[tuple[str, EventBody]]) -> list[StoredEvent]:
    return [
        StoredEvent(
            sequence=number,
            event=Event(
                id=f"x/{agent}/1/{number}",
                tenant="default",
                execution_id=TASK.execution_id,
                task_id=TASK.task_id,
                agent_id=agent,
                at=f"2026-11-22T12:00:{number:02}+00:00",
                body=body,
            ),
        )
        for number, (agent, body) in enumerate(bodies, start=1)
    ]


def started(task: Task = TASK) -> tuple[str, EventBody]:
    repository = PinnedRepository(tenant="default", location=LOCATION, commit="b" * 40)
    return "_", ExecutionStarted(task=task, repository=repository, fingerprint="f")


def called(agent: str, tool: str, operation: str) -> tuple[str, EventBody]:
    entry = AuditEntry(
        seq=1, at="", execution_id="e", agent_id=agent, call_id="c", tool=tool, operation=operation, hash="h"
    )
    return agent, ToolFinished(entry=entry, result=ToolResult(success=True, operation=operation))


def submitted(name: str, *files: str, summary: str = "") -> tuple[str, EventBody]:
    candidate = Candidate(
        candidate_id=name,
        agent_id=name,
        role=Role.DEV,
        summary=summary,
        stop_reason=StopReason.FINAL_ANSWER,
        artifacts=Artifacts(files_changed=files, tests=Summary(passed=99)),
        usage=Usage(),
        audit_head="",
        submitted_at="",
    )
    return "_", CandidateSubmitted(candidate=candidate)


def checked(name: str, tests: Summary | None, *, passed: bool = True) -> tuple[str, EventBody]:
    results = (
        CheckResult(kind=CheckKind.LINT, name="lint", passed=True),
        CheckResult(kind=CheckKind.COMMAND, name="tests", passed=passed, tests=tests),
        CheckResult(kind=CheckKind.DRY_RUN, name="build", passed=False, skipped_reason="none"),
    )
    verdict = Verdict.VERIFIED if passed else Verdict.REFUTED
    return "_", ChecksFinished(report=CheckReport(candidate_id=name, results=results, verdict=verdict))


def ended(status: ExecutionStatus, winner: str = "", error: str = "") -> tuple[str, EventBody]:
    return "_", ExecutionFinished(
        status=status, winner_id=winner, error=error, usage=Usage(prompt_tokens=10), duration_ms=700
    )


def recorded(*bodies: tuple[str, EventBody]) -> WorkRecord:
    events = stored(list(bodies))
    state = fold(events)
    assert state is not None
    return work_record(state, events)


def test_what_the_winner_did_and_what_all_runs_called() -> None:
    delivered = Delivered(commit_sha=COMMIT, branch="fleet/T-1")
    record = recorded(
        started(),
        called("a", "files", "edit_file"),
        called("b", "files", "edit_file"),
        called("b", "tests", "run"),
        called("b", APPROVAL_TOOL, "plan"),
        submitted("a", "src/a.py", summary="Rounded half even."),
        submitted("b", "src/b.py", summary="Gave up."),
        checked("a", TESTS),
        checked("b", FAILING, passed=False),
        ("_", CandidatesRanked(ranking=(), winner_id="a")),
        ("_", WinnerDelivered(delivered=delivered, report=CheckReport(candidate_id="a"))),
        ended(ExecutionStatus.COMPLETED, "a"),
    )
    assert record == WorkRecord(
        execution_id=TASK.execution_id,
        task_id="T-1",
        story_id="S-1",
        case_id="C-1",
        plan_id="P-1",
        kind="orchestrate",
        role="DEV",
        repository="https://example.org/billing.git",
        instruction="Round the totals.",
        status="completed",
        summary="Rounded half even.",
        commits=(COMMIT,),
        branch="fleet/T-1",
        files_changed=("src/a.py",),
        operations={"files_edit_file": 2, "tests_run": 1},
        tests=TESTS,
        checks={"lint": "passed", "tests": "passed", "build": "skipped"},
        usage=Usage(prompt_tokens=10),
        duration_ms=700,
        ended_at="2026-11-22T12:00:12+00:00",
        verdict="verified",
    )


def test_of_an_execution_without_a_winner_the_nearest_tells_what_failed() -> None:
    ranking = tuple(RankedCandidate(candidate_id=name, rank=1, score=0.1, accepted=False) for name in ("b", "a"))
    record = recorded(
        started(),
        submitted("a", "src/a.py"),
        submitted("b", "src/b.py", summary="It failed."),
        checked("a", TESTS),
        checked("b", FAILING, passed=False),
        ("_", CandidatesRanked(ranking=ranking)),
        ended(ExecutionStatus.NO_WINNER, error="no candidate passed"),
    )
    assert (record.status, record.summary) == ("no_winner", "no candidate passed")
    assert (record.commits, record.files_changed) == ((), ())
    assert (record.tests, record.verdict) == (FAILING, "refuted")
    assert record.checks["tests"] == "failed"


def test_without_checks_the_agents_own_tests_stand() -> None:
    record = recorded(started(), submitted("a"), ended(ExecutionStatus.COMPLETED, "a"))
    assert record.tests == Summary(passed=99)
    assert recorded(started(), ended(ExecutionStatus.FAILED, error="no model")).summary == "no model"


def test_long_texts_are_cut() -> None:
    flood = replace(TASK, description="word " * 10_000)
    record = recorded(
        started(flood),
        submitted("a", *(f"f{number}" for number in range(1_000)), summary="x" * 100_000),
        ended(ExecutionStatus.COMPLETED, "a"),
    )
    assert len(record.instruction) < 2_100
    assert len(record.summary) < 4_100
    assert len(record.files_changed) == 300
