"""Memories in a key-value bucket: one key a memory, `<tenant>.<namespace>.<memory id>`, the value its JSON."""

from __future__ import annotations

import secrets
from contextlib import suppress
from datetime import UTC, datetime

import structlog

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import Fenced, FleetError
from swe_ai_fleet.domain.memory import Memory, MemoryScope
from swe_ai_fleet.memory.admission import admitted
from swe_ai_fleet.ports import KeyValue

BARRIER = "_barrier"
"""A key of no meaning: whoever sees it change has seen everything that was changed before."""
_ORIGIN = "_origin"

_log = structlog.get_logger(__name__)


def key_of(memory: Memory) -> str:
    """Where a memory is kept."""
    return memory_key(memory.tenant, memory.namespace, memory.memory_id)


def memory_key(tenant: str, namespace: str, memory_id: str) -> str:
    """Where the memory of an id is kept, if it is in that namespace."""
    return f"{_token(tenant)}.{_token(namespace)}.{memory_id}"


def id_in(key: str) -> str:
    """The id of the memory that a key is of; empty for keys of other use."""
    return "" if key.startswith("_") else key.rpartition(".")[2]


def dumped(memory: Memory) -> bytes:
    """The value of a memory's key."""
    return to_json(memory)


def loaded(key: str, value: bytes) -> Memory | None:
    """The memory that was stored; None for keys of other use, and for what is no memory of that key."""
    if key.startswith("_"):
        return None
    try:
        memory = from_json(Memory, value)
        # Not asked again whether it holds secrets: it was when it was kept.
        admitted(memory, _as_it_is, datetime.now(UTC))
    except (ValueError, FleetError) as error:
        _log.warning("memory.unreadable", key=key, reason=str(error)[:200])
        return None
    return memory if key_of(memory) == key else None


def in_scope(memory: Memory, scope: MemoryScope) -> bool:
    """Whether a memory is one of a scope's."""
    return (
        memory.tenant == scope.tenant
        and (not scope.namespaces or memory.namespace in scope.namespaces)
        and (not scope.kinds or memory.kind in scope.kinds)
        and scope.metadata.items() <= memory.metadata.items()
    )


async def origin(store: KeyValue) -> str:
    """What tells this bucket from every other one that had its name, 16 hexadecimal digits.

    An index follows one bucket: after that is lost and made anew, its positions mean nothing. So let the index's own
    name hold this. Raises Unavailable.
    """
    known = await store.get(_ORIGIN)
    while known is None:
        with suppress(Fenced):
            await store.put(_ORIGIN, secrets.token_hex(8).encode(), revision=0)
        known = await store.get(_ORIGIN)
    return known.value.decode()


def _as_it_is(text: str) -> str:
    return text


def _token(text: str) -> str:
    """A text as one token of a key, each other character (and the escape itself) as `=XX` for each of its bytes."""
    return "".join(
        chr(byte) if byte < 128 and (chr(byte).isalnum() or chr(byte) in "-_") else f"={byte:02X}"
        for byte in text.encode()
    )
