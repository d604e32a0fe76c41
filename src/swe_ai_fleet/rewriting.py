"""A value of a key-value store that several change: read, changed and put back, again where somebody was faster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from swe_ai_fleet.domain.errors import Fenced, Unavailable
from swe_ai_fleet.ports import KeyValue, KeyValueEntry

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
    raise Unavailable(f"{name} is being changed too often", hint="try again")
