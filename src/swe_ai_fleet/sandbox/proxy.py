"""The one way out of a networked sandbox: an HTTP proxy that resolves, checks and connects itself."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from swe_ai_fleet.domain.network import NetworkGrant
from swe_ai_fleet.sandbox.addresses import is_public, resolved

_HEAD_LIMIT = 64 * 1024
_HEAD_SECONDS = 30.0
_CONNECT_SECONDS = 30.0
_MAX_CONNECTIONS = 128
_MAX_REFUSALS = 100
_CHUNK = 64 * 1024
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Headers that speak to a proxy, or that a proxy decides.
_HOP = frozenset({"connection", "keep-alive", "proxy-authorization", "proxy-connection", "te", "upgrade", "host"})


Resolver = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a host name, as texts; raises OSError where it has none."""


class RefusalReason(StrEnum):
    """Why a host was not reached."""

    NOT_GRANTED = "not granted"
    PRIVATE = "private"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A host that the proxy did not connect to, and why; `text` is what the client was answered."""

    host: str
    port: int
    reason: RefusalReason
    text: str


class _RefusalError(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


class FilteringProxy:
    """Serves CONNECT and absolute-URI HTTP requests on a unix socket, to granted hosts at checked addresses only.

    The name is resolved here, and the connection goes to the very address that was checked, so a name that changes
    its mind gains nothing. An address of this host itself is refused unless the name is one of the private hosts.
    """

    def __init__(
        self, grant: NetworkGrant, *, resolve: Resolver | None = None, connect_seconds: float = _CONNECT_SECONDS
    ) -> None:
        self._grant = grant
        self._resolve = resolve or resolved
        self._connect_seconds = connect_seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._refused: dict[tuple[str, int], Refusal] = {}

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The hosts that were refused or could not be reached so far, in the order of their last refusal."""
        return tuple(self._refused.values())

    async def start(self, path: Path) -> None:
        """Listen on `path`, whose directory nobody else should be able to enter."""
        listener = socket.socket(socket.AF_UNIX)
        # A unix address holds some hundred bytes; through its directory's descriptor any path fits.
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=_HEAD_LIMIT)

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= _MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                async with asyncio.timeout(_HEAD_SECONDS):
                    head = _parse(await reader.readuntil(b"\r\n\r\n"))
                if head.method == "CONNECT":
                    await self._tunnel(head, reader, writer)
                else:
                    await self._forward(head, reader, writer)
            except _RefusalError as refusal:
                body = f"{refusal.reason}\n".encode()
                writer.write(
                    f"HTTP/1.1 {refusal.status} {refusal.reason}\r\nContent-Type: text/plain\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode("latin-1", "replace")
                    + body
                )
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _tunnel(self, head: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = _authority(head.target)
        upstream_reader, upstream_writer = await self._connect(host, port)
        try:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            async with asyncio.TaskGroup() as group:
                group.create_task(_relay(reader, upstream_writer))
                group.create_task(_relay(upstream_reader, writer))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            upstream_writer.close()

    async def _forward(self, head: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            url = urlsplit(head.target)
            port = url.port or 80
        except ValueError as error:
            raise _RefusalError(400, "Bad request target") from error
        if url.scheme != "http" or not url.hostname:
            raise _RefusalError(400, "Only absolute http:// targets and CONNECT are served")
        if head.values("transfer-encoding"):
            raise _RefusalError(411, "Send a Content-Length")
        lengths = head.values("content-length") or ["0"]
        if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,15}", lengths[0]):
            raise _RefusalError(400, "Bad Content-Length")
        upstream_reader, upstream_writer = await self._connect(url.hostname, port)
        try:
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            kept = [f"{name}: {value}" for name, value in head.headers if name.lower() not in _HOP]
            authority = url.netloc.rpartition("@")[2]
            lines = [f"{head.method} {path} HTTP/1.1", f"Host: {authority}", *kept, "Connection: close", "", ""]
            upstream_writer.write("\r\n".join(lines).encode("latin-1"))
            # Only what the head announced passes: a second request on this connection would escape the check.
            await _copy(reader, upstream_writer, int(lengths[0]))
            await _relay(upstream_reader, writer)
        finally:
            upstream_writer.close()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = host.lower().rstrip(".")
        private = self._grant.private(host, port)
        if not self._grant.covers(host, port):
            raise self._refusal(
                host, port, RefusalReason.NOT_GRANTED, f"The network grant does not cover {_shown(host)}:{port}"
            )
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                addresses = await self._resolve(host, port)
        except (OSError, UnicodeError, TimeoutError) as error:
            raise self._refusal(host, port, RefusalReason.UNREACHABLE, f"Cannot resolve {_shown(host)}") from error
        allowed = [address for address in addresses if private or is_public(address)]
        if not allowed:
            raise self._refusal(host, port, RefusalReason.PRIVATE, f"{_shown(host)} is not at a public address")
        for address in allowed:
            try:
                async with asyncio.timeout(self._connect_seconds):
                    reader, writer = await asyncio.open_connection(address, port)
            except (OSError, TimeoutError):
                continue
            # A public address of this host leads to its own services: there both ends are the same.
            if not private and writer.get_extra_info("sockname")[0] == writer.get_extra_info("peername")[0]:
                writer.close()
                raise self._refusal(host, port, RefusalReason.PRIVATE, f"{_shown(host)} is this host")
            return reader, writer
        raise self._refusal(host, port, RefusalReason.UNREACHABLE, f"Cannot connect to {_shown(host)}:{port}")

    def _refusal(self, host: str, port: int, reason: RefusalReason, text: str) -> _RefusalError:
        key = (_shown(host), port)
        if len(self._refused) < _MAX_REFUSALS or key in self._refused:
            self._refused.pop(key, None)
            self._refused[key] = Refusal(host=key[0], port=port, reason=reason, text=text)
        return _RefusalError(502 if reason is RefusalReason.UNREACHABLE else 403, text)


def _parse(data: bytes) -> _Head:
    lines = data.decode("latin-1")[:-4].split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not parts[2].startswith("HTTP/1."):
        raise _RefusalError(400, "Bad request line")
    if any(ord(character) <= 32 or ord(character) >= 127 for character in parts[1]):
        raise _RefusalError(400, "Bad request target")
    headers: list[tuple[str, str]] = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or any(bad in value for bad in "\r\n\0"):
            raise _RefusalError(400, "Bad header")
        headers.append((name, value.strip()))
    return _Head(method=parts[0], target=parts[1], headers=tuple(headers))


def _authority(target: str) -> tuple[str, int]:
    host, _, port = target.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not host or "@" in host or not 0 < int(port) < 65536:
        raise _RefusalError(400, "CONNECT wants host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _shown(host: str) -> str:
    return "".join(character for character in host[:253] if character.isprintable())


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
    while count:
        data = await reader.read(min(count, _CHUNK))
        if not data:
            return
        writer.write(data)
        await writer.drain()
        count -= len(data)


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()
