"""A program's memory: the last turns of a conversation in a file, and memories in an index that is their store."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import structlog

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.memory import Memory, MemoryScope, Recollection
from swe_ai_fleet.domain.text import visible
from swe_ai_fleet.extensions.knowledge.following import end, put_with_vectors
from swe_ai_fleet.extensions.knowledge.memory_index import MemoryIndex
from swe_ai_fleet.extensions.knowledge.recalling import (
    EMBEDDED_AT_ONCE,
    Meaning,
    MemoryLimits,
    Recalling,
    admitted,
    admitted_ids,
    admitted_scope,
    utc_now,
)
from swe_ai_fleet.ports import Embedder, SecretMask
from swe_ai_fleet.tools.truncation import truncate

MAX_CHARS = 32_000
_MOST_MESSAGES = 1_000
_LOCK_SECONDS = 10.0
_LOCK_PAUSE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """A user's message and its answer. `at` is UTC, ISO 8601."""

    user: str
    assistant: str
    at: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    turns: tuple[StoredTurn, ...] = ()


class ConversationMemory:
    """Short-term memory: the newest turns, a question and its answer always together.

    Args:
        max_messages: How many messages are kept; a turn has two. 0 keeps none. Together they have at most `MAX_CHARS`
            characters, and each at most a quarter of that; the middle of a longer message is cut.

    Raises InvalidRequest for a limit that fits no turn.
    """

    def __init__(self, max_messages: int = 10) -> None:
        if max_messages == 1 or not 0 <= max_messages <= _MOST_MESSAGES:
            raise InvalidRequest(
                f"max_messages is {max_messages}",
                field="max_conversation_messages",
                hint=f"an even number from 2 to {_MOST_MESSAGES}, or 0 to keep none; a turn has two messages",
            )
        self._most_turns = max_messages // 2
        self._turns: tuple[StoredTurn, ...] = ()

    def __len__(self) -> int:
        """How many messages are kept."""
        return 2 * len(self._turns)

    @property
    def turns(self) -> tuple[StoredTurn, ...]:
        """The kept turns, oldest first."""
        return self._turns

    def replace(self, turns: tuple[StoredTurn, ...]) -> None:
        """Replace all turns by these, as far as they fit."""
        self._turns = self.fitting(turns)

    def fitting(self, turns: tuple[StoredTurn, ...]) -> tuple[StoredTurn, ...]:
        """The newest of these turns that fit the limits."""
        limit, room = MAX_CHARS // 4, MAX_CHARS
        newest: list[StoredTurn] = []
        for turn in reversed(turns[max(0, len(turns) - self._most_turns) :] if self._most_turns else ()):
            fitted = StoredTurn(
                user=_cut(turn.user, limit), assistant=_cut(turn.assistant, limit), at=turn.at, metadata=turn.metadata
            )
            room -= len(fitted.user) + len(fitted.assistant)
            if room < 0:
                break
            newest.append(fitted)
        return tuple(reversed(newest))

    def clear(self) -> None:
        """Forget all turns."""
        self._turns = ()

    def get_context_string(self, limit: int = 5) -> str:
        """The newest messages as text for a prompt, at most `limit` of them; whole turns, and at least one.

        Further lines of a message are indented, so that they cannot be taken for another message.
        """
        turns = self._turns[-max(1, limit // 2) :] if limit > 0 else ()
        return "\n".join(f"User: {_indented(turn.user)}\nAssistant: {_indented(turn.assistant)}" for turn in turns)


def _indented(text: str) -> str:
    # Each message is cleaned by itself: an escape sequence must not span two messages.
    return "\n  ".join(visible(text).splitlines())


def _cut(text: str, limit: int) -> str:
    # The note on the omitted part must fit as well.
    return text if len(text) <= limit else truncate(text, limit - 100)


class ConversationFile:
    """The turns of one agent's conversation. Several processes may add to it at once.

    Args:
        directory: The directory of conversations; created at the first write, accessible only to its owner.
        name: The agent.
    """

    def __init__(self, directory: Path, name: str) -> None:
        readable = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40]
        # Names with the same readable part differ by their digest.
        self._path = directory / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"

    async def read(self) -> tuple[StoredTurn, ...]:
        """The current turns. Raises PreconditionFailed, Unavailable."""
        return await asyncio.to_thread(self._read)

    async def update(
        self, change: Callable[[tuple[StoredTurn, ...]], tuple[StoredTurn, ...]]
    ) -> tuple[StoredTurn, ...]:
        """Replace the turns by the result of a function on them, in a thread, under an exclusive lock.

        Raises as `read` does.
        """
        return await asyncio.to_thread(self._update, change)

    def _read(self) -> tuple[StoredTurn, ...]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be read: {error.strerror}", field="home") from error
        try:
            return from_json(_Stored, data).turns
        except ValueError:
            raise PreconditionFailed(
                f"{self._path} is not a conversation", field="home", hint="remove the file; nothing else depends on it"
            ) from None

    def _update(self, change: Callable[[tuple[StoredTurn, ...]], tuple[StoredTurn, ...]]) -> tuple[StoredTurn, ...]:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                changed = change(self._read())
                if changed:
                    self._write(to_json(_Stored(turns=changed)))
                else:
                    self._path.unlink(missing_ok=True)
                return changed
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be written: {error.strerror}", field="home") from error

    def _write(self, data: bytes) -> None:
        # Written to another file and renamed: the file is complete, old or new, also if this process is killed.
        beside = self._path.with_suffix(".new")
        with suppress(FileNotFoundError):
            beside.unlink()
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)

    @contextmanager
    def _locked(self) -> Generator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path.with_suffix(".lock"), flags, 0o600)
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise Unavailable(f"another process holds {self._path}", field="home") from None
                time.sleep(_LOCK_PAUSE)


_ALL = 1_000_000

_log = structlog.get_logger(__name__)


class KeptMemories:
    """`Memories` stored only in a `MemoryIndex`, such as a file.

    The position of the index is odd while memories may lack their vectors, and each such memory makes it another odd
    number: the next process that opens the index with an embedder makes the vectors.
    """

    def __init__(
        self, index: MemoryIndex, *, mask: SecretMask, embedder: Embedder | None, limits: MemoryLimits
    ) -> None:
        self._index = index
        self._meaning = Meaning(embedder)
        self._recalling = Recalling(index, self._meaning, limits)
        self._mask = mask
        self._writing = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        index: MemoryIndex,
        *,
        tenant: str,
        mask: SecretMask,
        embedder: Embedder | None,
        limits: MemoryLimits,
    ) -> AsyncGenerator[Self]:
        """Use an index as a store; missing vectors of a tenant's memories are made in the background.

        Args:
            index: Stores the memories. No follower may write into it.
            tenant: The tenant whose memories get their missing vectors.
            mask: Hides secrets before anything is stored.
            embedder: Makes vectors; None: memories are found by their words.
            limits: The limits of number and age.
        """
        memories = cls(index, mask=mask, embedder=embedder, limits=limits)
        # No task group: the context may be entered by one task and left by another.
        catching_up = asyncio.create_task(memories.catch_up(tenant))
        try:
            yield memories
        finally:
            await end(catching_up)

    async def catch_up(self, tenant: str) -> None:
        """Make the missing vectors of a tenant's memories, as long as the embedder is available."""
        space = self._meaning.space
        if not space:
            return
        try:
            position = await self._index.position(space)
            if position and position % 2 == 0:
                return
            listed = await self._index.listed(MemoryScope(tenant=tenant), limit=_ALL)
            for start in range(0, len(listed), EMBEDDED_AT_ONCE):
                some = listed[start : start + EMBEDDED_AT_ONCE]
                vectors = await self._meaning.of_all(some)
                async with self._writing:
                    # Memories that were deleted in the meantime must not come back.
                    existing = [memory for memory in some if await self._recalling.holds(memory)]
                    pairs = [(memory, vectors.get(memory.memory_id)) for memory in existing]
                    await put_with_vectors(self._index, pairs, space=space)
            async with self._writing:
                # A changed position means that another memory was stored without its vector meanwhile.
                if await self._index.position(space) == position:
                    await self._index.put((), space=space, position=position + 2 - position % 2)
        except FleetError as error:
            _log.warning("memory.vectors_wait", reason=error.message)

    async def remember(self, memory: Memory) -> bool:
        """Store a memory, its secrets masked; False if it exists already. It is durable when this returns.

        Of near duplicates (see `near_duplicate`), the newer one stays. Raises InvalidRequest, ResourceExhausted,
        Unavailable.
        """
        memory = admitted(memory, self._mask, utc_now())
        if await self._recalling.holds(memory):
            return False
        vector = await self._meaning.of_memory(memory)
        space = self._meaning.space
        async with self._writing:
            if await self._recalling.holds(memory):
                return False
            older = await self._recalling.near(memory, vector)
            if older is not None and older.created_at > memory.created_at:
                return False
            if len(vector):
                await put_with_vectors(self._index, [(memory, vector)], space=space)
            else:
                position = await self._index.position(space) if space else 0
                odd = position + 1 + position % 2 if space else 0
                await self._index.put([(memory, None)], space=space, position=odd)
            if older is not None:
                await self._index.remove([older.memory_id])
            surplus = await self._recalling.surplus(memory)
            if surplus:
                await self._index.remove([memory.memory_id for memory in surplus])
        return True

    async def recall(self, query: str, scope: MemoryScope, *, limit: int = 3) -> tuple[Recollection, ...]:
        """The memories that fit a query, best first; may be empty. Raises InvalidRequest, Unavailable."""
        return await self._recalling.recall(query, scope, limit=limit)

    async def forget(self, scope: MemoryScope, memory_ids: Collection[str] = ()) -> int:
        """Erase these memories of a scope, or (none named) all of it; how many. Raises InvalidRequest, Unavailable."""
        scope, chosen = admitted_scope(scope), admitted_ids(memory_ids)
        async with self._writing:
            listed = await self._index.listed(scope, limit=_ALL)
            ids = [memory.memory_id for memory in listed if not chosen or memory.memory_id in chosen]
            if ids:
                await self._index.remove(ids)
        return len(ids)
