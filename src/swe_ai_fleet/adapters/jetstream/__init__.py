"""NATS JetStream as the fleet's event log, blob store and result bus."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import structlog

from swe_ai_fleet.adapters.jetstream import streams
from swe_ai_fleet.adapters.jetstream.buckets import JetStreamBlobs, JetStreamKeyValue, bucket_stream
from swe_ai_fleet.adapters.jetstream.changes import JetStreamChanges
from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.events import EventReader
from swe_ai_fleet.adapters.jetstream.holdings import Erasing, sizes
from swe_ai_fleet.adapters.jetstream.journal import journal, publish_result, tell
from swe_ai_fleet.adapters.jetstream.live import LiveTexts, live_texts, watch_live
from swe_ai_fleet.adapters.jetstream.nats_client import NatsCredentials
from swe_ai_fleet.adapters.jetstream.protocol import (
    BLOBS,
    CONTEXT_CHANGES,
    EVENTS,
    MESSAGE_ID,
    RESULTS,
    event_subject,
    job_subject,
)
from swe_ai_fleet.adapters.jetstream.requests import (
    Issuer,
    NatsLogin,
    answer_hosts,
    answer_logins,
)
from swe_ai_fleet.adapters.jetstream.streams import StreamSettings, StreamUsage
from swe_ai_fleet.adapters.jetstream.work_queue import (
    Consumer,
    Handler,
    PermanentError,
    RetryAfter,
    Room,
    WorkMessage,
    WorkQueue,
)
from swe_ai_fleet.domain.access import StoredPiece
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT, EventBody, StoredEvent, Writer
from swe_ai_fleet.domain.message import TextDelta
from swe_ai_fleet.ports import ChangeLog, Journal, KeyValue
from swe_ai_fleet.snapshots import KEPT_SECONDS, Snapshots

__all__ = [
    "TIMEOUT_SECONDS",
    "Handler",
    "Issuer",
    "JetStream",
    "NatsCredentials",
    "NatsLogin",
    "PermanentError",
    "Ping",
    "RetryAfter",
    "Room",
    "StreamSettings",
    "StreamUsage",
    "WorkMessage",
    "WorkQueue",
]

TIMEOUT_SECONDS = 60.0
_PING_SECONDS = 2.0
_NO_CONSUMER = 10014
_STAMPED = ("traceparent", "tracestate")
"""Headers of a trace that a host may set on a result."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Whether JetStream answers. `latency_ms` is one round trip; `error` says why not."""

    ok: bool
    version: str
    latency_ms: float
    error: str = ""


class JetStream(EventReader):
    """`EventLog`, `BlobStore` and `ResultBus` over one connection. Made by `JetStream.connect`."""

    def __init__(
        self,
        connection: Connection,
        settings: StreamSettings,
        timeout: float,
        stamp: Callable[[], Mapping[str, str]] = dict[str, str],
    ) -> None:
        super().__init__(connection, JetStreamBlobs(connection, timeout=timeout), timeout)
        self._settings = settings
        self._stamp = stamp

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        *,
        credentials: NatsCredentials | None = None,
        name: str = "swe-ai-fleet",
        settings: StreamSettings | None = None,
        timeout: float = TIMEOUT_SECONDS,
        waits: float = 0.0,
        stamp: Callable[[], Mapping[str, str]] = dict[str, str],
    ) -> AsyncGenerator[JetStream]:
        """Connect to NATS and stay connected, however often the server goes away, until the context ends.

        Args:
            url: `nats://host:port`, several separated by commas.
            credentials: How to log in; None for a server that asks for nothing.
            settings: The limits of the streams that `ensure_streams` creates.
            timeout: Seconds for which a call retries while the server does not answer.
            waits: Seconds for which the first connection is retried while no server answers.
            stamp: Headers added to each published result (trace context).

        Raises:
            Unavailable: No server answers.
            PreconditionFailed: The server refused the credentials.
        """
        urls = [part.strip() for part in url.split(",") if part.strip()]
        async with Connection.open(urls, credentials or NatsCredentials(), name=name, waits=waits) as connection:
            yield cls(connection, settings or StreamSettings(), timeout, stamp)

    async def ensure_streams(self) -> None:
        """Create or update every stream. Raises PreconditionFailed, ResourceExhausted, Unavailable."""
        await streams.ensure(self.connection, self._settings, timeout=self._timeout)

    async def bucket(self, name: str, *, ttl_seconds: float = 0.0, max_bytes: int = 0) -> KeyValue:
        """A key-value bucket, created if missing; a value expires `ttl_seconds` after its put (0: never).

        With `max_bytes` the oldest values make room for new ones.

        Raises PreconditionFailed, ResourceExhausted, Unavailable.
        """
        await streams.ensure_bucket(
            self.connection,
            self._settings,
            name,
            ttl_seconds=ttl_seconds,
            max_bytes=max_bytes,
            timeout=self._timeout,
        )
        return JetStreamKeyValue(self.connection, name, timeout=self._timeout)

    async def snapshots(self, name: str, *buckets: str) -> Snapshots:
        """The bucket where projections of the streams, and of these buckets, are saved. Raises as `bucket` does."""
        names = (EVENTS, RESULTS, CONTEXT_CHANGES, BLOBS, *map(bucket_stream, buckets))
        infos = [await self.connection.api(f"STREAM.INFO.{stream}", timeout=self._timeout) for stream in names]
        origin = " ".join(str(info["created"]) for info in infos)
        return Snapshots(bucket=await self.bucket(name, ttl_seconds=KEPT_SECONDS), origin=origin)

    async def has_bucket(self, name: str) -> bool:
        """Whether a key-value bucket exists. Raises Unavailable."""
        stream = f"STREAM.INFO.{bucket_stream(name)}"
        return await self.connection.api_unless(404, stream, timeout=self._timeout) is not None

    def made_bucket(self, name: str) -> KeyValue:
        """A key-value bucket that another process created, for logins that may not create one."""
        return JetStreamKeyValue(self.connection, name, timeout=self._timeout)

    def erasing(self, whose: Mapping[str, str], *, by_task: Mapping[str, int], memories: str) -> Erasing:
        """Finds and erases stored data; `whose` and `by_task` classify buckets, see `Erasing`."""
        return Erasing(
            connection=self.connection,
            blobs=self._blobs,
            whose=whose,
            by_task=by_task,
            memories=memories,
            timeout=self._timeout,
        )

    async def hand_out(self, tenant: str, priority: str, job_id: str, payload: bytes) -> None:
        """Queue a job for runners; the same id within minutes is the same job. Raises as `publish` does."""
        subject = job_subject(tenant, priority)
        await self.connection.publish(subject, payload, headers={MESSAGE_ID: job_id}, timeout=self._timeout)

    def changes(self) -> ChangeLog:
        """The change log of project knowledge; `ensure_streams` must have created its stream."""
        return JetStreamChanges(self.connection, timeout=self._timeout)

    def journal(self, writer: Writer, *, fresh: bool = False) -> AbstractAsyncContextManager[Journal]:
        """The journal of a writer's subject; leaving the context flushes it.

        Entering raises Fenced when the writer's own generation or a higher one has written already. A take-over appends
        its claim first and reads the log after that, since the old owner may write until the claim is stored.
        """
        return journal(self.connection, self._blobs, writer, fresh=fresh, timeout=self._timeout)

    async def tell(self, writer: Writer, body: EventBody) -> StoredEvent:
        return await tell(self.connection, self._blobs, writer, body, timeout=self._timeout)

    async def put(self, tenant: str, execution_id: str, data: bytes, media_type: str, *, place: str = "") -> BlobRef:
        return await self._blobs.put(tenant, execution_id, data, media_type, place=place)

    async def get(self, ref: BlobRef) -> bytes:
        return await self._blobs.get(ref)

    def sizes(self, stream: str = "") -> Callable[[int], AsyncGenerator[StoredPiece | None]]:
        """Sizes of the messages of a stream or bucket (`KV_name`), by default of the blobs, from a sequence on.

        The generator never ends; it yields None once, after everything that was stored before the call.
        """
        name = stream or BLOBS
        if name == EVENTS:
            return self.event_sizes
        return lambda start: sizes(self.connection, name, start, timeout=self._timeout)

    async def discard(self, ref: BlobRef) -> None:
        await self._blobs.discard(ref)

    async def publish(self, *, tenant: str, task_id: str, execution_id: str, agent_id: str, payload: bytes) -> bool:
        return await publish_result(
            self.connection,
            tenant=tenant,
            task_id=task_id,
            execution_id=execution_id,
            agent_id=agent_id,
            payload=payload,
            stamp=self._stamp(),
            timeout=self._timeout,
        )

    async def answer_logins(
        self,
        issuer: Callable[[], Issuer],
        authenticate: Callable[[str], Awaitable[NatsLogin]],
        *,
        listening: asyncio.Event,
    ) -> None:
        """Answer NATS' auth callouts until cancelled; `listening` is set once it is subscribed to them."""
        await answer_logins(self.connection, issuer, authenticate, listening=listening)

    async def answer_hosts(self) -> None:
        """Serve reads and publishes that agent hosts have no NATS permission for, until cancelled."""

        async def result(tenant: str, execution_id: str, request: Mapping[str, Any]) -> bool:
            # Only orchestrators publish the result of an execution.
            if not request["agent_id"] or request["agent_id"] == EXECUTION_SUBJECT:
                raise PreconditionFailed("a host may only publish results of agents", field="agent_id")
            if await self._task_of(tenant, execution_id) != request["task_id"]:
                raise PreconditionFailed("the task does not belong to the execution", field="task_id")
            headers = {name: str(request["headers"].get(name, "")) for name in _STAMPED}
            stamp = {name: text for name, text in headers.items() if text and text.isascii() and text.isprintable()}
            return await publish_result(
                self.connection,
                tenant=tenant,
                task_id=str(request["task_id"]),
                execution_id=execution_id,
                agent_id=str(request["agent_id"]),
                payload=base64.b64decode(request["payload"]),
                stamp=stamp,
                timeout=self._timeout,
            )

        await answer_hosts(self.connection, self._blobs, self._of_execution, result)

    async def _task_of(self, tenant: str, execution_id: str) -> str:
        """The task id in an execution's first event; empty where the execution has no events."""
        subject = event_subject(tenant, execution_id, EXECUTION_SUBJECT)
        first = await streams.first_message(self.connection, EVENTS, subject, timeout=self._timeout)
        return (await self._event(first)).event.task_id if first is not None else ""

    async def consume(self, queue: WorkQueue, handler: Handler, *, room: Room | None = None) -> NoReturn:
        """Handle the messages of a work queue until cancelled; replicas share them.

        With `room`, the consumer pulls no more messages than the process has room for.
        """
        await Consumer(self.connection, queue, handler, room).run()
        raise AssertionError("a consumer did not stop")

    async def remove_consumer(self, stream: str, consumer: str) -> None:
        """Remove a durable consumer with its position in the stream, if it exists. Raises Unavailable."""
        call = f"CONSUMER.DELETE.{stream}.{consumer}"
        await self.connection.api_unless(_NO_CONSUMER, call, timeout=self._timeout)

    async def consumers(self, stream: str) -> tuple[str, ...]:
        """The names of a stream's consumers. Raises NotFound, Unavailable."""
        consumers: list[str] = []
        while True:
            call, body = f"CONSUMER.NAMES.{stream}", {"offset": len(consumers)}
            page = await self.connection.api(call, body, timeout=self._timeout)
            names: list[str] = page.get("consumers") or []
            consumers += names
            if not names or len(consumers) >= int(page["total"]):
                return tuple(consumers)

    async def last_sequence(self) -> int:
        """The sequence of the newest event, 0 before the first. Raises NotFound, Unavailable."""
        info = await self.connection.api(f"STREAM.INFO.{EVENTS}", timeout=self._timeout)
        return int(info["state"]["last_seq"])

    def live_texts(self) -> AbstractAsyncContextManager[LiveTexts]:
        """A publisher of model text to watchers."""
        return live_texts(self.connection)

    def watch_live(self, tenant: str, execution_id: str) -> AsyncGenerator[TextDelta]:
        """Text of an execution's models from now on; it never ends, gaps are possible."""
        return watch_live(self.connection, tenant, execution_id)

    async def ping(self) -> Ping:
        """Ask JetStream for its account once; never raises for a server that is down."""
        began = time.perf_counter()
        error = ""
        try:
            await self.connection.api("INFO", timeout=_PING_SECONDS)
        except FleetError as fault:
            error = fault.message
        elapsed = (time.perf_counter() - began) * 1000
        return Ping(ok=not error, version=self.connection.server_version, latency_ms=elapsed, error=error)

    async def clock(self) -> datetime | None:
        """The server's time; None for a server that does not report it. Raises Unavailable."""
        stream = f"STREAM.INFO.{EVENTS}"
        info = await self.connection.api_unless(404, stream, timeout=self._timeout) or {}
        return datetime.fromisoformat(info["ts"]) if "ts" in info else None

    async def usage(self) -> Mapping[str, StreamUsage]:
        """How full each stream is, and the account (`ALL`). Raises NotFound before `ensure_streams`, Unavailable."""
        return await streams.usage(self.connection, self._settings, timeout=self._timeout)
