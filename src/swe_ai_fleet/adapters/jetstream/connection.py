"""One connection to NATS that reconnects by itself, with the requests and publishes of the adapter over it.

The client library is used for the core protocol only, without its own reconnection: it gives up for ever on some
server errors and leaves requests in flight to time out. Here a lost connection fails every request at once, so that
its owner can retry over the next one.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, cast

import nats.errors
import structlog
from nats.aio.subscription import Subscription

from swe_ai_fleet.adapters.jetstream.nats_client import INBOX, NatsClient, NatsCredentials, without_logins
from swe_ai_fleet.adapters.jetstream.protocol import (
    FIRST_SECONDS,
    Ack,
    ApiFault,
    Backoff,
    Forbidden,
    NatsMessage,
    OutgoingMessage,
    PublishRefused,
    Unanswered,
    as_batch,
    head_of,
)
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed, Unavailable

REQUEST_SECONDS = 5.0
_BATCHES_SINCE = (2, 12)
"""The first version with atomic batches; an older server would store their messages one by one."""
_FORBIDDEN = re.compile(r"permissions violation for publish to \"([^\"]*)\"")

_log = structlog.get_logger(__name__)


class _Pending(NamedTuple):
    """A request without an answer so far; its subject in lower case."""

    subject: str
    deliver: Callable[[NatsMessage | Exception], None]
    timer: asyncio.TimerHandle


class Connection:
    """A connection that reconnects for ever. Made by `Connection.open`."""

    def __init__(self, urls: Sequence[str], credentials: NatsCredentials, name: str) -> None:
        self._urls = urls
        self._expired = False
        self._credentials = credentials
        self._name = name
        self._client: NatsClient | None = None
        self._ready = asyncio.Event()
        self._closing = False
        self._reconnecting: asyncio.Task[None] | None = None
        self._prefix = INBOX
        self._inbox = ""
        self._requests = 0
        self._pending: dict[str, _Pending] = {}
        self._subscriptions: dict[Subscription, Callable[[NatsMessage | None], None]] = {}
        self.batches = False
        """Whether to try atomic batches: the server knows them, and no stream has refused them yet."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls, urls: Sequence[str], credentials: NatsCredentials, *, name: str, waits: float = 0.0
    ) -> AsyncGenerator[Connection]:
        """Connect, trying for `waits` seconds while no server answers, and stay connected until the context ends.

        Raises:
            Unavailable: No server answered.
            PreconditionFailed: The server refused the credentials, or a file of theirs cannot be used.
        """
        connection = cls(urls, credentials, name)
        backoff = Backoff.lasting(waits)
        while True:
            try:
                await connection._connect()
                break
            except (Unavailable, PreconditionFailed) as fault:
                # The server refuses a host when no orchestrator vouches for it in time; a retry may succeed.
                passing = isinstance(fault, Unavailable) or connection.is_host
                if not backoff.remaining or not passing:
                    raise
                await backoff.wait(fault)
        try:
            yield connection
        finally:
            await connection._close()

    @property
    def is_host(self) -> bool:
        """Whether this is an agent host's connection, which reads by subject only and asks orchestrators otherwise."""
        return bool(self._credentials.host)

    @property
    def connected(self) -> bool:
        return self._ready.is_set()

    @property
    def server_version(self) -> str:
        """The version of the server this is (or was last) connected to."""
        if self._client is None:
            return ""
        version = self._client.connected_server_version
        return f"{version.major}.{version.minor}.{version.patch}"

    def inbox(self) -> str:
        """A new subject of this connection, for a subscription that receives answers."""
        return f"{self._prefix}.{secrets.token_hex(12)}"

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        headers: dict[str, str] | None = None,
        before: Sequence[OutgoingMessage] = (),
        seconds: float = REQUEST_SECONDS,
    ) -> NatsMessage:
        """Ask once, at the end of an atomic batch where there are messages `before` it.

        Raises:
            Unanswered: The connection is or gets lost, nobody listens, or the time is up.
            Forbidden: The server does not let this user send there.
            InvalidRequest: The payload is larger than the server takes.
        """
        future: asyncio.Future[NatsMessage] = asyncio.get_running_loop().create_future()

        def deliver(answer: NatsMessage | Exception) -> None:
            if future.done():
                return
            if isinstance(answer, NatsMessage):
                future.set_result(answer)
            else:
                future.set_exception(answer)

        messages = [*before, OutgoingMessage(payload, headers or {})]
        client = self.ask(subject, as_batch(messages) if before else messages, deliver, seconds=seconds)
        try:
            await client.drained()
            return await future
        finally:
            future.cancel()

    def ask(
        self,
        subject: str,
        messages: Sequence[OutgoingMessage],
        deliver: Callable[[NatsMessage | Exception], None],
        *,
        seconds: float = REQUEST_SECONDS,
    ) -> NatsClient:
        """Send messages at once; `deliver` is called once with the answer to the last one, or with the fault.

        Raises Unanswered (nothing was sent), InvalidRequest; the faults delivered are those that `request` raises.
        """
        client = self._connected()
        heads = [head_of(message) for message in messages]
        size = max(len(head) + len(message.payload) for head, message in zip(heads, messages, strict=True))
        if size > client.max_payload:
            # The client library counts the payload alone, and the server would close the connection.
            raise InvalidRequest(
                f"a message of {size} bytes for {subject} is too large for NATS", hint="put it into a blob"
            )
        self._requests += 1
        inbox = f"{self._inbox}{self._requests}"
        timer = asyncio.get_running_loop().call_later(seconds, self._settle, inbox, Unanswered("no answer in time"))
        self._pending[inbox] = _Pending(subject.lower(), deliver, timer)
        for number, (head, message) in enumerate(zip(heads, messages, strict=True), start=1):
            client.write(subject, head, message.payload, reply=inbox if number == len(heads) else "")
        return client

    def _settle(self, inbox: str, answer: NatsMessage | Exception) -> None:
        """Deliver the answer to a request, once."""
        if (request := self._pending.pop(inbox, None)) is not None:
            request.timer.cancel()
            request.deliver(answer)

    async def send(self, subject: str, payload: bytes, *, reply: str = "") -> None:
        """Send without waiting for an answer. Raises Unanswered when not connected."""
        client = self._connected()
        client.write(subject, b"", payload, reply=reply)
        await client.drained()

    async def request_until_answered(
        self,
        subject: str,
        payload: bytes,
        backoff: Backoff,
        *,
        headers: dict[str, str] | None = None,
        before: Sequence[OutgoingMessage] = (),
        seconds: float = REQUEST_SECONDS,
    ) -> tuple[NatsMessage, int]:
        """Repeat a request until it is answered; the answer, and how often it was sent. Raises Unavailable."""
        sent = 0
        while True:
            try:
                await self._until_ready(backoff)
                sent += 1
                return await self.request(subject, payload, headers=headers, before=before, seconds=seconds), sent
            except Unanswered as reason:
                await backoff.wait(reason)

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        headers: dict[str, str],
        before: Sequence[OutgoingMessage] = (),
        timeout: float | None,
        backoff: Backoff | None = None,
    ) -> Ack:
        """Store a message in its stream, repeating it unchanged until the server answers.

        Args:
            payload: At most the server's max_payload (1 MiB unless configured).
            headers: A `Nats-Msg-Id`, and where order matters an expected sequence, make the repetition safe.
            before: Messages of the same subject to be stored with it in one atomic batch, all or none.
            backoff: The caller's own retries, instead of `timeout`.

        Raises:
            PublishRefused: The sequence that the headers expect is not the last one, or the batch is not taken.
            FleetError: The server answered with another error that repeating cannot fix.
            Unavailable: No answer in time; the message may or may not be stored.
        """
        backoff = backoff or Backoff.lasting(timeout)
        unanswered = -1
        while True:
            message, sent = await self.request_until_answered(subject, payload, backoff, headers=headers, before=before)
            unanswered += sent
            answer = json.loads(message.data)
            if "error" not in answer:
                duplicate = answer.get("duplicate", False)
                return Ack(sequence=answer["seq"], duplicate=duplicate, unanswered=unanswered)
            fault = ApiFault.from_json(answer["error"])
            self.batches = self.batches and not fault.no_batches
            if fault.conflict or (before and not fault.passing):
                raise PublishRefused(fault, unanswered)
            if not fault.passing:
                raise fault.as_fleet_error() from fault
            await backoff.wait(fault)

    async def api(
        self, verb: str, body: Mapping[str, object] | None = None, *, timeout: float | None
    ) -> dict[str, Any]:
        """Call the JetStream API (`STREAM.INFO.X`), repeating until it answers. Raises FleetError."""
        answer = await self.api_unless(0, verb, body, timeout=timeout)
        assert answer is not None
        return answer

    async def api_unless(
        self, code: int, verb: str, body: Mapping[str, object] | None = None, *, timeout: float | None
    ) -> dict[str, Any] | None:
        """As `api`, but None where the server answers with this code, HTTP-like or JetStream's own."""
        payload = json.dumps(body).encode() if body is not None else b""
        backoff = Backoff.lasting(timeout)
        while True:
            message, _ = await self.request_until_answered(f"$JS.API.{verb}", payload, backoff)
            answer = cast("dict[str, Any]", json.loads(message.data))
            if "error" not in answer:
                return answer
            fault = ApiFault.from_json(answer["error"])
            if code in (fault.code, fault.error_code):
                return None
            if not fault.passing:
                raise fault.as_fleet_error() from fault
            await backoff.wait(fault)

    async def subscribe(
        self, subject: str, deliver: Callable[[NatsMessage | None], None], *, queue: str = ""
    ) -> Subscription:
        """Deliver a subject's messages, shared with the other members of a `queue`; a None ends them: connection lost.

        Raises Unanswered.
        """
        client = self._connected()
        try:
            subscription = await client.subscribe_directly(subject, deliver, queue)
        except (nats.errors.Error, OSError) as error:
            raise Unanswered(str(error)) from error
        self._subscriptions[subscription] = deliver
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        if self._subscriptions.pop(subscription, None) is not None and self._client is not None:
            with suppress(nats.errors.Error, OSError):
                await self._client.unsubscribe(subscription)

    def _connected(self) -> NatsClient:
        if self._client is not None and self._client.is_closed:
            # An error inside the library's own closing skips its callback.
            self._lost(self._client)
        if self._client is None or not self._ready.is_set() or not self._client.is_connected:
            raise Unanswered("not connected")
        return self._client

    async def _until_ready(self, backoff: Backoff) -> None:
        if self._ready.is_set():
            return
        try:
            async with asyncio.timeout(backoff.remaining):
                await self._ready.wait()
        except TimeoutError:
            raise Unanswered("not connected") from None

    async def _connect(self) -> None:
        client = NatsClient()

        async def closed() -> None:
            self._lost(client)

        self._prefix = self._credentials.inbox()
        inbox = await client.open(
            self._urls,
            self._credentials,
            name=self._name,
            seconds=REQUEST_SECONDS,
            answer=self._answer,
            report=self._report,
            closed=closed,
        )
        version = client.connected_server_version
        self.batches = (version.major, version.minor) >= _BATCHES_SINCE
        self._client = client
        self._inbox = f"{inbox}."
        self._ready.set()

    async def _report(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        self._expired = self._expired or "authentication expired" in text.lower()
        if "permissions violation" not in text:
            _log.debug("nats.client_error", error=text)
            return
        # The server reports it once and answers nothing: the requests would be repeated in vain until they time out.
        refused = _FORBIDDEN.search(text)
        subject = refused[1] if refused else ""
        waiting = [inbox for inbox, request in self._pending.items() if request.subject == subject]
        fault = f"NATS does not allow this process to publish to {subject}"
        for inbox in waiting:
            self._settle(inbox, Forbidden(fault, field="nats", hint="check the permissions of its NATS user"))
        if not waiting:
            _log.warning("nats.forbidden", reason=text)

    def _answer(self, message: NatsMessage) -> None:
        no_responder = not message.data and message.status == "503"
        self._settle(
            message.subject, Unanswered("no stream or service listens on that subject") if no_responder else message
        )

    def _lost(self, client: NatsClient) -> None:
        if client is not self._client or not self._ready.is_set():
            return
        self._ready.clear()
        for inbox in list(self._pending):
            self._settle(inbox, Unanswered("the connection was lost"))
        subscriptions, self._subscriptions = self._subscriptions, {}
        for deliver in subscriptions.values():
            deliver(None)
        if not self._closing:
            if not self._expired:
                _log.warning("nats.connection_lost", servers=without_logins(self._urls))
            self._expired = False
            self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        backoff = Backoff.lasting(None)
        while not self._closing:
            try:
                await self._connect()
            except (Unavailable, PreconditionFailed) as fault:
                if not self._closing:
                    _log.info("nats.reconnect_failed", reason=str(fault))
                    await backoff.wait(fault)
            else:
                _log.info("nats.reconnected", servers=without_logins(self._urls))
                return

    async def _close(self) -> None:
        self._closing = True
        while self._reconnecting is not None and not self._reconnecting.done():
            # Repeatedly, since the client library swallows a cancellation that comes while it connects.
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting], timeout=FIRST_SECONDS)
        if self._client is not None:
            await self._client.close()
            self._lost(self._client)
