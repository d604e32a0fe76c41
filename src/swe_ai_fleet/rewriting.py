"""A value of a key-value store that several change: read, changed and put back, again where somebody was faster.

And a store for one process alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable

from swe_ai_fleet.domain.errors import Fenced, Unavailable
from swe_ai_fleet.ports import KeyValue, KeyValueChange, KeyValueEntry

_TRIES = 20
_PAUSE_SECONDS = 0.05


async def rewritten(
    store: KeyValue, key: str, change: Callable[[KeyValueEntry | None], bytes | None], *, name: str
) -> KeyValueEntry | None:
    """What stands there after a change; None where there is nothing.

    Args:
        store: Where the value is kept.
        key: Its name there.
        change: The new value, made of what stands there; None leaves that as it is.
        name: What it is, for people: `the outcome of 'e-1'`.

    Raises what `change` raises, and Unavailable, also where others change it all the time.
    """
    for _ in range(_TRIES):
        entry = await store.get(key)
        value = change(entry)
        if value is None:
            return entry
        try:
            revision = await store.put(key, value, revision=entry.revision if entry else 0)
        except Fenced:
            await asyncio.sleep(random.uniform(0, _PAUSE_SECONDS))  # noqa: S311 (jitter, not a secret)
        else:
            return KeyValueEntry(key=key, value=value, revision=revision)
    raise Unavailable(f"{name} is being changed by others all the time", hint="try again")


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
