"""Executions as tables for people, and as JSON documents and exit codes for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from rich.table import Table

from swe_ai_fleet.cli.screen import Exit, Screen
from swe_ai_fleet.cli.tables import add_row, empty_table
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.audit_chains import ChainVerdict, Signing
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import CheckReport, RankedCandidate, Verdict
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT, ExecutionStatus, NodeUpdated
from swe_ai_fleet.domain.examination import Examination
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.json_values import is_object
from swe_ai_fleet.domain.run import AgentProgress
from swe_ai_fleet.domain.task import TaskKind
from swe_ai_fleet.orchestrator.ranking import drop_reasons
from swe_ai_fleet.orchestrator.runs import expenses, side_runs
from swe_ai_fleet.watching.narration import checks_text
from swe_ai_fleet.watching.text import one_line

_HASH_SHOWN = 16
VERDICT_STYLES = {Verdict.VERIFIED: "bold green", Verdict.UNVERIFIED: "bold yellow", Verdict.REFUTED: "bold red"}
_NODE_STYLES = {"completed": "green", "failed": "bold red", "paused": "yellow", "waiting": "yellow", "skipped": "dim"}
_GIST_CHARS = 100
_OUTPUT_CHARS = 4_000


def candidates_table(state: ExecutionState, *, verdict: str = "") -> Table:
    """All candidates by rank with their evidence, then dropped candidates, then agents without a candidate.

    `verdict` is already printed above the table, so the first row does not repeat it.
    """
    table = empty_table("rank", "candidate", "verdict", "score", "checks", "lines", "tokens", "why")
    for ranked in state.ranking:
        candidate, report = state.candidates.get(ranked.candidate_id), state.reports.get(ranked.candidate_id)
        same = f"; the same change: {', '.join(ranked.duplicates)}" if ranked.duplicates else ""
        artifacts = candidate.artifacts if candidate else None
        why = ranked.reason.removeprefix(verdict) if ranked is state.ranking[0] else ranked.reason
        add_row(
            table,
            str(ranked.rank),
            ranked.candidate_id,
            report.verdict_word if report else "",
            f"{ranked.score:.3f}",
            checks_text(report),
            f"+{artifacts.insertions} -{artifacts.deletions}" if artifacts else "",
            f"{candidate.usage.total_tokens:,}" if candidate else "",
            why + same,
            style=_style(report, won=ranked.candidate_id == state.winner_id),
        )
    for name, reason in drop_reasons(state).items():
        candidate = state.candidates.get(name)
        tokens = f"{candidate.usage.total_tokens:,}" if candidate else ""
        report = state.reports.get(name)
        word = report.verdict_word if report else ""
        add_row(table, "-", name, word, "", checks_text(report), "", tokens, reason, style="dim")
    excluded = {EXECUTION_SUBJECT, *side_runs(state), *state.candidates}
    for agent in state.agents.values():
        if agent.agent_id not in excluded:
            tokens = f"{agent.usage.total_tokens:,}" if agent.usage.total_tokens else ""
            add_row(table, "-", agent.agent_id, "", "", "", "", tokens, without_patch(state, agent), style="dim")
    return table


def without_patch(state: ExecutionState, agent: AgentProgress) -> str:
    """The state of an agent without a candidate."""
    if not state.status.terminal and agent.status in ("running", "awaiting_approval"):
        return activity(agent)
    return f"{agent.stop_reason or agent.status}; no patch"


def activity(agent: AgentProgress) -> str:
    """The current activity of an agent that has not ended."""
    if agent.model_awaited_since:
        return f"waiting for a model server since {agent.model_awaited_since[11:19]}"
    return agent.status.replace("_", " ")


def examination_table(examination: Examination) -> Table:
    """A row for each candidate, a column for the new tests of each author: how many of the telling tests pass."""
    heads = (f"tests of {', '.join(tests.candidates)} ({len(tests.tests)})" for tests in examination.sets)
    table = empty_table("change of", *heads)
    for name in examination.candidates:
        crossings = [(tests, tests.on(name)) for tests in examination.sets]
        cells = [
            "own" if name in tests.candidates else f"{crossing.cell} {crossing.note}".strip() if crossing else "-"
            for tests, crossing in crossings
        ]
        add_row(table, name, *cells)
    return table


def _style(report: CheckReport | None, *, won: bool) -> str:
    """A row's colour: the verdict's, bold for the winner."""
    if report is None or report.verdict is None:
        return "bold green" if won else "" if report is not None and report.accepted else "red"
    style = VERDICT_STYLES[report.verdict]
    return style if won else style.removeprefix("bold ")


def audit_table(verdicts: Iterable[ChainVerdict]) -> Table:
    table = empty_table("agent", "entries", "head", "verdict", "signed")
    for verdict in verdicts:
        run = f" (run {verdict.run})" if verdict.run > 1 else ""
        fault = verdict.fault
        state = "intact" if fault is None else f"BROKEN at entry {fault.seq}: {fault.reason}"
        if fault is None and verdict.redacted:
            state = "intact; its entries were erased, their hashes are left"
        elif fault is None and not verdict.recorded_head:
            state = "intact so far; the run has recorded no head"
        style = "green" if verdict.intact else "bold red"
        head = verdict.head[:_HASH_SHOWN] or "-"
        add_row(table, verdict.agent_id + run, str(verdict.entries), head, state, signed_text(verdict), style=style)
    return table


def signed_text(verdict: ChainVerdict) -> str:
    """The key that signed a chain, and how far."""
    match verdict.signing:
        case Signing.NONE:
            return "no"
        case Signing.UNCHECKED:
            return f"by {verdict.key_id}, not checked: no public key is known"
        case _ if verdict.fault is not None:
            return "-"
        case Signing.WHOLE:
            return f"by {verdict.key_id}"
        case Signing.PART:
            return f"by {verdict.key_id}, up to entry {verdict.signed_entries}"


def nodes_table(rows: Iterable[tuple[str, ...]]) -> Table:
    """A row for each node: id, status, attempt, seconds, tokens, its output or its error."""
    table = empty_table("node", "status", "attempt", "seconds", "tokens", "what")
    for *cells, summary in rows:
        add_row(table, *cells, one_line(summary, _GIST_CHARS), style=_NODE_STYLES.get(cells[1], ""))
    return table


def node_row(update: NodeUpdated) -> tuple[str, ...]:
    seconds = f"{update.duration_ms / 1000:.1f}" if update.duration_ms else ""
    tokens = f"{update.usage.total_tokens:,}" if update.usage.total_tokens else ""
    summary = update.error or gist(update.output or update.inputs)
    return (update.node_id, str(update.status), str(update.attempt), seconds, tokens, summary)


def print_outputs(screen: Screen, outputs: str) -> None:
    """Print the outputs of a workflow's run, each value under its name."""
    for name, value in json_fields(outputs).items():
        screen.line(f"{name}:", style="bold")
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
        screen.line(text if len(text) <= _OUTPUT_CHARS else f"{text[:_OUTPUT_CHARS]} ... (--json has all)")


def json_fields(text: str) -> dict[str, object]:
    """The members of a JSON object; any other value as the member `output`."""
    value: object = json.loads(text) if text else {}
    return value if is_object(value) else {"output": value}


def gist(text: str) -> str:
    """The main text of an output: an agent's answer or a tool's content, else the JSON."""
    fields: object = json.loads(text) if text else None
    if not is_object(fields):
        return text
    return str(fields.get("answer") or fields.get("summary") or fields.get("content") or text)


def exit_of(status: ExecutionStatus, verdict: Verdict | None = None) -> Exit:
    """The exit code for an execution's status; a running one counts as not accepted.

    A completed execution without a verdict is of a version without verdicts, or a workflow.
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
    """The exit code for an execution's state; for judged patches it is the verdict on the best patch."""
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
    # `cost` is the name of earlier versions.
    return {**asdict(usage), "total_tokens": usage.total_tokens, "cost_usd": usage.cost}
