"""Access to the network: the addresses that may be reached, and an HTTP proxy that checks and connects itself.

A host is resolved once and every address is checked. Clients connect to the addresses that `lookup` returns,
so a second look-up cannot give another answer. Sandboxes with a network, and the fleet's own git, use the proxy.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import os
import re
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from swe_ai_fleet.domain.command import address_of

_NAT64 = IPv6Network("64:ff9b::/96")
# Each network chooses where such an address holds the IPv4 address, so that cannot be checked.
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
_V4_COMPATIBLE = IPv6Network("::/96")
METADATA = frozenset(map(ip_address, ("168.63.129.16", "100.100.100.200", "fd00:ec2::254")))
"""Metadata services of clouds that are not at a link-local address; the first one is not even a private address."""


class Resolver(Protocol):
    """Turns a name into addresses."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a host as text, best first. Raises OSError if it has none."""
        ...


class SystemResolver:
    """This machine's own resolver."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in infos))


class UnknownHostError(Exception):
    """A host name that cannot be resolved."""


class PrivateHostError(Exception):
    """A host with an address that is not public, or this machine's own."""


async def lookup(host: str, port: int, *, private: bool = False, resolver: Resolver | None = None) -> tuple[str, ...]:
    """The addresses of a host, best first; all of them public, unless `private` allows any.

    Raises UnknownHostError, PrivateHostError.
    """
    if (literal := address_of(host)) is not None:
        addresses: Sequence[str] = (str(literal),)
    else:
        try:
            addresses = await (resolver or SystemResolver()).resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise UnknownHostError(f"the name {host} cannot be resolved: {error}") from error
    if not addresses:
        raise UnknownHostError(f"the name {host} has no address")
    for address in addresses:
        if address_of(address) is None or not (private or (is_public(address) and not _is_own(address))):
            raise PrivateHostError(f"the host {host} is not on the public internet")
    return tuple(addresses)


def is_public(address: str) -> bool:
    """Whether an address, as text, is public: not loopback, private, link-local, multicast, metadata or reserved.

    IPv6 forms that carry an IPv4 address (mapped, compatible, 6to4, Teredo, NAT64) are classified by it. Raises
    ValueError for an invalid address.
    """
    parsed = ip_address(address.partition("%")[0])
    return all(_is_public(each) for each in _embedded(parsed) or (parsed,))


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and (address.is_site_local or address in _LOCAL_NAT64):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address in METADATA)


def _is_own(address: str) -> bool:
    """Whether a public address is this machine's own, so that its services answer there. The check sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0]) == str(probe.getpeername()[0])
    except OSError:
        # No route leads to it, so it is not this machine's.
        return False


def _embedded(address: IPv4Address | IPv6Address) -> tuple[IPv4Address, ...]:
    if isinstance(address, IPv4Address):
        return ()
    if address.ipv4_mapped:
        return (address.ipv4_mapped,)
    if address.sixtofour:
        return (address.sixtofour,)
    if address.teredo:
        return address.teredo
    if address in _V4_COMPATIBLE or address in _NAT64:
        return (IPv4Address(int(address) & 0xFFFF_FFFF),)
    return ()


_HEAD_LIMIT = 64 * 1024
_HEAD_SECONDS = 30.0
_CONNECT_SECONDS = 30.0
_MAX_CONNECTIONS = 128
_MAX_REFUSALS = 100
_CHUNK = 64 * 1024
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})(?:;[^\r\n]{0,200})?\r\n")
# Headers that are meant for a proxy or that a proxy sets.
_HOP = frozenset({"connection", "keep-alive", "proxy-authorization", "proxy-connection", "te", "upgrade", "host"})


_CLIENT = "fleet"
_UNAUTHORIZED = 407
_CHALLENGE = 'Proxy-Authenticate: Basic realm="fleet"\r\n'


class Reach(Protocol):
    """The hosts that may be reached; `NetworkGrant` and an adapter's rules for remotes implement it."""

    def covers(self, host: str, port: int) -> bool:
        """Whether a host may be reached at all."""
        ...

    def private(self, host: str, port: int) -> bool:
        """Whether a host may be reached at private addresses too."""
        ...


class RefusalReason(StrEnum):
    """The reason why a host was not reached."""

    NOT_GRANTED = "not granted"
    PRIVATE = "private"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRefusal:
    """A host that the proxy did not connect to, and why; `text` is its answer to the client."""

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


def unix_listener(path: Path) -> socket.socket:
    """A socket bound to a path of any length, in a directory that only this user should be able to enter."""
    listener = socket.socket(socket.AF_UNIX)
    # A unix address holds about a hundred bytes; by way of its directory's descriptor any path fits.
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
    return listener


class FilteringProxy:
    """Serves CONNECT and absolute-URI HTTP requests, to granted hosts at checked addresses only.

    The proxy resolves the name and connects to the address that it checked, so a name that changes its address gains
    nothing. An address of this host itself is refused unless the grant allows the name's private addresses.
    """

    def __init__(self, grant: Reach, *, resolver: Resolver | None = None) -> None:
        self._grant = grant
        self._resolver = resolver
        self._authorization = b""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._refused: dict[tuple[str, int], ProxyRefusal] = {}

    @property
    def refusals(self) -> tuple[ProxyRefusal, ...]:
        """The hosts that were refused or could not be reached so far, in the order of their last refusal."""
        return tuple(self._refused.values())

    async def start(self, path: Path) -> None:
        """Listen on `path`, in a directory that only this user should be able to enter."""
        self._server = await asyncio.start_unix_server(self._accept, sock=unix_listener(path), limit=_HEAD_LIMIT)

    async def start_on_loopback(self) -> str:
        """Listen on a free port of loopback, for clients with a new password; the URL, which holds the password."""
        password = secrets.token_urlsafe(24)
        self._authorization = b"Basic " + base64.b64encode(f"{_CLIENT}:{password}".encode())
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_HEAD_LIMIT)
        return f"http://{_CLIENT}:{password}@127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

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
                self._authorize(head)
                if head.method == "CONNECT":
                    await self._tunnel(head, reader, writer)
                else:
                    await self._forward(head, reader, writer)
            except _RefusalError as refusal:
                body = f"{refusal.reason}\n".encode()
                writer.write(
                    f"HTTP/1.1 {refusal.status} {refusal.reason}\r\nContent-Type: text/plain\r\n"
                    f"{_CHALLENGE if refusal.status == _UNAUTHORIZED else ''}"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode("latin-1", "replace")
                    + body
                )
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def _authorize(self, head: _Head) -> None:
        credential = "".join(head.values("proxy-authorization")).encode("latin-1")
        if self._authorization and not hmac.compare_digest(credential, self._authorization):
            raise _RefusalError(_UNAUTHORIZED, "Proxy authentication failed")

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
        encodings = [value.lower() for value in head.values("transfer-encoding")]
        if encodings not in ([], ["chunked"]):
            raise _RefusalError(411, "Send a Content-Length")
        if encodings and head.values("content-length"):
            raise _RefusalError(400, "Content-Length and Transfer-Encoding")
        lengths = head.values("content-length") or ["0"]
        if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,15}", lengths[0]):
            raise _RefusalError(400, "Bad Content-Length")
        upstream_reader, upstream_writer = await self._connect(url.hostname, port)
        try:
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            headers = [f"{name}: {value}" for name, value in head.headers if name.lower() not in _HOP]
            authority = url.netloc.rpartition("@")[2]
            lines = [f"{head.method} {path} HTTP/1.1", f"Host: {authority}", *headers, "Connection: close", "", ""]
            upstream_writer.write("\r\n".join(lines).encode("latin-1"))
            # Forward the announced body only: a second request on this connection would not be checked.
            if encodings:
                await _copy_chunks(reader, upstream_writer)
            else:
                await _copy(reader, upstream_writer, int(lengths[0]))
            await _relay(upstream_reader, writer)
        finally:
            upstream_writer.close()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = host.lower().rstrip(".")
        printable = "".join(character for character in host[:253] if character.isprintable())
        private = self._grant.private(host, port)
        if not self._grant.covers(host, port):
            text = f"The network grant does not cover {printable}:{port}"
            raise self._refusal(printable, port, RefusalReason.NOT_GRANTED, text)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                addresses = await lookup(host, port, private=private, resolver=self._resolver)
        except (UnknownHostError, TimeoutError) as error:
            raise self._refusal(printable, port, RefusalReason.UNREACHABLE, f"Cannot resolve {printable}") from error
        except PrivateHostError as error:
            text = f"{printable} is not at a public address"
            raise self._refusal(printable, port, RefusalReason.PRIVATE, text) from error
        for address in addresses:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CONNECT_SECONDS):
                    return await asyncio.open_connection(address, port)
        raise self._refusal(printable, port, RefusalReason.UNREACHABLE, f"Cannot connect to {printable}:{port}")

    def _refusal(self, host: str, port: int, reason: RefusalReason, text: str) -> _RefusalError:
        key = (host, port)
        if len(self._refused) < _MAX_REFUSALS or key in self._refused:
            self._refused.pop(key, None)
            self._refused[key] = ProxyRefusal(host=host, port=port, reason=reason, text=text)
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


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
    while count:
        data = await reader.read(min(count, _CHUNK))
        if not data:
            return
        writer.write(data)
        await writer.drain()
        count -= len(data)


async def _copy_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy a chunked body up to its last chunk."""
    while True:
        size = _CHUNK_SIZE.fullmatch(await reader.readuntil(b"\r\n"))
        if size is None:
            raise _RefusalError(400, "Bad chunk")
        writer.write(size[0])
        # Each chunk ends with CRLF. Trailers after the last one are not forwarded.
        await _copy(reader, writer, int(size[1], 16) + 2)
        if int(size[1], 16) == 0:
            return


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()
