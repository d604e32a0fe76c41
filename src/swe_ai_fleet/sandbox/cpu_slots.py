"""CPU slots shared by all processes of a node."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_POLL_SECONDS = (0.003, 0.009)


class CpuSlots:
    """`count` slots for heavy commands, held by file locks in `directory`, so that a killed process frees its own.

    Within a process waiters are served in their order, and only the first of them asks the file system. One instance
    belongs to one event loop.
    """

    def __init__(self, directory: Path, count: int) -> None:
        if count < 1:
            raise ValueError("count must be at least 1")
        self._files = [directory / f"slot-{number}" for number in range(count)]
        self._held: set[Path] = set()
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def count(self) -> int:
        return len(self._files)

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        """Wait for a slot and hold it for the length of the context."""
        async with self._turn:
            while (taken := self._take()) is None:
                self._freed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.uniform(*_POLL_SECONDS)):  # noqa: S311  (jitter, not a secret)
                        await self._freed.wait()
        path, descriptor = taken
        try:
            yield
        finally:
            self._held.discard(path)
            os.close(descriptor)
            self._freed.set()

    def _take(self) -> tuple[Path, int] | None:
        for path in self._files:
            if path in self._held:
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            self._held.add(path)
            return path, descriptor
        return None
