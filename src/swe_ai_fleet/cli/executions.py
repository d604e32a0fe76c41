"""`fleet list`, `show` and `cancel`: what there is, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.documents import listed_document
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.messages import enum_name, enum_word
from swe_ai_fleet.cli.outcome import current_state, show_outcome
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import print_list
from swe_ai_fleet.watching.events import moment
from swe_ai_fleet.watching.text import one_line

_COLUMNS = ("execution", "task", "kind", "status", "verdict", "role", "started (UTC)", "what")


async def show_list(screen: Screen, client: FleetClient, *, task_id: str, statuses: Sequence[str], limit: int) -> Exit:
    """The newest executions."""
    wanted = [enum_name(pb.DeliberationStatus, status, field="status") for status in statuses]
    request = pb.ListExecutionsRequest(task_id=task_id, statuses=wanted, page_size=limit)
    found = (await client.executions(request)).executions
    document = {"executions": [listed_document(execution) for execution in found]}
    print_list(screen, document, _COLUMNS, [_row(one) for one in found], nothing="no executions")
    return Exit.ACCEPTED


async def show_one(screen: Screen, client: FleetClient, name: str) -> Exit:
    """One execution as it stands now. The exit code is about the command: the document has the execution's."""
    execution = await client.execution(await client.find(name))
    await show_outcome(screen, client, await current_state(client, execution))
    return Exit.ACCEPTED


async def cancel(screen: Screen, client: FleetClient, name: str, *, reason: str) -> Exit:
    """Stop an execution's agents and their processes."""
    answer = await client.cancel(await client.find(name), reason)
    status = enum_word(pb.DeliberationStatus, answer.status)
    screen.result(
        {"execution_id": answer.execution_id, "status": status, "already_ended": answer.already_ended},
        f"execution {answer.execution_id}{' had ended before' if answer.already_ended else ''}: {status}",
    )
    return Exit.ACCEPTED


def _row(execution: pb.Execution) -> tuple[str, ...]:
    return (
        execution.execution_id,
        execution.task_id,
        enum_word(pb.ExecutionKind, execution.kind),
        enum_word(pb.DeliberationStatus, execution.status),
        enum_word(pb.EvidenceVerdict, execution.verdict),
        enum_word(pb.Role, execution.role).upper(),
        moment(execution.created_at_ms)[:19],
        one_line(execution.task_description, 60),
    )
