"""Many WebSocket clients in one process, as cheap as they can be: each counts its messages and looks at their order."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_SEQUENCE, _AT = b'"sequence":', b'"at_ms":'
_CLOSE, _PING = 0x8, 0x9
_HEAD_BYTES = 200
_LAG_EVERY = 16


@dataclass(kw_only=True)
class Watched:
    """What a client was sent. `gaps` counts messages that did not follow the one before it by `stride`."""

    messages: int = 0
    first: int = 0
    last: int = 0
    gaps: int = 0
    close_code: int = 0
    size: int = 0
    lags_ms: list[float] = field(default_factory=list[float])


class Client(asyncio.Protocol):
    """One WebSocket. It speaks as little of RFC 6455 as a server that behaves needs."""

    def __init__(self, path: str, host: str, token: str, stride: int) -> None:
        self.watched = Watched()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stride = stride
        self._buffer = bytearray()
        key = base64.b64encode(os.urandom(16)).decode()
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
        ).encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        for one in (self.opened, self.closed):
            if not one.done():
                one.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self.opened.done():
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            if b" 101 " not in self._buffer[:20]:
                self.opened.set_exception(ConnectionError(bytes(self._buffer[:200]).decode("latin-1")))
                return
            del self._buffer[: end + 4]
            self.opened.set_result(None)
        now, position, buffer = time.time() * 1000, 0, self._buffer
        while len(buffer) - position >= 2:
            size, head = buffer[position + 1], 2
            if size == 126:
                head = 4
            elif size == 127:
                head = 10
            if len(buffer) - position < head:
                break
            if head == 4:
                (size,) = struct.unpack_from("!H", buffer, position + 2)
            elif head == 10:
                (size,) = struct.unpack_from("!Q", buffer, position + 2)
            if len(buffer) - position < head + size:
                break
            self._frame(buffer[position] & 0xF, position + head, size, now)
            position += head + size
        del buffer[:position]

    def _frame(self, opcode: int, start: int, size: int, now: float) -> None:
        if opcode == _CLOSE:
            (self.watched.close_code,) = struct.unpack_from("!H", self._buffer, start)
            self._transport.close()
            return
        if opcode == _PING:
            payload = bytes(self._buffer[start : start + size])
            self._transport.write(bytes((0x8A, 0x80 | size, 0, 0, 0, 0)) + payload)
            return
        watched = self.watched
        found = self._buffer.find(_SEQUENCE, start, start + _HEAD_BYTES)
        if found < 0:
            return
        end = self._buffer.find(b",", found, found + 40)
        sequence = int(self._buffer[found + len(_SEQUENCE) : end])
        if watched.messages and sequence != watched.last + self._stride:
            watched.gaps += 1
        watched.first = watched.first or sequence
        watched.last = sequence
        watched.messages += 1
        watched.size += size
        if watched.messages % _LAG_EVERY == 0:
            at = self._buffer.find(_AT, end, end + 40) + len(_AT)
            watched.lags_ms.append(now - int(self._buffer[at : self._buffer.find(b",", at, at + 40)]))


async def watch(
    url: str, paths: list[str], token: str, *, stride: int, opened: asyncio.Event | None = None
) -> list[Watched]:
    """Watch every path to its end, all at once; `opened` is set when all of them are connected."""
    loop, place = asyncio.get_running_loop(), urlsplit(url)
    assert place.hostname is not None and place.port is not None
    clients: list[Client] = []
    for path in paths:
        _, client = await loop.create_connection(
            lambda path=path: Client(path, place.netloc, token, stride), place.hostname, place.port
        )
        clients.append(client)
        await client.opened
    if opened is not None:
        opened.set()
    await asyncio.gather(*(client.closed for client in clients))
    return [client.watched for client in clients]


def summary(watched: list[Watched]) -> dict[str, object]:
    """What many saw, as JSON takes it. `wholes` counts clients by (messages, first, last, gaps, close code)."""
    lags = sorted(lag for one in watched for lag in one.lags_ms) or [0.0]
    wholes = Counter((one.messages, one.first, one.last, one.gaps, one.close_code) for one in watched)
    return {
        "wholes": [[*key, count] for key, count in wholes.items()],
        "messages": sum(one.messages for one in watched),
        "bytes": sum(one.size for one in watched),
        "lag_p50_ms": lags[len(lags) // 2],
        "lag_p99_ms": lags[len(lags) * 99 // 100],
    }


async def _main() -> None:
    asked = json.loads(sys.stdin.readline())
    opened = asyncio.Event()
    watching = asyncio.create_task(
        watch(asked["url"], asked["paths"], asked["token"], stride=asked["stride"], opened=opened)
    )
    await asyncio.wait((watching, asyncio.create_task(opened.wait())), return_when=asyncio.FIRST_COMPLETED)
    print("opened", flush=True)
    print(json.dumps(summary(await watching)), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
