"""Checks that NATS is consistent: every event readable, the blobs that it names present, audit chains unbroken."""

from __future__ import annotations

import json
import re
from contextlib import aclosing
from dataclasses import dataclass, field

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.protocol import BLOBS, BLOBS_BUCKET
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.audit_chains import AuditChains
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.execution import advance

_TIMEOUT_SECONDS = 60.0
_MOST_TOLD = 50
_BLOB = re.compile(rb'"name": ?"([^"\\/]{1,200}/[^"\\/]{1,200}/[0-9a-f]{64})", ?"digest"')
"""A blob's reference as the codec writes it."""


@dataclass(kw_only=True)
class Finding:
    """What was checked. `faults` are the first fifty inconsistencies; empty: there are none."""

    executions: int = 0
    events: int = 0
    chains: int = 0
    entries: int = 0
    blobs: int = 0
    faults: list[str] = field(default_factory=list[str])

    def fault(self, text: str) -> None:
        if len(self.faults) < _MOST_TOLD:
            self.faults.append(text)


async def check_contents(log: JetStream, connection: Connection, *, sample: int = 0) -> Finding:
    """Read executions from their first event to their last.

    An execution whose first events have expired is left out, since its chains cannot be complete.

    Args:
        log: Reads the events.
        connection: To the same server.
        sample: Executions to look at, the newest; 0: all of them.

    Raises:
        Unavailable: NATS did not answer.
    """
    finding = Finding()
    executions = await _begun(log)
    stored = await _blobs(connection)
    for tenant, execution_id in list(executions)[-sample:] if sample else executions:
        await _execution(log, tenant, execution_id, stored, finding)
    return finding


async def _begun(log: JetStream) -> dict[tuple[str, str], None]:
    """Executions whose first event is stored, the oldest first."""
    executions: dict[tuple[str, str], None] = {}
    async with aclosing(log.heads()) as heads:
        async for head in heads:
            if head is not None and head.event.body.type == "execution_started":
                executions[head.event.tenant, head.event.execution_id] = None
    return executions


async def _blobs(connection: Connection) -> set[str]:
    """The names of the stored blobs."""
    names: set[str] = set()
    described = messages(connection, BLOBS, f"$O.{BLOBS_BUCKET}.M.>", follow=False, timeout=_TIMEOUT_SECONDS)
    async with aclosing(described) as metas:
        async for meta in metas:
            if meta is not None:
                info = json.loads(meta.data)
                if not info.get("deleted"):
                    names.add(str(info["name"]))
    return names


async def _execution(log: JetStream, tenant: str, execution_id: str, stored: set[str], finding: Finding) -> None:
    finding.executions += 1
    chains, state, named = AuditChains(), None, set[str]()
    try:
        async with aclosing(log.read(tenant, execution_id)) as events:
            async for event in events:
                finding.events += 1
                state = advance(state, event)
                finding.entries += chains.take(event) is not None
                named.update(match.decode() for match in _BLOB.findall(to_json(event.event)))
    except FleetError as error:
        finding.fault(f"{execution_id}: {error.message}")
        return
    if state is None:
        finding.fault(f"{execution_id}: its events do not form an execution")
    for verdict in chains.verdicts():
        finding.chains += 1
        if verdict.fault is not None:
            finding.fault(f"{execution_id}: the audit chain of {verdict.agent_id} breaks: {verdict.fault.reason}")
    finding.blobs += len(named)
    for name in sorted(name for name in named if name not in stored):
        finding.fault(f"{execution_id}: the blob {name} is missing")
