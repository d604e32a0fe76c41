"""A gateway between git in a sandbox and one remote repository; it adds the credential outside the sandbox.

Git in a sandbox sends plain HTTP to the gateway, which sends it to the server over TLS with the credential. The gateway
forwards only requests of git's smart protocol to that repository, and only a push of the permitted change. So even a
manipulated git in the sandbox can neither learn the credential nor use it for another purpose.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import re
import secrets
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Self

import httpx2

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.http_transport import GuardedTransport, parse_url
from swe_ai_fleet.tools.secrets import MASK

READ, WRITE = "git-upload-pack", "git-receive-pack"
_HEAD_LIMIT = 64 * 1024
_HEAD_SECONDS = 30.0
_FORWARDED = frozenset({"accept", "content-type", "content-encoding", "git-protocol"})
_ANSWERED = ("content-type", "content-encoding")
_LENGTH = re.compile(rb"[0-9a-f]{4}")
_NUMBER = re.compile(r"[0-9]{1,15}")
_MAX_COMMAND_LINES = 10_000
_FLUSH = 0
# Git's first request of a push that exceeds its buffer, whose size is our limit.
_PROBE = b"0000"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefUpdate:
    """A change of one ref at a remote from one commit to another; `old` is all zeros where the ref is new."""

    ref: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Gateway:
    """Serves one repository on loopback, below a secret path; a context manager.

    Args:
        upstream: The repository's URL, without user info.
        authorization: The value of the Authorization header; empty sends none.
        transport: Sends requests; its policy names the granted host. The gateway closes it.
        max_received_bytes: The limit of all responses together; exceeding it ends the operation.
        max_sent_bytes: The limit of one request's body.
    """

    def __init__(
        self,
        upstream: str,
        *,
        authorization: str,
        transport: GuardedTransport,
        max_received_bytes: int,
        max_sent_bytes: int,
    ) -> None:
        self._upstream = upstream
        self._authorization = authorization
        self._transport = transport
        self._max_received = max_received_bytes
        self.max_sent_bytes = max_sent_bytes
        self._secret = secrets.token_urlsafe(24)
        self._permitted: RefUpdate | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.StreamWriter] = set()
        self.received = 0
        self.problem: ToolFailure | None = None
        """The first failure here. Git only sees a response that breaks off, and may take it for complete."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_HEAD_LIMIT)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._transport.aclose()

    @property
    def address(self) -> str:
        """The `host:port` for a network grant."""
        if self._server is None:
            raise RuntimeError("the gateway is not open")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    @property
    def url(self) -> str:
        """The repository's URL for git in the sandbox."""
        return f"http://{self.address}/{self._secret}"

    def permit(self, update: RefUpdate) -> None:
        self._permitted = update

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(await self._read(reader), writer)
        except ToolFailure as failure:
            self.problem = self.problem or failure
            # A response that has begun just breaks off.
            if writer not in self._answering:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._answering.discard(writer)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> _Request:
        async with asyncio.timeout(_HEAD_SECONDS):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head[:-4].split("\r\n")
        parts = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = headers.get("content-length", "0")
        if len(parts) != 3 or "transfer-encoding" in headers or not _NUMBER.fullmatch(length):
            raise ToolFailure("git sent a request that is not understood")
        if int(length) > self.max_sent_bytes:
            raise ToolFailure(f"this would send {length} bytes; at most {self.max_sent_bytes} may be sent at once")
        body = await reader.readexactly(int(length))
        return _Request(method=parts[0], target=parts[1], headers=headers, body=body)

    async def _answer(self, request: _Request, writer: asyncio.StreamWriter) -> None:
        path = self._upstream_path(request)
        headers = {name: value for name, value in request.headers.items() if name in _FORWARDED}
        headers |= {"accept-encoding": "identity", "user-agent": "git/swe-ai-fleet"}
        if self._authorization:
            headers["authorization"] = self._authorization
        outgoing = httpx2.Request(request.method, self._upstream + path, headers=headers, content=request.body or None)
        response = await self._transport.handle_async_request(outgoing)
        try:
            _check_response(response)
            forwarded = [f"{name}: {response.headers[name]}" for name in _ANSWERED if name in response.headers]
            self._answering.add(writer)
            lines = ["HTTP/1.1 200 OK", *forwarded, "Cache-Control: no-cache", "Connection: close", "", ""]
            writer.write("\r\n".join(lines).encode("latin-1", "replace"))
            async for part in response.aiter_raw():
                self.received += len(part)
                if self.received > self._max_received:
                    raise ToolFailure(
                        f"the server sends more than {self._max_received} bytes, which is the limit of one operation; "
                        "name single branches, or clone with a small depth"
                    )
                writer.write(part)
                await writer.drain()
        finally:
            await response.aclose()

    def _upstream_path(self, request: _Request) -> str:
        """The path of a request below the repository's URL. Raises ToolRefusal if it is not git's or not allowed."""
        secret, _, rest = request.target.removeprefix("/").partition("/")
        if not hmac.compare_digest(secret.encode(), self._secret.encode()):
            raise ToolRefusal("a request without the key of this gateway was rejected")
        line = (request.method, rest)
        if line in (("GET", f"info/refs?service={READ}"), ("POST", READ)):
            return f"/{rest}"
        if self._permitted is not None and line == ("GET", f"info/refs?service={WRITE}"):
            return f"/{rest}"
        if self._permitted is not None and line == ("POST", WRITE):
            if request.body == _PROBE:
                raise ToolFailure(f"this push has more than {self.max_sent_bytes} bytes, which may be sent at most")
            _check_update(request, self._permitted)
            return f"/{rest}"
        raise ToolRefusal("git asked for something that this operation is not granted")


def _check_response(response: httpx2.Response) -> None:
    status = response.status_code
    if 300 <= status < 400:
        raise ToolRefusal("the server redirects to another address; redirects are not followed, grant that URL instead")
    if status in (401, 403):
        raise ToolFailure(f"the server refused access (HTTP {status}): its credential is wrong, or lacks rights")
    if status == 404:
        raise ToolFailure("there is no such repository at the server, or the remote's credential may not see it")
    if status != 200:
        raise ToolFailure(f"the server answered HTTP {status}")


def _check_update(request: _Request, permitted: RefUpdate) -> None:
    """Raise ToolRefusal for a push of anything but the permitted change."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise ToolRefusal("a packed list of changes cannot be checked")
    if _commands(request.body) != [f"{permitted.old} {permitted.new} {permitted.ref}"]:
        raise ToolRefusal("git tried to push something else than what was allowed")


def _commands(body: bytes) -> list[str]:
    """The list of changes of a push, in git's packet lines. Raises ToolRefusal if it is malformed or too long."""
    commands: list[str] = []
    offset = 0
    for _ in range(_MAX_COMMAND_LINES):
        prefix = body[offset : offset + 4]
        length = int(prefix, 16) if _LENGTH.fullmatch(prefix) else -1
        if length == _FLUSH:
            return commands
        if length <= 4 or offset + length > len(body):
            break
        line = body[offset + 4 : offset + length].decode("utf-8", "replace")
        offset += length
        if not line.startswith("shallow "):
            commands.append(line.partition("\0")[0].rstrip("\n"))
    raise ToolRefusal("the list of changes in this push cannot be read")


ANYTHING_BELOW = "/*"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_BRANCH = re.compile(r"(?![-/])[^\x00-\x20\x7f~^:?*\[\\]{1,250}(?<![/.])")
_TRANSPORT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SEGMENT = re.compile(r"(?!\.+(?:/|$))[A-Za-z0-9._~+@-]+")
_USER_INFO = re.compile(r"(:/*).*@", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteGrant:
    """A remote repository, or all repositories below a path of a server, that agents may reach.

    Args:
        name: The remote's name for agents; its branches are fetched to `refs/remotes/<name>/`.
        url: `https://host/path` exactly; a URL that ends in `/*` grants every repository below it, by its URL.
        push: Globs of the branches that may be pushed; empty means none.
        protected: Globs of branches that may be pushed only if `push` holds their exact name; the server's default
            branch is always protected.
        username: Sent with `secret`; many servers accept any.
        secret: Password or token. It stays in this process: no command, file or result holds it.
        private: Whether its host may have private addresses.
        insecure: Whether the URL may be http; all data, including the secret, is then sent in clear text.

    Raises InvalidRequest with the field that is wrong.
    """

    name: str
    url: str
    push: tuple[str, ...] = ()
    protected: tuple[str, ...] = ("main", "master")
    username: str = "git"
    secret: str = field(default="", repr=False)
    private: bool = False
    insecure: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest(
                f"{self.name!r} is not a valid name for a remote; use letters, digits, - and _", field="name"
            )
        if ":" in self.username or not (self.username + self.secret).isprintable():
            raise InvalidRequest(f"the credential of the remote {self.name} holds characters it can't", field="secret")
        try:
            self._checked(self.url.removesuffix(ANYTHING_BELOW))
        except ToolFailure as error:
            raise InvalidRequest(f"the URL of the remote {self.name}: {error.message}", field="url") from None

    @property
    def is_pattern(self) -> bool:
        return self.url.endswith(ANYTHING_BELOW)

    @property
    def authorization(self) -> str:
        """The value of the Authorization header, empty without a secret."""
        if not self.secret:
            return ""
        return f"Basic {base64.b64encode(f'{self.username}:{self.secret}'.encode()).decode()}"

    def covers(self, url: str) -> bool:
        granted = self._checked(self.url.removesuffix(ANYTHING_BELOW))
        return url.startswith(f"{granted}/") if self.is_pattern else _plain(url) == _plain(granted)

    def may_push(self, branch: str, default_branch: str) -> bool:
        """Whether a branch may be pushed. `push` must hold the exact name of protected branches and the default one."""
        if branch in self.push:
            return True
        guarded = branch == default_branch or any(fnmatchcase(branch, glob) for glob in self.protected)
        return not guarded and any(fnmatchcase(branch, glob) for glob in self.push)

    def _checked(self, url: str) -> str:
        checked = checked_url(url)
        if checked.startswith("http:") and not self.insecure:
            raise ToolRefusal("http is not granted; use https")
        return checked


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedRepository:
    """One repository that a grant allows."""

    grant: RemoteGrant
    url: str

    @property
    def name(self) -> str:
        return self.grant.name


def find_target(grants: tuple[RemoteGrant, ...], remote: str) -> GrantedRepository:
    """The granted repository of a remote's name or URL. Raises ToolRefusal, which lists the grants."""
    granted = ", ".join(f"{grant.name} ({grant.url})" for grant in grants) or "none"
    for grant in grants:
        if grant.name == remote and not grant.is_pattern:
            return GrantedRepository(grant=grant, url=checked_url(grant.url))
    if not _TRANSPORT.match(remote):
        raise ToolRefusal(f"{shown_url(remote)!r} is not a granted remote; allowed are: {granted}")
    url = checked_url(remote)
    for grant in grants:
        if grant.covers(url):
            return GrantedRepository(grant=grant, url=url)
    raise ToolRefusal(f"{url[:200]!r} is not granted; allowed are: {granted}")


def checked_url(text: str) -> str:
    """An http or https URL of a repository in canonical form. Raises ToolRefusal for other forms that git accepts."""
    if _TRANSPORT.match(text) and not text.lower().startswith(("http://", "https://")):
        kind = text.partition(":")[0][:20]
        raise ToolRefusal(f"the transport {kind!r} is not allowed; remotes are reached by https only")
    if "@" in text.partition("://")[2].partition("/")[0]:
        raise ToolRefusal("a remote's URL must not hold a user name or password; credentials belong to the grant")
    try:
        url = str(parse_url(text)).rstrip("/")
    except ToolFailure as error:
        raise ToolRefusal(error.message) from None
    path = url.partition("://")[2].partition("/")[2]
    if "?" in text or "#" in text or not all(_SEGMENT.fullmatch(part) for part in path.split("/")):
        raise ToolRefusal("a remote's URL is https://host/path with plain path segments, without '..' or a query")
    return url


def checked_branch(text: str) -> str:
    """The branch name, unchanged. Raises ToolRefusal for options and other texts that git could interpret otherwise."""
    broken = ("..", "//", "@{", ".lock/", "/.")
    if (
        not _BRANCH.fullmatch(text)
        or text in ("@", "HEAD")
        or text.startswith((".", "refs/"))
        or text.endswith(".lock")
        or any(part in text for part in broken)
    ):
        raise ToolRefusal(f"{text[:80]!r} is not a branch name; give its short name, such as main or fix/login")
    return text


def shown_url(text: str) -> str:
    """A model's URL for error messages and the audit, without user info."""
    return _USER_INFO.sub(rf"\1{MASK}@", text)[:200]


def _plain(url: str) -> str:
    return url.removesuffix(".git")
