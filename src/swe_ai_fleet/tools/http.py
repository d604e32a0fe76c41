"""HTTP requests to servers outside, at checked addresses only."""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated
from urllib.parse import unquote_plus

import httpcore2
import httpx2
from pydantic import Field

from swe_ai_fleet.domain.json_values import is_list, is_mapping
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, Risk, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox.network import Resolver
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal, ToolTimeout, time_limit
from swe_ai_fleet.tools.http_transport import MAX_SECONDS as FRESH_MAX_SECONDS
from swe_ai_fleet.tools.http_transport import (
    GuardedTransport,
    HttpPolicy,
    Received,
    as_text,
    described,
    fresh_seconds,
    parse_url,
    port_of,
    read_body,
    redirect_target,
)
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.result_cache import FRESH_SECONDS
from swe_ai_fleet.tools.secrets import MASK

MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_REDIRECTS = 5
MAX_SECONDS = 300.0
_SPARE_SECONDS = 10.0
_SHOWN_HEADERS = 50
_SHOWN_HEADER_CHARS = 300
_MAX_HEADERS = 64
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_FRAMING = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect"}
)
_CREDENTIAL = re.compile(
    r"auth(?!ors?$)|token|secret|passw|pwd|cookie|credential|signature|session|jwt"
    r"|(api|access|private)[-_]?key|(^|[-_.])(key|sig|sid|code)$",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"www-authenticate|proxy-authenticate|access-control-.*", re.IGNORECASE)
_SLASHES = re.compile(r"[/\\]+")
Url = Annotated[str, Field(description="Absolute http or https URL, without user name or password.")]
Headers = Annotated[dict[str, str] | None, Field(description="Request headers, name to value.")]
Params = Annotated[
    dict[str, str | int | float | bool] | None, Field(description="Query parameters, added to those of the URL.")
]
Body = Annotated[
    str | dict[str, object] | list[object] | None,
    Field(description="Body: a string is sent as it is, an object or array as JSON."),
]
Limit = Annotated[float, Field(description="Limit of the whole exchange, in seconds.", gt=0, le=MAX_SECONDS)]
_LIMIT = MAX_SECONDS + _SPARE_SECONDS
_SENDING = operation(network=True, risk=Risk.MEDIUM, locks=(), time_limit_seconds=_LIMIT)
_LOOKING = operation(
    read_only=True,
    network=True,
    risk=Risk.MEDIUM,
    locks=(),
    time_limit_seconds=_LIMIT,
    cache_seconds=FRESH_MAX_SECONDS,
)


class HttpTool(Toolkit):
    """Requests to servers that the policy allows. It needs no workspace: `HttpTool()` is enough.

    Args:
        workspace: Not used; every toolkit has this parameter.
        policy: The servers that may be reached; by default all public ones.
        resolver: Resolves names; by default the system's.
        network: Opens connections to checked addresses; by default the real network.
        tls: Verifies servers; by default against the usual public authorities.
        max_body_bytes: Bytes of a body that are read, after decompression; the rest is cut off.
    """

    name = "http"

    def __init__(
        self,
        workspace: Workspace | None = None,
        pipeline: Pipeline | None = None,
        *,
        policy: HttpPolicy | None = None,
        resolver: Resolver | None = None,
        network: httpcore2.AsyncNetworkBackend | None = None,
        tls: ssl.SSLContext | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.pipeline = pipeline or Pipeline()
        self.policy = policy or HttpPolicy()
        self._resolver = resolver
        self._network = network
        self._tls = tls
        self._max_body_bytes = max_body_bytes

    @_LOOKING
    async def get(
        self, url: Url, headers: Headers = None, params: Params = None, timeout_seconds: Limit = 30.0
    ) -> ToolResult:
        """Fetch a URL: status, headers and body. Text is shown; anything else is described by type, size and hash."""
        return await self._call("get", url, headers, params, None, timeout_seconds)

    @_LOOKING
    async def head(
        self, url: Url, headers: Headers = None, params: Params = None, timeout_seconds: Limit = 30.0
    ) -> ToolResult:
        """Fetch only the status and the headers of a URL."""
        return await self._call("head", url, headers, params, None, timeout_seconds)

    @_SENDING
    async def post(
        self,
        url: Url,
        headers: Headers = None,
        params: Params = None,
        body: Body = None,
        timeout_seconds: Limit = 30.0,
    ) -> ToolResult:
        """Send a POST request with a body."""
        return await self._call("post", url, headers, params, body, timeout_seconds)

    @_SENDING
    async def put(
        self,
        url: Url,
        headers: Headers = None,
        params: Params = None,
        body: Body = None,
        timeout_seconds: Limit = 30.0,
    ) -> ToolResult:
        """Send a PUT request with a body."""
        return await self._call("put", url, headers, params, body, timeout_seconds)

    @_SENDING
    async def patch(
        self,
        url: Url,
        headers: Headers = None,
        params: Params = None,
        body: Body = None,
        timeout_seconds: Limit = 30.0,
    ) -> ToolResult:
        """Send a PATCH request with a body."""
        return await self._call("patch", url, headers, params, body, timeout_seconds)

    @_SENDING
    async def delete(
        self, url: Url, headers: Headers = None, params: Params = None, timeout_seconds: Limit = 30.0
    ) -> ToolResult:
        """Send a DELETE request."""
        return await self._call("delete", url, headers, params, None, timeout_seconds)

    def shared_scope(self, spec: OperationSpec) -> str | None:
        return repr(self.policy)

    def recorded(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        return without_credentials(arguments)

    async def _call(
        self, name: str, url: str, headers: Headers, params: Params, body: object, seconds: float
    ) -> ToolResult:
        started_at = time.monotonic()
        async with time_limit(seconds):
            target = parse_url(url)
            target = target.copy_merge_params(params) if params else target
            first = _request(name.upper(), target, headers or {}, body)
            transport = GuardedTransport(self.policy, resolver=self._resolver, network=self._network, tls=self._tls)
            async with transport:
                response, last, redirects = await exchange(transport, first)
                received = await read_body(response, self._max_body_bytes) if last.method != "HEAD" else Received()
                await response.aclose()
            result = _result(name, last, response, received, redirects, time.monotonic() - started_at)
            # A response to a request with credentials must not be shared.
            secret = any(map(_CREDENTIAL.search, first.headers))
            fresh = 0.0 if secret else fresh_seconds(first.headers, response.status_code, response.headers)
            return replace(result, metadata={**result.metadata, FRESH_SECONDS: fresh})
        raise ToolTimeout(f"there was no complete answer within {seconds:g} seconds")


def _request(method: str, url: httpx2.URL, headers: Mapping[str, str], body: object) -> httpx2.Request:
    if len(headers) > _MAX_HEADERS:
        raise ToolRefusal(f"{len(headers)} headers are too many; at most {_MAX_HEADERS} are allowed")
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ToolRefusal(f"the header {name[:80]!r} holds characters that no header may hold")
        if name.lower() in _FRAMING or name.lower().startswith("proxy-"):
            raise ToolRefusal(f"the header {name} cannot be set")
    content, kind = b"", ""
    if isinstance(body, str):
        content, kind = body.encode("utf-8", "replace"), "text/plain; charset=utf-8"
    elif body is not None:
        content, kind = json.dumps(body, ensure_ascii=False, allow_nan=False).encode(), "application/json"
    defaults = {"User-Agent": "swe-ai-fleet", "Accept": "*/*", "Accept-Encoding": "gzip"}
    defaults |= {"Content-Type": kind} if kind else {}
    chosen = {name.lower() for name in headers}
    remaining = {name: value for name, value in defaults.items() if name.lower() not in chosen}
    pairs = [(name.encode("ascii"), value.encode("latin-1")) for name, value in (*remaining.items(), *headers.items())]
    return httpx2.Request(method, url, headers=pairs, content=content or None)


async def exchange(
    transport: GuardedTransport, request: httpx2.Request, *, most: int = MAX_REDIRECTS
) -> tuple[httpx2.Response, httpx2.Request, int]:
    """Send a request and follow redirects: the final response, its request, and the number of redirects.

    Raises ToolRefusal where a redirect leads to a host that is not allowed, ToolFailure after `most` redirects.
    """
    for redirects in range(most + 1):
        response = await transport.handle_async_request(request)
        if response.status_code not in _REDIRECTS or "location" not in response.headers:
            return response, request, redirects
        await response.aclose()
        request = _redirected(request, response)
    raise ToolFailure(f"the server redirects more than {most} times")


def _redirected(request: httpx2.Request, response: httpx2.Response) -> httpx2.Request:
    url, status = redirect_target(request.url, response.headers["location"]), response.status_code
    method, content, before = request.method, request.content, request.url
    dropped = {"host", "content-length"}
    if (before.scheme, before.host, port_of(before)) != (url.scheme, url.host, port_of(url)):
        carried = [name.decode("ascii") for name, _ in request.headers.raw if _CREDENTIAL.search(name.decode("ascii"))]
        if carried and before.scheme == "https" and url.scheme == "http":
            raise ToolRefusal(f"the server redirects from https to http, and the request carries {carried[0]}")
        dropped.update(map(str.lower, carried))
    if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
        method, content = "GET", b""
        dropped.update(name for name in request.headers if name.startswith("content-"))
    kept = [(name, value) for name, value in request.headers.raw if name.decode("ascii").lower() not in dropped]
    return httpx2.Request(method, url, headers=kept, content=content or None)


def _result(
    name: str, request: httpx2.Request, response: httpx2.Response, body: Received, redirects: int, elapsed: float
) -> ToolResult:
    status = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
    final = _redact_url(str(request.url))
    kind = response.headers.get("content-type", "")
    digest = hashlib.sha256(body.data).hexdigest()
    headers = _shown_headers(response)
    after = f" (after {redirects} redirect{'' if redirects == 1 else 's'})" if redirects else ""
    lines = [f"{status} from {final}{after}"]
    lines += [f"{header}: {value}" for header, value in headers.items()]
    text = None if body.encoding else as_text(kind, body.data)
    if request.method != "HEAD":
        lines += ["", text if text is not None else described(kind, body, digest)]
    if body.cut:
        lines.append(f"[cut: the body goes on, only its first {len(body.data)} bytes were read]")
    metadata: dict[str, object] = {
        "status": response.status_code,
        "final_url": final,
        "redirects": redirects,
        "headers": headers,
        "content_type": kind,
        "bytes": len(body.data),
        "sha256": digest,
        "cut": body.cut,
        "elapsed_seconds": round(elapsed, 3),
    }
    good = response.status_code < 400
    return ToolResult(
        success=good,
        operation=f"{HttpTool.name}_{name}",
        content="\n".join(lines),
        error="" if good else status,
        metadata=metadata,
        outcome=Outcome.SUCCESS if good else Outcome.ERROR,
        truncated=body.cut,
    )


def _shown_headers(response: httpx2.Response) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in response.headers.multi_items():
        if len(headers) == _SHOWN_HEADERS:
            break
        if _CREDENTIAL.search(name) and not _HARMLESS.fullmatch(name):
            value = MASK
        elif name in ("location", "content-location", "refresh", "link"):
            value = str(_redact_url(value))
        before = f"{headers[name]}, " if name in headers else ""
        headers[name] = (before + value)[:_SHOWN_HEADER_CHARS]
    return headers


def _without_user_info(address: str) -> str:
    """A URL up to its query, without user info before the first slashes or in the authority after them."""
    slashes = _SLASHES.search(address)
    if slashes is None:
        return _anonymous(address)
    until = _SLASHES.search(address, slashes.end())
    end = until.start() if until else len(address)
    _, at, host = address[slashes.end() : end].rpartition("@")
    authority = f"{MASK}@{host}" if at else host
    return f"{_anonymous(address[: slashes.start()])}{slashes[0]}{authority}{address[end:]}"


def _anonymous(text: str) -> str:
    """`scheme:user@host` with the user masked."""
    colon, at = text.find(":"), text.rfind("@")
    return f"{text[: colon + 1]}{MASK}{text[at:]}" if 0 <= colon < at else text


def without_credentials(arguments: Mapping[str, object]) -> Mapping[str, object]:
    """The arguments of any call with possible credentials masked: in its URL, and values whose names say so."""
    return {name: _redact_url(value) if name == "url" else _redact(value) for name, value in arguments.items()}


def _redact_url(value: object) -> object:
    """A URL, valid or not, with user info, fragment and the values of parameters that name a secret masked."""
    if not isinstance(value, str):
        return value
    address, hash_mark, _ = value.partition("#")
    address, mark, query = address.partition("?")
    address = _without_user_info(address)
    pairs = [_redact_pair(pair) for pair in query.split("&")]
    return f"{address}{mark}{'&'.join(pairs)}{hash_mark}{MASK if hash_mark else ''}"


def _redact_pair(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}={MASK}" if equals and _CREDENTIAL.search(unquote_plus(name)) else pair


def _redact(value: object) -> object:
    """A JSON value with the values masked whose names say that they are secret."""
    if is_mapping(value):
        parts = value.items()
        return {name: MASK if _CREDENTIAL.search(str(name)) else _redact(part) for name, part in parts}
    if is_list(value):
        return [_redact(part) for part in value]
    return value
