"""Audit chains rebuilt from the log and recomputed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.events import stored_event
from swe_ai_fleet.domain.audit import AuditEntry, AuditFault, verify
from swe_ai_fleet.domain.event import CandidateSubmitted, RunClaimed, RunFinished, ToolFinished, ToolStarted


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


@dataclass(kw_only=True)
class _Chain:
    agent_id: str
    entries: list[AuditEntry] = field(default_factory=list[AuditEntry])
    heads: list[str] = field(default_factory=list[str])
    unreadable: AuditFault | None = None


def verify_events(events: Iterable[pb.ExecutionEvent]) -> tuple[ChainVerdict, ...]:
    """Recompute every agent's chains from an execution's events.

    The last entry's hash must be the head that the run recorded at its end and that its candidate carried into the
    ranking, so that an entry taken away from the end is found as well.
    """
    runs: dict[str, list[_Chain]] = {}
    for event in events:
        try:
            stored = stored_event(event)
        except ValueError as error:
            chain = _last(runs, event.agent_id)
            reason = f"event {event.sequence} ({event.type}) cannot be read: {str(error).splitlines()[0]}"
            chain.unreadable = chain.unreadable or AuditFault(seq=len(chain.entries) + 1, reason=reason)
            continue
        match stored.event.body if stored else None:
            case RunClaimed(resumes=True):
                # Whatever head an interrupted part recorded, the chain goes on behind it.
                _last(runs, event.agent_id).heads.clear()
            case RunClaimed():
                runs.setdefault(event.agent_id, []).append(_Chain(agent_id=event.agent_id))
            case ToolStarted(entry=entry) | ToolFinished(entry=entry):
                _last(runs, event.agent_id).entries.append(entry)
            case RunFinished(audit_head=head) if head:
                _last(runs, event.agent_id).heads.append(head)
            case CandidateSubmitted(candidate=candidate):
                _last(runs, candidate.agent_id).heads.append(candidate.audit_head)
            case _:
                pass
    return tuple(_verdict(chain, number) for chains in runs.values() for number, chain in enumerate(chains, start=1))


def _last(runs: dict[str, list[_Chain]], agent_id: str) -> _Chain:
    chains = runs.setdefault(agent_id, [])
    if not chains:
        chains.append(_Chain(agent_id=agent_id))
    return chains[-1]


def _verdict(chain: _Chain, run: int) -> ChainVerdict:
    faults = [verify(chain.entries, head=head) for head in (chain.heads or [None])]
    foreign = next((entry for entry in chain.entries if entry.agent_id != chain.agent_id), None)
    fault = chain.unreadable or next((found for found in faults if found is not None), None)
    if fault is None and foreign is not None:
        fault = AuditFault(seq=foreign.seq, reason=f"it belongs to {foreign.agent_id}")
    return ChainVerdict(
        agent_id=chain.agent_id,
        run=run,
        entries=len(chain.entries),
        head=chain.entries[-1].hash if chain.entries else "",
        recorded_head=chain.heads[0] if chain.heads else "",
        fault=fault,
    )
