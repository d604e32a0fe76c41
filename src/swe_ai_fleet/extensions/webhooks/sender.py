"""Formats notifications as messages and sends them over HTTP: to checked addresses, without redirects.

A request has limits of time and of the reply's size; a schedule says when a failed one is retried.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial

import httpx2

from swe_ai_fleet.conversations.document import LineKind
from swe_ai_fleet.conversations.inline import Mark, Span
from swe_ai_fleet.conversations.pages import TELEGRAM_UNITS, MarkdownV2, units
from swe_ai_fleet.domain.command import HostPattern
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.text import plain_line, well_formed
from swe_ai_fleet.extensions.webhooks.notification import Notification
from swe_ai_fleet.extensions.webhooks.webhook import Format, Webhook, signed_headers
from swe_ai_fleet.sandbox.network import PrivateHostError, UnknownHostError, lookup
from swe_ai_fleet.tools.builtin.fetching import Network
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.http_transport import GuardedTransport, HttpPolicy, parse_url, port_of, read_body
from swe_ai_fleet.tools.secrets import Secrets

WAITS = (5.0, 30.0, 120.0, 600.0, 3_600.0, 7_200.0, 14_400.0, 28_800.0, 28_800.0)
"""Seconds before each further attempt: ten attempts in about 23 hours."""
MAX_RETRY_AFTER_SECONDS = 6 * 3_600.0
_GONE = 410


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverResponse:
    """The response of a receiver. `http_status` is 0 without one; `retry_after` is in seconds, 0: not given.

    `error` is untrusted text, empty on success.
    """

    http_status: int = 0
    error: str = ""
    retry_after: float = 0.0

    @property
    def delivered(self) -> bool:
        """Whether the receiver accepted the message."""
        return 200 <= self.http_status < 300

    @property
    def gone(self) -> bool:
        """Whether the receiver is gone for good."""
        return self.http_status == _GONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When failed deliveries are retried.

    Args:
        waits: Seconds before each further attempt.
        spread: The largest fraction by which a wait is lengthened at random, so that retries do not coincide.
    """

    waits: tuple[float, ...] = WAITS
    spread: float = 0.1

    def wait(self, attempt: int, reply: ReceiverResponse, chance: Callable[[], float]) -> float | None:
        """Seconds to wait after a failed attempt (counted from 1); None where it was the last.

        A receiver's `Retry-After` is honoured, up to six hours. `chance` returns a number from 0 to 1.
        """
        if attempt > len(self.waits):
            return None
        wait = self.waits[attempt - 1] * (1.0 + self.spread * chance())
        return max(wait, min(reply.retry_after, MAX_RETRY_AFTER_SECONDS))


def retry_after_seconds(header: str, now: datetime) -> float:
    """The time of a Retry-After header (RFC 9110, 10.2.3), in seconds from now; 0 for a malformed one."""
    text = header.strip()[:64]
    if text.isascii() and text.isdecimal():
        return float(int(text))
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        # The text is untrusted, and the parser's exceptions are not all documented.
        return 0.0
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - now).total_seconds())


SLACK_CHARS = 3_000
DISCORD_UNITS = 2_000
_VALUE_CHARS = (500, 250, 120, 60, 30)
"""Lengths of each value, tried in order until the message is within its limit."""
_ZERO_WIDTH = "\u200b"
_SLACK = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
USER_AGENT = "swe-ai-fleet-webhooks/1"
MAX_BODY_BYTES = 64 * 1024


def slack(notification: Notification) -> Mapping[str, object]:
    """The message of an incoming webhook of Slack, which requires `&`, `<` and `>` to be escaped."""

    def line(name: str, value: str) -> str:
        return f"*{name}:* `{value.replace('`', chr(39)).translate(_SLACK)}`"

    text = _fitted(notification, f"*{notification.title}*", line, SLACK_CHARS)
    return {"text": text}


def discord(notification: Notification) -> Mapping[str, object]:
    """The message of a Discord webhook; mentions in its text have no effect."""

    def line(name: str, value: str) -> str:
        return f"**{name}:** `{value.replace('`', chr(39))}`"

    text = _fitted(notification, f"**{notification.title}**", line, DISCORD_UNITS)
    return {"content": text, "allowed_mentions": {"parse": []}}


def telegram(notification: Notification, chat_id: str) -> Mapping[str, object]:
    """The arguments of `sendMessage` in Telegram's Bot API."""
    dialect = MarkdownV2()

    def written(*spans: Span) -> str:
        return dialect.line(spans, LineKind.TEXT)

    def line(name: str, value: str) -> str:
        return written(
            Span(text=f"{name}:", marks=frozenset({Mark.BOLD})),
            Span(text=" "),
            Span(text=value, marks=frozenset({Mark.CODE})),
        )

    title = written(Span(text=notification.title, marks=frozenset({Mark.BOLD})))
    text = _fitted(notification, title, line, TELEGRAM_UNITS)
    return {
        "chat_id": chat_id,
        "text": text,
        "parse_mode": "MarkdownV2",
        "link_preview_options": {"is_disabled": True},
    }


def _fitted(notification: Notification, title: str, line: Callable[[str, str], str], limit: int) -> str:
    text = title
    for most in _VALUE_CHARS:
        facts = [(name, _value(value, most)) for name, value in notification.facts]
        text = "\n".join([title, *(line(name, value) for name, value in facts if value)])
        if units(text) <= limit:
            break
    return text


def _value(text: str, limit: int) -> str:
    return plain_line(text, limit).replace("@", f"@{_ZERO_WIDTH}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRequest:
    """A POST request; the URL may be a secret."""

    url: str = field(repr=False)
    headers: Mapping[str, str]
    body: bytes


def message(webhook: Webhook, notification: Notification, timestamp: int) -> WebhookRequest:
    """The request sent at `timestamp` (seconds since the epoch). The body is the same in every attempt."""
    body = json.dumps(_content(webhook, notification), ensure_ascii=False, separators=(",", ":")).encode()
    if len(body) > MAX_BODY_BYTES:
        # Every text of a notification is shortened, so only a bug gets here.
        raise RuntimeError(f"a notification of {len(body)} bytes")
    headers = {
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        # A connection kept open may be dead at the next event.
        "Connection": "close",
    }
    return WebhookRequest(
        url=webhook.url,
        headers=headers | signed_headers(webhook.secret, notification.event_id, timestamp, body),
        body=body,
    )


def _content(webhook: Webhook, notification: Notification) -> Mapping[str, object]:
    match webhook.format:
        case Format.JSON:
            return {"type": notification.type.value, "timestamp": notification.at, "data": dict(notification.data)}
        case Format.SLACK:
            return slack(notification)
        case Format.DISCORD:
            return discord(notification)
        case Format.TELEGRAM:
            return telegram(notification, webhook.chat_id)


SEND_SECONDS = 10.0
PORTS = (443, 8443)
"""Of public hosts; private hosts are configured with their ports."""
MAX_ERROR_BYTES = 4_096
_ERROR_CHARS = 300
_RESOLVE_SECONDS = 5.0
_RESOLVING = 2
_RETRIED_LATER = (429, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRules:
    """The allowed URLs of webhooks: https to any public host, http and https to the configured private ones.

    Raises InvalidRequest for a malformed host.
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
        """The rules for connections."""
        return HttpPolicy(private_hosts=self.private_hosts, ports=PORTS)

    def allow(self, url: str) -> httpx2.URL:
        """The parsed URL. Raises ToolRefusal for one that is never allowed; host names are resolved later."""
        parsed = parse_url(url)
        self.policy.check(parsed)
        if parsed.scheme != "https" and not self.policy.is_private(parsed.host, port_of(parsed)):
            raise ToolRefusal("the URL must begin with https://")
        return parsed

    async def check(self, url: str) -> None:
        """Refuse a URL that is not allowed, by its host's current addresses. Raises InvalidRequest.

        A name that cannot be resolved is accepted: the receiver may not exist yet, and every connection is checked
        again.
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
                await lookup(host, port, resolver=self.network.resolver)
        except PrivateHostError as error:
            raise InvalidRequest(str(error), field="url", hint=_HINT) from None
        except (UnknownHostError, TimeoutError):
            return


_HINT = "https://…; FLEET_WEBHOOK_PRIVATE_HOSTS allows hosts of your own network, as host:port"


class _OwnResolver:
    """This machine's resolver, in separate threads.

    A look-up cannot be cancelled: one without an answer must not block the shared threads.
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
    """Sends to one receiver, with its own connections.

    Args:
        tls: The trusted authorities of receivers; None: the usual public ones.
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

    async def send(self, message: WebhookRequest, *, secrets: tuple[str, ...] = ()) -> ReceiverResponse:
        """Send a message; the reply holds any failure, which is never raised.

        Args:
            secrets: Masked in the error, like the parts of the URL.
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
            return ReceiverResponse(error=plain_line(fault.message, _ERROR_CHARS))
        except TimeoutError:
            return ReceiverResponse(error=f"no answer within {self._seconds:g} seconds")

    async def _read(self, response: httpx2.Response, mask: Secrets) -> ReceiverResponse:
        status = response.status_code
        if 200 <= status < 300:
            # The body of a success does not matter.
            return ReceiverResponse(http_status=status)
        summary = f"HTTP {status}"
        if 300 <= status < 400:
            return ReceiverResponse(http_status=status, error=f"{summary}: redirects are not followed")
        try:
            body = await read_body(response, MAX_ERROR_BYTES)
        except ToolFailure as fault:
            detail = fault.message
        else:
            detail = "" if body.encoding else body.data.decode("utf-8", "replace")
        wait = retry_after_seconds(response.headers.get("retry-after", ""), self._now())
        error = plain_line(mask(well_formed(f"{summary}: {detail}" if detail.strip() else summary)), _ERROR_CHARS)
        return ReceiverResponse(http_status=status, error=error, retry_after=wait if status in _RETRIED_LATER else 0.0)


def _parts(url: httpx2.URL) -> tuple[str, ...]:
    """Parts of a URL that may be secret: segments of its path (as in chats' URLs) and of its query."""
    path = url.raw_path.decode("ascii", "replace")
    parts = path.replace("?", "/").replace("&", "/").split("/")
    # A receiver may echo only the value of `token=…`.
    return tuple(part for whole in parts for part in (whole, whole.partition("=")[2]) if part)
