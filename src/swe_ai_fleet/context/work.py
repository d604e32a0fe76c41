"""The record of an ended execution, from its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from swe_ai_fleet.context.texts import MAX_INSTRUCTION_CHARS, MAX_PATHS, MAX_SUMMARY_CHARS
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, TestSummary
from swe_ai_fleet.domain.context import NO_STORY, WorkRecord
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import StoredEvent
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.run import tool_calls
from swe_ai_fleet.domain.text import check_identifier, without_login
from swe_ai_fleet.tools.truncation import truncate


def work_record(state: ExecutionState, events: Iterable[StoredEvent]) -> WorkRecord:
    """The record of an execution: its winner's commits, files and tests, and the tool calls of all its runs.

    Where none won, tests and checks are those of the best candidate. Names of stories and cases that are invalid in
    the graph are left out.

    Args:
        state: The fold of its events.
        events: The events themselves, those of its agents included.
    """
    task = state.task
    winner = state.candidates.get(state.winner_id)
    judged = state.winner_id or (state.ranking[0].candidate_id if state.ranking else "")
    last = state.delivery_report
    report = last if last and last.results else state.reports.get(judged)
    delivered = state.delivered
    merged = (outcome.commit_sha for outcome in state.subtask_outcomes.values() if outcome.commit_sha)
    commits = dict.fromkeys((*merged, *((delivered.commit_sha,) if delivered and delivered.commit_sha else ())))
    return WorkRecord(
        execution_id=state.execution_id,
        task_id=task.task_id,
        story_id=_name(task.story_id) or NO_STORY,
        case_id=_name(task.case_id),
        plan_id=task.plan_id,
        kind=task.kind,
        role=task.role,
        repository=without_login(state.repository.location),
        instruction=truncate(task.description, MAX_INSTRUCTION_CHARS),
        status=state.status,
        summary=truncate((winner.summary if winner else "") or state.error, MAX_SUMMARY_CHARS),
        commits=tuple(commits),
        branch=delivered.branch if delivered else "",
        files_changed=winner.artifacts.files_changed[:MAX_PATHS] if winner else (),
        operations=dict(sorted(Counter(entry.name for entry in tool_calls(events)).items())),
        tests=_tests(report, state.candidates.get(judged)),
        checks=_checks(report),
        parent_execution_id=_name(task.parent_execution_id),
        usage=state.usage,
        duration_ms=state.duration_ms,
        ended_at=state.finished_at,
        verdict=(report.verdict if report is not None else None) or "",
    )


def _tests(report: CheckReport | None, candidate: Candidate | None) -> TestSummary | None:
    """The test run of the checks, one with failures before others; without any the agent's own."""
    runs = [result.tests for result in report.results if result.tests is not None] if report else []
    if runs:
        return next((run for run in runs if run.failing), runs[0])
    return candidate.artifacts.tests if candidate else None


def _checks(report: CheckReport | None) -> dict[str, str]:
    """The outcome of each check; of several with one name the worst."""
    outcomes: dict[str, str] = {}
    for result in report.results if report else ():
        outcome = "skipped" if result.skipped_reason else "passed" if result.passed else "failed"
        if outcomes.get(result.name) != "failed":
            outcomes[result.name] = outcome
    return outcomes


def _name(text: str) -> str:
    """An id that callers chose, empty where it is invalid in the graph."""
    try:
        return check_identifier(text, field="id") if text else ""
    except InvalidRequest:
        return ""
