"""Tables for people. Every cell may hold untrusted text and is cleaned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.orchestrator.fates import fates
from swe_ai_fleet.orchestrator.run_names import side_runs
from swe_ai_fleet.watching.chains import ChainVerdict
from swe_ai_fleet.watching.events import moment
from swe_ai_fleet.watching.narration import checks_text
from swe_ai_fleet.watching.text import one_line

_CELL = 400
_HASH_SHOWN = 16
_UNBROKEN = ("execution", "candidate", "agent")


def candidates_table(state: ExecutionState) -> Table:
    """All candidates by rank with their evidence, then those that do not stand, and the agents that left none."""
    table = _table("rank", "candidate", "accepted", "score", "checks", "lines", "tokens", "why")
    for ranked in state.ranking:
        candidate = state.candidates.get(ranked.candidate_id)
        same = f" (= {', '.join(ranked.duplicates)})" if ranked.duplicates else ""
        left = candidate.artifacts if candidate else None
        _row(
            table,
            str(ranked.rank),
            ranked.candidate_id + same,
            "yes" if ranked.accepted else "no",
            f"{ranked.score:.3f}",
            checks_text(state.reports.get(ranked.candidate_id)),
            f"+{left.insertions} -{left.deletions}" if left else "",
            f"{candidate.usage.total_tokens:,}" if candidate else "",
            ranked.reason,
            style="bold green" if ranked.candidate_id == state.winner_id else "" if ranked.accepted else "red",
        )
    for name, why in fates(state).items():
        candidate = state.candidates.get(name)
        tokens = f"{candidate.usage.total_tokens:,}" if candidate else ""
        _row(table, "-", name, "no", "", checks_text(state.reports.get(name)), "", tokens, why, style="dim")
    aside = {"_", *side_runs(state), *state.candidates}
    for agent in state.agents.values():
        if agent.agent_id not in aside:
            why = f"left no candidate: {agent.stop_reason or agent.status}"
            tokens = f"{agent.usage.total_tokens:,}"
            _row(table, "-", agent.agent_id, "no", "", "", "", tokens, why, style="dim")
    return table


def executions_table(executions: Iterable[pb.Execution]) -> Table:
    table = _table("execution", "task", "kind", "status", "role", "started (UTC)", "what")
    for execution in executions:
        _row(
            table,
            execution.execution_id,
            execution.task_id,
            enum_word(pb.ExecutionKind.Name(execution.kind), "EXECUTION_KIND_"),
            status_word(execution.status),
            enum_word(pb.Role.Name(execution.role), "ROLE_").upper(),
            moment(execution.created_at_ms)[:19],
            one_line(execution.task_description, 60),
        )
    return table


def councils_table(councils: Iterable[pb.CouncilInfo]) -> Table:
    table = _table("council", "role", "agents", "status", "model")
    for council in councils:
        _row(table, council.council_id, council.role, str(council.num_agents), council.status, council.model)
    return table


def members_table(councils: Iterable[pb.CouncilInfo]) -> Table:
    """Every agent of the councils, with who runs it."""
    table = _table("agent", "role", "run by", "profile", "tasks", "languages")
    for council in councils:
        for agent in council.agents:
            can = agent.capabilities
            tasks = (
                f"{agent.running_tasks} of {can.max_concurrent_tasks}" if agent.endpoint else str(agent.running_tasks)
            )
            runs = agent.endpoint or "the fleet"
            _row(table, agent.agent_id, council.role, runs, can.model_profile, tasks, ", ".join(can.languages))
    return table


def audit_table(verdicts: Iterable[ChainVerdict]) -> Table:
    table = _table("agent", "entries", "head", "verdict")
    for verdict in verdicts:
        run = f" (run {verdict.run})" if verdict.run > 1 else ""
        fault = verdict.fault
        told = "intact" if fault is None else f"BROKEN at entry {fault.seq}: {fault.reason}"
        if fault is None and not verdict.recorded_head:
            told = "intact so far; the run has recorded no head"
        style = "green" if verdict.intact else "bold red"
        _row(table, verdict.agent_id + run, str(verdict.entries), verdict.head[:_HASH_SHOWN] or "-", told, style=style)
    return table


def agents_table(rows: Iterable[Sequence[str]]) -> Table:
    """The agents of a running execution: agent, step, last tool, tokens, seconds, state."""
    table = _table("agent", "step", "last tool", "tokens", "seconds", "state")
    for row in rows:
        _row(table, *row)
    return table


def findings_table(rows: Iterable[tuple[Sequence[str], str]]) -> Table:
    """What `fleet doctor` found: rows of (part, state, version, cause, mend), each with its style."""
    table = _table("part", "state", "version", "what was found", "mend")
    for row, style in rows:
        _row(table, *row, style=style)
    return table


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of cells that need no style."""
    table = _table(*columns)
    for row in rows:
        _row(table, *row)
    return table


def status_word(status: pb.DeliberationStatus) -> str:
    """A status as the command line writes it: `in_progress`."""
    return enum_word(pb.DeliberationStatus.Name(status), "DELIBERATION_STATUS_")


def enum_word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        # An id that is broken over lines cannot be copied.
        table.add_column(column, overflow="fold", no_wrap=column in _UNBROKEN)
    return table


def _row(table: Table, *cells: str, style: str = "") -> None:
    table.add_row(*(Text(one_line(cell, _CELL)) for cell in cells), style=style)
