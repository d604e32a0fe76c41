"""One peer's review of one candidate, made in a clone that has the candidate's patch applied."""

from __future__ import annotations

from dataclasses import dataclass

from swe_ai_fleet.agents.recorded_run import RunServices
from swe_ai_fleet.domain.candidate import ReviewAssignment
from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.domain.review import Critique
from swe_ai_fleet.ports import Clone


@dataclass(frozen=True, kw_only=True)
class ReviewRun:
    """Carries out a `ReviewAssignment`s, each recorded like every run."""

    services: RunServices

    async def carry_out(self, assignment: ReviewAssignment, clone: Clone) -> Critique:
        """Ask the model; what it says is recorded like every run."""
        raise Unavailable("not there yet")
