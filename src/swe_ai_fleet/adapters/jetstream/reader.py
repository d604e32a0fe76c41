"""Reading a stream in order, over lost connections and restarted servers.

A short-lived pull consumer that needs no acknowledgements serves one reader. Messages wait on the server until they
are pulled, so that a slow reader loses none. After any fault of the consumer (a gap, silence, a restarted server) a new
one continues after the last message received.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import structlog
from nats.aio.subscription import Subscription

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.protocol import (
    NANOSECONDS,
    ApiFault,
    Backoff,
    NatsMessage,
    StoredMessage,
    Unanswered,
)
from swe_ai_fleet.adapters.jetstream.streams import last_message

_BATCH = 128
_EXPIRES_SECONDS = 30
_HEARTBEAT_SECONDS = 5
_INACTIVE_SECONDS = 60
_ANSWERED = ("404", "408")
"""Statuses that end a pull request in the normal way."""

_log = structlog.get_logger(__name__)


class ConsumerBroken(Exception):
    """This consumer has to be replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPosition:
    """The position of a delivered message in its stream and its consumer, read from its reply subject."""

    deliveries: int
    stream: int
    consumer: int
    at: float
    pending: int

    @classmethod
    def of(cls, reply: str) -> DeliveryPosition:
        tokens = reply.split(".")
        # $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<time>.<pending>[.<random>]
        deliveries, stream, consumer, at, pending = map(int, tokens[4:9] if len(tokens) == 9 else tokens[6:11])
        return cls(deliveries=deliveries, stream=stream, consumer=consumer, at=at / NANOSECONDS, pending=pending)


async def make_consumer(connection: Connection, stream: str, config: Mapping[str, object]) -> dict[str, Any]:
    """Create or update a consumer, with one request. Raises Unanswered, ApiFault."""
    body = json.dumps({"stream_name": stream, "config": config}).encode()
    answer = await connection.request(f"$JS.API.CONSUMER.CREATE.{stream}.{config['name']}", body)
    info = cast("dict[str, Any]", json.loads(answer.data))
    if "error" in info:
        raise ApiFault.from_json(info["error"])
    return info


async def pull(connection: Connection, stream: str, consumer: str, batch: int, inbox: str) -> None:
    """Request messages from a consumer; heartbeats in between show that the server still answers."""
    request = {
        "batch": batch,
        "expires": _EXPIRES_SECONDS * NANOSECONDS,
        "idle_heartbeat": _HEARTBEAT_SECONDS * NANOSECONDS,
    }
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    await connection.send(subject, json.dumps(request).encode(), reply=inbox)


async def next_message(received: asyncio.Queue[NatsMessage | None]) -> NatsMessage | None:
    """The next message that was pulled, None for the end of a pull. Raises ConsumerBroken."""
    while True:
        try:
            if received.empty():
                async with asyncio.timeout(2 * _HEARTBEAT_SECONDS):
                    message = await received.get()
            else:
                message = received.get_nowait()
        except TimeoutError:
            raise ConsumerBroken("no message and no heartbeat") from None
        if message is None:
            raise ConsumerBroken("the connection was lost")
        if not message.status:
            return message
        if message.status in _ANSWERED:
            return None
        if message.status != "100":
            raise ConsumerBroken(f"{message.status} {message.headers.get('Description', '')}")


async def messages(
    connection: Connection,
    stream: str,
    *subjects: str,
    start: int = 1,
    follow: bool,
    timeout: float,
    headers_only: bool = False,
) -> AsyncGenerator[StoredMessage | None, None]:
    """Messages on these subjects (wildcards allowed) from a sequence on, oldest first.

    None is yielded once, when everything stored at the time of the call has been; without `follow` that is the end.
    With it, reading continues until the generator is closed, however long the server is away.

    Args:
        headers_only: Leave the content out; the header `Nats-Msg-Size` has its size.
        timeout: Seconds to wait for a server that does not answer; once following, there is no such limit.

    Raises:
        NotFound: The stream does not exist.
        Unavailable: The server did not answer in time.
    """
    until = max([await newest_sequence(connection, stream, subject, timeout=timeout) for subject in subjects])
    position = max(start, 1)
    caught_up = until < position
    if caught_up:
        yield None
        if not follow:
            return
    backoff: Backoff | None = Backoff.lasting(timeout)
    while True:
        consumer = _Consumer(connection, stream, subjects, position, headers_only=headers_only)
        try:
            async for message, pending in consumer.messages():
                backoff = None
                if message is not None:
                    position = message.sequence + 1
                    yield message
                # The message that was the newest may be gone by now; then the consumer has nothing pending.
                if not caught_up and (position > until or pending == 0):
                    caught_up = True
                    yield None
                    if not follow:
                        return
        except (ConsumerBroken, Unanswered, ApiFault) as fault:
            if isinstance(fault, ApiFault) and not fault.passing:
                raise fault.as_fleet_error() from fault
            _log.debug("nats.consumer_replaced", stream=stream, subjects=subjects, reason=str(fault))
            backoff = backoff or Backoff.lasting(None if follow else timeout)
            await backoff.wait(fault)
        finally:
            await consumer.close()


async def newest_sequence(connection: Connection, stream: str, subject: str, *, timeout: float) -> int:
    """The sequence of the newest message on a subject, or a later one; 0 without any. Raises Unavailable."""
    if subject == ">":
        # The last message by subject fails here if it was erased: the server only looks at the last sequence.
        info = await connection.api(f"STREAM.INFO.{stream}", {}, timeout=timeout)
        return int(info["state"]["last_seq"]) if info["state"]["messages"] else 0
    last = await last_message(connection, stream, subject, timeout=timeout)
    return last.sequence if last is not None else 0


class _Consumer:
    def __init__(
        self, connection: Connection, stream: str, subjects: Sequence[str], start: int, *, headers_only: bool
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._name = f"read-{secrets.token_hex(8)}"
        self._subjects = subjects
        self._start = start
        self._headers_only = headers_only
        self._inbox = connection.inbox()
        self._received: asyncio.Queue[NatsMessage | None] = asyncio.Queue()
        self._subscription: Subscription | None = None
        self._created = False

    async def messages(self) -> AsyncIterator[tuple[StoredMessage | None, int]]:
        """Messages, each with the number of those still pending; first (None, that number)."""
        yield None, await self._create()
        expected, requested = 1, 0
        while True:
            if not requested:
                await pull(self._connection, self._stream, self._name, _BATCH, self._inbox)
                requested = _BATCH
            message = await next_message(self._received)
            if message is None:
                requested = 0
                continue
            position = DeliveryPosition.of(message.reply)
            if position.consumer != expected:
                raise ConsumerBroken(f"message {expected} of the consumer is missing")
            expected += 1
            requested -= 1
            stored = StoredMessage(
                sequence=position.stream,
                subject=message.subject,
                data=message.data,
                headers=message.headers,
                at=position.at,
            )
            yield stored, position.pending

    async def close(self) -> None:
        """Unsubscribe and delete the consumer; offline, the server deletes it after a minute of idleness."""
        if self._subscription is not None:
            await self._connection.unsubscribe(self._subscription)
        if self._created and self._connection.connected:
            with suppress(Unanswered):
                await self._connection.request(
                    f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._name}", b"", seconds=_HEARTBEAT_SECONDS
                )

    async def _create(self) -> int:
        config = {
            "name": self._name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._start,
            "ack_policy": "none",
            "filter_subjects": list(self._subjects),
            "inactive_threshold": _INACTIVE_SECONDS * NANOSECONDS,
            "mem_storage": True,
            "headers_only": self._headers_only,
            "num_replicas": 1,
        }
        self._subscription = await self._connection.subscribe(self._inbox, self._received.put_nowait)
        self._created = True
        info = await make_consumer(self._connection, self._stream, config)
        return int(info.get("num_pending", 0))
