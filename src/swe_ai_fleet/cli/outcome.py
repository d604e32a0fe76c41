"""The end of an execution, shown: winner, comparison, diff, branch."""

from __future__ import annotations

from rich.syntax import Syntax

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.approvals import print_pending
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.documents import execution_document
from swe_ai_fleet.cli.exits import CommandFault, Exit, exit_of
from swe_ai_fleet.cli.node_tables import node_row, nodes_table
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import candidates_table
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.watching.events import fold_events
from swe_ai_fleet.watching.narration import gathered_text
from swe_ai_fleet.watching.text import one_line, visible

_DIFF_LINES = 400
_MEMORY = 160
_STYLES = {Exit.ACCEPTED: "bold green", Exit.NOT_ACCEPTED: "bold red"}


async def current_state(client: FleetClient, execution: pb.Execution) -> ExecutionState:
    """An execution's state as far as its log goes now, whether it has ended or not."""
    state = await fold_events(client.recorded(execution))
    if state is None:
        raise CommandFault(f"execution {execution.execution_id} has no events", exit_code=Exit.NOT_ACCEPTED)
    return state


async def winning_diff(client: FleetClient, state: ExecutionState) -> str:
    """The winner's patch as text; empty without a winner."""
    winner = state.candidates.get(state.winner_id)
    if winner is None or winner.artifacts.patch is None or not winner.artifacts.patch.size:
        return ""
    return (await client.artifact(state.execution_id, winner.artifacts.patch.digest)).decode("utf-8", "replace")


async def show_outcome(screen: Screen, client: FleetClient, state: ExecutionState) -> Exit:
    """Print an execution's outcome; the exit code that tells it."""
    diff = await winning_diff(client, state)
    if screen.json:
        screen.document(execution_document(state, diff=diff))
        return exit_of(state.status)
    print_outcome(screen, state, diff)
    return exit_of(state.status)


def print_outcome(screen: Screen, state: ExecutionState, diff: str) -> None:
    """The comparison of the candidates, the winner's diff and where it stands, for people."""
    screen.line(f"task {state.task.task_id}: {one_line(state.task.description, 200)}", style="bold")
    screen.line(f"execution {state.execution_id}")
    if state.context is not None:
        print_context(screen, state.context)
    if state.task.workflow is not None:
        screen.out.print(nodes_table(node_row(one) for one in state.nodes.values()))
    elif state.ranking or state.agents:
        screen.out.print(candidates_table(state))
    print_pending(screen, state)
    if diff:
        print_diff(screen, diff)
    delivered = state.delivered
    if delivered is not None:
        screen.line(f"branch {delivered.branch}")
        screen.line(f"commit {delivered.commit_sha}")
    seconds = state.duration_ms / 1000
    told = f"{state.status}"
    if state.winner_id:
        told += f": {state.winner_id} won"
    if state.error:
        told += f": {one_line(state.error, 1000)}"
    cost = f" ({seconds:.1f} s, {state.usage.total_tokens:,} tokens)" if state.status.terminal else ""
    screen.line(told + cost, style=_STYLES.get(exit_of(state.status), "bold yellow"))


def print_context(screen: Screen, context: GatheredContext) -> None:
    """How much agents were told of the project, and what was recalled for them."""
    screen.line(f"context {gathered_text(context)}")
    for found in context.recalled:
        memory = found.memory
        screen.line(f"  recalled from {memory.namespace}: {one_line(memory.text, _MEMORY)}")
    if context.omitted:
        screen.line(f"  not in it: {one_line(', '.join(context.omitted), 2 * _MEMORY)}")


def print_diff(screen: Screen, diff: str) -> None:
    """A diff with colours where the terminal has them; what it would hide is shown by name."""
    lines = visible(diff).splitlines()
    shown = "\n".join(lines[:_DIFF_LINES])
    if screen.out.is_terminal:
        screen.out.print(Syntax(shown, "diff", theme="ansi_dark", background_color="default"))
    else:
        screen.line(shown)
    if len(lines) > _DIFF_LINES:
        screen.line(f"... {len(lines) - _DIFF_LINES} more lines; --json has them all", style="dim")
