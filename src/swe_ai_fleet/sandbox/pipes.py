"""The pipes between a session and whoever runs it."""

from __future__ import annotations

import asyncio
import os


class Pipes:
    """The pipes of a session, as (read end, write end)."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        try:
            self.output, self.errors, self.status, self.control, self.info = (self._pipe() for _ in range(5))
        except OSError:
            self.close()
            raise
        for descriptor in (self.output[0], self.errors[0], self.status[0], self.control[1], self.info[0]):
            os.set_blocking(descriptor, False)

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._open.update(ends)
        return ends

    @property
    def paths(self) -> list[str]:
        """Where the launcher finds the ends that are its own: status, control, report."""
        return [f"/proc/{os.getpid()}/fd/{end}" for end in (self.status[1], self.control[0], self.info[1])]

    def hand_over(self) -> None:
        """Close what only the runner needs, now that it has it; the output's write ends stay for their flags."""
        self._close({self.status[1], self.control[0], *self.info})

    def unblock_writers(self) -> None:
        """Undo what a command did to the output pipes: O_NONBLOCK belongs to the pipe, not to who set it."""
        for _, write in (self.output, self.errors):
            os.set_blocking(write, True)

    def forget(self, loop: asyncio.AbstractEventLoop) -> None:
        for read in (self.output[0], self.errors[0], self.status[0]):
            loop.remove_reader(read)
        loop.remove_writer(self.control[1])

    @property
    def closed(self) -> bool:
        return not self._open

    def close(self) -> None:
        self._close(set(self._open))

    def _close(self, ends: set[int]) -> None:
        for end in ends & self._open:
            self._open.discard(end)
            os.close(end)
