"""A memory as an index keeps it."""

from __future__ import annotations

import json

from swe_ai_fleet.domain.memory import Memory, MemoryKind


def dumped(memory: Memory) -> str:
    """The memory as ASCII, whatever its texts hold."""
    return json.dumps(
        {
            "namespace": memory.namespace,
            "text": memory.text,
            "kind": memory.kind.value,
            "tenant": memory.tenant,
            "metadata": dict(memory.metadata),
            "source": memory.source,
            "created_at": memory.created_at,
        },
        separators=(",", ":"),
    )


def loaded(payload: str) -> Memory:
    """The memory that was dumped."""
    values = json.loads(payload)
    return Memory(**values | {"kind": MemoryKind(values["kind"])})


def storable(text: str) -> str:
    """A text that every database takes, for columns that are compared only."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
