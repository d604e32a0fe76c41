"""The audit trail of one agent run, and an audit chain in a file.

A file has one JSON entry per line, each sealed with the hash of the entry before it.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.audit import GENESIS, AuditEntry
from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed
from swe_ai_fleet.domain.event import ToolFinished, ToolStarted
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.ports import Journal

_BLOCK = 64 * 1024
_CANONICAL = json.JSONEncoder(sort_keys=True, default=repr, separators=(",", ":"))


class AuditTrail:
    """Seals the entries of a run in order and appends each to the run's journal, if it has one.

    Args:
        execution_id: The execution of the run.
        agent_id: The agent that calls the operations.
        journal: Receives `ToolStarted` (durable before the side effect) and `ToolFinished`.
        key: The HMAC key for digests of full arguments; without one, a random key that is not stored.
        seal: Appends an entry to a chain that other trails may share (`AuditFile.seal`); without it the trail is a
            chain of its own.
    """

    def __init__(
        self,
        *,
        execution_id: str = "",
        agent_id: str = "",
        journal: Journal | None = None,
        key: bytes = b"",
        seal: Callable[[AuditEntry], AuditEntry] | None = None,
    ) -> None:
        self.execution_id = execution_id
        self.agent_id = agent_id
        self.entries: list[AuditEntry] = []
        self.revision = 0
        self.journal = journal
        self._key = key or secrets.token_bytes(32)
        self._seal = seal

    @property
    def head(self) -> str:
        """The hash of the last entry; sixty-four zeros for an empty trail."""
        return self.entries[-1].hash if self.entries else GENESIS

    def resume(self, entries: Sequence[AuditEntry]) -> None:
        """Continue the chain that an earlier process of the run began."""
        self.entries.extend(entries)
        self.revision = entries[-1].workspace_revision if entries else 0

    def open(
        self, spec: OperationSpec, *, arguments: Mapping[str, object], secret: Mapping[str, object], call_id: str
    ) -> AuditRecord:
        """Begin the record of one call, with masked `arguments` and a keyed digest of the unmasked ones (`secret`)."""
        digest = hmac.digest(self._key, _CANONICAL.encode(secret).encode(), "sha256").hex()
        call_id = call_id or secrets.token_hex(6)
        return AuditRecord(trail=self, spec=spec, arguments=arguments, arguments_digest=digest, call_id=call_id)

    def seal(self, entry: AuditEntry) -> AuditEntry:
        sealed = entry.sealed(self.head) if self._seal is None else self._seal(entry)
        self.entries.append(sealed)
        return sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """The record of one call: `start` it before a side effect, `close` it in every case."""

    trail: AuditTrail
    spec: OperationSpec
    arguments: Mapping[str, object]
    arguments_digest: str
    call_id: str

    async def start(self) -> None:
        """Record that the effect is about to happen; durable when this returns."""
        self.trail.revision += 1
        entry = self.trail.seal(self._entry(Outcome.STARTED))
        if self.trail.journal is not None:
            await self.trail.journal.append(ToolStarted(entry=entry))

    def close(
        self, result: ToolResult, decision: PolicyDecision = PolicyDecision.ALLOWED, reason: str = "", whole: str = ""
    ) -> ToolResult:
        """Record how the call ended. `whole` is the masked output before truncation."""
        output = (whole or result.content or result.error).encode("utf-8", "replace")
        entry = self._entry(
            result.outcome,
            decision=decision,
            reason=reason,
            exit_code=result.exit_code,
            duration_ms=round(result.duration * 1000),
            output_digest=hashlib.sha256(output).hexdigest(),
            bytes_out=len(output),
        )
        entry = self.trail.seal(entry)
        if self.trail.journal is not None:
            self.trail.journal.post(ToolFinished(entry=entry, result=result))
        return result

    def abandon(self, result: ToolResult) -> None:
        """Record the end of a call whose result is not delivered, as far as the journal still accepts events."""
        with suppress(FleetError):
            self.close(result, whole=result.content)

    def _entry(self, outcome: Outcome, **ended: Any) -> AuditEntry:
        return AuditEntry(
            seq=len(self.trail.entries) + 1,
            at=now(),
            execution_id=self.trail.execution_id,
            agent_id=self.trail.agent_id,
            call_id=self.call_id,
            tool=self.spec.tool,
            operation=self.spec.operation,
            arguments=self.arguments,
            arguments_digest=self.arguments_digest,
            outcome=outcome,
            workspace_revision=self.trail.revision,
            **ended,
        )


class AuditFile:
    """Appends entries to a file that several processes may write at once; their entries form one chain.

    Args:
        path: The file. The first entry creates it, readable only by its owner.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def seal(self, entry: AuditEntry) -> AuditEntry:
        """Append an entry, with its number and hash in the chain; it is on disk when this returns.

        Raises:
            PreconditionFailed: The file's last entry cannot be read, so the chain cannot continue.
            OSError: The file cannot be written.
        """
        with self._locked() as file:
            last = self._last(file)
            following = replace(entry, seq=last.seq + 1 if last else 1)
            sealed = following.sealed(last.hash if last else GENESIS)
            os.write(file, to_json(sealed) + b"\n")
            os.fsync(file)
        return sealed

    def entries(self) -> Iterable[AuditEntry]:
        """All entries in order. Raises PreconditionFailed naming the first line that is not an entry."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield self._read(line, f"line {number}")

    @contextmanager
    def _locked(self) -> Generator[int]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _last(self, file: int) -> AuditEntry | None:
        position = os.fstat(file).st_size
        if not position:
            return None
        line = b""
        while position and b"\n" not in line[:-1]:
            start = max(0, position - _BLOCK)
            line = os.pread(file, position - start, start) + line
            position = start
        return self._read(line[line.rfind(b"\n", 0, -1) + 1 :], "the last line")

    def _read(self, line: bytes, where: str) -> AuditEntry:
        try:
            if not line.endswith(b"\n"):
                raise ValueError("it is incomplete")
            return from_json(AuditEntry, line)
        except ValueError as error:
            raise PreconditionFailed(
                f"{where} of {self.path} is not an audit entry: {str(error).splitlines()[0]}",
                hint="move the file away to start a new chain, and keep it: it is evidence",
            ) from None
