"""A plan: the operations that a model means to carry out, before the first of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class OnFailure(StrEnum):
    """What is done where a step fails: try again, go on without it, give up, ask the model for a new plan."""

    RETRY = "retry"
    SKIP = "skip"
    ABORT = "abort"
    REPLAN = "replan"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """One operation of a plan, as `<tool>_<operation>` with its parameters, and why it is there."""

    tool: str
    operation: str
    params: Mapping[str, object] = field(default_factory=dict[str, object])
    why: str = ""
    on_failure: OnFailure = OnFailure.ABORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps in their order, and the reasoning behind them."""

    steps: tuple[PlanStep, ...]
    reasoning: str = ""
