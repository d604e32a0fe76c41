"""Audit chains rebuilt from the log and recomputed, entry by entry; only the hashes are kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from swe_ai_fleet.domain.audit import (
    GENESIS,
    AuditEntry,
    AuditFault,
    HeadVerifier,
    RedactedChain,
    SignedHead,
    head_fault,
    link_fault,
)
from swe_ai_fleet.domain.event import (
    EXECUTION_SUBJECT,
    AuditHeadSigned,
    CandidateSubmitted,
    ExecutionErased,
    RunClaimed,
    RunFinished,
    StoredEvent,
    ToolFinished,
    ToolStarted,
)
from swe_ai_fleet.domain.text import utf8

Keys = Callable[[SignedHead], str]
"""Says why a head has no valid signature of a trusted key; empty where it has."""


class Signing(StrEnum):
    """How much of a chain is signed. `unchecked`: there is a signature, but no trusted keys were given."""

    WHOLE = "whole"
    PART = "part"
    NONE = "none"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainVerdict:
    """The result of recomputing one chain.

    `run` counts the runs of an agent from 1: a host that takes over begins a chain of its own, unless it resumes the
    run, whose chain then continues. `recorded_head` is empty for a run that has not ended. `key_id` is that of the last
    signature, which covers the first `signed_entries`. Of a `redacted` chain only hashes are left to compare.
    """

    agent_id: str
    run: int
    entries: int
    head: str
    recorded_head: str
    fault: AuditFault | None = None
    signing: Signing = Signing.NONE
    signed_entries: int = 0
    key_id: str = ""
    redacted: bool = False

    @property
    def intact(self) -> bool:
        return self.fault is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainedEntry:
    """An entry, and the agent and run whose chain it is in."""

    agent_id: str
    run: int
    entry: AuditEntry


@dataclass(kw_only=True)
class _Chain:
    agent_id: str
    run: int
    claimed: bool = False
    hashes: list[bytes] = field(default_factory=list[bytes])
    previous: str = GENESIS
    heads: list[str] = field(default_factory=list[str])
    broken: AuditFault | None = None
    foreign: AuditFault | None = None
    unreadable: AuditFault | None = None
    redacted: bool = False

    @property
    def count(self) -> int:
        return len(self.hashes)

    def add(self, entry: AuditEntry) -> None:
        self.broken = self.broken or link_fault(entry, count=self.count + 1, previous=self.previous)
        if self.foreign is None and entry.agent_id != self.agent_id:
            self.foreign = AuditFault(seq=entry.seq, reason=f"it belongs to {entry.agent_id}")
        self.previous = entry.hash
        self.hashes.append(_packed(entry.hash))

    def fault(self) -> AuditFault | None:
        """What is wrong with it, signatures apart."""
        fault = self.unreadable or self.broken
        for head in self.heads:
            fault = fault or head_fault(count=self.count, previous=self.previous, head=head)
        return fault or self.foreign

    def head(self) -> SignedHead:
        """Its current head, not signed."""
        return SignedHead(agent_id=self.agent_id, run=self.run, entries=self.count, hash=self.previous)

    def verdict(self, signed: Sequence[SignedHead], keys: Keys | None) -> ChainVerdict:
        last = max(signed, key=lambda head: head.entries, default=None)
        signing = Signing.NONE if last is None else Signing.UNCHECKED
        if last is not None and keys is not None:
            signing = Signing.WHOLE if last.entries == self.count else Signing.PART
        faults = (self._signature_fault(head, keys) for head in signed) if keys is not None else ()
        return ChainVerdict(
            agent_id=self.agent_id,
            run=self.run,
            entries=self.count,
            head=self.previous if self.count else "",
            recorded_head=self.heads[0] if self.heads else "",
            fault=self.fault() or next((fault for fault in faults if fault is not None), None),
            signing=signing,
            signed_entries=last.entries if last is not None else 0,
            key_id=last.key_id if last is not None else "",
            redacted=self.redacted,
        )

    def _signature_fault(self, head: SignedHead, keys: Keys) -> AuditFault | None:
        """What is wrong with a signature of one of its heads."""
        if why := keys(head):
            return AuditFault(seq=head.entries, reason=why)
        if head.entries > self.count:
            return AuditFault(seq=self.count + 1, reason=f"entries up to {head.entries} were signed, and are gone")
        current = self.hashes[head.entries - 1] if head.entries else _packed(GENESIS)
        same = current == _packed(head.hash)
        return None if same else AuditFault(seq=head.entries, reason="it is not the entry that was signed")


class AuditChains:
    """Recomputes every agent's chains from an execution's events, given one after the other.

    The last entry's hash must be the head that the run recorded at its end and that its candidate carried into the
    ranking, so that an entry removed from the end is found as well. A head that the log calls signed must have a valid
    signature of a trusted key, and be the hash of that entry of the chain.

    Args:
        keys: Knows the trusted keys; None: signatures are not checked.
        execution_id: Whose heads were signed; empty: the one of the events.
    """

    def __init__(self, keys: HeadVerifier | None = None, *, execution_id: str = "") -> None:
        self._keys = keys
        self._execution_id = execution_id
        self._signed: list[SignedHead] = []
        self._runs: dict[str, list[_Chain]] = {}

    def take(self, stored: StoredEvent) -> ChainedEntry | None:
        """Take in the next event; returns the entry that it holds, if it holds one."""
        agent_id = stored.event.agent_id
        self._execution_id = self._execution_id or stored.event.execution_id
        match stored.event.body:
            case RunClaimed(resumes=True):
                # The chain continues after any head that the interrupted part recorded.
                chain = self._last(agent_id)
                chain.claimed = True
                chain.heads.clear()
            case RunClaimed():
                self.begin(agent_id)
            case ToolStarted(entry=entry) | ToolFinished(entry=entry):
                return self.append(agent_id, entry)
            case RunFinished(audit_head=head) if head:
                self.record(agent_id, head)
            case CandidateSubmitted(candidate=candidate):
                self.record(candidate.agent_id, candidate.audit_head)
            case AuditHeadSigned(head=head) if agent_id == EXECUTION_SUBJECT:
                self.sign(head)
            case ExecutionErased(chains=chains) if agent_id == EXECUTION_SUBJECT:
                # Some of the earlier events may be erased already.
                self._runs, self._signed = {}, []
                for redacted in chains:
                    self.restore(redacted)
            case _:
                pass
        return None

    def begin(self, agent_id: str) -> None:
        """The agent begins a chain."""
        chains = self._runs.setdefault(agent_id, [])
        chains.append(_Chain(agent_id=agent_id, run=len(chains) + 1, claimed=True))

    def append(self, agent_id: str, entry: AuditEntry) -> ChainedEntry:
        """The next entry of the agent's last chain."""
        chain = self._last(agent_id)
        chain.add(entry)
        return ChainedEntry(agent_id=agent_id, run=chain.run, entry=entry)

    def record(self, agent_id: str, head: str) -> None:
        """Note a head that the log gives as the end of the agent's last chain."""
        self._last(agent_id).heads.append(head)

    def restore(self, redacted: RedactedChain) -> None:
        """Add a chain whose entries were erased."""
        self.begin(redacted.agent_id)
        chain = self._last(redacted.agent_id)
        chain.redacted = True
        chain.hashes = [_packed(digest) for digest in redacted.digests]
        chain.previous = redacted.digests[-1] if redacted.hashes else GENESIS
        chain.heads.extend(redacted.recorded)
        chain.broken = AuditFault(seq=chain.count, reason=redacted.fault) if redacted.fault else None
        self._signed.extend(redacted.signed)

    def redacted(self, agent_id: str, run: int) -> RedactedChain:
        """One chain without its entries."""
        chains = self._runs.get(agent_id, ())
        chain = chains[run - 1] if run <= len(chains) else _Chain(agent_id=agent_id, run=run)
        fault = chain.fault()
        return RedactedChain(
            agent_id=agent_id,
            run=run,
            # A text that is not a digest breaks the chain; `fault` says so.
            hashes="".join(digest.hex() if len(digest) * 2 == len(GENESIS) else GENESIS for digest in chain.hashes),
            recorded=self.recorded(agent_id, run),
            signed=self.signed(agent_id, run),
            fault=fault.reason if fault is not None else "",
        )

    def sign(self, head: SignedHead) -> None:
        """Note a head that the log gives as signed."""
        self._signed.append(head)

    def unreadable(self, agent_id: str, reason: str) -> None:
        """Note that an event of the agent's last chain could not be read."""
        chain = self._last(agent_id)
        chain.unreadable = chain.unreadable or AuditFault(seq=chain.count + 1, reason=reason)

    def unsigned(self, agent_id: str = "") -> Iterator[SignedHead]:
        """The current heads of chains, of one agent or of all, that have no fault and are not signed yet."""
        for name in (agent_id,) if agent_id else tuple(self._runs):
            for chain in self._runs.get(name, ()):
                signed_lengths = {head.entries for head in self.signed(name, chain.run)}
                if (chain.claimed or chain.count) and chain.count not in signed_lengths and chain.fault() is None:
                    yield chain.head()

    def recorded(self, agent_id: str, run: int) -> tuple[str, ...]:
        """The heads that the log gives as the end of one chain."""
        chains = self._runs.get(agent_id, ())
        return tuple(chains[run - 1].heads) if run <= len(chains) else ()

    def signed(self, agent_id: str, run: int) -> tuple[SignedHead, ...]:
        """The signed heads of one chain."""
        return tuple(head for head in self._signed if (head.agent_id, head.run) == (agent_id, run))

    def verdicts(self) -> tuple[ChainVerdict, ...]:
        """The verdict on each chain, including those of which only a signature is left."""
        chains = {(chain.agent_id, chain.run): chain for agent_chains in self._runs.values() for chain in agent_chains}
        for head in self._signed:
            chains.setdefault((head.agent_id, head.run), _Chain(agent_id=head.agent_id, run=head.run))
        keys = partial(self._fault, self._keys) if self._keys is not None else None
        return tuple(chain.verdict(self.signed(*name), keys) for name, chain in chains.items())

    def _fault(self, keys: HeadVerifier, head: SignedHead) -> str:
        if head.entries < 0:
            return f"{head.entries} entries cannot have been signed"
        return keys.fault(head, self._execution_id)

    def _last(self, agent_id: str) -> _Chain:
        chains = self._runs.setdefault(agent_id, [])
        if not chains:
            chains.append(_Chain(agent_id=agent_id, run=1))
        return chains[-1]


def signed_throughout(verdicts: Iterable[ChainVerdict]) -> tuple[ChainVerdict, ...]:
    """The verdicts where everything has to be signed: an entry that no signature covers is a fault."""
    return tuple(
        verdict
        if verdict.fault is not None or verdict.signing is Signing.WHOLE
        else replace(verdict, fault=AuditFault(seq=verdict.signed_entries + 1, reason="from here on it is not signed"))
        for verdict in verdicts
    )


def _packed(digest: str) -> bytes:
    """A hexadecimal digest in half the space; other text as UTF-8."""
    try:
        return bytes.fromhex(digest)
    except ValueError:
        return utf8(digest)
