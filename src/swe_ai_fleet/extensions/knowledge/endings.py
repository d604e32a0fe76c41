"""The record of an ended execution, from its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from swe_ai_fleet.agents.plan_session.session import PlanOutcome
from swe_ai_fleet.agents.sub_agents.memory import MAX_FACT_CHARS, MAX_FACTS, noted_by
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, TestSummary, Verdict
from swe_ai_fleet.domain.context import NO_STORY, WorkRecord
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import ExecutionStatus, RunClaimed, RunStarted, StoredEvent, ToolFinished
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.memory import (
    BEST_RATING,
    LEAST_RATING,
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
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.extensions.knowledge.recommending import PLANNED
from swe_ai_fleet.extensions.knowledge.story import MAX_INSTRUCTION_CHARS, MAX_PATHS, MAX_SUMMARY_CHARS
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


MEMORY_OPERATIONS = frozenset({"search_memory", "remember"})
RESEARCH_OPERATIONS = frozenset({"research", "web_search", "read_webpage", "search_wikipedia", "get"})
DIALOGUE_OPERATIONS = frozenset({"propose_approach", "final_answer", "request_tools", "ask_user"})
_GOAL_CHARS = 500
_LIMITS = frozenset(StopReason) - {StopReason.FINAL_ANSWER, StopReason.NO_TOOL_CALLS}
"""A plan that ended with one of these was not completed."""


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
        goal=" ".join(task.description.split())[:_GOAL_CHARS],
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
    return _shared(outcome, (entry.operation for entry in tool_calls(events)))


def planned_outcome(planned: PlanOutcome, *, ended_at: str, tenant: str) -> WorkOutcome:
    """The outcome of a plan session; its sub-agents are the agents used."""
    outcome = WorkOutcome(
        subject_id=planned.session_id,
        tenant=tenant,
        goal=" ".join(planned.goal.split())[:_GOAL_CHARS],
        goal_type=planned.goal_type,
        approach=PLANNED,
        agents=1,
        agents_used=planned.agents_used,
        success=planned.status is ExecutionStatus.COMPLETED and planned.stop_reason not in _LIMITS,
        status=planned.status,
        approach_ratio=planned.approach_ratio,
        reason=planned.reason[:MAX_REASON_CHARS],
        rating=0 if planned.rating is None else round(LEAST_RATING + planned.rating * (BEST_RATING - LEAST_RATING)),
        usage=planned.usage,
        duration_ms=planned.usage.duration_ms,
        ended_at=ended_at,
    )
    return _shared(outcome, (name for name in planned.operations if name not in DIALOGUE_OPERATIONS))


def _scored(state: ExecutionState) -> dict[str, str]:
    """A verifier model's score of the winner, or of a candidate of equal behaviour."""
    place = next((place for place in state.ranking if place.candidate_id == state.winner_id), None)
    names = (place.candidate_id, *place.duplicates) if place is not None else ()
    score = next((state.scores[name] for name in names if name in state.scores), None)
    if score is None or score.raw is None:
        return {}
    return {VERIFIER_SCORE: f"{score.raw:.6f}", VERIFIER_MODEL: score.model}


def _shared(outcome: WorkOutcome, operations: Iterable[str]) -> WorkOutcome:
    """The outcome with the shares of its calls for memory, research and other tools."""
    calls = Counter(_kind(operation) for operation in operations)
    total = max(1, calls.total())
    return replace(
        outcome,
        memory_share=calls["memory"] / total,
        research_share=calls["research"] / total,
        tool_share=calls["tool"] / total,
    )


def _kind(operation: str) -> str:
    if operation in MEMORY_OPERATIONS:
        return "memory"
    return "research" if operation in RESEARCH_OPERATIONS else "tool"


def _models(state: ExecutionState) -> str:
    return ", ".join(sorted({agent.model for agent in state.agents.values() if agent.model}))


def _evidence(state: ExecutionState) -> float:
    """The share of the checks that passed: the winner's, or those of what subtasks came to; 0 where none ran."""
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

    Empty where the task did not ask for it, was cancelled or rejected, or had no candidates (an outage of a server
    teaches nothing about a repository). The same execution always gives the same memories. All go into the first of the
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
    """The agent runs that made the winner: its own and those of what it revises."""
    runs: set[str] = set()
    candidate = state.candidates.get(state.winner_id)
    while candidate is not None and candidate.agent_id not in runs:
        runs.add(candidate.agent_id)
        candidate = state.candidates.get(candidate.revises)
    return frozenset(runs)


def _facts(runs: frozenset[str], events: Iterable[StoredEvent]) -> list[str]:
    """The facts that these runs noted, each once; those of a run before its restart do not count."""
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
        behind = f" and {more} more" if more > 0 else ""
        yield f"Changed: {files}{behind} (+{artifacts.insertions} -{artifacts.deletions})"
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
