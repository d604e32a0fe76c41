"""Connections that must come to the point: uvicorn's HTTP/1.1 with a limit on how long a request's head may take."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 15.0


class PatientProtocol(H11Protocol):
    """Closes a connection whose next request has not begun and come in with all its headers after `HEAD_SECONDS`.

    uvicorn closes connections that are silent after an answer; not those that never asked, that send a header a minute,
    or a byte a minute of a body that was answered without being read.
    """

    head_seconds = HEAD_SECONDS
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_awaited():
            self._stop_waiting()
        elif self._waiting is None and not self.transport.is_closing():
            self._wait()

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._stop_waiting()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_awaited():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(self.head_seconds, self._give_up)

    def _give_up(self) -> None:
        self._waiting = None
        if self._is_awaited() and not self.transport.is_closing():
            self.transport.close()

    def _is_awaited(self) -> bool:
        """Whether it is the client's turn: to ask, or to end what has been answered already."""
        theirs = self.conn.their_state
        return theirs is h11.IDLE or (theirs is h11.SEND_BODY and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE))

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
