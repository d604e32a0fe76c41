"""An audit chain in a file: one JSON entry a line, each sealed with the hash of the one before it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.audit import GENESIS, AuditEntry
from swe_ai_fleet.domain.errors import PreconditionFailed

_BLOCK = 64 * 1024


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
                f"{where} of {self.path} is no audit entry: {str(error).splitlines()[0]}",
                hint="move the file away to begin a new chain, and keep it: it is evidence",
            ) from None
