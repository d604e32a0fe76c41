"""Events from the wire as domain events, and their audit chains.

Chains are verified as they arrive, or written as one JSON document that a reader can verify with the public key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.audit import AuditEntry, HeadVerifier, RedactedChain, SignedHead
from swe_ai_fleet.domain.audit_chains import AuditChains, ChainedEntry, ChainVerdict
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import Event, EventBody, StoredEvent
from swe_ai_fleet.domain.execution import ExecutionState, Fold
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.domain.text import iso_time

_BODIES: dict[str, Any] = {kind.__dataclass_fields__["type"].default: kind for kind in get_args(EventBody)}


def stored_event(event: pb.ExecutionEvent) -> StoredEvent | None:
    """The event with its sequence number; None for a type that this version does not know.

    Raises ValueError where the payload does not fit its type.
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
            at=iso_time(event.at_ms),
            body=from_json(kind, event.payload_json),
        ),
    )


async def fold_events(events: AsyncIterator[pb.ExecutionEvent]) -> ExecutionState | None:
    """The state after these events; None for none."""
    folding = Fold()
    async for event in events:
        stored = stored_event(event)
        if stored is not None:
            folding.take(stored)
    return folding.state


class Chains(AuditChains):
    """`AuditChains` of events from the wire."""

    def add(self, event: pb.ExecutionEvent) -> ChainedEntry | None:
        """Take in the next event; returns the entry that it holds, if it holds one."""
        try:
            stored = stored_event(event)
        except ValueError as error:
            reason = f"event {event.sequence} ({event.type}) cannot be read: {str(error).splitlines()[0]}"
            self.unreadable(event.agent_id, reason)
            return None
        return self.take(stored) if stored else None


def verify_events(events: Iterable[pb.ExecutionEvent], keys: HeadVerifier | None = None) -> tuple[ChainVerdict, ...]:
    """Recompute every agent's chains from all events of an execution; with `keys` their signatures are checked, too."""
    chains = Chains(keys)
    for event in events:
        chains.add(event)
    return chains.verdicts()


def report(verdicts: Sequence[ChainVerdict]) -> dict[str, object]:
    """Verdicts as JSON: whether all chains are intact, and each of them."""
    chains = [
        {
            **asdict(verdict),
            "intact": verdict.intact,
            "fault": {"entry": verdict.fault.seq, "reason": verdict.fault.reason} if verdict.fault else None,
            "signing": str(verdict.signing),
        }
        for verdict in verdicts
    ]
    return {"intact": all(verdict.intact for verdict in verdicts), "chains": chains}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedChain:
    """One chain with its recorded and signed heads; `redacted` instead, where its entries were erased."""

    agent_id: str
    run: int
    entries: tuple[AuditEntry, ...]
    recorded_heads: tuple[str, ...]
    signatures: tuple[SignedHead, ...]
    redacted: RedactedChain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditDocument:
    """All chains of an execution. `public_keys` (PEM) are for convenience; from the same source they prove nothing."""

    execution_id: str
    chains: tuple[RecordedChain, ...]
    public_keys: str = ""
    format: Literal["swe-ai-fleet.audit/1"] = "swe-ai-fleet.audit/1"

    def verdicts(self, keys: HeadVerifier | None) -> tuple[ChainVerdict, ...]:
        """The verdicts on its chains; with `keys` their signatures are checked, too."""
        chains = AuditChains(keys, execution_id=self.execution_id)
        for chain in self.chains:
            if chain.redacted is not None:
                chains.restore(chain.redacted)
                continue
            chains.begin(chain.agent_id)
            for entry in chain.entries:
                chains.append(chain.agent_id, entry)
            for recorded in chain.recorded_heads:
                chains.record(chain.agent_id, recorded)
            for signed in chain.signatures:
                chains.sign(signed)
        return chains.verdicts()


def audit_document(execution_id: str, events: Iterable[StoredEvent], public_keys: str = "") -> AuditDocument:
    """The audit document of an execution with these events."""
    chains, entries = AuditChains(), dict[tuple[str, int], list[AuditEntry]]()
    for stored in events:
        chained = chains.take(stored)
        if chained is not None:
            entries.setdefault((chained.agent_id, chained.run), []).append(chained.entry)
    return AuditDocument(
        execution_id=execution_id,
        chains=tuple(
            RecordedChain(
                agent_id=verdict.agent_id,
                run=verdict.run,
                entries=tuple(entries.get((verdict.agent_id, verdict.run), ())),
                recorded_heads=chains.recorded(verdict.agent_id, verdict.run),
                signatures=chains.signed(verdict.agent_id, verdict.run),
                redacted=chains.redacted(verdict.agent_id, verdict.run) if verdict.redacted else None,
            )
            for verdict in chains.verdicts()
        ),
        public_keys=public_keys,
    )


def read_audit_document(data: bytes) -> AuditDocument:
    """A document from its JSON. Raises InvalidRequest for any other data."""
    try:
        return from_json(AuditDocument, data)
    except ValueError as error:
        raise InvalidRequest(
            f"this is not an audit document: {(str(error).splitlines() or [''])[0]}",
            field="file",
            hint="create one with `fleet export --format audit`",
        ) from None
