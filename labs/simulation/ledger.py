"""What is simulated, and what was measured."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal

from labs.simulation.nodes import Run
from labs.simulation.workload import Arrival
from swe_ai_fleet.domain.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is simulated. Times between failures are means, in hours."""

    seed: int = 20260101
    executions: int = 10_000
    nodes: int = 100
    places: int = 8
    replicas: int = 4
    driven: int = 120
    order: Literal["fair", "first come"] = "fair"
    take_overs: Literal["at once", "first", "in line"] = "first"
    lease_seconds: float = 15.0
    lag_seconds: float = 0.03
    node_hours: float = 20.0
    node_down_minutes: float = 10.0
    crash_hours: float = 0.75
    restart_seconds: float = 60.0
    sleep_hours: float = 1.5
    sleep_seconds: float = 40.0
    retry_seconds: float = 300.0


@dataclass(eq=False)
class Job:
    """An execution as the log has it, whatever anybody knows of it."""

    arrival: Arrival
    task: Task
    generation: int = 0
    owner: str = ""
    accepted_at: float = 0.0
    begun_at: float = -1.0
    finished_at: float = -1.0
    published: int = 0
    runs: list[Run] = field(default_factory=list[Run])
    lost_runs: int = 0
    orphaned_at: float = -1.0


@dataclass
class Tally:
    """What was measured."""

    jobs: list[Job] = field(default_factory=list[Job])
    refused: Counter[str] = field(default_factory=Counter[str])
    take_overs: list[float] = field(default_factory=list[float])
    crashes: int = 0
    sleeps: int = 0
    stale_claims: int = 0
    fenced: int = 0
    lost_runs: int = 0
    reassigned: int = 0
    samples: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])
    waiting: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
