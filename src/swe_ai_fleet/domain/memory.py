"""Memories, and outcomes of executions to learn from; later runs use both.

All of it is untrusted text: data for a model, never instructions.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import DEFAULT_TENANT, Task
from swe_ai_fleet.domain.text import check_length, utf8

MEMORIES_BUCKET = "agent-memories"
"""The bucket of memories, by tenant, namespace and id."""
MAX_MEMORY_CHARS = 4_000
MAX_NAMESPACES = 16
MAX_METADATA = 16
MAX_METADATA_CHARS = 256
MAX_ENTITIES = 30
MAX_ENTITY_CHARS = 200
_NAMESPACE = re.compile(r"fleet|(agent|repository):[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")


class MemoryKind(StrEnum):
    """The kind of a memory: a stated fact, a turn of a conversation, the outcome of an execution."""

    FACT = "fact"
    INTERACTION = "interaction"
    OUTCOME = "outcome"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One memory.

    `memory_id` is made of the namespace and the words, so that the same text is stored once. `source` is its origin
    (`execution:<id>`, `agent:<id>`, `caller:<name>`). `created_at` is UTC, ISO 8601.
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
    """The scope of a search: a tenant's memories in these namespaces, of these kinds, with these metadata values.

    Empty means no restriction, except for the tenant.
    """

    tenant: str = DEFAULT_TENANT
    namespaces: tuple[str, ...] = ()
    kinds: tuple[MemoryKind, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Recollection:
    """A memory that was found. `score` is between 0 and 1; `found_by` is `words`, `meaning` or `words, meaning`."""

    memory: Memory
    score: float
    found_by: str = ""


def memory_id(tenant: str, namespace: str, text: str) -> str:
    """SHA-256, hexadecimal: equal for texts that differ in case and white space only."""
    words = " ".join(text.split()).casefold()
    return hashlib.sha256(utf8("\x1f".join((tenant, namespace, words)))).hexdigest()


def agent_namespace(agent_id: str) -> str:
    """The namespace of one agent's memories."""
    return check_namespace(f"agent:{agent_id}", field="agent_id")


def repository_namespace(location: str) -> str:
    """The namespace of a repository's memories; made of its location, which may be long and contain anything."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", location.rstrip("/").removesuffix(".git").rpartition("/")[2]).strip("-")[:40]
    digest = hashlib.sha256(location.rstrip("/").removesuffix(".git").encode()).hexdigest()[:16]
    return f"repository:{name or 'r'}-{digest}"


def task_namespaces(task: Task) -> tuple[str, ...]:
    """The namespaces that a task reads and writes; by default its repository's."""
    return task.memory.namespaces or (repository_namespace(task.repo.location),)


def check_entities(names: Collection[str], *, field: str) -> tuple[str, ...]:
    """The entity names of a memory search, each once and on one line. Raises InvalidRequest."""
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
    """The namespaces, if each is valid and there are not too many. Raises InvalidRequest."""
    if len(names) > MAX_NAMESPACES:
        raise InvalidRequest(f"{len(names)} namespaces; too many", field=field, hint=f"at most {MAX_NAMESPACES}")
    return tuple(check_namespace(name, field=f"{field}[{number}]") for number, name in enumerate(names))


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Check that metadata are strings by name, not too many and not too long. Raises InvalidRequest."""
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(f"metadata has {len(metadata)} entries", field="metadata", hint=f"at most {MAX_METADATA}")
    for name, value in metadata.items():
        # Callers of the library may pass other types.
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidRequest(
                "metadata must be an object of strings", field="metadata", hint='such as {"topic": "build"}'
            )
        if not 1 <= len(name) <= MAX_METADATA_CHARS:
            raise InvalidRequest(
                f"a name of {len(name)} characters", field="metadata", hint=f"1 to {MAX_METADATA_CHARS} characters"
            )
        check_length(value, MAX_METADATA_CHARS, field=f"metadata[{name}]")


def check_namespace(text: str, *, field: str) -> str:
    """The namespace itself, if it is valid. Raises InvalidRequest."""
    if not _NAMESPACE.fullmatch(text):
        raise InvalidRequest(
            f"{text[:64]!r} is not a memory namespace",
            field=field,
            hint="fleet, agent:<id> or repository:<name>, of A-Z a-z 0-9 . _ / -",
        )
    return text


_KINDS: tuple[tuple[str, frozenset[str]], ...] = tuple(
    (kind, frozenset(words.split()))
    for kind, words in (
        ("fix", "fix fixes repair bug bugs broken error errors crash crashes fails failing failure wrong"),
        ("test", "test tests testing coverage"),
        ("document", "document documents documentation docs docstring docstrings readme describe"),
        ("refactor", "refactor refactoring rename restructure simplify clean cleanup split extract move"),
        ("investigate", "why how what where explain find investigate analyse analyze compare research"),
        ("build", "add implement create introduce support make write extend new"),
        ("change", "change update upgrade replace remove delete migrate improve configure"),
    )
)
OUTCOMES_BUCKET = "agent-outcomes"
"""The bucket of outcomes, by tenant and subject."""
LEAST_RATING, BEST_RATING = 1, 5
MAX_COMMENT_CHARS = 2_000
MAX_REASON_CHARS = 2_000
PART_OF = "part_of"
"""The metadata key of an outcome for the execution that it is a part of."""
VERDICT = "verdict"
"""The metadata key for the verdict on the winner, else on the best candidate: verified, unverified or refuted."""
VERIFIER_SCORE = "verifier_score"
"""The metadata key for the verifier model's own score of the winner, from 0 to 1, not calibrated."""
VERIFIER_MODEL = "verifier_model"
"""The metadata key for the name of that model."""
MAX_GOAL_CHARS = 500
"""The most characters of an outcome's goal."""
_MEMORY_OPERATIONS = frozenset({"search_memory", "remember"})
_RESEARCH_OPERATIONS = frozenset({"research", "web_search", "read_webpage", "search_wikipedia", "get"})


def goal_type(goal: str) -> str:
    """The kind of a goal, by its first telling word: fix, test, document, refactor and the like; or other."""
    for word in goal[:2000].lower().split():
        bare = word.strip(".,:;!?()[]\"'`*")
        for kind, words in _KINDS:
            if bare in words:
                return kind
    return "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOutcome:
    """One execution or plan session at its end.

    `subject_id` is the execution's or the session's id. `approach` is `deliberate`, `orchestrate`, `plan` or
    `workflow`, followed by a slash and the planning mode where one was requested. `council` names
    the agents' council, empty where they were made for the task; `model` and `model_profile` are those of the agents;
    `agents` is their number, `agents_used` the names of the agents (or sub-agents) that did something. `memory_share`,
    `research_share` and `tool_share` are shares of the tool calls, between 0 and 1 and together at most 1. `evidence`
    is the winner's share of passed checks, between 0 and 1. `rating` is people's, from 1 to 5; 0: not rated. `comment`
    is their comment, at most `MAX_COMMENT_CHARS`. `approach_ratio` is the share of a plan's proposals that a person
    approved, between 0 and 1. `reason` says why it was rejected, failed or was cancelled, at most `MAX_REASON_CHARS`.
    `usage.cost` is in the currency of the model prices.
    """

    subject_id: str
    tenant: str = DEFAULT_TENANT
    goal: str = ""
    goal_type: str = "other"
    role: str = ""
    repository: str = ""
    approach: str = ""
    council: str = ""
    model: str = ""
    model_profile: str = ""
    agents: int = 0
    agents_used: tuple[str, ...] = ()
    rounds: int = 0
    memory_share: float = 0.0
    research_share: float = 0.0
    tool_share: float = 0.0
    success: bool = False
    status: str = ""
    evidence: float = 0.0
    usage: Usage = field(default_factory=Usage)
    duration_ms: int = 0
    rating: int = 0
    rated_by: str = ""
    ended_at: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    comment: str = ""
    approach_ratio: float = 0.0
    reason: str = ""

    def with_calls(self, operations: Iterable[str]) -> WorkOutcome:
        """The outcome with the shares of memory, research and other tools among these calls, given by operation."""
        calls = Counter(map(_share_of, operations))
        total = max(1, calls.total())
        return replace(
            self,
            memory_share=calls["memory"] / total,
            research_share=calls["research"] / total,
            tool_share=calls["tool"] / total,
        )


def _share_of(operation: str) -> str:
    if operation in _MEMORY_OPERATIONS:
        return "memory"
    return "research" if operation in _RESEARCH_OPERATIONS else "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option that was compared: how often it was tried, and its estimated reward.

    `expected` is the mean of the reward's distribution (0 to 1), `low` and `high` bound its middle 90 %; `best` is the
    probability that it is the best of the options.
    """

    value: str
    tried: float
    expected: float
    low: float
    high: float
    best: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The recommended value of one choice, and all options that were compared. `reason` explains it in a sentence."""

    choice: str
    value: str
    options: tuple[Option, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Advice from experience for a new task. It changes nothing by itself. `outcomes` is how many it is based on."""

    goal_type: str
    council: Advice
    model_profile: Advice
    agents: Advice
    approach: Advice
    outcomes: int
