"""Operations as the model sees them, and results of their calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.domain.task import Role


class Risk(StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class PolicyDecision(StrEnum):
    """The policy's decision about one call."""

    ALLOWED = "allowed"
    REFUSED = "refused"


class Outcome(StrEnum):
    """How one call ended. `started` is for the audit entry that is written before a side effect."""

    STARTED = "started"
    SUCCESS = "success"
    ERROR = "error"
    INVALID = "invalid"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


FOR_PROGRAMS = "x-for-programs"
"""A parameter whose schema has this as true is only for programs: models do not see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSpec:
    """One function that a model can call, with the traits for policy and scheduling.

    `name` is `<tool>_<operation>`; `parameters` is a JSON schema of type object; `locks` are the resources that two
    concurrent calls must not share; `time_limit_seconds` is the default limit of one call; a result is cut to
    `observation_chars` (0: the run's own limit); results of a read-only operation may be reused for the same tenant for
    `cache_seconds`, in other runs too.
    """

    name: str
    tool: str
    operation: str
    description: str
    parameters: Mapping[str, object]
    read_only: bool = False
    risk: Risk = Risk.LOW
    network: bool = False
    executes: bool = False
    locks: frozenset[str] = frozenset()
    time_limit_seconds: float = 300.0
    cache_seconds: float = 0.0
    observation_chars: int = 0
    roles: frozenset[Role] = frozenset(Role)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of one operation. `content` is plain text for a reader; `metadata` is JSON for a program.

    `duration` is in seconds. `artifact` is the digest of the whole output where it was `truncated`. `cached`: the
    result is that of an earlier, identical call.
    """

    success: bool
    operation: str
    content: str = ""
    error: str = ""
    exit_code: int | None = None
    metadata: Mapping[str, object] = field(default_factory=dict[str, object])
    outcome: Outcome = Outcome.SUCCESS
    duration: float = 0.0
    truncated: bool = False
    artifact: str = ""
    cached: bool = False

    def observation(self) -> str:
        """The text that the model reads about this call: the content, or an error that says what is valid."""
        if self.success:
            return self.content or f"{self.operation} succeeded and printed nothing."
        return "\n".join(part for part in (f"Error: {self.error or self.outcome}", self.content) if part)
