"""What was counted in a stretch of time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.orchestrator.metrics.sketch import Sketch


@dataclass(slots=True, kw_only=True)
class ModelFigures:
    """One model's calls. `usage` has their tokens and, once the runs have ended, their cost."""

    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    latency: Sketch = field(default_factory=Sketch)

    def merge(self, other: ModelFigures) -> None:
        self.calls += other.calls
        self.usage += other.usage
        self.latency.merge(other.latency)


@dataclass(slots=True, kw_only=True)
class ToolFigures:
    """One operation's calls; `failures` are those that failed or were refused, `cached` those that cost nothing."""

    calls: int = 0
    failures: int = 0
    cached: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter[Outcome])
    latency: Sketch = field(default_factory=Sketch)

    def merge(self, other: ToolFigures) -> None:
        self.calls += other.calls
        self.failures += other.failures
        self.cached += other.cached
        if other.outcomes:
            self.outcomes.update(other.outcomes)
        self.latency.merge(other.latency)


@dataclass(slots=True, kw_only=True)
class Gauges:
    """What stood at a moment, or by how much it changed: agents at work, executions driven, executions waiting."""

    agents: int = 0
    driven: int = 0
    queued: int = 0

    def merge(self, other: Gauges) -> None:
        self.agents += other.agents
        self.driven += other.driven
        self.queued += other.queued

    def any(self) -> bool:
        """Whether anything is not 0."""
        return bool(self.agents or self.driven or self.queued)


@dataclass(slots=True, kw_only=True)
class Figures:
    """Counts, sums and latencies. Those of parts, merged, are those of the whole.

    `stops` are the ends of agents' runs by reason, `loops` what was done where one went in circles, `lost` the runs
    whose process died, `takeovers` the executions that another orchestrator went on with. `change` is by how much the
    gauges changed; `latencies` are by operation: deliberation, orchestration, workflow, agent, model_call, tool_call,
    check, queue_wait.
    """

    accepted: int = 0
    ended: Counter[ExecutionStatus] = field(default_factory=Counter[ExecutionStatus])
    agents_started: int = 0
    agents_succeeded: int = 0
    agents_failed: int = 0
    agents_cancelled: int = 0
    tool_failures: int = 0
    stops: Counter[str] = field(default_factory=Counter[str])
    loops: Counter[str] = field(default_factory=Counter[str])
    lost: int = 0
    takeovers: int = 0
    usage: Usage = field(default_factory=Usage)
    change: Gauges = field(default_factory=Gauges)
    latencies: dict[str, Sketch] = field(default_factory=dict[str, Sketch])
    models: dict[str, ModelFigures] = field(default_factory=dict[str, ModelFigures])
    tools: dict[str, ToolFigures] = field(default_factory=dict[str, ToolFigures])

    def took(self, operation: str, duration_ms: float) -> Self:
        """Count how long an operation took."""
        self.latencies.setdefault(operation, Sketch()).add(duration_ms)
        return self

    def merge(self, other: Figures) -> None:
        """Count everything that others have counted."""
        self.accepted += other.accepted
        if other.ended:
            self.ended.update(other.ended)
        self.agents_started += other.agents_started
        self.agents_succeeded += other.agents_succeeded
        self.agents_failed += other.agents_failed
        self.agents_cancelled += other.agents_cancelled
        self.tool_failures += other.tool_failures
        if other.stops:
            self.stops.update(other.stops)
        if other.loops:
            self.loops.update(other.loops)
        self.lost += other.lost
        self.takeovers += other.takeovers
        self.usage += other.usage
        self.change.merge(other.change)
        # Not by `setdefault`: this runs several times for each event, and would make what it throws away.
        for operation, sketch in other.latencies.items():
            if operation not in self.latencies:
                self.latencies[operation] = Sketch()
            self.latencies[operation].merge(sketch)
        for name, model in other.models.items():
            if name not in self.models:
                self.models[name] = ModelFigures()
            self.models[name].merge(model)
        for name, tool in other.tools.items():
            if name not in self.tools:
                self.tools[name] = ToolFigures()
            self.tools[name].merge(tool)
