"""HTTP connections whose clients stop reading."""

from __future__ import annotations

import asyncio

from services.gateway.access.patience import PatientProtocol

STALLED_SECONDS = 30.0


class StalledProtocol(PatientProtocol):
    """Drops a connection that takes nothing of what waits for it for `stalled_seconds`.

    Without it an answer without an end, or a large one, is kept for a client that is there and never reads.
    """

    stalled_seconds = STALLED_SECONDS
    _stalled: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reads()

    def connection_lost(self, exc: Exception | None) -> None:
        self._reads()
        super().connection_lost(exc)

    def _reads(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
