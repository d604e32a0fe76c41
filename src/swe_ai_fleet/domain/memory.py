"""What is remembered from one run to the next. All of it is untrusted text: data for a model, never instructions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import DEFAULT_TENANT, Task
from swe_ai_fleet.domain.text import check_length, utf8

MEMORIES_BUCKET = "agent-memories"
"""Where a fleet keeps them, by tenant, namespace and id."""
MAX_MEMORY_CHARS = 4_000
MAX_NAMESPACES = 16
MAX_METADATA = 16
MAX_METADATA_CHARS = 256
MAX_ENTITIES = 30
MAX_ENTITY_CHARS = 200
_NAMESPACE = re.compile(r"fleet|(agent|repository):[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")


class MemoryKind(StrEnum):
    """What a memory is: a fact somebody stated, a turn of a conversation, what an execution came to."""

    FACT = "fact"
    INTERACTION = "interaction"
    OUTCOME = "outcome"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One thing that is remembered.

    `memory_id` is made of the namespace and the words, so that the same thing is remembered once. `source` says where
    it comes from (`execution:<id>`, `agent:<id>`, `caller:<name>`). `created_at` is UTC, ISO 8601.
    """

    namespace: str
    text: str
    kind: MemoryKind = MemoryKind.FACT
    tenant: str = DEFAULT_TENANT
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    source: str = ""
    created_at: str = ""

    @property
    def memory_id(self) -> str:
        return memory_id(self.tenant, self.namespace, self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryScope:
    """Where to look: in these namespaces of a tenant, for memories of these kinds whose metadata have these values.

    Empty means no restriction, the tenant aside.
    """

    tenant: str = DEFAULT_TENANT
    namespaces: tuple[str, ...] = ()
    kinds: tuple[MemoryKind, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Recollection:
    """A memory that was found. `score` lies between 0 and 1; `found_by` is `words`, `meaning` or `words, meaning`."""

    memory: Memory
    score: float
    found_by: str = ""


def memory_id(tenant: str, namespace: str, text: str) -> str:
    """SHA-256, hexadecimal: equal for texts that differ in case and white space only."""
    words = " ".join(text.split()).casefold()
    return hashlib.sha256(utf8("\x1f".join((tenant, namespace, words)))).hexdigest()


def agent_namespace(agent_id: str) -> str:
    """Where one agent remembers."""
    return check_namespace(f"agent:{agent_id}", field="agent_id")


def repository_namespace(location: str) -> str:
    """Where what is known of a repository stands; made of its location, which may be long and hold anything."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", location.rstrip("/").removesuffix(".git").rpartition("/")[2]).strip("-")[:40]
    digest = hashlib.sha256(location.rstrip("/").removesuffix(".git").encode()).hexdigest()[:16]
    return f"repository:{name or 'r'}-{digest}"


def task_namespaces(task: Task) -> tuple[str, ...]:
    """The namespaces that a task reads and writes, its repository's where it names none."""
    return task.memory.namespaces or (repository_namespace(task.repo.location),)


def check_entities(names: Collection[str], *, field: str) -> tuple[str, ...]:
    """The names that memory is asked about, each once and on one line. Raises InvalidRequest."""
    if len(names) > MAX_ENTITIES:
        raise InvalidRequest(f"{len(names)} entities; too many", field=field, hint=f"at most {MAX_ENTITIES}")
    words: dict[str, None] = {}
    for number, name in enumerate(names):
        word = " ".join(name.split())
        if not word or len(word) > MAX_ENTITY_CHARS:
            raise InvalidRequest(
                "the name of an entity has a wrong length",
                field=f"{field}[{number}]",
                hint=f"1 to {MAX_ENTITY_CHARS} characters",
            )
        words[word] = None
    return tuple(words)


def check_namespaces(names: Collection[str], *, field: str) -> tuple[str, ...]:
    """The namespaces, if they are few and each of them is one. Raises InvalidRequest."""
    if len(names) > MAX_NAMESPACES:
        raise InvalidRequest(f"{len(names)} namespaces; too many", field=field, hint=f"at most {MAX_NAMESPACES}")
    return tuple(check_namespace(name, field=f"{field}[{number}]") for number, name in enumerate(names))


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Whether these are few texts by name, and short. Raises InvalidRequest."""
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(f"metadata has {len(metadata)} entries", field="metadata", hint=f"at most {MAX_METADATA}")
    for name, value in metadata.items():
        # Callers of the library are not held to the types.
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest(
                "metadata must be an object of strings", field="metadata", hint='such as {"topic": "build"}'
            )
        if not 1 <= len(name) <= MAX_METADATA_CHARS:
            raise InvalidRequest(
                f"a name of {len(name)} characters", field="metadata", hint=f"1 to {MAX_METADATA_CHARS} characters"
            )
        check_length(value, MAX_METADATA_CHARS, field=f"metadata[{name}]")


def check_namespace(text: str, *, field: str) -> str:
    """The namespace itself, if it is one. Raises InvalidRequest."""
    if not _NAMESPACE.fullmatch(text):
        raise InvalidRequest(
            f"{text[:64]!r} is not a memory namespace",
            field=field,
            hint="fleet, agent:<id> or repository:<name>, of A-Z a-z 0-9 . _ / -",
        )
    return text
