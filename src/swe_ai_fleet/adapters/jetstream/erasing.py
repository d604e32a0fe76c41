"""Finds what streams, buckets and objects hold of executions, callers or a whole tenant, and erases it.

Messages and objects are overwritten in the server's files. Values of buckets are replaced by the marker of a deletion,
which those who follow the bucket hear; the server reuses their room in its own time.
"""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode
from binascii import Error
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from swe_ai_fleet.adapters.jetstream import subjects
from swe_ai_fleet.adapters.jetstream.blobs import JetStreamBlobs
from swe_ai_fleet.adapters.jetstream.changes import is_erased
from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.holdings import tenant_of
from swe_ai_fleet.adapters.jetstream.key_value import OPERATION, JetStreamKeyValue
from swe_ai_fleet.adapters.jetstream.messages import StoredMessage, event_of, from_api
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.adapters.jetstream.snapshots import stream_heads
from swe_ai_fleet.adapters.jetstream.streams import object_stream
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.event import ExecutionErased
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.orchestrator.recipes import tenant_key

_NO_MESSAGE = 10037
_AT_ONCE = 64
_ONE_BY_ONE = 50
"""Of more executions than that the events of the whole tenant are read once, not those of each by itself."""
_IDS = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
_ENCODED = re.compile(rb"[A-Za-z0-9+/]{48,}={0,2}")
Held = tuple[int, int]
"""Pieces and bytes."""
_PREFIXES = ("card.", "event.", "list.", "pending.")
"""What stands before the tenant in keys of some buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureScope:
    """What is to be erased of a tenant; with `everything` all of it.

    Attributes:
        tenant: Whose it is.
        executions: Ids of executions, each with whatever names it.
        uploads: Digests of uploaded repositories.
        source: The caller whose memories go, too.
        memories: Ids of memories, and none of what else the scope names.
        namespaces: Likewise whole namespaces of memories.
    """

    tenant: str
    executions: frozenset[str] = frozenset()
    uploads: frozenset[str] = frozenset()
    source: str = ""
    memories: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()
    everything: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stored message, or with a `key` a value of a bucket. `bytes` is what it takes without the server's own."""

    stream: str
    sequence: int
    bytes: int
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasing:
    """Finds and erases over one connection.

    Attributes:
        connection: To NATS, with the right to delete messages.
        blobs: Reads events that are too large for a message.
        bucket: Where blobs are.
        whose: Of buckets that are not like others: `fleet` for what is of no tenant, `cache` for what can be made
            again and cannot be told by execution; with any erasure the tenant's goes.
        memories: The bucket of memories.
        timeout: Seconds a call goes on trying.
    """

    connection: Connection
    blobs: JetStreamBlobs
    bucket: str
    whose: Mapping[str, str] = field(default_factory=dict[str, str])
    memories: str = ""
    timeout: float = 60.0

    async def find(self, scope: ErasureScope) -> AsyncGenerator[Piece]:
        """Everything that the scope names, tombstones excepted. Raises Unavailable."""
        kept: set[str] = set()
        names = [head.name for head in await stream_heads(self.connection, timeout=self.timeout)]
        # Events first: a tombstone may be so large that its body is a blob.
        for name in sorted(names, key=lambda name: name != subjects.EVENTS):
            if name.startswith("KV_"):
                found = self._values(name, scope)
            elif scope.memories or scope.namespaces:
                continue
            elif name == object_stream(self.bucket):
                found = self._objects(name, scope, kept)
            elif name in subjects.STREAM_SUBJECTS:
                found = self._messages(name, scope, kept)
            else:
                continue
            async with aclosing(found) as pieces:
                async for piece in pieces:
                    yield piece

    async def count(self, scope: ErasureScope) -> Mapping[str, Held]:
        """What `erase` would take, by stream. Raises Unavailable."""
        held: dict[str, Held] = {}
        async with aclosing(self.find(scope)) as pieces:
            async for piece in pieces:
                _count(held, piece)
        return held

    async def erase(self, scope: ErasureScope) -> Mapping[str, Held]:
        """Erase everything that `find` finds; what it was, by stream.

        What is gone already is none the worse. Raises Unavailable, also without the right to delete.
        """
        held: dict[str, Held] = {}
        batch: list[Piece] = []
        async with aclosing(self.find(scope)) as pieces:
            async for piece in pieces:
                _count(held, piece)
                batch.append(piece)
                if len(batch) >= _AT_ONCE:
                    await asyncio.gather(*map(self._erase, batch))
                    batch.clear()
        await asyncio.gather(*map(self._erase, batch))
        return held

    async def _erase(self, piece: Piece) -> None:
        if piece.key:
            await JetStreamKeyValue(self.connection, piece.stream.removeprefix("KV_"), timeout=self.timeout).delete(
                piece.key
            )
            return
        wanted = {"seq": piece.sequence}
        try:
            await self.connection.api(f"STREAM.MSG.DELETE.{piece.stream}", wanted, timeout=self.timeout)
        except PreconditionFailed:
            call = f"STREAM.MSG.GET.{piece.stream}"
            if await self.connection.api_unless(_NO_MESSAGE, call, wanted, timeout=self.timeout) is not None:
                raise

    async def _values(self, stream: str, scope: ErasureScope) -> AsyncGenerator[Piece]:
        bucket = stream.removeprefix("KV_")
        whose, only = self.whose.get(bucket, "tenant"), scope.memories or scope.namespaces
        if whose == "fleet" or (only and bucket != self.memories):
            return
        prefix = f"$KV.{bucket}."
        async with aclosing(self._all(stream, f"{prefix}>")) as stored:
            async for message in stored:
                key = message.subject.removeprefix(prefix)
                if OPERATION in message.headers or not _owns(scope.tenant, key):
                    continue
                if only:
                    wanted = _told(message.data)
                    named = key.rpartition(".")[2] in scope.memories or wanted.get("namespace") in scope.namespaces
                else:
                    named = whose == "cache" or _names(scope, message.subject.encode() + b" " + message.data)
                if named:
                    yield Piece(stream=stream, sequence=message.sequence, bytes=len(message.data), key=key)

    async def _messages(self, stream: str, scope: ErasureScope, kept: set[str]) -> AsyncGenerator[Piece]:
        async with aclosing(self._all(stream, *_wanted(stream, scope))) as stored:
            async for message in stored:
                if stream == subjects.EVENTS and await self._is_tombstone(message, kept):
                    continue
                if stream == subjects.CONTEXT_CHANGES and is_erased(message.data):
                    continue
                about = message.headers.get("Fleet-Subject", "") if stream == subjects.DEAD_LETTERS else ""
                mine = tenant_of(about or message.subject) == scope.tenant
                text = " ".join((message.subject, about, *message.headers.values())).encode() + b" " + message.data
                if mine and _names(scope, text):
                    size = len(message.subject) + len(message.data)
                    yield Piece(stream=stream, sequence=message.sequence, bytes=size)

    async def _is_tombstone(self, message: StoredMessage, kept: set[str]) -> bool:
        """Only executions themselves say it: an agent's event of that kind keeps nothing from being erased."""
        if not message.subject.endswith("._") or not (b"erased" in message.data or b"body_ref" in message.data):
            return False
        event = await event_of(message.data, self.blobs)
        if not isinstance(event.body, ExecutionErased):
            return False
        if b"body_ref" in message.data:
            kept.add(str(json.loads(message.data)["body_ref"]["name"]))
        return True

    async def _objects(self, stream: str, scope: ErasureScope, kept: set[str]) -> AsyncGenerator[Piece]:
        chunks = f"$O.{self.bucket}.C."
        async with aclosing(self._all(stream, f"$O.{self.bucket}.M.>")) as metas:
            async for meta in metas:
                info: dict[str, Any] = json.loads(meta.data)
                tenant, _, rest = str(info["name"]).partition("/")
                place, _, digest = rest.partition("/")
                wanted = place in scope.executions or (place == "uploads" and digest in scope.uploads)
                if tenant != scope.tenant or info["name"] in kept or not (scope.everything or wanted):
                    continue
                async with aclosing(self._all(stream, chunks + str(info["nuid"]))) as parts:
                    async for part in parts:
                        yield Piece(stream=stream, sequence=part.sequence, bytes=len(part.data))
                # The description last: until then it says what else there is to find.
                yield Piece(stream=stream, sequence=meta.sequence, bytes=len(meta.data))
        if scope.everything and not kept:
            async with aclosing(self._all(stream, f"{chunks}{subjects.chunk_prefix(scope.tenant)}>")) as parts:
                async for part in parts:
                    yield Piece(stream=stream, sequence=part.sequence, bytes=len(part.data))

    async def _all(self, stream: str, *wanted: str) -> AsyncGenerator[StoredMessage]:
        if not wanted:
            return
        if stream in (subjects.COMMANDS, subjects.PLANS, subjects.JOBS):
            # A second consumer of a work queue would take messages away from the first.
            sequence = 0
            while True:
                request = {"seq": sequence + 1, "next_by_subj": ">"}
                call = f"STREAM.MSG.GET.{stream}"
                answer = await self.connection.api_unless(_NO_MESSAGE, call, request, timeout=self.timeout)
                if answer is None:
                    return
                message = from_api(answer)
                sequence = message.sequence
                yield message
        async with aclosing(messages(self.connection, stream, *wanted, follow=False, timeout=self.timeout)) as stored:
            async for message in stored:
                if message is not None:
                    yield message


def _wanted(stream: str, scope: ErasureScope) -> tuple[str, ...]:
    """The subjects that can have something."""
    tenant = subjects.token(scope.tenant)
    if stream == subjects.EVENTS:
        if scope.everything or len(scope.executions) > _ONE_BY_ONE:
            return (f"agent.events.{tenant}.>",)
        return tuple(subjects.execution_filter(scope.tenant, one) for one in sorted(scope.executions))
    if stream == subjects.CONTEXT_CHANGES:
        changes = (f"context.changes.{tenant}.>",) if scope.everything else ()
        return (*changes, f"context.work.{tenant}.>")
    if stream == subjects.RESULTS:
        return (f"{subjects.results_of(scope.tenant)}.>",)
    return subjects.STREAM_SUBJECTS[stream]


def _owns(tenant: str, key: str) -> bool:
    """Whether a key is a tenant's: its name, or the digest of it, stands first; bare keys are the default tenant's."""
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    first, dot, _ = key.partition(".")
    bare = not dot and tenant == DEFAULT_TENANT and not key.startswith("_")
    return bare or (bool(dot) and first in (tenant, tenant_key(tenant)))


def _names(scope: ErasureScope, text: bytes) -> bool:
    if scope.everything:
        return True
    if scope.source and f"caller:{scope.source}" in str(_told(text).get("source", "")).split(", "):
        return True
    return any(one in scope.executions for one in _ids(text))


def _ids(text: bytes) -> Iterator[str]:
    """The ids of executions in a text, plan sessions' (without hyphens) and those in base64 too."""
    for match in _IDS.findall(text):
        yield str(UUID(match.decode()))
    for match in _ENCODED.findall(text):
        try:
            yield from _ids(b64decode(match))
        except Error:
            continue


def _told(text: bytes) -> Mapping[str, object]:
    """The fields of a value that is a JSON object, behind whatever stands before it."""
    try:
        read = json.loads(text[max(text.find(b"{"), 0) :])
    except ValueError:
        return {}
    return cast("dict[str, object]", read) if isinstance(read, dict) else {}


def _count(held: dict[str, Held], piece: Piece) -> None:
    items, size = held.get(piece.stream, (0, 0))
    held[piece.stream] = items + 1, size + piece.bytes
