"""The data of each tenant in streams, buckets and objects: its sizes, and its erasure.

Erased data is overwritten in the server's files. Only in buckets that processes follow it is replaced by a deletion
marker, which they receive; the server reuses that space later.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from base64 import b64decode
from binascii import Error
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from swe_ai_fleet.adapters.jetstream.buckets import OPERATION, JetStreamBlobs, JetStreamKeyValue
from swe_ai_fleet.adapters.jetstream.changes import is_erased
from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.protocol import (
    BLOBS,
    BLOBS_BUCKET,
    COMMANDS,
    CONTEXT_CHANGES,
    EVENTS,
    JOBS,
    PLANS,
    STREAM_SUBJECTS,
    StoredMessage,
    event_of,
    execution_filter,
    token,
)
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.adapters.jetstream.streams import NO_MESSAGE, first_message, stream_heads
from swe_ai_fleet.domain.access import StoredPiece
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.event import ExecutionErased
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.orchestrator.recipes import tenant_key

_SIZE = "Nats-Msg-Size"
_MOST_SIZES = 256
_SEGMENTS_OF_CONTENT = 3
"""`<tenant>/<execution>/<sha256>`; the name of a place has more segments."""
_AT_ONCE = 64
_ONE_BY_ONE = 50
"""With more executions than that, the tenant's events are read once instead of each execution's own."""
_IDS = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
_ENCODED = re.compile(rb"[A-Za-z0-9+/]{48,}={0,2}")
_BEFORE_TENANT = re.compile(r"^(card|event|list|pending)\.")


async def sizes(
    connection: Connection, stream: str, start: int, *, timeout: float
) -> AsyncGenerator[StoredPiece | None]:
    """The sizes of the messages of a stream, bucket or object store from a sequence on, without an end.

    Keys of a bucket begin with a tenant. Raises as `messages` does.
    """
    kind, _, bucket = stream.partition("_")
    prefix = {"KV": f"$KV.{bucket}.", "OBJ": f"$O.{bucket}.M."}.get(kind, "")
    subjects = (f"{prefix}>",) if prefix else STREAM_SUBJECTS[stream]
    stored = messages(
        connection, stream, *subjects, start=start, follow=True, timeout=timeout, headers_only=kind != "OBJ"
    )
    async with aclosing(stored) as heads:
        async for head in heads:
            if head is None:
                yield None
                continue
            piece = _piece(head, int(head.headers.get(_SIZE, "0")))
            tenant, size, place, at = piece.tenant, piece.bytes, "", head.at
            if kind == "KV":
                place, size = head.subject.removeprefix(prefix), 0 if OPERATION in head.headers else size
                tenant = place.split(".")[0]
            elif kind == "OBJ":
                info = json.loads(head.data)
                tenant, *rest = str(info["name"]).split("/")
                place = "/".join(rest) if len(rest) >= _SEGMENTS_OF_CONTENT else ""
                size, at = int(info.get("size", 0)), datetime.fromisoformat(info["mtime"]).timestamp()
                size = 0 if info.get("deleted") else size
            yield StoredPiece(sequence=head.sequence, tenant=tenant, bytes=size, at=at, place=place)


class NewestSizes:
    """The sizes of a stream's newest messages, collected from a reader that follows the stream anyway."""

    def __init__(self) -> None:
        self._newest = deque[StoredPiece](maxlen=_MOST_SIZES)
        self._changed = asyncio.Event()

    def take(self, message: StoredMessage) -> None:
        """Add the next message."""
        self._newest.append(_piece(message, len(message.data)))
        self._wake()

    def end(self) -> None:
        """Forget all sizes: the reader stopped."""
        self._newest.clear()
        self._wake()

    def has(self, sequence: int) -> bool:
        """Whether every message after a sequence is here or will be added."""
        return bool(self._newest) and self._newest[0].sequence <= sequence <= self._newest[-1].sequence

    async def after(self, sequence: int) -> AsyncGenerator[StoredPiece]:
        """The sizes of the messages after a sequence, ending when some of them are missing here."""
        while self.has(sequence):
            # Usually one of hundreds is new, so the search starts at the end.
            new = list(itertools.takewhile(partial(_is_after, sequence), reversed(self._newest)))
            for piece in reversed(new):
                sequence = piece.sequence
                yield piece
            if not new:
                await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed.clear()


def _is_after(sequence: int, piece: StoredPiece) -> bool:
    return piece.sequence > sequence


def _piece(message: StoredMessage, size: int) -> StoredPiece:
    return StoredPiece(
        sequence=message.sequence,
        tenant=tenant_of(message.subject),
        bytes=len(message.subject) + size,
        at=message.at,
    )


def tenant_of(subject: str) -> str:
    """The tenant that the subject of a message in one of our streams names."""
    tokens = subject.split(".")
    # Where no tenant is named, it is the default one's.
    rest = tokens[3:] if subject.startswith("agent.cmd.") else tokens[2:]
    named = unquote(rest[0]) if rest else ""
    if subject.startswith("agent.results."):
        # No task id begins with `_`, which marks a tenant.
        return named[1:] if named.startswith("_") else DEFAULT_TENANT
    if subject.startswith("agent.cmd.") and (named in ("high", "normal", "low") or named.isdigit()):
        return DEFAULT_TENANT
    return named or DEFAULT_TENANT


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureScope:
    """Which data of a tenant to erase: executions with every message that names them, values keyed by a task's id,
    uploads by digest, memories by id, namespace or the `caller` who stored them; or everything."""

    tenant: str
    executions: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()
    uploads: frozenset[str] = frozenset()
    memories: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()
    caller: str = ""
    everything: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    stream: str
    sequence: int
    bytes: int
    followed_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasing:
    """Finds and erases a tenant's data over one connection.

    Attributes:
        connection: To NATS, with the right to delete messages.
        whose: The kind of each special bucket: `fleet` belongs to no tenant; a `cache` can be rebuilt and is not keyed
            by execution (any erasure removes the tenant's part); of a `followed` one processes keep copies.
        by_task: Buckets whose keys have a task's id behind the tenant, and how many tokens follow it.
    """

    connection: Connection
    blobs: JetStreamBlobs
    memories: str
    whose: Mapping[str, str]
    by_task: Mapping[str, int]
    timeout: float

    async def erase(self, scope: ErasureScope, *, dry_run: bool = False) -> Mapping[str, tuple[int, int]]:
        """Erase everything in the scope except tombstones; returns the number of messages and bytes by stream.

        Erasing again is harmless. Raises Unavailable, also without the right to delete.
        """
        erased: dict[str, tuple[int, int]] = {}
        batch: list[_Piece] = []
        async with aclosing(self._find(scope)) as pieces:
            async for piece in pieces:
                items, size = erased.get(piece.stream, (0, 0))
                erased[piece.stream] = items + 1, size + piece.bytes
                batch += [] if dry_run else [piece]
                if len(batch) >= _AT_ONCE:
                    await asyncio.gather(*map(self._erase, batch))
                    batch.clear()
        await asyncio.gather(*map(self._erase, batch))
        return erased

    async def clear(self, *buckets: str) -> None:
        """Erase all values of those buckets that exist, the last value first. Raises as `erase` does."""
        existing = {head.name for head in await stream_heads(self.connection, timeout=self.timeout)}
        for stream in existing.intersection(f"KV_{bucket}" for bucket in buckets):
            async with aclosing(self._all(stream, f"$KV.{stream.removeprefix('KV_')}.>")) as stored:
                pieces = [_Piece(stream=stream, sequence=message.sequence, bytes=0) async for message in stored]
            for piece in reversed(pieces):
                await self._erase(piece)

    async def _erase(self, piece: _Piece) -> None:
        if piece.followed_key:
            bucket = piece.stream.removeprefix("KV_")
            await JetStreamKeyValue(self.connection, bucket, timeout=self.timeout).delete(piece.followed_key)
            return
        body = {"seq": piece.sequence}
        try:
            await self.connection.api(f"STREAM.MSG.DELETE.{piece.stream}", body, timeout=self.timeout)
        except PreconditionFailed:
            call = f"STREAM.MSG.GET.{piece.stream}"
            if await self.connection.api_unless(NO_MESSAGE, call, body, timeout=self.timeout) is not None:
                raise

    async def _find(self, scope: ErasureScope) -> AsyncGenerator[_Piece]:
        names = [head.name for head in await stream_heads(self.connection, timeout=self.timeout)]
        # Events come first: a large tombstone's body is a blob, which must be known before objects are erased.
        tombstones: set[str] = set()
        for name in sorted(names, key=lambda name: name != EVENTS):
            if name.startswith("KV_"):
                pieces_found = self._values(name, scope)
            elif name == BLOBS:
                pieces_found = self._objects(name, scope, tombstones)
            elif name in STREAM_SUBJECTS:
                pieces_found = self._messages(name, scope, tombstones)
            else:
                continue
            async with aclosing(pieces_found) as pieces:
                async for piece in pieces:
                    yield piece

    async def _values(self, stream: str, scope: ErasureScope) -> AsyncGenerator[_Piece]:
        bucket, prefix = stream.removeprefix("KV_"), f"$KV.{stream.removeprefix('KV_')}."
        whose = self.whose.get(bucket, "")
        async with aclosing(self._all(stream, f"{prefix}>")) as stored:
            async for message in stored:
                key, is_marker = message.subject.removeprefix(prefix), OPERATION in message.headers
                if whose == "fleet" or (whose == "followed" and is_marker) or not _owns(scope.tenant, key):
                    continue
                named = _names(scope, message.subject.encode() + message.data)
                named |= bucket in self.by_task and _task_in(key, self.by_task[bucket]) in scope.tasks
                if whose == "cache":
                    named = bool(scope.executions or scope.everything)
                elif bucket == self.memories and not named:
                    memory = json.loads(message.data)
                    by = f"caller:{scope.caller}" in memory.get("source", "").split(", ")
                    named = by or memory["namespace"] in scope.namespaces or key.rpartition(".")[2] in scope.memories
                if named:
                    followed = key if whose == "followed" else ""
                    size = len(message.data)
                    yield _Piece(stream=stream, sequence=message.sequence, bytes=size, followed_key=followed)

    async def _messages(self, stream: str, scope: ErasureScope, tombstones: set[str]) -> AsyncGenerator[_Piece]:
        async with aclosing(self._all(stream, *_subjects_of(stream, scope))) as stored:
            async for message in stored:
                about = message.headers.get("Fleet-Subject") or message.subject
                text = " ".join((message.subject, about, *message.headers.values())).encode() + message.data
                if tenant_of(about) != scope.tenant or not _names(scope, text):
                    continue
                if not await self._is_tombstone(stream, message, tombstones):
                    size = len(message.subject) + len(message.data)
                    yield _Piece(stream=stream, sequence=message.sequence, bytes=size)

    async def _is_tombstone(self, stream: str, message: StoredMessage, tombstones: set[str]) -> bool:
        """Whether this records an erasure; only an execution's own event does, never one of an agent."""
        if stream == CONTEXT_CHANGES:
            return is_erased(message.data)
        is_spilled = b"body_ref" in message.data
        if stream != EVENTS or not message.subject.endswith("._"):
            return False
        if not (is_spilled or b"execution_erased" in message.data):
            return False
        if not isinstance((await event_of(message.data, self.blobs)).body, ExecutionErased):
            return False
        tombstones |= {str(json.loads(message.data)["body_ref"]["name"])} if is_spilled else set()
        return True

    async def _objects(self, stream: str, scope: ErasureScope, tombstones: set[str]) -> AsyncGenerator[_Piece]:
        async with aclosing(self._all(stream, f"$O.{BLOBS_BUCKET}.M.>")) as metas:
            async for meta in metas:
                info: dict[str, Any] = json.loads(meta.data)
                tenant, place, digest = (*str(info["name"]).split("/", 2), "", "")[:3]
                named = place in scope.executions or (place == "uploads" and digest in scope.uploads)
                if tenant == scope.tenant and info["name"] not in tombstones and (scope.everything or named):
                    # The description goes last: an interrupted erasure finds the chunks by it.
                    for subject in (f"$O.{BLOBS_BUCKET}.C.{info['nuid']}", meta.subject):
                        async with aclosing(self._all(stream, subject)) as parts:
                            async for part in parts:
                                yield _Piece(stream=stream, sequence=part.sequence, bytes=len(part.data))

    async def _all(self, stream: str, *subjects: str) -> AsyncGenerator[StoredMessage]:
        if stream in (COMMANDS, PLANS, JOBS):
            # Read without a consumer: a second one on a work queue would take messages from the first.
            start = 1
            while message := await first_message(self.connection, stream, ">", start=start, timeout=self.timeout):
                yield message
                start = message.sequence + 1
        elif subjects:
            stored = messages(self.connection, stream, *subjects, follow=False, timeout=self.timeout)
            async with aclosing(stored):
                async for message in stored:
                    if message is not None:
                        yield message


def _subjects_of(stream: str, scope: ErasureScope) -> tuple[str, ...]:
    """The subjects whose messages can be in the scope."""
    tenant = token(scope.tenant)
    if stream == EVENTS and not scope.everything and len(scope.executions) <= _ONE_BY_ONE:
        return tuple(execution_filter(scope.tenant, execution) for execution in sorted(scope.executions))
    if stream == EVENTS:
        return (f"agent.events.{tenant}.>",)
    if stream == CONTEXT_CHANGES:
        return tuple(f"context.{kind}.{tenant}.>" for kind in ("changes", "work"))
    return STREAM_SUBJECTS[stream]


def _owns(tenant: str, key: str) -> bool:
    """Whether a key is a tenant's: it begins with the tenant's name or digest; bare keys are the default tenant's."""
    first, dot, _ = _BEFORE_TENANT.sub("", key).partition(".")
    return first in (tenant, tenant_key(tenant)) if dot else tenant == DEFAULT_TENANT and not key.startswith("_")


def _task_in(key: str, following: int) -> str:
    """The task id in a key; an id with characters that keys may not have is written as `=` and hexadecimal digits."""
    tokens = _BEFORE_TENANT.sub("", key).split(".")
    name = ".".join(tokens[1 : len(tokens) - following])
    with suppress(ValueError):
        return bytes.fromhex(name.removeprefix("=")).decode() if name.startswith("=") else name
    return name


def _names(scope: ErasureScope, text: bytes) -> bool:
    return scope.everything or any(name in scope.executions for name in _ids(text))


def _ids(text: bytes) -> Iterator[str]:
    """The execution ids in a text, including those without hyphens (of plan sessions) and those in base64."""
    for match in _IDS.findall(text):
        yield str(UUID(match.decode()))
    for match in _ENCODED.findall(text):
        with suppress(Error):
            yield from _ids(b64decode(match))
