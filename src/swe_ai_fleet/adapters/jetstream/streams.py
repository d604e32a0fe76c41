"""The streams of the fleet: their configuration and usage, and snapshots of whole streams and their restoration.

A snapshot has everything the server stores: each message with its sequence, time and headers, and the positions of
durable consumers. (ADR-1 of NATS: `$JS.API.STREAM.SNAPSHOT` and `RESTORE`.)
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.protocol import (
    BLOBS,
    BLOBS_BUCKET,
    COMMANDS,
    CONTEXT_CHANGES,
    EVENTS,
    JOBS,
    NANOSECONDS,
    PLANS,
    RESULTS,
    STREAM_SUBJECTS,
    ApiFault,
    Backoff,
    Forbidden,
    NatsMessage,
    StoredMessage,
    Unanswered,
    from_api,
)
from swe_ai_fleet.domain.errors import PreconditionFailed, Unavailable

_DAY_SECONDS = 86_400.0
_DUPLICATE_WINDOW_SECONDS = 120.0
NO_MESSAGE = 10037
_NAME_IN_USE = 10058
_WORK_QUEUES = (COMMANDS, PLANS, JOBS)
ALL = "all"
"""The name under which `usage` has everything that is stored in the fleet's account, buckets too."""
_WITHOUT_MAX_AGE = (CONTEXT_CHANGES,)
"""Streams whose messages never expire: project knowledge does not age."""
CHUNK_BYTES = 128 * 1024
SILENCE_SECONDS = 60.0
"""A snapshot that delivers nothing for so long is aborted."""
_END = ("", "204")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """The limits of the streams. Sizes in bytes, 0 for no limit of our own; a full stream refuses new messages."""

    replicas: int = 1
    max_age_seconds: float = 90 * _DAY_SECONDS
    max_event_bytes: int = 0
    max_result_bytes: int = 0
    max_blob_bytes: int = 0

    @property
    def blob_age_seconds(self) -> float:
        """How long blobs are kept, 0 for ever: up to a day longer than events, as a blob is stored before its event.

        With a retention below a day it is twice the retention.
        """
        return self.max_age_seconds + min(self.max_age_seconds, _DAY_SECONDS)

    def lifetime(self, seconds: float) -> float:
        """The lifetime of values that may expire after `seconds` (0: never): no longer than that of events."""
        return min(seconds, self.max_age_seconds) if seconds and self.max_age_seconds else seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUsage:
    """How full a stream or an account is; an account counts each copy. `max_bytes` is 0 where there is no limit."""

    messages: int
    bytes: int
    max_bytes: int


async def ensure(connection: Connection, settings: StreamSettings, *, timeout: float) -> None:
    """Create missing streams and update the others to the settings. Idempotent.

    Raises:
        PreconditionFailed: The server has no JetStream, or refuses a change (a retention policy, say).
        ResourceExhausted: The server has no room for these limits.
        Unavailable: The server does not answer within `timeout` seconds.
    """
    for config in _configurations(settings):
        await _ensure_one(connection, config, timeout=timeout)


async def _ensure_one(connection: Connection, config: Mapping[str, object], *, timeout: float) -> None:
    name = config["name"]
    try:
        created = await connection.api_unless(_NAME_IN_USE, f"STREAM.CREATE.{name}", config, timeout=timeout)
    except Forbidden:
        if await connection.api_unless(404, f"STREAM.INFO.{name}", timeout=timeout) is None:
            raise Unavailable(f"the stream {name} does not exist yet", hint="the orchestrator creates it") from None
        return
    if created is None:
        # A process without the right to change a stream takes it as it is.
        with suppress(Forbidden):
            await connection.api(f"STREAM.UPDATE.{name}", config, timeout=timeout)


async def ensure_bucket(
    connection: Connection,
    settings: StreamSettings,
    bucket: str,
    *,
    ttl_seconds: float,
    max_bytes: int = 0,
    timeout: float,
) -> None:
    """Create a key-value bucket or update it to the settings. Raises as `ensure` does."""
    name = f"KV_{bucket}"
    ttl_seconds = settings.lifetime(ttl_seconds)
    config = _stream(settings, name, [f"$KV.{bucket}.>"], max_bytes=max_bytes)
    config |= {
        "max_age": int(ttl_seconds * NANOSECONDS),
        # With a size limit the oldest values make room; without, a full account refuses new ones.
        "discard": "old" if max_bytes else "new",
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,
        "duplicate_window": int(min(ttl_seconds or math.inf, _DUPLICATE_WINDOW_SECONDS) * NANOSECONDS),
    }
    await _ensure_one(connection, config, timeout=timeout)


async def usage(connection: Connection, settings: StreamSettings, *, timeout: float) -> Mapping[str, StreamUsage]:
    """How full each stream is, and under `ALL` the account. Raises NotFound before `ensure`, Unavailable."""
    account = await connection.api("INFO", timeout=timeout)
    limits: dict[str, int] = account["limits"]
    usages: dict[str, StreamUsage] = {}
    names = [str(config["name"]) for config in _configurations(settings)]
    infos = (connection.api(f"STREAM.INFO.{name}", timeout=timeout) for name in names)
    for name, info in zip(names, await asyncio.gather(*infos), strict=True):
        state: dict[str, int] = info["state"]
        limit: int = info["config"].get("max_bytes", -1)
        usages[name] = StreamUsage(messages=state["messages"], bytes=state["bytes"], max_bytes=max(0, limit))
    messages = sum(stream.messages for stream in usages.values())
    whole = StreamUsage(messages=messages, bytes=account["storage"], max_bytes=max(0, limits["max_storage"]))
    return {**usages, ALL: whole}


async def last_message(
    connection: Connection, stream: str, subject: str, *, timeout: float | None
) -> StoredMessage | None:
    """The last message on a subject (wildcards allowed), read from the stream's leader so that it is never stale.

    A host reads from any server with a replica: only that request's subject names the subject read, for permissions to
    cover. If the replica was behind, the server refuses the host's next write there.
    """
    if connection.is_host:
        call = f"$JS.API.DIRECT.GET.{stream}.{subject}"
        message, _ = await connection.request_until_answered(call, b"", Backoff.lasting(timeout))
        if message.status == "404":
            return None
        headers = message.headers
        return StoredMessage(
            sequence=int(headers["Nats-Sequence"]), subject=headers["Nats-Subject"], data=message.data, headers=headers
        )
    body = {"last_by_subj": subject}
    answer = await connection.api_unless(NO_MESSAGE, f"STREAM.MSG.GET.{stream}", body, timeout=timeout)
    return None if answer is None else from_api(answer)


async def first_message(
    connection: Connection, stream: str, subject: str, *, start: int = 1, timeout: float
) -> StoredMessage | None:
    """The first message on a subject from a sequence on, read from the stream's leader. Raises Unavailable."""
    body = {"next_by_subj": subject, "seq": start}
    answer = await connection.api_unless(NO_MESSAGE, f"STREAM.MSG.GET.{stream}", body, timeout=timeout)
    return None if answer is None else from_api(answer)


def _configurations(settings: StreamSettings) -> list[dict[str, object]]:
    limits = {EVENTS: settings.max_event_bytes, RESULTS: settings.max_result_bytes}
    configurations = [
        _stream(
            settings,
            name,
            list(patterns),
            retention="workqueue" if name in _WORK_QUEUES else "limits",
            max_bytes=limits.get(name, 0),
        )
        | ({"max_age": 0} if name in _WITHOUT_MAX_AGE else {})
        # With one replica the server makes a file store for each batch: over thirty times the CPU of single messages.
        | ({"allow_atomic": True} if name == EVENTS and settings.replicas > 1 else {})
        for name, patterns in STREAM_SUBJECTS.items()
    ]
    # A blob is stored before the event that names it and must not expire earlier.
    blobs = _stream(
        settings,
        BLOBS,
        [f"$O.{BLOBS_BUCKET}.C.>", f"$O.{BLOBS_BUCKET}.M.>"],
        max_bytes=settings.max_blob_bytes,
        age=settings.blob_age_seconds,
    )
    configurations.append({**blobs, "allow_rollup_hdrs": True})
    return configurations


def _stream(
    settings: StreamSettings,
    name: str,
    patterns: list[str],
    *,
    retention: str = "limits",
    max_bytes: int = 0,
    age: float | None = None,
) -> dict[str, object]:
    age = settings.max_age_seconds if age is None else age
    window = min(_DUPLICATE_WINDOW_SECONDS, age or math.inf)
    return {
        "name": name,
        "subjects": patterns,
        "retention": retention,
        "storage": "file",
        "discard": "new",
        "max_age": int(age * NANOSECONDS),
        "max_bytes": max_bytes or -1,
        "max_msgs": -1,
        "max_consumers": -1,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "num_replicas": settings.replicas,
        "duplicate_window": int(window * NANOSECONDS),
        "allow_direct": True,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHead:
    """A stream as its server describes it: its configuration as in the JetStream API, and its counts."""

    config: Mapping[str, Any]
    messages: int
    bytes: int
    first_sequence: int
    last_sequence: int
    consumers: int

    @property
    def name(self) -> str:
        return str(self.config["name"])


async def stream_heads(connection: Connection, *, timeout: float) -> list[StreamHead]:
    """Every stream that this login sees, by name. Raises Unavailable, PreconditionFailed."""
    heads: list[StreamHead] = []
    while True:
        page = await connection.api("STREAM.LIST", {"offset": len(heads)}, timeout=timeout)
        streams: list[dict[str, Any]] = page.get("streams") or []
        heads += [_head(stream) for stream in streams]
        if not streams or len(heads) >= int(page.get("total", 0)):
            return sorted(heads, key=lambda head: head.name)


@asynccontextmanager
async def snapshot(
    connection: Connection, stream: str, *, timeout: float
) -> AsyncGenerator[tuple[StreamHead, AsyncIterator[bytes]], None]:
    """A stream's head at the start of its snapshot, and the snapshot's bytes.

    Raises:
        NotFound: There is no such stream.
        PreconditionFailed: The server refuses, or found the stream damaged.
        Unavailable: The connection was lost, or nothing came for `SILENCE_SECONDS`; take a new snapshot.
    """
    inbox = f"_INBOX.fleet.snapshot.{stream}.{id(connection):x}"
    arrived: asyncio.Queue[NatsMessage | None] = asyncio.Queue()
    try:
        subscription = await connection.subscribe(inbox, arrived.put_nowait)
    except Unanswered as fault:
        raise Unavailable(f"the snapshot of {stream} could not start: {fault}") from fault
    try:
        request = {"deliver_subject": inbox, "chunk_size": CHUNK_BYTES, "no_consumers": False, "jsck": True}
        info = await connection.api(f"STREAM.SNAPSHOT.{stream}", request, timeout=timeout)
        yield _head(info), _chunks(connection, stream, arrived)
    finally:
        await connection.unsubscribe(subscription)


async def _chunks(
    connection: Connection, stream: str, arrived: asyncio.Queue[NatsMessage | None]
) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                message = await arrived.get()
        except TimeoutError:
            raise Unavailable(f"the snapshot of {stream} stalled") from None
        if message is None:
            raise Unavailable(f"the connection was lost during the snapshot of {stream}")
        if not message.data:
            if message.status not in _END:
                reason = message.headers.get("Description", "")
                raise PreconditionFailed(f"the snapshot of {stream} failed: {message.status} {reason}".strip())
            return
        yield message.data
        if message.reply:
            try:
                await connection.send(message.reply, b"")
            except Unanswered as fault:
                raise Unavailable(f"the connection was lost during the snapshot of {stream}") from fault


async def restore(
    connection: Connection, head: StreamHead, chunks: AsyncIterator[bytes], *, timeout: float
) -> StreamHead:
    """Create a stream from a snapshot; returns its head. The server must have no stream of that name.

    Raises:
        PreconditionFailed: The server refuses the stream or its content.
        ResourceExhausted: The server has no room for it.
        Unavailable: The connection was lost; remove the stream and restore again.
    """
    state = {
        "messages": head.messages,
        "bytes": head.bytes,
        "first_seq": head.first_sequence,
        "last_seq": head.last_sequence,
        "consumer_count": head.consumers,
    }
    info = await connection.api(
        f"STREAM.RESTORE.{head.name}", {"config": dict(head.config), "state": state}, timeout=timeout
    )
    target = str(info["deliver_subject"])
    async for chunk in chunks:
        await _send(connection, head.name, target, chunk)
    answer = await _send(connection, head.name, target, b"")
    return _head(json.loads(answer))


async def _send(connection: Connection, stream: str, target: str, chunk: bytes) -> bytes:
    try:
        message = await connection.request(target, chunk, seconds=SILENCE_SECONDS)
    except Unanswered as fault:
        raise Unavailable(f"the server did not accept a chunk of {stream}: {fault}") from fault
    if message.data.startswith(b"{"):
        answer: dict[str, Any] = json.loads(message.data)
        if "error" in answer:
            error = ApiFault.from_json(answer["error"]).as_fleet_error()
            raise type(error)(f"{stream} could not be restored: {error.message}", hint=error.hint)
    elif message.data.startswith(b"-ERR"):
        raise PreconditionFailed(f"the server refused {stream}: {message.data.decode(errors='replace')[:300]}")
    return message.data


def _head(info: Mapping[str, Any]) -> StreamHead:
    state = info["state"]
    return StreamHead(
        config=info["config"],
        messages=state["messages"],
        bytes=state["bytes"],
        first_sequence=state["first_seq"],
        last_sequence=state["last_seq"],
        consumers=state.get("consumer_count", 0),
    )
