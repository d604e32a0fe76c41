"""The audit trail: one entry a tool operation, each sealed with the hash of the one before it.

Tamper evidence as in a hash-chained log (Schneier and Kelsey, "Secure audit logs to support computer forensics",
1999): an entry cannot be changed, dropped or moved without every later hash being wrong.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from swe_ai_fleet.domain.text import utf8
from swe_ai_fleet.domain.tool import Outcome, PolicyDecision

GENESIS = "0" * 64
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
_SIGNED_CONTEXT = b"swe-ai-fleet audit head, version 1\n"
"""Stands before what is signed, so that a signature says nothing else anywhere else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One tool operation. `arguments` are masked; `arguments_digest` is a keyed digest (HMAC-SHA256) of the full ones.

    `seq` counts from 1 within an agent run; `at` is UTC in ISO 8601; `bytes_out` and `output_digest` (SHA-256) speak of
    the masked output before truncation; `workspace_revision` counts the mutating operations so far.
    """

    seq: int
    at: str
    execution_id: str
    agent_id: str
    call_id: str
    tool: str
    operation: str
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])
    arguments_digest: str = ""
    decision: PolicyDecision = PolicyDecision.ALLOWED
    reason: str = ""
    outcome: Outcome = Outcome.SUCCESS
    exit_code: int | None = None
    duration_ms: int = 0
    output_digest: str = ""
    bytes_out: int = 0
    workspace_revision: int = 0
    prev_hash: str = GENESIS
    hash: str = ""

    @property
    def name(self) -> str:
        """The operation as models call it, such as `files_read_file`."""
        return f"{self.tool}_{self.operation}"

    def digest(self) -> str:
        """SHA-256 over the canonical JSON form (sorted keys, no spaces, UTF-8) of everything but `hash`."""
        return _digest(self._fields)

    def sealed(self, prev_hash: str) -> AuditEntry:
        """This entry as the successor of the one that has `prev_hash`."""
        fields: dict[str, Any] = self._fields | {"prev_hash": prev_hash}
        return AuditEntry(**fields, hash=_digest(fields))

    @property
    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "hash"}


def _digest(fields: Mapping[str, object]) -> str:
    return hashlib.sha256(utf8(_CANONICAL.encode(fields))).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHead:
    """The state of a chain, signed (Ed25519) by the orchestrator after recomputing it.

    `run` counts the agent's chains from 1, `hash` is that of the last of so many `entries`, `GENESIS` for none.
    `key_id` is the first eight bytes of the SHA-256 of the public key; it and the signature are hexadecimal.
    """

    agent_id: str
    run: int
    entries: int
    hash: str
    key_id: str = ""
    signature: str = ""

    def message(self, execution_id: str) -> bytes:
        """What is signed: a line that says what this is, then canonical JSON (sorted keys, no spaces, UTF-8)."""
        fields = {
            "agent_id": self.agent_id,
            "entries": self.entries,
            "execution_id": execution_id,
            "hash": self.hash,
            "run": self.run,
        }
        return _SIGNED_CONTEXT + utf8(_CANONICAL.encode(fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactedChain:
    """A chain whose entries were erased: their hashes (hexadecimal, joined), with the recorded and signed heads.

    `fault` is what was wrong with it before the erasure.
    """

    agent_id: str
    run: int
    hashes: str
    recorded: tuple[str, ...] = ()
    signed: tuple[SignedHead, ...] = ()
    fault: str = ""

    @property
    def digests(self) -> tuple[str, ...]:
        """The hash of each entry, in order."""
        return tuple(self.hashes[start : start + len(GENESIS)] for start in range(0, len(self.hashes), len(GENESIS)))


class HeadVerifier(Protocol):
    """Knows the trusted public keys."""

    def fault(self, head: SignedHead, execution_id: str) -> str:
        """Why a head of this execution has no valid signature of one of them; empty where it has."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFault:
    """The first entry of a chain that does not fit, and why."""

    seq: int
    reason: str


def link_fault(entry: AuditEntry, *, count: int, previous: str) -> AuditFault | None:
    """What is wrong with an entry as the `count`-th of its chain, after the one with the hash `previous`."""
    if entry.seq != count:
        return AuditFault(seq=entry.seq, reason=f"entry {count} is missing or out of order")
    if entry.prev_hash != previous:
        return AuditFault(seq=entry.seq, reason="it does not follow the entry before it")
    if entry.digest() != entry.hash:
        return AuditFault(seq=entry.seq, reason="its content does not match its hash")
    return None


def head_fault(*, count: int, previous: str, head: str) -> AuditFault | None:
    """What is wrong with a chain whose `count`-th and last entry has the hash `previous`, where `head` was recorded."""
    return (
        None if previous == head else AuditFault(seq=count, reason="the chain ends before (or after) the recorded head")
    )


def verify(entries: Iterable[AuditEntry], *, head: str | None = None) -> AuditFault | None:
    """Recompute a chain from its first entry; None means intact.

    Args:
        entries: One agent run's entries in order.
        head: The hash the last entry must have, where a result or a signature recorded it.
    """
    previous, count = GENESIS, 0
    for count, entry in enumerate(entries, start=1):
        fault = link_fault(entry, count=count, previous=previous)
        if fault is not None:
            return fault
        previous = entry.hash
    return None if head is None else head_fault(count=count, previous=previous, head=head)
