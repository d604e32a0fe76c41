"""An asyncio loop on virtual time: whoever sleeps is woken as soon as nobody else has anything to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from heapq import heappop
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Hours pass in a moment, in the same order every time; a deadlock is an error and no silence."""

    def __init__(self) -> None:
        self._virtual = 0.0
        super().__init__()

    def time(self) -> float:
        return self._virtual

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Threads take time that nobody here can see, so there are none."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as fault:  # noqa: BLE001 (it is the caller's, whatever it is)
            future.set_exception(fault)
        return future

    def _run_once(self) -> None:
        # A timer that was called off must not be waited for: what comes after it would take real time.
        while self._scheduled and self._scheduled[0].cancelled():
            self._timer_cancelled_count -= 1
            heappop(self._scheduled)._scheduled = False
        if not self._ready:
            if not self._scheduled:
                raise RuntimeError("everybody waits for somebody else")
            self._virtual = max(self._virtual, self._scheduled[0].when())
        super()._run_once()


def on_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """The value of some work; what is still under way when it ends is cancelled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
