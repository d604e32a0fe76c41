"""Whole streams out of JetStream and back into it, by the server's own snapshots.

A snapshot is what the server stores: every message with its sequence, its time and its headers, and the places of
durable consumers. (ADR-1 of NATS: `$JS.API.STREAM.SNAPSHOT` and `RESTORE`.)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.faults import ApiFault, Unanswered
from swe_ai_fleet.adapters.jetstream.messages import Message
from swe_ai_fleet.domain.errors import PreconditionFailed, Unavailable

CHUNK_BYTES = 128 * 1024
SILENCE_SECONDS = 60.0
"""A snapshot of which nothing comes for so long is broken off."""
_END = ("", "204")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHead:
    """A stream as its server describes it: configuration as in the JetStream API, and what it holds."""

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
    """A stream as it is when the server begins, and the bytes of it.

    Raises:
        NotFound: There is no such stream.
        PreconditionFailed: The server refuses, or found the stream damaged.
        Unavailable: The connection was lost, or nothing came for `SILENCE_SECONDS`; begin anew.
    """
    inbox = f"_INBOX.fleet.snapshot.{stream}.{id(connection):x}"
    arrived: asyncio.Queue[Message | None] = asyncio.Queue()
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


async def _chunks(connection: Connection, stream: str, arrived: asyncio.Queue[Message | None]) -> AsyncIterator[bytes]:
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
    """Make a stream out of a snapshot; how it stands then. The server must have none of that name.

    Raises:
        PreconditionFailed: The server refuses the stream, or what it is sent.
        ResourceExhausted: It has no room for it.
        Unavailable: The connection was lost; remove the stream and begin anew.
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
