"""Who runs in a directory, so that all of them can be stopped while the fleet reads what they write."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import ClassVar
from weakref import WeakValueDictionary

from swe_ai_fleet.sandbox import processes

# Processes that fork meanwhile take some rounds. Who cannot be stopped by then hangs in the kernel.
_STOP_SECONDS = 0.5


class Occupants:
    """The processes of all workspaces and confined programs over one directory that this process has started.

    They are stopped by signals, not by a freezer of control groups: a group that stays frozen after the fleet's death
    cannot be killed, and few machines let one be made. Sandboxes die with the fleet, stopped or not.
    """

    _of_directories: ClassVar[WeakValueDictionary[Path, Occupants]] = WeakValueDictionary()

    def __init__(self) -> None:
        self.ever = False
        """Whether anybody has run here; once true it stays so for as long as somebody holds this object."""
        self._trees: set[Callable[[], list[int]]] = set()

    @classmethod
    def of(cls, directory: Path) -> Occupants:
        """Those of a directory, an absolute path without links; one object for as long as somebody holds it."""
        return cls._of_directories.setdefault(directory, cls())

    @contextmanager
    def present(self, tree: Callable[[], list[int]]) -> Generator[None]:
        """Count the processes that `tree` names, which may be stopped, for as long as the context lasts."""
        self.ever = True
        self._trees.add(tree)
        try:
            yield
        finally:
            self._trees.discard(tree)

    @asynccontextmanager
    async def frozen(self) -> AsyncGenerator[None]:
        """Stop everybody for as long as the context lasts; whatever ends it, they go on.

        Whoever had stopped himself stays so. Processes that cannot be stopped within half a second run on: what is
        done inside must not trust that nobody writes.
        """
        stopped: dict[int, int] = {}
        give_up = time.monotonic() + _STOP_SECONDS
        try:
            # Nothing announces that somebody has stopped.
            while self._stop(stopped) and time.monotonic() < give_up:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            yield
        finally:
            for descriptor in stopped.values():
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGCONT)
                os.close(descriptor)

    def _stop(self, stopped: dict[int, int]) -> bool:
        """Stop those that run, adding their descriptors; whether there were any, or others have come meanwhile."""
        pids = self._pids()
        running = [pid for pid in pids if not processes.stands_still(pid)]
        for pid in running:
            if pid not in stopped:
                with suppress(ProcessLookupError):
                    stopped[pid] = os.pidfd_open(pid)
        # Asked again: a number that still names somebody here named the same process when its descriptor was opened, or
        # a dead one; and whoever was seen standing still may have forked just before.
        now = set(self._pids())
        for pid in now.intersection(running, stopped):
            try:
                signal.pidfd_send_signal(stopped[pid], signal.SIGSTOP)
            except ProcessLookupError:
                os.close(stopped.pop(pid))
        return bool(running) or not now.issubset(pids)

    def _pids(self) -> list[int]:
        return [pid for tree in self._trees for pid in tree()]
