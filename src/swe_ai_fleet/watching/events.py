"""Events as they come over the wire, back as the domain's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, get_args

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.event import Event, EventBody, StoredEvent
from swe_ai_fleet.domain.execution import ExecutionState, Fold
from swe_ai_fleet.domain.task import DEFAULT_TENANT

_BODIES: dict[str, Any] = {kind.__dataclass_fields__["type"].default: kind for kind in get_args(EventBody)}


def stored_event(event: pb.ExecutionEvent) -> StoredEvent | None:
    """The event at its place in the log; None for a type that this version does not know.

    Raises ValueError where the payload is not what its type says.
    """
    kind = _BODIES.get(event.type)
    if kind is None:
        return None
    return StoredEvent(
        sequence=event.sequence,
        event=Event(
            id=event.event_id,
            tenant=DEFAULT_TENANT,
            execution_id=event.execution_id,
            task_id=event.task_id,
            agent_id=event.agent_id,
            at=moment(event.at_ms),
            body=from_json(kind, event.payload_json),
        ),
    )


async def fold_events(events: AsyncIterator[pb.ExecutionEvent]) -> ExecutionState | None:
    """The state that events lead to; None for none."""
    folding = Fold()
    async for event in events:
        stored = stored_event(event)
        if stored is not None:
            folding.take(stored)
    return folding.state


def moment(milliseconds: int) -> str:
    """Milliseconds since the epoch as ISO 8601 in UTC; empty for 0."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds") if milliseconds else ""
