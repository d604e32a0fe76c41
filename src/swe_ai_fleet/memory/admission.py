"""Admission: checks of memories before they are stored, and of queries before a search.

Limits bound the number and the age of memories.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.memory import (
    MAX_MEMORY_CHARS,
    Memory,
    MemoryScope,
    check_metadata,
    check_namespace,
    check_namespaces,
)
from swe_ai_fleet.domain.text import check_identifier, check_length, well_formed
from swe_ai_fleet.ports import SecretMask

_SLACK = 100
MAX_QUERY_CHARS = 2_000
"""A longer query is cut to its beginning."""
MAX_RECALLED = 100
MAX_SOURCE_CHARS = 256
_ID_CHARS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """Most memories of one namespace, and their greatest age in days (0: any). Beyond either the oldest are forgotten.

    Raises InvalidRequest for invalid limits.
    """

    per_namespace: int = 20_000
    max_age_days: float = 0.0

    def __post_init__(self) -> None:
        if self.per_namespace < 1:
            raise InvalidRequest(f"memory_limit is {self.per_namespace}", field="memory_limit", hint="at least 1")
        if self.max_age_days < 0:
            raise InvalidRequest(f"memory_age_days is {self.max_age_days}", field="memory_age_days", hint="at least 0")

    @property
    def interval(self) -> int:
        """New memories of a namespace between two checks of its size: it may exceed its limit by one percent."""
        return max(1, self.per_namespace // _SLACK)

    def too_old(self, memory: Memory, now: datetime) -> bool:
        """Whether a memory exceeds the maximum age."""
        return bool(self.max_age_days) and memory.created_at < moment(now - timedelta(days=self.max_age_days))


def moment(time: datetime) -> str:
    """A time as memories store it, so that texts sort as times do: UTC, ISO 8601, milliseconds."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds")


def admitted(memory: Memory, mask: SecretMask, now: datetime) -> Memory:
    """A memory as it is stored: its secrets masked, its text well formed, its time no later than now.

    Raises InvalidRequest naming the field that is wrong.
    """
    check_identifier(memory.tenant, field="tenant")
    check_namespace(memory.namespace, field="namespace")
    # Checked before secrets are masked: masking a huge text takes long.
    check_length(memory.text, MAX_MEMORY_CHARS, field="text")
    check_length(memory.source, MAX_SOURCE_CHARS, field="source")
    text = mask(well_formed(memory.text)).strip()
    if not text:
        raise InvalidRequest("the memory is empty", field="text")
    # A mask may be longer than what it hides.
    return replace(
        memory,
        text=text[:MAX_MEMORY_CHARS],
        metadata=admitted_metadata(memory.metadata, mask),
        source=mask(well_formed(" ".join(memory.source.split()))),
        created_at=_time(memory.created_at, now),
    )


def admitted_scope(scope: MemoryScope) -> MemoryScope:
    """The scope itself. Raises InvalidRequest naming the field that is wrong."""
    check_identifier(scope.tenant, field="tenant")
    check_namespaces(scope.namespaces, field="namespaces")
    check_metadata(scope.metadata)
    return scope


def admitted_ids(memory_ids: Collection[str]) -> frozenset[str]:
    """The ids. Raises InvalidRequest for an invalid one."""
    for text in memory_ids:
        if len(text) != _ID_CHARS or not set(text) <= set("0123456789abcdef"):
            fault = f"{text[:80]!r} is not a memory id"
            raise InvalidRequest(fault, field="memory_ids", hint="64 hexadecimal digits")
    return frozenset(memory_ids)


def admitted_query(query: str, limit: int) -> str:
    """A query as it is searched for; empty where it has no words. Raises InvalidRequest."""
    if not 1 <= limit <= MAX_RECALLED:
        raise InvalidRequest(f"limit is {limit}", field="limit", hint=f"from 1 to {MAX_RECALLED}")
    return " ".join(well_formed(query[:MAX_QUERY_CHARS]).split())


def admitted_metadata(metadata: Mapping[str, str], mask: SecretMask) -> dict[str, str]:
    """Metadata as it is stored. Raises InvalidRequest."""
    check_metadata(metadata)
    return {mask(well_formed(name)): mask(well_formed(value)) for name, value in sorted(metadata.items())}


def _time(text: str, now: datetime) -> str:
    if not text:
        return moment(now)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{text[:40]!r} is not a time", field="created_at", hint="ISO 8601, UTC") from None
    # A memory with a future time would outlive every limit.
    return moment(min(time if time.tzinfo else time.replace(tzinfo=UTC), now))
