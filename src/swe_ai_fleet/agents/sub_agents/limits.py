"""How many sub-agents a run may have, how deep, and what each may spend."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.tools.failure import ToolRefusal

SHARE = 0.5
"""Of what its parent has left a sub-agent gets so much at most: the parent must be able to use what it is told."""
MIN_TOKENS = 256
"""With fewer no sub-agent can say anything of use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAgentLimits:
    """Limits of all sub-agents of one run.

    `depth` counts levels below the run: with 1 its sub-agents have none of their own. `number` counts all of them, at
    whatever level. `each` is what one may spend.
    """

    depth: int = 2
    number: int = 8
    each: Limits = field(default_factory=lambda: Limits(max_iterations=5, max_tool_calls=12, timeout_seconds=90.0))


class Allowance:
    """What a run's sub-agents may still use; one object for all levels.

    Args:
        limits: What was allowed at the beginning.
        used: How many sub-agents an earlier part of the same run had.
    """

    def __init__(self, limits: SubAgentLimits, *, used: int = 0) -> None:
        self.limits = limits
        self.used = used

    @contextmanager
    def grant(self, name: str, parent: Budget, *, max_iterations: int = 0) -> Generator[Budget]:
        """The budget of one more sub-agent, with so many turns where they are given.

        Raises ToolRefusal where there may be no more of them, or too little is left.
        """
        if self.used >= self.limits.number:
            raise ToolRefusal(
                f"{name} was not started: this run had its {self.limits.number} sub-agents; go on with what you have"
            )
        limits = _shared(self.limits.each, parent)
        limits = replace(limits, max_iterations=max_iterations or limits.max_iterations)
        if parent.tokens_left is not None and limits.max_tokens < MIN_TOKENS:
            raise ToolRefusal(f"{name} was not started: {parent.tokens_left} tokens are left; go on with what you have")
        self.used += 1
        with parent.child(limits) as budget:
            yield budget


def _shared(limits: Limits, parent: Budget) -> Limits:
    """The limits, cut to the share of what the parent has left."""
    tokens, cost = parent.tokens_left, parent.cost_left
    return replace(
        limits,
        max_tool_calls=min(limits.max_tool_calls, int(parent.tool_calls_left * SHARE)),
        max_tokens=limits.max_tokens if tokens is None else min(limits.max_tokens or tokens, int(tokens * SHARE)),
        max_cost=limits.max_cost if cost is None else min(limits.max_cost or cost, cost * SHARE),
        timeout_seconds=min(limits.timeout_seconds, parent.seconds_left * SHARE),
    )
