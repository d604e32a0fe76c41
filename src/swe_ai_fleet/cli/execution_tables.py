"""Tables of executions: candidates, audit chains, the nodes of a workflow's run."""

from __future__ import annotations

import json
from collections.abc import Iterable

from rich.table import Table

from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import add_row, empty_table
from swe_ai_fleet.domain.audit_chains import ChainVerdict, Signing
from swe_ai_fleet.domain.candidate import CheckReport, Verdict
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT, NodeUpdated
from swe_ai_fleet.domain.examination import Examination
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.json_values import is_object
from swe_ai_fleet.domain.run import AgentProgress
from swe_ai_fleet.domain.test_run import Crossing
from swe_ai_fleet.orchestrator.ranking import drop_reasons
from swe_ai_fleet.orchestrator.runs import side_runs
from swe_ai_fleet.watching.narration import checks_text
from swe_ai_fleet.watching.text import one_line

_HASH_SHOWN = 16
VERDICT_STYLES = {Verdict.VERIFIED: "bold green", Verdict.UNVERIFIED: "bold yellow", Verdict.REFUTED: "bold red"}
_NODE_STYLES = {"completed": "green", "failed": "bold red", "paused": "yellow", "waiting": "yellow", "skipped": "dim"}
_GIST_CHARS = 100
_OUTPUT_CHARS = 4_000


def candidates_table(state: ExecutionState, *, told: str = "") -> Table:
    """All candidates by rank with their evidence, then those that do not stand, and the agents that left none.

    `told` is what stands above the table already: it is not said of the first again.
    """
    table = empty_table("rank", "candidate", "verdict", "score", "checks", "lines", "tokens", "why")
    for ranked in state.ranking:
        candidate, report = state.candidates.get(ranked.candidate_id), state.reports.get(ranked.candidate_id)
        same = f"; the same change: {', '.join(ranked.duplicates)}" if ranked.duplicates else ""
        left = candidate.artifacts if candidate else None
        why = ranked.reason.removeprefix(told) if ranked is state.ranking[0] else ranked.reason
        add_row(
            table,
            str(ranked.rank),
            ranked.candidate_id,
            report.verdict_word if report else "",
            f"{ranked.score:.3f}",
            checks_text(report),
            f"+{left.insertions} -{left.deletions}" if left else "",
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
    aside = {EXECUTION_SUBJECT, *side_runs(state), *state.candidates}
    for agent in state.agents.values():
        if agent.agent_id not in aside:
            tokens = f"{agent.usage.total_tokens:,}" if agent.usage.total_tokens else ""
            add_row(table, "-", agent.agent_id, "", "", "", "", tokens, without_patch(state, agent), style="dim")
    return table


def without_patch(state: ExecutionState, agent: AgentProgress) -> str:
    """How an agent stands that has left no candidate."""
    if not state.status.terminal and agent.status in ("running", "awaiting_approval"):
        return standing(agent)
    return f"{agent.stop_reason or agent.status}; no patch"


def standing(agent: AgentProgress) -> str:
    """What an agent that has not ended does."""
    if agent.model_awaited_since:
        return f"waiting for a model server since {agent.model_awaited_since[11:19]}"
    return agent.status.replace("_", " ")


def examination_table(examination: Examination) -> Table:
    """Candidates down, the new tests of their authors across: how many of those that say anything pass."""
    heads = (f"tests of {', '.join(tests.candidates)} ({len(tests.tests)})" for tests in examination.sets)
    table = empty_table("change of", *heads)
    for name in examination.candidates:
        cells = [(tests, tests.on(name)) for tests in examination.sets]
        add_row(table, name, *("own" if name in tests.candidates else _cell(crossing) for tests, crossing in cells))
    return table


def _cell(crossing: Crossing | None) -> str:
    if crossing is None:
        return "-"
    return f"{crossing.cell} {crossing.note}".strip()


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
    """Who signed a chain, in a few words."""
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
    """A row a node: place, status, attempt, seconds, tokens, what it said or why it failed."""
    table = empty_table("node", "status", "attempt", "seconds", "tokens", "what")
    for *cells, summary in rows:
        add_row(table, *cells, one_line(summary, _GIST_CHARS), style=_NODE_STYLES.get(cells[1], ""))
    return table


def node_row(update: NodeUpdated) -> tuple[str, ...]:
    """A node as its events tell it."""
    seconds = f"{update.duration_ms / 1000:.1f}" if update.duration_ms else ""
    tokens = f"{update.usage.total_tokens:,}" if update.usage.total_tokens else ""
    summary = update.error or gist(update.output or update.inputs)
    return (update.node_id, str(update.status), str(update.attempt), seconds, tokens, summary)


def print_outputs(screen: Screen, outputs: str) -> None:
    """What a workflow's run gave, each value under its name."""
    for name, value in json_fields(outputs).items():
        screen.line(f"{name}:", style="bold")
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
        screen.line(text if len(text) <= _OUTPUT_CHARS else f"{text[:_OUTPUT_CHARS]} ... (--json has all)")


def json_fields(text: str) -> dict[str, object]:
    """The members of an object as JSON; of another value the value, as `output`."""
    value: object = json.loads(text) if text else {}
    return value if is_object(value) else {"output": value}


def gist(text: str) -> str:
    """An output in a few words: what an agent answered or a tool printed, else the JSON."""
    fields: object = json.loads(text) if text else None
    if not is_object(fields):
        return text
    return str(fields.get("answer") or fields.get("summary") or fields.get("content") or text)
