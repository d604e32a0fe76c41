"""A conversation in a file, so that a later process has it again."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from swe_ai_fleet.domain.errors import PreconditionFailed, Unavailable
from swe_ai_fleet.memory.conversation import Turn, dumped, loaded

_LOCK_SECONDS = 10.0
_LOCK_PAUSE = 0.02


class ConversationFile:
    """The turns of one agent's conversation. Several processes may add to it at once.

    Args:
        directory: Where conversations lie; it is made, for its owner alone, when something is written.
        name: Whose it is.
    """

    def __init__(self, directory: Path, name: str) -> None:
        readable = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40]
        # Names that read the same are told apart by their digest.
        self._path = directory / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"

    async def read(self) -> tuple[Turn, ...]:
        """The turns as they stand. Raises PreconditionFailed, Unavailable."""
        return await asyncio.to_thread(self._read)

    async def update(self, change: Callable[[tuple[Turn, ...]], tuple[Turn, ...]]) -> tuple[Turn, ...]:
        """Replace the turns by what a function makes of them, in a thread; nobody else changes them meanwhile.

        Raises as `read` does.
        """
        return await asyncio.to_thread(self._update, change)

    def _read(self) -> tuple[Turn, ...]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be read: {error.strerror}", field="home") from error
        try:
            return loaded(data)
        except ValueError:
            raise PreconditionFailed(
                f"{self._path} is no conversation", field="home", hint="remove it; nothing else depends on it"
            ) from None

    def _update(self, change: Callable[[tuple[Turn, ...]], tuple[Turn, ...]]) -> tuple[Turn, ...]:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                made = change(self._read())
                if made:
                    self._write(dumped(made))
                else:
                    self._path.unlink(missing_ok=True)
                return made
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be written: {error.strerror}", field="home") from error

    def _write(self, data: bytes) -> None:
        # Written beside it and moved into its place: whoever reads, or is killed, has the old or the new one, whole.
        beside = self._path.with_suffix(".new")
        with suppress(FileNotFoundError):
            beside.unlink()
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)

    @contextmanager
    def _locked(self) -> Generator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path.with_suffix(".lock"), flags, 0o600)
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise Unavailable(f"another process holds {self._path}", field="home") from None
                time.sleep(_LOCK_PAUSE)
