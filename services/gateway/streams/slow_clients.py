"""Slow clients: connections whose clients stop reading are closed, and a frame for many WebSockets is made once.

`FRAMES` in a scope's extensions says that this WebSocket protocol (uvicorn's, extended) is at work: a `websocket.send`
may then carry `fleet.frames`, whole frames as bytes, instead of a text. What is sent to five hundred clients is framed
and joined once.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from services.gateway.access.limits import HeaderTimeoutProtocol

FRAMES = "fleet.frames"
GOING_AWAY = 1001
LINGER_SECONDS = 5.0
"""How long what was written last may take to leave, once the application is done with a connection."""
_SHUTDOWN_SECONDS = 1.0
_TEXT = 0x81
_NO_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_SHORT, _MEDIUM = 126, 1 << 16
STALLED_SECONDS = 30.0


def text_frame(payload: bytes) -> bytes:
    """A whole text message as a server's frame (RFC 6455, section 5.2): final, not masked, not compressed."""
    size = len(payload)
    if size < _SHORT:
        return bytes((_TEXT, size)) + payload
    if size < _MEDIUM:
        return struct.pack("!BBH", _TEXT, 126, size) + payload
    return struct.pack("!BBQ", _TEXT, 127, size) + payload


class FramedProtocol(WebSocketsSansIOProtocol):
    """uvicorn's own, with the extension, close code 1001 where the server ends, and no waiting for who never reads."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated and not self.transport.is_closing():
            # The whole head was there: a handshake that is none gets no answer and no end from uvicorn.
            self.transport.write(b"".join(self.conn.data_to_send()) or _NO_HANDSHAKE)
            self.transport.close()

    async def run_asgi(self) -> None:
        cast("dict[str, Any]", self.scope)["extensions"][FRAMES] = {}
        await super().run_asgi()
        self._let_go(LINGER_SECONDS)

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.close":
            # Whoever does not read finds it behind what waits already; nothing comes after it.
            self.writable.set()
        frames = message.get(FRAMES)
        if frames is None:
            await super().send(message)
            return
        await self.writable.wait()
        if not (self.disconnected or self.close_sent or self.transport.is_closing()):
            self.transport.write(frames)

    def shutdown(self) -> None:
        if self.handshake_complete and not self.close_sent and not self.transport.is_closing():
            self.stop_keepalive()
            self.queue.put_nowait({"type": "websocket.disconnect", "code": GOING_AWAY, "reason": None})
            self.conn.send_close(GOING_AWAY, "the server is shutting down")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()
        else:
            super().shutdown()
        self._let_go(_SHUTDOWN_SECONDS)

    def _let_go(self, seconds: float) -> None:
        """A transport that is closed with something left to write waits for its reader, for ever if need be."""
        if self.transport.get_write_buffer_size():
            self.loop.call_later(seconds, self.transport.abort)


class StalledProtocol(HeaderTimeoutProtocol):
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
