"""`fleet list`, `show`, `cancel` and `audit verify`: what there is, and what became of it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import cast

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.documents import audit_document, listed_document
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.outcome import current_state, show_outcome
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import audit_table, executions_table, status_word
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.watching.chains import verify_events

Fleet = AbstractAsyncContextManager[FleetClient]


async def show_list(screen: Screen, fleet: Fleet, *, task_id: str, statuses: tuple[str, ...], limit: int) -> Exit:
    """The newest executions."""
    wanted = [status_value(status) for status in statuses]
    async with fleet as client:
        request = pb.ListExecutionsRequest(task_id=task_id, statuses=wanted, page_size=limit)
        found = (await client.executions(request)).executions
    if screen.json:
        screen.document({"executions": [listed_document(execution) for execution in found]})
    elif found:
        screen.out.print(executions_table(found))
    else:
        screen.line("no executions")
    return Exit.ACCEPTED


async def show_one(screen: Screen, fleet: Fleet, name: str) -> Exit:
    """One execution as it stands now. The exit code is about the command: the document has the execution's."""
    async with fleet as client:
        execution = await client.execution(await client.find(name))
        await show_outcome(screen, client, await current_state(client, execution))
    return Exit.ACCEPTED


async def cancel(screen: Screen, fleet: Fleet, name: str, *, reason: str) -> Exit:
    """Stop an execution's agents and their processes."""
    async with fleet as client:
        answer = await client.cancel(await client.find(name), reason)
    status = status_word(answer.status)
    if screen.json:
        screen.document({"execution_id": answer.execution_id, "status": status, "already_ended": answer.already_ended})
    elif answer.already_ended:
        screen.line(f"execution {answer.execution_id} had ended before: {status}")
    else:
        screen.line(f"execution {answer.execution_id}: {status}")
    return Exit.ACCEPTED


async def verify_audit(screen: Screen, fleet: Fleet, name: str) -> Exit:
    """Recompute the audit chain of every agent of an execution from its log."""
    async with fleet as client:
        execution = await client.execution(await client.find(name))
        events: list[pb.ExecutionEvent] = []
        async for event in client.events(execution.execution_id):
            events.append(event)
            if event.sequence >= execution.last_sequence:
                break
    verdicts = verify_events(events)
    if screen.json:
        screen.document(audit_document(execution.execution_id, verdicts))
    elif verdicts:
        screen.out.print(audit_table(verdicts))
    else:
        screen.line("no agent has recorded anything")
    return Exit.ACCEPTED if all(verdict.intact for verdict in verdicts) else Exit.NOT_ACCEPTED


def status_value(word: str) -> pb.DeliberationStatus:
    """The status that a word such as `completed` names. Raises CommandFault."""
    name = f"DELIBERATION_STATUS_{word.strip().upper().replace('-', '_')}"
    if name not in pb.DeliberationStatus.keys():  # noqa: SIM118 - not a mapping
        known = ", ".join(status.value for status in ExecutionStatus)
        raise CommandFault(f"unknown status {word!r}", exit_code=Exit.USAGE, hint=f"one of {known}")
    return cast("pb.DeliberationStatus", pb.DeliberationStatus.Value(name))
