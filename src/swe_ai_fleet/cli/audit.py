"""Audit chains rebuilt from the log and recomputed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.events import stored_event
from swe_ai_fleet.domain.audit import AuditEntry, AuditFault, verify
from swe_ai_fleet.domain.event import CandidateSubmitted, RunFinished, RunStarted, ToolFinished, ToolStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainVerdict:
    """What recomputing one agent's chain gave. `recorded_head` is empty for a run that has not ended."""

    agent_id: str
    entries: int
    head: str
    recorded_head: str
    fault: AuditFault | None = None

    @property
    def intact(self) -> bool:
        return self.fault is None


@dataclass(kw_only=True)
class _Chain:
    entries: list[AuditEntry] = field(default_factory=list[AuditEntry])
    heads: list[str] = field(default_factory=list[str])
    unreadable: AuditFault | None = None


def verify_events(events: Iterable[pb.ExecutionEvent]) -> tuple[ChainVerdict, ...]:
    """Recompute every agent's chain from an execution's events, in the order of their first entries.

    The head must be the one that the run recorded at its end and that its candidate carried into the ranking: an
    entry taken away from the end is found as well.
    """
    chains: dict[str, _Chain] = {}
    for event in events:
        chain = chains.setdefault(event.agent_id, _Chain())
        try:
            stored = stored_event(event)
        except ValueError as error:
            reason = f"event {event.sequence} cannot be read: {str(error).splitlines()[0]}"
            chain.unreadable = chain.unreadable or AuditFault(seq=len(chain.entries) + 1, reason=reason)
            continue
        match stored.event.body if stored else None:
            case RunStarted():
                # A run that another host took over begins its chain anew.
                chains[event.agent_id] = _Chain()
            case ToolStarted(entry=entry) | ToolFinished(entry=entry):
                chain.entries.append(entry)
            case RunFinished(audit_head=head):
                chain.heads.append(head)
            case CandidateSubmitted(candidate=candidate):
                chains.setdefault(candidate.agent_id, _Chain()).heads.append(candidate.audit_head)
            case _:
                pass
    return tuple(_verdict(agent_id, chain) for agent_id, chain in chains.items() if chain.entries or chain.heads)


def _verdict(agent_id: str, chain: _Chain) -> ChainVerdict:
    heads = chain.heads or [None]
    faults = (verify(chain.entries, head=head) for head in heads)
    foreign = next((entry for entry in chain.entries if entry.agent_id != agent_id), None)
    fault = chain.unreadable or next((found for found in faults if found is not None), None)
    if fault is None and foreign is not None:
        fault = AuditFault(seq=foreign.seq, reason=f"it belongs to {foreign.agent_id}")
    return ChainVerdict(
        agent_id=agent_id,
        entries=len(chain.entries),
        head=chain.entries[-1].hash if chain.entries else "",
        recorded_head=chain.heads[0] if chain.heads else "",
        fault=fault,
    )
