"""The record of an ended execution, from its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from swe_ai_fleet.agents.sub_agents.memory import MAX_FACT_CHARS, MAX_FACTS, noted_by
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, TestSummary, Verdict
from swe_ai_fleet.domain.context import NO_STORY, WorkRecord
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import ExecutionStatus, RunClaimed, RunStarted, StoredEvent, ToolFinished
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.memory import (
    MAX_GOAL_CHARS,
    MAX_MEMORY_CHARS,
    MAX_REASON_CHARS,
    PART_OF,
    VERDICT,
    VERIFIER_MODEL,
    VERIFIER_SCORE,
    Memory,
    MemoryKind,
    WorkOutcome,
    goal_type,
    task_namespaces,
)
from swe_ai_fleet.domain.run import tool_calls
from swe_ai_fleet.domain.task import Task, check_identifier
from swe_ai_fleet.domain.text import one_line, well_formed, without_login
from swe_ai_fleet.extensions.knowledge.story import MAX_INSTRUCTION_CHARS, MAX_PATHS, MAX_SUMMARY_CHARS
from swe_ai_fleet.tools.truncation import truncate


def work_record(state: ExecutionState, events: Iterable[StoredEvent]) -> WorkRecord:
    """The record of an execution: its winner's commits, files and tests, and the tool calls of all its runs.

    Without a winner, tests and checks are those of the best candidate. Names of stories and cases that are invalid in
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
    """The test run of the checks, preferably one with failures; without any, the agent's own."""
    runs = [result.tests for result in report.results if result.tests is not None] if report else []
    if runs:
        return next((run for run in runs if run.failing), runs[0])
    return candidate.artifacts.tests if candidate else None


def _checks(report: CheckReport | None) -> dict[str, str]:
    """The outcome of each check; of several with the same name, the worst."""
    outcomes: dict[str, str] = {}
    for result in report.results if report else ():
        outcome = "skipped" if result.skipped_reason else "passed" if result.passed else "failed"
        if outcomes.get(result.name) != "failed":
            outcomes[result.name] = outcome
    return outcomes


def _name(text: str) -> str:
    """An id that callers chose; empty if it is invalid in the graph."""
    try:
        return check_identifier(text, field="id") if text else ""
    except InvalidRequest:
        return ""


def approach_of(task: Task) -> str:
    """The approach of a task: its kind, and its planning mode if it names one."""
    mode = f"/{task.planning_mode}" if task.planning_mode is not None else ""
    return f"{task.kind}{mode}"


def outcome_of(state: ExecutionState, events: Iterable[StoredEvent]) -> WorkOutcome:
    """The outcome of an execution that ended, from its state and all of its events."""
    task = state.task
    winner = state.candidates.get(state.winner_id)
    facts = {PART_OF: task.parent_execution_id, VERDICT: state.verdict or "", **_scored(state)}
    outcome = WorkOutcome(
        subject_id=state.execution_id,
        tenant=task.tenant,
        goal=" ".join(task.description.split())[:MAX_GOAL_CHARS],
        goal_type=goal_type(task.description),
        role=task.role,
        repository=without_login(task.repo.location),
        approach=approach_of(task),
        council=state.council.council_id if state.council is not None else "",
        model=winner.model if winner is not None else _models(state),
        model_profile=task.model_profile,
        agents=task.num_agents,
        agents_used=tuple(sorted({candidate.author for candidate in state.candidates.values()})),
        rounds=max(0, task.rounds),
        success=state.status is ExecutionStatus.COMPLETED,
        status=state.status,
        evidence=_evidence(state),
        reason=state.error[:MAX_REASON_CHARS],
        usage=state.usage,
        duration_ms=state.duration_ms,
        ended_at=state.finished_at,
        metadata={name: text for name, text in facts.items() if text},
    )
    return outcome.with_calls(entry.operation for entry in tool_calls(events))


def _scored(state: ExecutionState) -> dict[str, str]:
    """A verifier model's score of the winner, or of a candidate of equal behaviour."""
    place = next((place for place in state.ranking if place.candidate_id == state.winner_id), None)
    names = (place.candidate_id, *place.duplicates) if place is not None else ()
    score = next((state.scores[name] for name in names if name in state.scores), None)
    if score is None or score.raw is None:
        return {}
    return {VERIFIER_SCORE: f"{score.raw:.6f}", VERIFIER_MODEL: score.model}


def _models(state: ExecutionState) -> str:
    return ", ".join(sorted({agent.model for agent in state.agents.values() if agent.model}))


def _evidence(state: ExecutionState) -> float:
    """The share of passed checks: of the winner, or of the merged subtasks; 0 if none ran."""
    report = state.reports.get(state.winner_id) or state.delivery_report
    ran = [result for result in report.results if not result.skipped_reason] if report is not None else []
    return sum(result.passed for result in ran) / len(ran) if ran else 0.0


_TASK_CHARS = 500
_SUMMARY_CHARS = 1_200
_MOST_FILES = 15
_MOST_PROBLEMS = 6
_PROBLEM_CHARS = 160
_SHOWN = {
    Verdict.VERIFIED: "verified by a test or check that fails without the change",
    Verdict.UNVERIFIED: "unverified: nothing shows that the change works",
    Verdict.REFUTED: "refuted",
}
_TEACHING = frozenset(
    {ExecutionStatus.COMPLETED, ExecutionStatus.NO_WINNER, ExecutionStatus.TIMEOUT, ExecutionStatus.FAILED}
)


def lessons(state: ExecutionState, events: Iterable[StoredEvent]) -> tuple[Memory, ...]:
    """The outcome of an execution, and the facts that the winner's runs noted.

    Empty if the task does not write memory, was cancelled or rejected, or had no candidates (an outage of a server
    teaches nothing about a repository). The same execution always gives the same memories. All are for the first of the
    task's namespaces; the others are only read.

    Args:
        state: The execution, ended.
        events: Its events in their order, those of its agents among them.
    """
    task = state.task
    if not task.memory.write or state.status not in _TEACHING or not state.candidates:
        return ()
    namespace, source = task_namespaces(task)[0], f"execution:{state.execution_id}"
    outcome = Memory(
        namespace=namespace,
        text=_outcome(state),
        kind=MemoryKind.OUTCOME,
        tenant=task.tenant,
        metadata={
            "status": str(state.status),
            "role": str(task.role),
            "kind": str(task.kind),
            **({"verdict": str(state.verdict)} if state.verdict else {}),
        },
        source=source,
        created_at=state.finished_at,
    )
    facts = (
        Memory(namespace=namespace, text=fact, tenant=task.tenant, source=source, created_at=state.finished_at)
        for fact in _facts(_winners_runs(state), events)
    )
    return (outcome, *facts)


def _winners_runs(state: ExecutionState) -> frozenset[str]:
    """The agent runs that made the winner: its own, and those of the candidates that it revises."""
    runs: set[str] = set()
    candidate = state.candidates.get(state.winner_id)
    while candidate is not None and candidate.agent_id not in runs:
        runs.add(candidate.agent_id)
        candidate = state.candidates.get(candidate.revises)
    return frozenset(runs)


def _facts(runs: frozenset[str], events: Iterable[StoredEvent]) -> list[str]:
    """The facts that these runs noted, each once; when a run starts over, its earlier facts are dropped."""
    noted: dict[str, dict[str, None]] = {}
    for stored in events:
        name, body = stored.event.agent_id, stored.event.body
        if name not in runs:
            continue
        match body:
            case RunStarted() | RunClaimed(resumes=False):
                noted[name] = {}
            case ToolFinished() if fact := noted_by(body):
                noted.setdefault(name, {})[fact[:MAX_FACT_CHARS]] = None
            case _:
                pass
    facts = {fact: None for name in sorted(noted) for fact in list(noted[name])[:MAX_FACTS]}
    return [fact for fact in facts if fact.strip()]


def _outcome(state: ExecutionState) -> str:
    winner = state.candidates.get(state.winner_id)
    lines = [f"Task: {one_line(state.task.description, _TASK_CHARS)}", f"Outcome: {_status(state)}"]
    if winner is not None:
        lines += _of_winner(winner, state.reports.get(winner.candidate_id))
    lines += [f"Failed: {failure}" for failure in _failures(state)]
    if state.error:
        lines.append(f"Error: {one_line(state.error, _PROBLEM_CHARS)}")
    return well_formed("\n".join(lines))[:MAX_MEMORY_CHARS]


def _status(state: ExecutionState) -> str:
    if state.verdict is None:
        accepted = sum(1 + len(candidate.duplicates) for candidate in state.ranking if candidate.accepted)
        return f"{state.status}; {_candidates(state)}, {accepted} accepted."
    verdicts = Counter(state.reports[name].verdict for name in state.candidates if name in state.reports)
    counted = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in Verdict if verdicts[verdict])
    return f"{state.status}, {_SHOWN[state.verdict]}; {_candidates(state)}: {counted}."


def _candidates(state: ExecutionState) -> str:
    return f"{len(state.candidates)} candidate{'' if len(state.candidates) == 1 else 's'}"


def _of_winner(winner: Candidate, report: CheckReport | None) -> Iterator[str]:
    artifacts = winner.artifacts
    if winner.summary.strip():
        yield f"The chosen solution: {one_line(winner.summary, _SUMMARY_CHARS)}"
    if artifacts.files_changed:
        more = len(artifacts.files_changed) - _MOST_FILES
        files = ", ".join(one_line(path, _PROBLEM_CHARS) for path in artifacts.files_changed[:_MOST_FILES])
        others = f" and {more} more" if more > 0 else ""
        yield f"Changed: {files}{others} (+{artifacts.insertions} -{artifacts.deletions})"
    tests = artifacts.tests
    if tests is not None:
        yield f"Tests: {tests.passed} passed, {tests.failed} failed, {tests.errors} errors"
    checks = [result for result in report.results if not result.skipped_reason] if report is not None else []
    if checks:
        text = (f"{one_line(run.name, 60)} {'passed' if run.passed else 'failed'}" for run in checks[:_MOST_PROBLEMS])
        yield f"Checks: {', '.join(text)}"


def _failures(state: ExecutionState) -> list[str]:
    """The failures of candidates that were not chosen, each kind once."""
    failures: dict[str, None] = {}
    for name, candidate in sorted(state.candidates.items()):
        if name == state.winner_id:
            continue
        for problem in _problems(candidate, state.reports):
            failures[problem] = None
    return list(failures)[:_MOST_PROBLEMS]


def _problems(candidate: Candidate, reports: Mapping[str, CheckReport]) -> Iterator[str]:
    if candidate.error:
        yield one_line(candidate.error, _PROBLEM_CHARS)
    report = reports.get(candidate.candidate_id)
    for result in report.results if report is not None else ():
        if not result.passed and not result.skipped_reason:
            why = "; ".join(result.problems[:2]) or result.message
            yield one_line(f"{result.name}: {why}" if why else result.name, _PROBLEM_CHARS)
