"""The client library's connection, with a short way for what there is much of: messages that come and go.

The library parses with a pattern for each kind of line, and has a queue and a task for each subscription and one
for writing. Here a whole message is handed over where it is read, and what is sent in one turn of the loop is
written together.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping

import nats.errors
from nats.aio.client import Client
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

from swe_ai_fleet.adapters.jetstream.messages import Message, read_headers

_LINE_END = b"\r\n"
_LINE_ENDS = re.compile(r"[\r\n]+")


class NatsClient(Client):
    """A client that says nothing to a server without TLS where it is to speak TLS.

    The client library takes the server's word for it, and with that the word of whoever stands in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[int, Callable[[Message], None]] = {}
        self._lines: list[bytes] = []
        self._ps = _Reader(self)

    async def hear(self, subject: str, deliver: Callable[[Message], None], queue: str = "") -> int:
        """Have messages of a subject handed over as they are read, until `forget` is given the number returned."""
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        self._sid += 1
        self.heard[self._sid] = deliver
        await self._write(f"SUB {subject} {queue} {self._sid}\r\n".encode())
        return self._sid

    async def forget(self, number: int) -> None:
        """Have no more of them."""
        if self.heard.pop(number, None) is not None and self.is_connected:
            await self._write(f"UNSUB {number}\r\n".encode())

    async def send(self, subject: str, payload: bytes, *, reply: str = "", head: bytes = b"") -> None:
        """Send a message with a head as `head_of` makes it. Raises nats.errors.Error, OSError."""
        if not self.is_connected:
            raise nats.errors.ConnectionClosedError
        if head:
            size = f"{len(head)} {len(head) + len(payload)}"
            await self._write(b"HPUB %b\r\n%b%b\r\n" % (f"{subject} {reply} {size}".encode(), head, payload))
        else:
            await self._write(b"PUB %b\r\n%b\r\n" % (f"{subject} {reply} {len(payload)}".encode(), payload))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        await self.take(sid, subject, reply, data, headers)

    async def take(self, number: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Hand a message over."""
        if (deliver := self.heard.get(number)) is not None:
            found = read_headers(headers) if headers else {}
            try:
                deliver(Message(subject=subject.decode(), reply=reply.decode(), data=data, headers=found))
            except Exception as error:  # noqa: BLE001 - the edge: a fault of one who hears is not the connection's
                await self._error_cb(error)

    async def _write(self, line: bytes) -> None:
        if self._pending or self._transport is None:
            # What the library has yet to write goes first.
            await self._send_command(line)
            await self._flush_pending()
        else:
            self._lines.append(line)
            if len(self._lines) == 1:
                asyncio.get_running_loop().call_soon(self._flush_lines)
            await self._transport.drain()

    def _flush_lines(self) -> None:
        """Write what was sent since the loop's last turn, by whomever, at once."""
        lines, self._lines = self._lines, []
        if self._transport is not None:
            self._transport.write(lines[0] if len(lines) == 1 else b"".join(lines))

    def _connect_command(self) -> bytes:
        told: object = self._server_info.get("tls_required")  # pyright: ignore[reportUnknownMemberType]
        server = self._current_server
        asked = "tls" in self.options or (server is not None and server.uri.scheme == "tls")
        if asked and not told:
            raise nats.errors.Error("the server has no TLS, but nats_ca or a tls:// address requires it")
        return super()._connect_command()


def head_of(headers: Mapping[str, str] | None) -> bytes:
    """The head of a message, empty without headers."""
    if not headers:
        return b""
    lines = [f"{name}: {_LINE_ENDS.sub(' ', value).strip()}\r\n" for name, value in headers.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()


class _Reader(Parser):
    """Hands over whole messages; whatever else comes, the library reads."""

    nc: NatsClient
    buf: bytearray

    async def parse(self, data: bytes = b"") -> None:
        if self.state == AWAITING_CONTROL_LINE:
            self.buf += data
            while (message := self._message()) is not None:
                await self.nc.take(*message)
            data = b""
        if data or not self.buf.startswith((b"MSG ", b"HMSG ")):
            await super().parse(data)

    def _message(self) -> tuple[int, bytes, bytes, bytes, bytes] | None:
        """Take a whole message off the buffer's beginning: number, subject, reply, data and head."""
        held = self.buf
        if not held.startswith((b"MSG ", b"HMSG ")) or (end := held.find(_LINE_END)) < 0:
            return None
        kind, subject, number, *places = bytes(held[:end]).split()
        size, head = int(places[-1]), int(places[-2]) if kind == b"HMSG" else 0
        start, after = end + 2 + head, end + 4 + size
        if len(held) < after:
            return None
        payload, headers = bytes(held[start : after - 2]), bytes(held[end + 2 : start])
        del held[:after]
        return int(number), subject, places[0] if len(places) > (2 if head else 1) else b"", payload, headers
