"""Stores in memory, as strict as the real ones: changes of projects, values by key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.context import Change, KnowledgeErased, StoredChange, WorkRecorded
from swe_ai_fleet.domain.errors import AlreadyExists, Fenced
from swe_ai_fleet.in_process import MemoryKeyValue as MemoryKeyValue


class MemoryChanges:
    """A `ChangeLog` of one process; changes go through the codec as they do on the wire."""

    def __init__(self) -> None:
        self._changes: list[bytes] = []
        self._versions: dict[tuple[str, str], int] = {}
        self._recorded: set[tuple[str, str]] = set()
        self._changed = asyncio.Event()

    async def append(self, change: Change) -> StoredChange:
        """Write a change. Raises Fenced where its version is not the next, AlreadyExists for a second record."""
        # As over a network, others get their turn before it is decided.
        await asyncio.sleep(0)
        if isinstance(change.body, WorkRecorded):
            execution = (change.tenant, change.body.record.execution_id)
            if execution in self._recorded:
                raise AlreadyExists(f"execution {execution[1]} is already recorded")
            self._recorded.add(execution)
        elif not isinstance(change.body, KnowledgeErased):
            story = (change.tenant, change.story_id)
            if change.version != self._versions.get(story, 0) + 1:
                raise Fenced(f"version {change.version} is not the next of story {change.story_id}")
            self._versions[story] = change.version
        self._changes.append(to_json(change))
        self._changed.set()
        self._changed = asyncio.Event()
        return StoredChange(sequence=len(self._changes), change=change)

    async def read(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncGenerator[StoredChange | None, None]:
        """The changes from a sequence number on; with `follow` a None after those stored before, and no end."""
        position, until = max(from_sequence, 1), len(self._changes)
        while position <= until:
            yield self._stored(position)
            position += 1
        if not follow:
            return
        yield None
        while True:
            changed = self._changed
            while position <= len(self._changes):
                yield self._stored(position)
                position += 1
                changed = self._changed
            await changed.wait()

    def _stored(self, sequence: int) -> StoredChange:
        return StoredChange(sequence=sequence, change=from_json(Change, self._changes[sequence - 1]))
