"""An index that follows the bucket of memories: words at once, vectors as soon as they are available.

The bucket has a key for each memory, `<tenant>.<namespace>.<memory id>`, whose value is its JSON.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import TypeVar

import structlog

from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.errors import Fenced, FleetError, InternalFault, InvalidRequest, Unavailable
from swe_ai_fleet.domain.memory import Memory, MemoryScope
from swe_ai_fleet.extensions.knowledge.memory_index import MemoryIndex
from swe_ai_fleet.extensions.knowledge.recalling import EMBEDDED_AT_ONCE, Meaning, admitted
from swe_ai_fleet.following import waits
from swe_ai_fleet.ports import KeyValue, KeyValueChange

BARRIER = "_barrier"
"""A key without content: a follower that sees it change has seen all earlier changes."""
_ORIGIN = "_origin"

_log = structlog.get_logger(__name__)
T = TypeVar("T")
_BATCH = 256


def key_of(memory: Memory) -> str:
    """The key of a memory in the bucket."""
    return memory_key(memory.tenant, memory.namespace, memory.memory_id)


def memory_key(tenant: str, namespace: str, memory_id: str) -> str:
    """The key of a memory by its id and namespace."""
    return f"{_token(tenant)}.{_token(namespace)}.{memory_id}"


def id_in(key: str) -> str:
    """The memory id in a key; empty for keys that hold no memory."""
    return "" if key.startswith("_") else key.rpartition(".")[2]


def loaded(key: str, value: bytes) -> Memory | None:
    """The stored memory; None for keys that hold no memory, and for values that do not belong to the key."""
    if key.startswith("_"):
        return None
    try:
        memory = from_json(Memory, value)
        # Secrets were masked when it was stored, so they are not searched for again.
        admitted(memory, _as_it_is, datetime.now(UTC))
    except (ValueError, FleetError) as error:
        _log.warning("memory.unreadable", key=key, reason=str(error)[:200])
        return None
    return memory if key_of(memory) == key else None


def in_scope(memory: Memory, scope: MemoryScope) -> bool:
    """Whether a memory belongs to a scope."""
    return (
        memory.tenant == scope.tenant
        and (not scope.namespaces or memory.namespace in scope.namespaces)
        and (not scope.kinds or memory.kind in scope.kinds)
        and scope.metadata.items() <= memory.metadata.items()
    )


async def origin(store: KeyValue) -> str:
    """The identity of this bucket among all that had its name, 16 hexadecimal digits.

    An index follows one bucket: after the bucket is lost and recreated, its positions are meaningless. So the name of
    the index should contain this. Raises Unavailable.
    """
    entry = await store.get(_ORIGIN)
    while entry is None:
        with suppress(Fenced):
            await store.put(_ORIGIN, secrets.token_hex(8).encode(), revision=0)
        entry = await store.get(_ORIGIN)
    return entry.value.decode()


def _as_it_is(text: str) -> str:
    return text


def _token(text: str) -> str:
    """A text as one token of a key, each other character (and the escape itself) as `=XX` for each of its bytes."""
    return "".join(
        chr(byte) if byte < 128 and (chr(byte).isalnum() or chr(byte) in "-_") else f"={byte:02X}"
        for byte in text.encode()
    )


class Following:
    """Updates a `MemoryIndex` from a bucket, beginning at the position of the index.

    The index stores two positions, of its words and of its vectors. Memories between the two wait for their vectors, as
    keys only; after a crash at any point, the next follower begins at the lesser position. Writing a memory that the
    index holds already changes nothing, so repetition does no harm.

    Args:
        store: The bucket.
        index: The index to update.
        meaning: Makes the vectors, if there is an embedder.
    """

    def __init__(self, store: KeyValue, index: MemoryIndex, meaning: Meaning) -> None:
        self._store = store
        self._index = index
        self._meaning = meaning
        self._arrived: asyncio.Queue[KeyValueChange | None] = asyncio.Queue(maxsize=4 * _BATCH)
        self._waiting: dict[str, int] = {}
        self._work = asyncio.Event()
        self._writing = asyncio.Lock()
        self._moved = asyncio.Condition()
        self._position = self._written = self._embedded = 0
        self._caught_up = self._ended = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Follow in the background until `stop`."""
        self._task = asyncio.create_task(self._run(), name="memories")

    async def stop(self) -> None:
        """Stop following. Raises the bug that ended it before, if any."""
        if self._task is None:
            return
        await end(self._task)

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read())
                group.create_task(self._write())
                if self._meaning.space:
                    group.create_task(self._embed())
        except Exception:
            # Nothing awaits this task, so its failure is logged here.
            _log.exception("memory.not_followed")
            raise
        finally:
            self._ended = True
            async with self._moved:
                self._moved.notify_all()

    def check(self) -> None:
        """Raises InternalFault if following has ended."""
        if self._ended:
            raise InternalFault("the memory index has stopped", hint="restart the context service")

    async def reached(self, revision: int, *, timeout: float) -> None:
        """Wait until the index has the words of everything up to a revision.

        Raises Unavailable on a timeout, InternalFault if following has ended; so does `caught_up`.
        """
        await self._wait(lambda: self._position >= revision, timeout)

    async def caught_up(self, *, timeout: float) -> None:
        """Wait until the index has everything that was in the bucket when following began."""
        await self._wait(lambda: self._caught_up, timeout)

    async def _wait(self, met: Callable[[], bool], timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout), self._moved:
                await self._moved.wait_for(lambda: self._ended or met())
        except TimeoutError:
            raise Unavailable(
                f"the memory index is more than {timeout:g} seconds behind; the memory is stored"
            ) from None
        # If following has ended, the index becomes stale, even at the position that was waited for.
        self.check()

    async def _read(self) -> None:
        position = await self._begin()
        pauses = waits()
        while True:
            try:
                async with aclosing(self._store.changes(from_revision=position + 1, follow=True)) as changes:
                    async for change in changes:
                        await self._arrived.put(change)
                        position = change.revision if change is not None else position
                        pauses = waits()
            except FleetError as error:
                _log.warning("memory.bucket_unavailable", reason=error.message)
                await asyncio.sleep(next(pauses))

    async def _begin(self) -> int:
        """The position up to which the index is complete, words and vectors."""
        space = self._meaning.space
        self._position = words = await _retried(lambda: self._index.position(""), "position")
        vectors = await _retried(lambda: self._index.position(space), "position") if space else words
        self._written = self._embedded = min(words, vectors)
        return self._written

    async def _write(self) -> None:
        while True:
            batch = [await self._arrived.get()]
            while len(batch) < _BATCH and not self._arrived.empty():
                batch.append(self._arrived.get_nowait())
            changes = [change for change in batch if change is not None]
            await self._take_all(changes)
            async with self._moved:
                self._position = max(self._position, self._written)
                self._caught_up = self._caught_up or len(changes) < len(batch)
                self._moved.notify_all()

    async def _take_all(self, changes: Sequence[KeyValueChange]) -> None:
        if not changes:
            return
        try:
            await _retried(lambda: self._take(changes), "write")
        except InvalidRequest as refusal:
            if len(changes) == 1:
                # A memory that the index will never accept must not block those behind it.
                _log.warning("memory.not_indexed", key=changes[0].key, reason=refusal.message)
                return
            for change in changes:
                await self._take_all([change])

    async def _take(self, changes: Sequence[KeyValueChange]) -> None:
        last = {change.key: change for change in changes}
        put, removed = await asyncio.to_thread(_read, last.values())
        fresh = {key: vector for key, memory in put.items() if len(vector := self._meaning.fresh(memory))}
        async with self._writing:
            if removed:
                await self._index.remove(removed)
            if fresh:
                pairs = [(put[key], vector) for key, vector in fresh.items()]
                await put_with_vectors(self._index, pairs, space=self._meaning.space)
            await self._index.put(
                [(memory, None) for key, memory in put.items() if key not in fresh], position=changes[-1].revision
            )
            for change in last.values():
                # Removed and added again, so that the first waiting entry is always the oldest.
                self._waiting.pop(change.key, None)
                if change.key in put and change.key not in fresh and self._meaning.space:
                    self._waiting[change.key] = change.revision
            self._written = changes[-1].revision
        self._work.set()

    async def _embed(self) -> None:
        pauses = waits()
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                while self._waiting:
                    await self._embed_some()
                    pauses = waits()
                await self._settle()
            except FleetError as error:
                # Without vectors, memories are found by their words.
                _log.warning("memory.vectors_wait", memories=len(self._waiting), reason=error.message)
                await asyncio.sleep(next(pauses))
                self._work.set()
            async with self._moved:
                self._moved.notify_all()

    async def _embed_some(self) -> None:
        keys = dict(list(self._waiting.items())[:EMBEDDED_AT_ONCE])
        entries = await asyncio.gather(*(self._store.get(key) for key in keys))
        memories: dict[str, Memory] = {}
        for (key, revision), entry in zip(keys.items(), entries, strict=True):
            if entry is not None and entry.revision == revision and (memory := loaded(key, entry.value)) is not None:
                memories[key] = memory
        vectors = await self._meaning.of_all(list(memories.values()))
        async with self._writing:
            # Memories that were deleted or changed in the meantime are skipped here.
            done = [key for key, revision in keys.items() if self._waiting.get(key) == revision]
            pairs = [(memories[key], vectors.get(memories[key].memory_id)) for key in done if key in memories]
            position = self._settled(without=done)
            await put_with_vectors(self._index, pairs, space=self._meaning.space, position=position)
            self._embedded = position
            for key in done:
                del self._waiting[key]

    async def _settle(self) -> None:
        """Advance the position of the vectors to that of the words, over removals and keys without memories."""
        async with self._writing:
            position = self._settled()
            if position > self._embedded:
                await self._index.put((), space=self._meaning.space, position=position)
                self._embedded = position

    def _settled(self, *, without: Sequence[str] = ()) -> int:
        """The revision up to which nothing waits for its vector, except these keys."""
        left_out = set(without)
        oldest = next((revision for key, revision in self._waiting.items() if key not in left_out), None)
        return self._written if oldest is None else oldest - 1


def _read(changes: Iterable[KeyValueChange]) -> tuple[dict[str, Memory], list[str]]:
    """The changed memories by key, and the ids of removed ones."""
    put: dict[str, Memory] = {}
    removed: list[str] = []
    for change in changes:
        memory = loaded(change.key, change.value) if change.value is not None else None
        if memory is not None:
            put[change.key] = memory
        elif memory_id := id_in(change.key):
            removed.append(memory_id)
    return put, removed


async def put_with_vectors(
    index: MemoryIndex, pairs: Sequence[tuple[Memory, Sequence[float] | None]], *, space: str, position: int = 0
) -> None:
    """Put memories into an index; if it refuses a vector, the memory is only found by its words.

    Raises InvalidRequest for a memory that the index refuses, and as `MemoryIndex.put` does.
    """
    try:
        await index.put(pairs, space=space, position=position)
    except InvalidRequest as refusal:
        # The embedder has changed under the same name, or returned an invalid vector.
        _log.warning("memory.vector_refused", reason=refusal.message)
        for memory, vector in pairs:
            try:
                await index.put([(memory, vector)], space=space)
            except InvalidRequest:
                await index.put([(memory, None)], space=space)
        await index.put((), space=space, position=position)


async def end(task: asyncio.Task[None]) -> None:
    """Cancel an endless task, and wait for it. Raises the bug that ended it before, if any."""
    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
        raise ended


async def _retried(act: Callable[[], Awaitable[T]], action: str) -> T:
    """Retry until the index is available."""
    pauses = waits()
    while True:
        try:
            return await act()
        except InvalidRequest:
            raise
        except FleetError as error:
            _log.warning("memory.index_unavailable", what=action, reason=error.message)
            await asyncio.sleep(next(pauses))
