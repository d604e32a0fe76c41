"""A plan: the operations that a model means to carry out, before the first of them is; and what became of them."""

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
    """One operation of a plan, as `<tool>_<operation>` with its parameters, and why it is there.

    `expect` is what its result must show for the plan to hold: a literal part of it, or `exit N` for the exit code;
    empty expects only success.
    """

    tool: str
    operation: str
    params: Mapping[str, object] = field(default_factory=dict[str, object])
    why: str = ""
    on_failure: OnFailure = OnFailure.ABORT
    expect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps in their order, and the reasoning behind them."""

    steps: tuple[PlanStep, ...]
    reasoning: str = ""


class StepStatus(StrEnum):
    """How a planned step ended. `skipped` failed and was gone on without; `replaced` was left out by a newer plan;
    `unreached` was not begun, or has no result yet."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"
    REPLACED = "replaced"
    UNREACHED = "unreached"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What became of one step. `plan` and `number` count from 1; `attempts` is how often it was carried out."""

    plan: int
    number: int
    step: PlanStep
    status: StepStatus
    attempts: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """What became of a run's plans. `met` is what the verification said, None where there was none.

    `missing` says what the goal still lacks, as the verification saw it.
    """

    steps: tuple[StepReport, ...] = ()
    plans: int = 0
    met: bool | None = None
    missing: str = ""

    def as_text(self) -> str:
        """The report as text, a line a step."""
        return "\n".join(_line(report) for report in self.steps)


def _line(report: StepReport) -> str:
    step, number = report.step, f"{report.number}." if report.plan == 1 else f"{report.plan}/{report.number}."
    error = f" ({report.error})" if report.error else ""
    return f"{number} {step.tool} {step.operation}: {report.status}{error}"
