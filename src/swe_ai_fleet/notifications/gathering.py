"""From an event of the log to what webhooks are told: read what the event itself does not say."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from swe_ai_fleet.domain.approval import ApprovalRequest
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.domain.event import (
    CONTROL_SUBJECT,
    EXECUTION_SUBJECT,
    ApprovalAwaited,
    ApprovalResolved,
    Event,
    ExecutionFinished,
    ExecutionStarted,
    StoredEvent,
)
from swe_ai_fleet.domain.execution import ExecutionState, advance
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.notifications.notification import Notification, finished, requested, resolved, started
from swe_ai_fleet.ports import EventLog, SecretMask


async def notification_of(stored: StoredEvent, log: EventLog, mask: SecretMask) -> Notification | None:
    """What an event comes to; None for one that webhooks never hear of, and for what was said before.

    It is the same whenever it is made. Raises NotFound, PreconditionFailed (the log does not say any more what was
    before, or cannot be read), Unavailable.
    """
    event = stored.event
    match event.body:
        case ExecutionStarted(task=task):
            return started(event, task, mask)
        case ExecutionFinished():
            return finished(event, await _state(stored, log), mask)
        case ApprovalAwaited(request=request):
            first, _ = await _asked(stored, log, request.approval_id)
            return requested(event, await _task(event, log), request, mask) if first else None
        case ApprovalResolved(resolution=resolution):
            first, request = await _asked(stored, log, resolution.approval_id)
            return resolved(event, await _task(event, log), resolution, request, mask) if first else None
        case _:
            return None


async def _state(stored: StoredEvent, log: EventLog) -> ExecutionState:
    """The execution as it had told of itself up to this event."""
    state: ExecutionState | None = None
    async with aclosing(_subject(stored.event, log, EXECUTION_SUBJECT)) as events:
        async for one in events:
            state = advance(state, one)
            if one.sequence >= stored.sequence:
                break
    if state is None:
        raise NotFound(f"the beginning of {stored.event.execution_id} is not in the log any more")
    return state


async def _task(event: Event, log: EventLog) -> Task:
    async with aclosing(_subject(event, log, EXECUTION_SUBJECT)) as events:
        async for one in events:
            if isinstance(one.event.body, ExecutionStarted):
                return one.event.body.task
            break
    raise NotFound(f"the beginning of {event.execution_id} is not in the log any more")


async def _asked(stored: StoredEvent, log: EventLog, approval_id: str) -> tuple[bool, ApprovalRequest | None]:
    """Whether an event is the first of its kind about an approval, and what was asked.

    Who takes an execution over asks once more, and the clock may decide just after a person did: only the first counts.
    """
    request: ApprovalRequest | None = None
    kind = type(stored.event.body)
    async with aclosing(_subject(stored.event, log, CONTROL_SUBJECT)) as events:
        async for one in events:
            if one.sequence >= stored.sequence:
                return True, request
            match one.event.body:
                case ApprovalAwaited(request=asked) if asked.approval_id == approval_id:
                    request = asked
                case ApprovalResolved(resolution=decided) if decided.approval_id == approval_id:
                    pass
                case _:
                    continue
            if type(one.event.body) is kind:
                return False, request
    return True, request


def _subject(event: Event, log: EventLog, agent_id: str) -> AsyncGenerator[StoredEvent, None]:
    return log.read(event.tenant, event.execution_id, agent_id=agent_id)
