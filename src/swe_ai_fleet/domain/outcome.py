"""Outcomes: how a piece of work went and which kind of goal it had, for whoever learns from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.task import DEFAULT_TENANT

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
class Outcome:
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
