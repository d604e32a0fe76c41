"""A key-value store in memory, with revisions like the real one's."""

from __future__ import annotations

from swe_ai_fleet.domain.errors import Fenced
from swe_ai_fleet.ports import KeyValueEntry


class MemoryKeyValue:
    """A `KeyValue` of one process."""

    def __init__(self) -> None:
        self._entries: dict[str, KeyValueEntry] = {}
        self._revision = 0

    async def get(self, key: str) -> KeyValueEntry | None:
        """The value, None where there is none (any more)."""
        return self._entries.get(key)

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        """Store a value; its revision. Raises Fenced where it was changed since the `revision` given."""
        known = self._entries.get(key)
        if revision is not None and revision != (known.revision if known else 0):
            raise Fenced(f"{key} was changed by somebody else")
        self._revision += 1
        self._entries[key] = KeyValueEntry(key=key, value=value, revision=self._revision)
        return self._revision

    async def delete(self, key: str) -> None:
        """Remove a value; nothing happens where there is none."""
        if self._entries.pop(key, None) is not None:
            self._revision += 1

    async def entries(self, prefix: str = "") -> tuple[KeyValueEntry, ...]:
        """Everything under keys that begin so, by key."""
        return tuple(self._entries[key] for key in sorted(self._entries) if key.startswith(prefix))
