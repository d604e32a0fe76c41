"""What runs that never came to their end have left in the blob store."""

from __future__ import annotations

from contextlib import aclosing

import structlog

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import RunFinished, WorkspaceCheckpointed
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import BlobStore, EventLog

_log = structlog.get_logger(__name__)


async def discard_checkpoints(log: EventLog, blobs: BlobStore, tenant: str, execution_id: str) -> None:
    """Give back the room of an ended execution's checkpoints; runs that came to their end have done so themselves.

    What cannot be given back now is forgotten with the events.
    """
    left: dict[str, BlobRef] = {}
    try:
        async with aclosing(log.read(tenant, execution_id)) as events:
            async for stored in events:
                body, agent_id = stored.event.body, stored.event.agent_id
                if isinstance(body, RunFinished) and body.stop_reason is not StopReason.CANCELLED:
                    left.pop(agent_id, None)
                elif isinstance(body, WorkspaceCheckpointed):
                    left.pop(agent_id, None)
                    # One that is named by its content may be another's as well.
                    if body.bundle is not None and not body.bundle.name.endswith(f"/{body.bundle.digest}"):
                        left[agent_id] = body.bundle
        for bundle in left.values():
            await blobs.discard(bundle)
    except FleetError as error:
        _log.warning("checkpoints were not discarded", execution_id=execution_id, reason=str(error))
