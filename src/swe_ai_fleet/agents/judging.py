"""One judge's votes over candidates that passed."""

from __future__ import annotations

from dataclasses import dataclass

from swe_ai_fleet.agents.recorded_run import RunServices
from swe_ai_fleet.domain.candidate import JudgeAssignment
from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.domain.review import Vote
from swe_ai_fleet.ports import Clone


@dataclass(frozen=True, kw_only=True)
class JudgeRun:
    """Carries out a `JudgeAssignment`s, each recorded like every run."""

    services: RunServices

    async def carry_out(self, assignment: JudgeAssignment, clone: Clone) -> tuple[Vote, ...]:
        """Ask the model; what it says is recorded like every run."""
        raise Unavailable("not there yet")
