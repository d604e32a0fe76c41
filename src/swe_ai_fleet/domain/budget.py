"""What a run may spend, and what it has spent."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from swe_ai_fleet.domain.errors import InvalidRequest

MAX_COST = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What was spent. Tokens as the server counts them; `cached_tokens` are the part of the prompt it had cached.

    `cost` is money in the currency of the configured prices, 0 where none are.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    duration_ms: int = 0
    cost: float = 0.0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            model_calls=self.model_calls + other.model_calls,
            tool_calls=self.tool_calls + other.tool_calls,
            duration_ms=self.duration_ms + other.duration_ms,
            cost=self.cost + other.cost,
        )


def check_cost(usage: Usage) -> None:
    """Check that a cost is in range. Raises InvalidRequest."""
    # JSON has no infinity: a value with one could not be read again.
    if not 0 <= usage.cost <= MAX_COST:
        raise InvalidRequest(f"{usage.cost} is not a valid cost", field="usage.cost", hint=f"from 0 to {MAX_COST:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one agent run may spend. `max_tokens` counts prompt and completion; 0 tokens or cost means no limit."""

    max_iterations: int = 100
    max_tool_calls: int = 300
    max_tokens: int = 0
    timeout_seconds: float = 1800.0
    command_timeout_seconds: float = 300.0
    max_cost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What a caller allows one request of a plan; 0: the default."""

    max_iterations: int = 0
    max_tool_calls: int = 0
    timeout_seconds: float = 0
    max_tokens: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 0:
                raise InvalidRequest(f"{name} is {value}", field=f"limits.{name}", hint="0 is the default")

    def over(self, default: Limits) -> Limits:
        """The default limits, replaced by those that were given."""
        return replace(default, **{name: value for name, value in asdict(self).items() if value})


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What all candidates of a task may spend together; 0 means no such limit."""

    max_tokens: int = 0
    max_tool_calls: int = 0
    max_cost: float = 0.0

    def share(self, limits: Limits, *, parts: int) -> Limits:
        """One candidate's limits where `parts` of them share these totals evenly; never more than `limits` themselves.

        A share rounds down, so that together they stay within the total, but is never 0, which would be no limit.
        """
        return replace(
            limits,
            max_tokens=int(lower(limits.max_tokens, self.max_tokens // parts if self.max_tokens else None, least=1)),
            max_tool_calls=int(
                lower(limits.max_tool_calls, self.max_tool_calls // parts if self.max_tool_calls else None, least=1)
            ),
            max_cost=lower(limits.max_cost, self.max_cost / parts if self.max_cost else None, least=1e-9),
        )


def lower(limit: float, share: float | None, *, least: float) -> float:
    """The lower of a limit (0: none) and a share (None: none); never 0, which would mean no limit."""
    if share is None:
        return limit
    return max(least, min(limit or share, share))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a model costs, for a million tokens each, in one currency of the operator's choice."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None

    def cost(self, usage: Usage) -> float:
        """The price of a usage; cached prompt tokens cost what others do where no price of theirs is known."""
        cached = self.prompt if self.cached is None else self.cached
        fresh = max(0, usage.prompt_tokens - usage.cached_tokens)
        return (fresh * self.prompt + usage.cached_tokens * cached + usage.completion_tokens * self.completion) / 1e6
