"""An execution as programs read it: the exit code that tells how it stands, and its JSON document."""

from __future__ import annotations

from dataclasses import asdict

from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import RankedCandidate, Verdict
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT, ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import TaskKind
from swe_ai_fleet.orchestrator.runs import expenses


def exit_of(status: ExecutionStatus, verdict: Verdict | None = None) -> Exit:
    """The exit code that tells how an execution stands; one that goes on counts as not accepted.

    A winner without a verdict is one of before there were verdicts, or a workflow's output.
    """
    match status:
        case ExecutionStatus.COMPLETED:
            return Exit.UNVERIFIED if verdict is Verdict.UNVERIFIED else Exit.ACCEPTED
        case ExecutionStatus.TIMEOUT | ExecutionStatus.CANCELLED:
            return Exit.STOPPED
        case ExecutionStatus.REJECTED:
            return Exit.REJECTED
        case _:
            return Exit.NOT_ACCEPTED


def exit_of_state(state: ExecutionState) -> Exit:
    """The exit code that tells how an execution stands; of judged patches it is the verdict on the best."""
    judged = state.task.kind is TaskKind.JUDGE and state.status is ExecutionStatus.NO_WINNER
    if judged and state.verdict is Verdict.UNVERIFIED and not state.task.constraints.require_verified:
        return Exit.UNVERIFIED
    return exit_of(state.status, state.verdict)


def execution_document(state: ExecutionState, *, diff: str) -> dict[str, object]:
    """An execution with its candidates, best first. `diff` is the winner's."""
    delivered, best = state.delivered, state.best_report
    return {
        "execution_id": state.execution_id,
        "task_id": state.task.task_id,
        "kind": str(state.task.kind),
        "task": state.task.description,
        "status": str(state.status),
        "exit_code": int(exit_of_state(state)),
        "verdict": str(state.verdict or ""),
        "verdict_reasons": list(best.reasons) if best else [],
        "base_commit": state.repository.commit,
        "baseline": _baseline(state),
        "examination": to_plain(state.examination) if state.examination is not None else None,
        "checklist": to_plain(state.checklist) if state.checklist is not None else None,
        "environment_run": to_plain(state.environment_run) if state.environment_run is not None else None,
        "context": _context(state.context) if state.context is not None else None,
        "winner": state.winner_id,
        "branch": delivered.branch if delivered else "",
        "commit": delivered.commit_sha if delivered else "",
        "refused_kept": to_plain(state.refused_kept) if state.refused_kept else None,
        "hand_deliveries": [to_plain(delivery) for delivery in state.hand_deliveries],
        "candidates": [_candidate(state, ranked) for ranked in state.ranking],
        "agents": [
            {**asdict(agent), "usage": _usage(agent.usage)}
            for name, agent in state.agents.items()
            if name != EXECUTION_SUBJECT
        ],
        "pending_approvals": [to_plain(request) for request in state.pending],
        "diff": diff,
        "error": state.error,
        "usage": _usage(state.usage),
        "expenses": [{**to_plain(expense), "usage": _usage(expense.usage)} for expense in expenses(state)],
        "duration_ms": state.duration_ms,
        "started_at": state.started_at,
        "finished_at": state.finished_at,
    }


def _candidate(state: ExecutionState, ranked: RankedCandidate) -> dict[str, object]:
    candidate = state.candidates.get(ranked.candidate_id)
    report = state.reports.get(ranked.candidate_id)
    document: dict[str, object] = {
        **asdict(ranked),
        "duplicates": list(ranked.duplicates),
        "verdict": str(report.verdict or "") if report else "",
        "verdict_reasons": list(report.reasons) if report else [],
        "checks": [to_plain(result) for result in report.results] if report else [],
    }
    if candidate is None:
        return document
    return document | {
        "agent_id": candidate.agent_id,
        "answer": candidate.summary,
        "stop_reason": str(candidate.stop_reason),
        "files_changed": list(candidate.artifacts.files_changed),
        "insertions": candidate.artifacts.insertions,
        "deletions": candidate.artifacts.deletions,
        "usage": _usage(candidate.usage),
        "audit_head": candidate.audit_head,
    }


def _baseline(state: ExecutionState) -> dict[str, object] | None:
    if state.baseline is None and not state.baseline_error:
        return None
    plain = to_plain(state.baseline) if state.baseline is not None else None
    return {"summary": state.baseline.line if state.baseline else "", "error": state.baseline_error, "tests": plain}


def _context(context: GatheredContext) -> dict[str, object]:
    return {
        "tokens": context.tokens,
        "version": context.version,
        "omitted": list(context.omitted),
        "recalled": [
            {
                "memory_id": recollection.memory.memory_id,
                "namespace": recollection.memory.namespace,
                "text": recollection.memory.text,
                "source": recollection.memory.source,
                "score": recollection.score,
            }
            for recollection in context.recalled
        ],
    }


def _usage(usage: Usage) -> dict[str, object]:
    # `cost` is what earlier versions called it.
    return {**asdict(usage), "total_tokens": usage.total_tokens, "cost_usd": usage.cost}
