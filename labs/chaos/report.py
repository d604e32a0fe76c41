"""What a chaos run tells: a table for people, a file for machines."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from labs.chaos.killing import Blow
from labs.chaos.run import Outcome


def show(outcome: Outcome) -> None:
    """Print what was killed and what came of it."""
    table = Table("at", "phase", "killed with -9", "down", "executions hit", "all back after")
    for blow in outcome.blows:
        table.add_row(*_row(blow))
    console = Console(width=140)
    console.print(table)
    console.print(summary(outcome))
    for words in outcome.ended_by_themselves:
        console.print(f"ended by itself: {words}", markup=False)
    for fault in outcome.proof.faults:
        console.print(f"FAULT: {fault}", markup=False)


def summary(outcome: Outcome) -> str:
    proof = outcome.proof
    return (
        f"seed {outcome.seed}: {len(outcome.blows)} kills in {outcome.seconds:g} s; "
        f"{proof.completed} of {proof.executions} accepted executions completed with the right patch, "
        f"{proof.results} results published, {proof.chains} audit chains recomputed, {proof.tool_calls} tool calls "
        f"({proof.interrupted} interrupted), {proof.effects} effects outside, {outcome.events} events; "
        f"{proof.recorded} recorded in the context, {proof.remembered} lessons remembered, {proof.recalled} recalled; "
        f"{proof.taken_over} take-overs of executions, {proof.reassigned} runs assigned anew, "
        f"{outcome.handed_in_again} tasks submitted again, {len(outcome.ended_by_themselves)} orchestrators that ended "
        f"by themselves and were started again; nothing left {outcome.clean_seconds:g} s after the end; "
        f"{len(proof.faults)} faults"
    )


def write(outcome: Outcome, path: Path) -> None:
    """The whole outcome as JSON."""
    path.write_text(json.dumps(asdict(outcome), indent=2) + "\n")


def markdown(outcome: Outcome) -> str:
    """The table for the documentation."""
    head = ["| at | phase | killed with -9 | down | executions hit | all back after |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(_row(blow))} |" for blow in outcome.blows)]) + "\n"


def _row(blow: Blow) -> tuple[str, ...]:
    match blow.recovered_seconds:
        case None:
            back = "nothing was hit"
        case seconds if seconds < 0:
            back = "NEVER"
        case seconds:
            back = f"{seconds:.1f} s"
    down = f"{blow.down_seconds:g} s" if blow.down_seconds else "at once"
    return f"{blow.at_seconds:.0f} s", blow.phase, blow.what, down, str(len(blow.hit)), back
