"""A key-value store in memory, with revisions like the real one's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from swe_ai_fleet.domain.errors import Fenced
from swe_ai_fleet.ports import KeyValueChange, KeyValueEntry


class MemoryKeyValue:
    """A `KeyValue` of one process."""

    def __init__(self) -> None:
        self._last: dict[str, KeyValueChange] = {}
        self._revision = 0
        self._changed = asyncio.Event()

    async def get(self, key: str) -> KeyValueEntry | None:
        """The value, None where there is none (any more)."""
        return self._entry(key)

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        """Store a value; its revision. Raises Fenced where it was changed since the `revision` given."""
        known = self._entry(key)
        if revision is not None and revision != (known.revision if known else 0):
            raise Fenced(f"{key} was changed by somebody else")
        return self._tell(key, value)

    async def delete(self, key: str) -> None:
        """Remove a value; nothing happens where there is none."""
        if self._entry(key) is not None:
            self._tell(key, None)

    async def entries(self, prefix: str = "") -> tuple[KeyValueEntry, ...]:
        """Everything under keys that begin so, by key."""
        found = [self._entry(key) for key in sorted(self._last) if key.startswith(prefix)]
        return tuple(entry for entry in found if entry is not None)

    async def changes(
        self, *, from_revision: int = 0, follow: bool = False
    ) -> AsyncGenerator[KeyValueChange | None, None]:
        """What was stored and removed from a revision on, the last of each key; with `follow` without an end."""
        position, caught_up = from_revision, False
        while True:
            changed = self._changed
            for change in sorted(self._last.values(), key=lambda one: one.revision):
                if change.revision >= position:
                    position = change.revision + 1
                    yield change
            if not caught_up:
                caught_up = True
                if not follow:
                    return
                yield None
            await changed.wait()

    def _entry(self, key: str) -> KeyValueEntry | None:
        last = self._last.get(key)
        if last is None or last.value is None:
            return None
        return KeyValueEntry(key=key, value=last.value, revision=last.revision)

    def _tell(self, key: str, value: bytes | None) -> int:
        self._revision += 1
        self._last[key] = KeyValueChange(key=key, value=value, revision=self._revision)
        self._changed.set()
        self._changed = asyncio.Event()
        return self._revision
