"""The trajectory of an agent run: its steps, its plans, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.message import AssistantMessage
from swe_ai_fleet.domain.tool import ToolResult


class OnFailure(StrEnum):
    """The reaction to a failed step: try again, continue without it, give up, ask the model for a new plan."""

    RETRY = "retry"
    SKIP = "skip"
    ABORT = "abort"
    REPLAN = "replan"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """One operation of a plan, as `<tool>_<operation>` with its parameters, and its purpose.

    `expect` is what its result must contain for the plan to remain valid: a literal text, or `exit N` for the exit
    code; empty expects only success.
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
    """How a planned step ended. `skipped`: it failed and the run continued without it; `replaced`: a newer plan has no
    such step; `unreached`: it was not started, or has no result yet."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"
    REPLACED = "replaced"
    UNREACHED = "unreached"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The status of one step. `plan` and `number` count from 1; `attempts` is how often it ran."""

    plan: int
    number: int
    step: PlanStep
    status: StepStatus
    attempts: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The status of a run's plans. `met` is the result of the verification, None where there was none.

    `missing` says what the goal still lacks, by the verification.
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


class StopReason(StrEnum):
    """Why a run ended. Only `final_answer` is the agent's own decision; after `awaiting_approval` it can continue."""

    FINAL_ANSWER = "final_answer"
    NO_TOOL_CALLS = "no_tool_calls"
    MAX_ITERATIONS = "max_iterations"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_TOKENS = "max_tokens"
    MAX_COST = "max_cost"
    TIMEOUT = "timeout"
    CONTEXT_TOO_LONG = "context_too_long"
    TOOL_ERROR = "tool_error"
    MODEL_ERROR = "model_error"
    MODEL_STOPPED = "model_stopped"
    MALFORMED_REPLIES = "malformed_replies"
    LOOP = "loop"
    PLAN_FAILED = "plan_failed"
    AWAITING_APPROVAL = "awaiting_approval"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The result of one tool call. `repairs` say what was repaired in the call before it ran."""

    call_id: str
    result: ToolResult
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One turn: the model's reply and the results of its calls, in the order of the calls."""

    number: int
    reply: AssistantMessage
    observations: tuple[Observation, ...]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A whole run. `answer` is the argument of `final_answer`, else the last text of the model.

    `plan` is the report on its plans, None where it had none.
    """

    steps: tuple[Step, ...]
    stop_reason: StopReason
    answer: str
    usage: Usage
    error: str = ""
    plan: PlanReport | None = None
