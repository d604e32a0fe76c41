"""What the runs of a deliberation spend together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.budget import Totals, Usage
from swe_ai_fleet.domain.task import Task


@dataclass(kw_only=True)
class Spending:
    """Adds up what runs spent; what is left of a task's totals is shared by those that come next.

    Args:
        task: Has the limits of each run and the totals of all.
    """

    task: Task
    usage: Usage = field(default_factory=Usage)

    def add(self, usage: Usage) -> None:
        """Count what a run spent."""
        self.usage += usage

    def granted(self, parts: int) -> Task | None:
        """The task with the limits of one of `parts` further runs; None where too little is left for all of them."""
        constraints = self.task.constraints
        totals, spent = constraints.totals, self.usage
        tokens = totals.max_tokens - spent.total_tokens
        calls = totals.max_tool_calls - spent.tool_calls
        cost = totals.max_cost - spent.cost
        if (totals.max_tokens and tokens < parts) or (totals.max_tool_calls and calls < parts):
            return None
        if totals.max_cost and cost <= 0:
            return None
        left = Totals(
            max_tokens=max(0, tokens) if totals.max_tokens else 0,
            max_tool_calls=max(0, calls) if totals.max_tool_calls else 0,
            max_cost=max(0.0, cost) if totals.max_cost else 0.0,
        )
        limits = left.share(constraints.limits, parts=parts)
        return replace(self.task, constraints=replace(constraints, limits=limits))
