"""A planner that splits a task into subtasks."""

from __future__ import annotations

from dataclasses import dataclass

from swe_ai_fleet.agents.recorded_run import RunServices
from swe_ai_fleet.domain.candidate import DeriveAssignment
from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.domain.subtask import Derivation
from swe_ai_fleet.ports import Clone


@dataclass(frozen=True, kw_only=True)
class DeriveRun:
    """Carries out a `DeriveAssignment`s, each recorded like every run."""

    services: RunServices

    async def carry_out(self, assignment: DeriveAssignment, clone: Clone | None) -> Derivation:
        """Ask the model; what it says is recorded like every run."""
        raise Unavailable("not there yet")
