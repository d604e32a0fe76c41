"""A server whose answers get lost, or come in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Proxy:
    """Stands between a client and the server; can swallow what the server answers, from an answer with `only` on."""

    def __init__(self, url: str, *, only: bytes = b"") -> None:
        self._login, _, address = url.removeprefix("nats://").rpartition("@")
        self.host, port = address.rsplit(":", 1)
        self.port = int(port)
        self.url = ""
        self.swallowing = False
        self.only = only
        self.pieces = 65536
        self.swallowed = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Proxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"nats://{self._login}@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()

    def cut(self) -> None:
        for one in self._writers:
            one.close()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(self.host, self.port)
        self._writers |= {writer, upstream_writer}
        await asyncio.gather(
            self._pump(reader, upstream_writer, answers=False), self._pump(upstream_reader, writer, answers=True)
        )

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while data := await reader.read(65536):
                if answers and self.swallowing and (self.only in data or self.swallowed.is_set()):
                    self.swallowed.set()
                    continue
                for start in range(0, len(data), self.pieces):
                    writer.write(data[start : start + self.pieces])
                    await asyncio.sleep(0)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
