"""What one run leaves for the next: memories, and outcomes that one can learn from.

All of it is untrusted text: data for a model, never instructions.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.domain.budget import Usage
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
"""Where a fleet keeps them, by tenant and subject."""
LEAST_RATING, BEST_RATING = 1, 5
MAX_COMMENT_CHARS = 2_000
MAX_REASON_CHARS = 2_000
PART_OF = "part_of"
"""Under this name the metadata of an outcome hold the execution that it is only a part of."""
VERDICT = "verdict"
"""Under this name they hold what evidence says of what won, or of the best: verified, unverified or refuted."""
VERIFIER_SCORE = "verifier_score"
"""Under this name they hold what the verifier model said of the winner, from 0 to 1, as it said it."""
VERIFIER_MODEL = "verifier_model"
"""Under this name they hold which model that was."""


def goal_type(goal: str) -> str:
    """What kind of goal it is, by the first word that says so: fix, test, document, refactor and the like; or other."""
    for word in goal[:2000].lower().split():
        bare = word.strip(".,:;!?()[]\"'`*")
        for kind, words in _KINDS:
            if bare in words:
                return kind
    return "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOutcome:
    """One execution or plan session at its end.

    `subject_id` is the execution's or the session's id. `approach` is how it was gone about (`deliberate`,
    `orchestrate`, `plan`, `workflow`, with the planning mode behind a slash where one was asked for). `council` names
    the agents' council, empty where they were made for the task; `model` and `model_profile` what they ran on; `agents`
    is their number, `agents_used` the names of those (or of the sub-agents) that did something. `memory_share`,
    `research_share` and `tool_share` are the shares of tool calls that went to each, between 0 and 1 and together at
    most 1. `evidence` is the winner's share of passed checks, between 0 and 1. `rating` is people's, from 1 to 5; 0:
    nobody has rated it. `comment` is what they say of it, at most `MAX_COMMENT_CHARS`. `approach_ratio` is, of a plan,
    the share of its proposals that a person approved, between 0 and 1. `reason` says why it was rejected, failed or was
    broken off, at most `MAX_REASON_CHARS`. `cost` is in the currency of the model prices.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One choice that was weighed: how often it was tried, and how good it is thought to be.

    `expected` is the mean of what is believed of its reward (0 to 1), `low` and `high` bound the middle 90 % of it;
    `best` is the probability that it is the best of those weighed.
    """

    value: str
    tried: float
    expected: float
    low: float
    high: float
    best: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What is recommended for one choice, and all that was weighed. `reason` says it in a sentence."""

    choice: str
    value: str
    options: tuple[Option, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What experience says about a new task. It changes nothing by itself. `outcomes` is how many it rests on."""

    goal_type: str
    council: Advice
    model_profile: Advice
    agents: Advice
    approach: Advice
    outcomes: int
