"""Notices an agent that goes in circles, and says what is to be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from swe_ai_fleet.domain.trajectory import Step


class Remedy(StrEnum):
    """What is done: say so, say so more strongly, take the looped steps out and plan anew, end the run."""

    NUDGE = "nudge"
    STRONG_NUDGE = "strong_nudge"
    REPLAN = "replan"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What a loop guard says. `steps` is the length of the looped tail."""

    remedy: Remedy
    pattern: str
    text: str
    steps: int = 0


class LoopGuard:
    """Looks at each step of a run."""

    def observe(self, step: Step) -> Advice | None:
        """Take in one more step; None where nothing is wrong."""
        return None
