"""Getting one text or file from a server, by the rules of the HTTP tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import httpcore2
import httpx2

from swe_ai_fleet.sandbox.addresses import Resolver
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.http.body import Received, as_text, described, read_body
from swe_ai_fleet.tools.http.transport import (
    GuardedTransport,
    HttpPolicy,
    parse_url,
    port_of,
    redirect_target,
)

MAX_BYTES = 2 * 1024 * 1024
MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_OK = 200
_AGENT = "swe-ai-fleet (an agent's tool)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Where connections go: for tests and for unusual networks; None: the system's resolver, the real network."""

    resolver: Resolver | None = None
    backend: httpcore2.AsyncNetworkBackend | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloaded:
    """A body as it came: from which address in the end, and of what type (the whole of its header)."""

    url: str
    kind: str
    body: Received


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A text as it came: from which address in the end, of what type, whether it went on."""

    url: str
    kind: str
    text: str
    cut: bool = False


async def fetch(
    url: httpx2.URL, policy: HttpPolicy, network: Network, *, accept: str, redirects: int = MAX_REDIRECTS
) -> Fetched:
    """The text at an address, redirects followed under the same policy.

    Raises ToolRefusal for what the policy forbids; ToolFailure for what is no text, and for any answer but a good one.
    """
    found = await download(url, policy, network, accept=accept, redirects=redirects)
    text = None if found.body.encoding else as_text(found.kind, found.body.data)
    if text is None:
        raise ToolFailure(f"there is no text at this address but {described(found.kind, found.body, 'not computed')}")
    return Fetched(url=found.url, kind=found.kind.partition(";")[0].strip().lower(), text=text, cut=found.body.cut)


async def download(
    url: httpx2.URL,
    policy: HttpPolicy,
    network: Network,
    *,
    accept: str,
    redirects: int = MAX_REDIRECTS,
    max_bytes: int = MAX_BYTES,
) -> Downloaded:
    """At most `max_bytes` of what is at an address, redirects followed under the same policy.

    Raises ToolRefusal for what the policy forbids; ToolFailure for any answer but a good one.
    """
    headers = {"User-Agent": _AGENT, "Accept": accept, "Accept-Encoding": "gzip"}
    async with GuardedTransport(policy, resolver=network.resolver, network=network.backend) as transport:
        response = await transport.handle_async_request(httpx2.Request("GET", url, headers=headers))
        while response.status_code in _REDIRECTS and "location" in response.headers:
            await response.aclose()
            if not redirects:
                raise ToolFailure(f"{server(url)} redirects elsewhere (HTTP {response.status_code}), or too often")
            redirects -= 1
            url = redirect_target(url, response.headers["location"])
            response = await transport.handle_async_request(httpx2.Request("GET", url, headers=headers))
        body = await read_body(response, max_bytes)
        await response.aclose()
    if response.status_code != _OK:
        status = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
        raise ToolFailure(f"{server(url)} answered {status}")
    return Downloaded(url=str(url), kind=response.headers.get("content-type", ""), body=body)


class Endpoint:
    """One server that an operator configured: exactly it may be spoken to, wherever it stands, and nothing else.

    Args:
        url: Where it answers.
        network: Where connections go.
    """

    def __init__(self, url: str, network: Network) -> None:
        self._url = url
        self._network = network

    async def query(self, parameters: Mapping[str, str | int]) -> dict[str, object]:
        """The JSON object it answers with. Raises ToolFailure for anything else."""
        url = parse_url(self._url)
        policy = HttpPolicy(allowed_hosts=(), private_hosts=(url.host,), ports=(port_of(url),))
        found = await fetch(
            url.copy_merge_params(dict(parameters)), policy, self._network, accept="application/json", redirects=0
        )
        try:
            answer = None if found.cut else json.loads(found.text)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ToolFailure(f"{server(url)} did not answer with a JSON object but with {found.kind or 'something'}")
        return cast("dict[str, object]", answer)


def server(url: httpx2.URL) -> str:
    """A server as messages name it; the rest of its address may hold secrets."""
    return f"{url.host}:{port_of(url)}"
