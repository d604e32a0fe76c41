"""The transport to HTTP servers: to allowed hosts only, and only at checked addresses."""

from __future__ import annotations

import codecs
import re
import ssl
import unicodedata
import zlib
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from ipaddress import IPv6Address
from typing import cast

import httpcore2
import httpx2

from swe_ai_fleet.domain.command import DEFAULT_PORTS, NetworkGrant, address_of
from swe_ai_fleet.sandbox.network import PrivateHostError, Resolver, UnknownHostError, lookup
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal

CONNECT_SECONDS = 10.0
MAX_URL_CHARS = 8192
_MAX_ADDRESSES = 4
_DEFAULT_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>[^#]*)(?:#.*)?")
_AUTHORITY = re.compile(r"(?:\[(?P<literal>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:]+))(?::(?P<port>[0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"(?P<name>\[[^\]]*\]|[^:]*):(?P<port>[0-9]{1,5})")
_BLANKS = re.compile(r"[\x00-\x20\x7f\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPolicy:
    """The servers that the HTTP tool may reach.

    `allowed_hosts` are globs of host names. `private_hosts` (exact names) are allowed too and may have private
    addresses; every address of any other host must be public. `ports` applies to all entries that have no `:port`.
    """

    allowed_hosts: tuple[str, ...] = ("*",)
    private_hosts: tuple[str, ...] = ()
    ports: tuple[int, ...] = (80, 443, 8080, 8443)

    @classmethod
    def of(cls, grant: NetworkGrant) -> HttpPolicy:
        return cls(allowed_hosts=grant.hosts, private_hosts=grant.private_hosts, ports=DEFAULT_PORTS)

    def check(self, url: httpx2.URL) -> None:
        """Check a URL before its host is resolved. Raises ToolRefusal."""
        if url.scheme not in _DEFAULT_PORTS:
            raise ToolRefusal(f"the scheme {url.scheme!r} is not allowed; use http or https")
        if url.userinfo:
            raise ToolRefusal("a URL must not hold a user name or password; use an Authorization header")
        globs = [_entry(text) for text in self.allowed_hosts]
        ports = [port for glob, port in globs if fnmatchcase(url.host, glob.lower())]
        ports += [port for name, port in map(_entry, self.private_hosts) if url.host == _canonical(name)]
        if not ports:
            allowed = ", ".join((*self.allowed_hosts, *self.private_hosts)) or "none"
            raise ToolRefusal(f"the host {url.host} is not allowed; allowed are: {allowed}")
        reachable = {number for port in ports for number in (self.ports if port is None else (port,))}
        if port_of(url) not in reachable:
            allowed = ", ".join(str(port) for port in sorted(reachable))
            raise ToolRefusal(f"the port {port_of(url)} is not allowed; allowed are: {allowed}")

    def is_private(self, host: str, port: int) -> bool:
        """Whether the host may have private addresses at this port."""
        entries = map(_entry, self.private_hosts)
        return any(host == _canonical(name) and named in (None, port) for name, named in entries)


@cache
def public_authorities() -> ssl.SSLContext:
    """The TLS context of the usual public authorities; one per process, because reading certificates takes a while."""
    return httpx2.create_ssl_context(trust_env=False)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends requests under a policy; each connection goes to the address that was checked.

    Args:
        policy: Checks every request, redirects included.
        resolver: Resolves names; by default the system's.
        network: Opens connections to addresses; by default the real network.
        tls: Verifies servers; by default against the usual public authorities.
    """

    def __init__(
        self,
        policy: HttpPolicy,
        *,
        resolver: Resolver | None = None,
        network: httpcore2.AsyncNetworkBackend | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls or public_authorities(),
            network_backend=_CheckedNetwork(
                policy,
                resolver,
                network or cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend()),
            ),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The response, with its body not read yet. Raises ToolFailure, ToolRefusal."""
        self._policy.check(request.url)
        url = httpcore2.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        outgoing = httpcore2.Request(
            method=request.method,
            url=url,
            headers=request.headers.raw,
            content=await request.aread(),
            extensions={"timeout": {"connect": CONNECT_SECONDS}},
        )
        with _explained(request.url):
            response = await self._pool.handle_async_request(outgoing)
        return httpx2.Response(
            response.status,
            headers=response.headers,
            stream=_Body(response, request.url),
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """Resolves, checks and connects in one step, so a second look-up cannot give another answer."""

    def __init__(self, policy: HttpPolicy, resolver: Resolver | None, network: httpcore2.AsyncNetworkBackend) -> None:
        self._policy = policy
        self._resolver = resolver
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        faults: list[httpcore2.ConnectError | httpcore2.ConnectTimeout] = []
        for address in (await self._addresses(host, port))[:_MAX_ADDRESSES]:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as fault:
                faults.append(fault)
        raise faults[-1]

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise ToolRefusal("unix sockets are not allowed")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            return await lookup(host, port, private=self._policy.is_private(host, port), resolver=self._resolver)
        except UnknownHostError as error:
            raise ToolFailure(str(error)) from None
        except PrivateHostError as error:
            raise ToolRefusal(str(error)) from None


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: httpcore2.Response, url: httpx2.URL) -> None:
        self._response = response
        self._url = url

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _explained(self._url):
            async for part in self._response.aiter_stream():
                yield part

    async def aclose(self) -> None:
        await self._response.aclose()


@contextmanager
def _explained(url: httpx2.URL) -> Generator[None, None, None]:
    """Raise ToolFailure, with an explanation for the model, for faults of a connection."""
    server = f"{url.host}:{port_of(url)}"
    try:
        yield
    except httpcore2.ConnectTimeout:
        raise ToolFailure(f"{server} did not accept a connection within {CONNECT_SECONDS:g} seconds") from None
    except httpcore2.ConnectError as error:
        raise ToolFailure(f"cannot connect to {server}: {_reason(error)}") from None
    except (httpcore2.NetworkError, httpcore2.TimeoutException) as error:
        raise ToolFailure(f"the connection to {server} broke: {_reason(error)}") from None
    except httpcore2.LocalProtocolError as error:
        raise ToolFailure(f"this request cannot be sent: {_reason(error)}") from None
    except httpcore2.ProtocolError as error:
        raise ToolFailure(f"{server} does not answer in proper HTTP: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def parse_url(text: str) -> httpx2.URL:
    """A URL in canonical form: lower-case host without a trailing dot, no fragment. Raises ToolRefusal.

    Spellings that programs may read differently (numbers other than dotted quads, escapes in the host, backslashes,
    blanks, look-alike letters) are refused rather than interpreted.
    """
    if len(text) > MAX_URL_CHARS:
        raise ToolRefusal(f"the URL has {len(text)} characters; at most {MAX_URL_CHARS} are allowed")
    if _BLANKS.search(text):
        raise ToolRefusal("a URL must not hold blanks, control characters or backslashes; percent-encode them")
    match = _URL.fullmatch(text)
    if match is None:
        raise ToolRefusal("this is not an absolute URL; write it as https://host/path")
    scheme, authority, rest = match["scheme"].lower(), match["authority"], match["rest"]
    if scheme not in _DEFAULT_PORTS:
        raise ToolRefusal(f"the scheme {scheme!r} is not allowed; use http or https")
    if "@" in authority:
        raise ToolRefusal("a URL must not hold a user name or password; use an Authorization header")
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise ToolRefusal("the host or port of this URL cannot be read")
    host = f"[{_ip_v6(parts['literal'])}]" if parts["literal"] else _host_name(parts["name"])
    port = f":{int(parts['port'])}" if parts["port"] else ""
    try:
        url = httpx2.URL(f"{scheme}://{host}{port}{rest}")
        # Labels in Punycode are decoded only here.
        _ = url.host
    except (httpx2.InvalidURL, UnicodeError) as error:
        raise ToolRefusal(f"this URL cannot be read: {error}") from None
    return url


def redirect_target(base: httpx2.URL, location: str) -> httpx2.URL:
    """The target of a Location header, parsed as strictly as any URL. Raises ToolRefusal."""
    location = location.strip()
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", location):
        return parse_url(location)
    if location.startswith("//"):
        return parse_url(f"{base.scheme}:{location}")
    if _BLANKS.search(location) or len(location) > MAX_URL_CHARS:
        raise ToolRefusal("the server redirects to something that is not a valid URL")
    try:
        return base.join(location.partition("#")[0])
    except httpx2.InvalidURL as error:
        raise ToolRefusal(f"the server redirects to something that is not a valid URL: {error}") from None


def port_of(url: httpx2.URL) -> int:
    """The port of a URL, or its scheme's default."""
    return url.port or _DEFAULT_PORTS.get(url.scheme, 0)


def _host_name(name: str) -> str:
    if not name.isascii():
        if unicodedata.normalize("NFKC", name) != name:
            raise ToolRefusal("the host of this URL holds look-alike characters; write it in plain letters")
        try:
            name = httpx2.URL(f"http://{name}/").raw_host.decode("ascii")
        except httpx2.InvalidURL as error:
            raise ToolRefusal(f"the host of this URL cannot be read: {error}") from None
    host = _canonical(name)
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ToolRefusal("the host of this URL cannot be read; escapes and empty parts are not allowed")
    if _NUMBER.fullmatch(labels[-1]) and not address_of(host):
        raise ToolRefusal("the host of this URL is a number; write an address as four decimal numbers")
    return host


def _ip_v6(literal: str) -> str:
    try:
        return str(IPv6Address(literal))
    except ValueError:
        raise ToolRefusal("the host of this URL is not an IPv6 address") from None


def _entry(text: str) -> tuple[str, int | None]:
    """The host of a policy's entry, and its port if it has one."""
    match = _PORT.fullmatch(text)
    name, port = (match["name"], int(match["port"])) if match else (text, None)
    return name.strip("[]"), port


def _canonical(host: str) -> str:
    """The canonical spelling, for comparisons."""
    name = host.lower().removesuffix(".")
    return str(address_of(name) or name)


_TEXT_TYPE = re.compile(
    r"text/.*|.*[+/](json|xml|yaml|x-yaml|toml|graphql|javascript|ecmascript|x-javascript|x-ndjson|ndjson|jsonl"
    r"|x-www-form-urlencoded|x-sh|sql)"
)
_CHARSETS = re.compile(
    r"ascii|utf-(8|16|32)(-le|-be|-sig)?|iso8859-\d+|cp125\d|koi8-[ru]|shift_jis|euc_(jp|kr)|gb(k|2312|18030)|big5"
)
MAX_SECONDS = 300.0
"""The longest lifetime of a response in the cache."""
DEFAULT_FRESH_SECONDS = 30.0
"""The lifetime where the server states none: long enough for agents that read the same page, short for live data."""
_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s?=\s?\"?(\d{1,9})")
_FORBIDDING = ("no-store", "no-cache", "private")
_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """The part of a body that was read; `encoding` is a content encoding that could not be decoded."""

    data: bytes = b""
    cut: bool = False
    encoding: str = ""


async def read_body(response: httpx2.Response, limit: int) -> Received:
    """At most `limit` bytes of the body, both compressed and decompressed. Raises ToolFailure."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    packed = encoding in ("gzip", "x-gzip", "deflate")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    data, on_wire = bytearray(), 0
    async for part in response.aiter_raw():
        on_wire += len(part)
        room = limit + 1 - len(data)
        try:
            data += unpacker.decompress(part, room) if packed else part[:room]
        except zlib.error as error:
            raise ToolFailure(f"the body is said to be {encoding} but cannot be unpacked: {error}") from None
        if len(data) > limit or on_wire > limit or unpacker.eof:
            break
    unknown = "" if packed or encoding in ("", "identity") else encoding
    return Received(
        data=bytes(data[:limit]), cut=len(data) > limit or (on_wire > limit and not unpacker.eof), encoding=unknown
    )


def described(kind: str, body: Received, digest: str) -> str:
    packed = f", packed as {body.encoding[:40]}" if body.encoding else ""
    return f"[not text: {kind or 'no content type'}{packed}, {len(body.data)} bytes, SHA-256 {digest}]"


def as_text(kind: str, data: bytes) -> str | None:
    media, _, parameters = kind.lower().partition(";")
    named = re.search(r"charset=\s*[\"']?([a-z0-9_-]+)", parameters)
    charset = _charset(named[1]) if named else "utf-8"
    if not _TEXT_TYPE.fullmatch(media.strip()) and (media.strip() or b"\0" in data):
        return None
    text = data.decode(charset, "replace")
    return None if "\0" in text else text


def _charset(name: str) -> str:
    # Not all of Python's codecs are character sets, and some are slow on hostile input.
    try:
        charset = codecs.lookup(name).name
    except LookupError:
        return "utf-8"
    return charset if _CHARSETS.fullmatch(charset) else "utf-8"


def fresh_seconds(request: Mapping[str, str], status: int, answer: Mapping[str, str]) -> float:
    """A response's lifetime in seconds by its and the request's headers (the simple part of RFC 9111), at most 300.

    Responses that set cookies are not shared; the caller checks the request for credentials.
    """
    directives = f"{answer.get('cache-control', '')},{answer.get('pragma', '')}".lower()
    requested = f"{request.get('cache-control', '')},{request.get('pragma', '')}".lower()
    if status != _OK or "set-cookie" in answer or answer.get("vary", "").strip() == "*":
        return 0.0
    if any(word in requested or word in directives for word in _FORBIDDING):
        return 0.0
    if match := _MAX_AGE.search(directives):
        age = answer.get("age", "0").strip()
        return max(0.0, min(MAX_SECONDS, int(match[1]) - (int(age) if age.isdecimal() and len(age) < 10 else 0)))
    return 0.0 if "expires" in answer else DEFAULT_FRESH_SECONDS
