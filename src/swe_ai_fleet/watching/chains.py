"""Audit chains rebuilt from the log and recomputed, entry by entry: no chain is held in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.domain.audit import GENESIS, AuditEntry, AuditFault, head_fault, link_fault
from swe_ai_fleet.domain.event import (
    CandidateSubmitted,
    RunClaimed,
    RunFinished,
    StoredEvent,
    ToolFinished,
    ToolStarted,
)
from swe_ai_fleet.watching.events import stored_event


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainVerdict:
    """What recomputing one chain gave.

    `run` counts the runs of an agent from 1: a host that takes over begins a chain of its own, unless it resumes the
    run, whose chain then goes on. `recorded_head` is empty for a run that has not ended.
    """

    agent_id: str
    run: int
    entries: int
    head: str
    recorded_head: str
    fault: AuditFault | None = None

    @property
    def intact(self) -> bool:
        return self.fault is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainedEntry:
    """An entry where it stands: in which of its agent's chains."""

    agent_id: str
    run: int
    entry: AuditEntry


@dataclass(kw_only=True)
class _Chain:
    agent_id: str
    count: int = 0
    previous: str = GENESIS
    heads: list[str] = field(default_factory=list[str])
    broken: AuditFault | None = None
    foreign: AuditFault | None = None
    unreadable: AuditFault | None = None

    def add(self, entry: AuditEntry) -> None:
        self.count += 1
        self.broken = self.broken or link_fault(entry, count=self.count, previous=self.previous)
        if self.foreign is None and entry.agent_id != self.agent_id:
            self.foreign = AuditFault(seq=entry.seq, reason=f"it belongs to {entry.agent_id}")
        self.previous = entry.hash

    def verdict(self, run: int) -> ChainVerdict:
        fault = self.unreadable or self.broken
        for head in self.heads:
            fault = fault or head_fault(count=self.count, previous=self.previous, head=head)
        return ChainVerdict(
            agent_id=self.agent_id,
            run=run,
            entries=self.count,
            head=self.previous if self.count else "",
            recorded_head=self.heads[0] if self.heads else "",
            fault=fault or self.foreign,
        )


class Chains:
    """Recomputes every agent's chains from an execution's events, given one after the other.

    The last entry's hash must be the head that the run recorded at its end and that its candidate carried into the
    ranking, so that an entry taken away from the end is found as well.
    """

    def __init__(self) -> None:
        self._runs: dict[str, list[_Chain]] = {}

    def add(self, event: pb.ExecutionEvent) -> ChainedEntry | None:
        """Take the next event in; the entry that it brought, if it did."""
        try:
            stored = stored_event(event)
        except ValueError as error:
            chain = self._last(event.agent_id)
            reason = f"event {event.sequence} ({event.type}) cannot be read: {str(error).splitlines()[0]}"
            chain.unreadable = chain.unreadable or AuditFault(seq=chain.count + 1, reason=reason)
            return None
        return self.take(stored) if stored else None

    def take(self, stored: StoredEvent) -> ChainedEntry | None:
        """Likewise, for an event that was read from the log itself."""
        agent_id = stored.event.agent_id
        match stored.event.body:
            case RunClaimed(resumes=True):
                # Whatever head an interrupted part recorded, the chain goes on behind it.
                self._last(agent_id).heads.clear()
            case RunClaimed():
                self._runs.setdefault(agent_id, []).append(_Chain(agent_id=agent_id))
            case ToolStarted(entry=entry) | ToolFinished(entry=entry):
                self._last(agent_id).add(entry)
                return ChainedEntry(agent_id=agent_id, run=len(self._runs[agent_id]), entry=entry)
            case RunFinished(audit_head=head) if head:
                self._last(agent_id).heads.append(head)
            case CandidateSubmitted(candidate=candidate):
                self._last(candidate.agent_id).heads.append(candidate.audit_head)
            case _:
                pass
        return None

    def verdicts(self) -> tuple[ChainVerdict, ...]:
        """What each chain has come to."""
        return tuple(
            chain.verdict(number) for chains in self._runs.values() for number, chain in enumerate(chains, start=1)
        )

    def _last(self, agent_id: str) -> _Chain:
        chains = self._runs.setdefault(agent_id, [])
        if not chains:
            chains.append(_Chain(agent_id=agent_id))
        return chains[-1]


def verify_events(events: Iterable[pb.ExecutionEvent]) -> tuple[ChainVerdict, ...]:
    """Recompute every agent's chains from all of an execution's events."""
    chains = Chains()
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
        }
        for verdict in verdicts
    ]
    return {"intact": all(verdict.intact for verdict in verdicts), "chains": chains}
