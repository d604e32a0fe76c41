"""The audit trail of one agent run, where it goes, and an audit chain in a file.

A file has one JSON entry a line, each sealed with the hash of the one before it.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping
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
    """Seals one entry after the other and hands each to the run's journal, if it has one.

    Args:
        execution_id: The execution the run belongs to.
        agent_id: Whose operations these are.
        journal: Receives `ToolStarted` (durable before the side effect) and `ToolFinished`.
        key: The HMAC key of the digests of full arguments; without one, a random key that nobody keeps.
        seal: Makes an entry the next one of a chain that is kept elsewhere (`AuditFile.seal`) and may be others' too;
            without it the trail is a chain of its own.
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
        """The hash of the last entry; of an empty trail, sixty-four zeros."""
        return self.entries[-1].hash if self.entries else GENESIS

    def open(
        self, spec: OperationSpec, *, arguments: Mapping[str, object], secret: Mapping[str, object], call_id: str
    ) -> AuditRecord:
        """Begin the record of one call. `arguments` are masked already; of `secret` only a keyed digest is kept."""
        digest = hmac.digest(self._key, _CANONICAL.encode(secret).encode(), "sha256").hex()
        call_id = call_id or secrets.token_hex(6)
        return AuditRecord(trail=self, spec=spec, arguments=arguments, arguments_digest=digest, call_id=call_id)

    def seal(self, entry: AuditEntry) -> AuditEntry:
        sealed = entry.sealed(self.head) if self._seal is None else self._seal(entry)
        self.entries.append(sealed)
        return sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One call being recorded: `start` before a side effect, `close` in every case."""

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
        """Record the end of a call whose result reaches nobody; that the journal takes no more does not matter then."""
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
    """Appends entries to a file that several processes may write at once; all of them make one chain.

    Args:
        path: The file; made, readable by its owner alone, with the first entry.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def seal(self, entry: AuditEntry) -> AuditEntry:
        """The entry as the file's next one, on disk when this returns.

        Raises:
            PreconditionFailed: The file's last entry cannot be read, so nothing can follow it.
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
        """All of them, in order. Raises PreconditionFailed naming the first line that holds none."""
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
                raise ValueError("it is not whole")
            return from_json(AuditEntry, line)
        except ValueError as error:
            raise PreconditionFailed(
                f"{where} of {self.path} is not an audit entry: {str(error).splitlines()[0]}",
                hint="move the file away to start a new chain, and keep it: it is evidence",
            ) from None
