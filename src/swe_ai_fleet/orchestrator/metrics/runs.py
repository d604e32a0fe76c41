"""What has to be remembered of a run, or of an execution, to measure it when it ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.task import TaskKind

Seconds = float


@dataclass(slots=True, kw_only=True)
class OpenRun:
    """An agent's run that has not ended. `since` is None while it waits for a person.

    `told` is what its replies and tool calls said they spent since it last began anew.
    """

    since: Seconds | None
    worked: Seconds = 0.0
    model: str = ""
    told: Usage = field(default_factory=Usage)

    def pause(self, at: Seconds) -> bool:
        """Stop its clock; whether it ran."""
        if self.since is None:
            return False
        self.worked += max(0.0, at - self.since)
        self.since = None
        return True

    def go_on(self, at: Seconds) -> bool:
        """Start its clock; whether it stood."""
        if self.since is not None:
            return False
        self.since = at
        return True

    def untold(self, total: Usage) -> Usage:
        """What a run spent beyond what its events said: its sub-agents' calls, and the money."""
        told = self.told
        return Usage(
            prompt_tokens=max(0, total.prompt_tokens - told.prompt_tokens),
            completion_tokens=max(0, total.completion_tokens - told.completion_tokens),
            cached_tokens=max(0, total.cached_tokens - told.cached_tokens),
            model_calls=max(0, total.model_calls - told.model_calls),
            tool_calls=max(0, total.tool_calls - told.tool_calls),
            cost=max(0.0, total.cost - told.cost),
        )


@dataclass(slots=True, kw_only=True)
class OpenExecution:
    """An execution that has not ended. `runs` are its agents' by their ids; `claimed`: somebody drives it."""

    role: str
    kind: TaskKind
    started_at: Seconds
    claimed: bool = False
    runs: dict[str, OpenRun] = field(default_factory=dict[str, OpenRun])
