"""The memories of an ended execution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from swe_ai_fleet.agents.sub_agents.memory import MAX_FACT_CHARS, MAX_FACTS, noted_by
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, Verdict
from swe_ai_fleet.domain.event import ExecutionStatus, RunClaimed, RunStarted, StoredEvent, ToolFinished
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.memory import MAX_MEMORY_CHARS, Memory, MemoryKind, task_namespaces
from swe_ai_fleet.domain.text import one_line, well_formed

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
