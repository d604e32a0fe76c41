"""Sends webhooks over HTTP: to checked addresses, without redirects, with limits of time and of the reply's size."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import httpx2

from swe_ai_fleet.domain.command import HostPattern
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.text import plain_line, well_formed
from swe_ai_fleet.extensions.webhooks.message import Outgoing
from swe_ai_fleet.extensions.webhooks.retrying import Reply, retry_after_seconds
from swe_ai_fleet.sandbox.addresses import PrivateHostError, UnknownHostError, judged
from swe_ai_fleet.tools.builtin.fetching import Network
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.http.response import read_body
from swe_ai_fleet.tools.http.transport import GuardedTransport, HttpPolicy, parse_url, port_of
from swe_ai_fleet.tools.secrets import Secrets

SEND_SECONDS = 10.0
PORTS = (443, 8443)
"""Of public hosts; private ones are named with theirs."""
MAX_ERROR_BYTES = 4_096
_ERROR_CHARS = 300
_RESOLVE_SECONDS = 5.0
_RESOLVING = 2
_RETRIED_LATER = (429, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRules:
    """Where webhooks may go: https to any public host, http and https to the private ones that are named.

    Raises InvalidRequest for what is no host.
    """

    private_hosts: tuple[str, ...] = ()
    network: Network = field(default_factory=Network)

    def __post_init__(self) -> None:
        for text in self.private_hosts:
            if not HostPattern.parse(text, field="webhook_private_hosts").exact:
                raise InvalidRequest(
                    f"{text[:80]!r} matches more than one host",
                    field="webhook_private_hosts",
                    hint="list each host by itself, as host:port",
                )

    @property
    def policy(self) -> HttpPolicy:
        """The rules that connections are held to."""
        return HttpPolicy(private_hosts=self.private_hosts, ports=PORTS)

    def allow(self, url: str) -> httpx2.URL:
        """The parsed URL. Raises ToolRefusal for one that is never allowed; host names are resolved later."""
        parsed = parse_url(url)
        self.policy.check(parsed)
        if parsed.scheme != "https" and not self.policy.is_private(parsed.host, port_of(parsed)):
            raise ToolRefusal("the URL must begin with https://")
        return parsed

    async def check(self, url: str) -> None:
        """Refuse a URL that webhooks may not have, by the addresses of its host now. Raises InvalidRequest.

        A name that cannot be resolved is let through: the receiver may not be there yet, and every connection is
        checked again.
        """
        try:
            parsed = self.allow(url)
        except ToolRefusal as refusal:
            raise InvalidRequest(refusal.message, field="url", hint=_HINT) from None
        host, port = parsed.host, port_of(parsed)
        if self.policy.is_private(host, port):
            return
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                await judged(host, port, resolver=self.network.resolver)
        except PrivateHostError as error:
            raise InvalidRequest(str(error), field="url", hint=_HINT) from None
        except (UnknownHostError, TimeoutError):
            return


_HINT = "https://…; FLEET_WEBHOOK_PRIVATE_HOSTS names hosts of the own network, as host:port"


class _OwnResolver:
    """This machine's resolver, run in threads of its own.

    A look-up cannot be cancelled: one without an answer must not block the threads that everything else shares.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=_RESOLVING, thread_name_prefix="webhook-names")

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a host as text, best first. Raises OSError if it has none."""
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        infos = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        return list(dict.fromkeys(str(address[0]) for *_, address in infos))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class WebhookSender:
    """Sends to one receiver, so that none waits for another's connections.

    Args:
        rules: Where it may send.
        seconds: How long an attempt may take in all.
        now: The time.
        tls: How receivers prove who they are; None: by the usual public authorities.
    """

    def __init__(
        self,
        rules: WebhookRules,
        *,
        seconds: float = SEND_SECONDS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._rules = rules
        self._seconds = seconds
        self._now = now
        self._resolver = _OwnResolver()
        self._transport = GuardedTransport(
            rules.policy, resolver=rules.network.resolver or self._resolver, network=rules.network.backend, tls=tls
        )

    async def close(self) -> None:
        """Close the connections."""
        self._resolver.close()
        await self._transport.aclose()

    async def send(self, message: Outgoing, *, secrets: tuple[str, ...] = ()) -> Reply:
        """Send a message; the reply holds any failure, which is never raised.

        Args:
            message: What to send.
            secrets: What must not be in the error, beside the URL's own parts.
        """
        try:
            url = self._rules.allow(message.url)
            request = httpx2.Request("POST", url, headers=dict(message.headers), content=message.body)
            async with asyncio.timeout(self._seconds):
                response = await self._transport.handle_async_request(request)
                try:
                    return await self._read(response, Secrets((*secrets, *_parts(url))))
                finally:
                    await response.aclose()
        except ToolFailure as fault:
            return Reply(error=plain_line(fault.message, _ERROR_CHARS))
        except TimeoutError:
            return Reply(error=f"no answer within {self._seconds:g} seconds")

    async def _read(self, response: httpx2.Response, mask: Secrets) -> Reply:
        status = response.status_code
        if 200 <= status < 300:
            # The body of a success does not matter.
            return Reply(http_status=status)
        summary = f"HTTP {status}"
        if 300 <= status < 400:
            return Reply(http_status=status, error=f"{summary}: redirects are not followed")
        try:
            body = await read_body(response, MAX_ERROR_BYTES)
        except ToolFailure as fault:
            detail = fault.message
        else:
            detail = "" if body.encoding else body.data.decode("utf-8", "replace")
        wait = retry_after_seconds(response.headers.get("retry-after", ""), self._now())
        error = plain_line(mask(well_formed(f"{summary}: {detail}" if detail.strip() else summary)), _ERROR_CHARS)
        return Reply(http_status=status, error=error, retry_after=wait if status in _RETRIED_LATER else 0.0)


def _parts(url: httpx2.URL) -> tuple[str, ...]:
    """Parts of a URL that may be secret: segments of its path (chats have theirs there) and its query."""
    path = url.raw_path.decode("ascii", "replace")
    parts = path.replace("?", "/").replace("&", "/").split("/")
    # A receiver may echo only the value of `token=…`.
    return tuple(part for whole in parts for part in (whole, whole.partition("=")[2]) if part)
