"""Audit chains of events as they come over the wire, and what became of them as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.domain.audit import HeadVerifier
from swe_ai_fleet.domain.audit_chains import AuditChains, ChainedEntry, ChainVerdict
from swe_ai_fleet.watching.events import stored_event


class Chains(AuditChains):
    """`AuditChains` of events as they come over the wire."""

    def add(self, event: pb.ExecutionEvent) -> ChainedEntry | None:
        """Take the next event in; the entry that it brought, if it did."""
        try:
            stored = stored_event(event)
        except ValueError as error:
            reason = f"event {event.sequence} ({event.type}) cannot be read: {str(error).splitlines()[0]}"
            self.unreadable(event.agent_id, reason)
            return None
        return self.take(stored) if stored else None


def verify_events(events: Iterable[pb.ExecutionEvent], keys: HeadVerifier | None = None) -> tuple[ChainVerdict, ...]:
    """Recompute every agent's chains from all of an execution's events; with `keys` their signatures too."""
    chains = Chains(keys)
    for event in events:
        chains.add(event)
    return chains.verdicts()


def report(verdicts: Sequence[ChainVerdict]) -> dict[str, object]:
    """Verdicts as JSON: whether all chains are intact, and each of them."""
    chains = [
        {
            "agent_id": verdict.agent_id,
            "run": verdict.run,
            "entries": verdict.entries,
            "head": verdict.head,
            "recorded_head": verdict.recorded_head,
            "intact": verdict.intact,
            "fault": {"entry": verdict.fault.seq, "reason": verdict.fault.reason} if verdict.fault else None,
            "signing": str(verdict.signing),
            "signed_entries": verdict.signed_entries,
            "key_id": verdict.key_id,
        }
        for verdict in verdicts
    ]
    return {"intact": all(verdict.intact for verdict in verdicts), "chains": chains}
