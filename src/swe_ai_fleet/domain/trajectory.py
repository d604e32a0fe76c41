"""What one agent run did, step by step, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.message import AssistantMessage
from swe_ai_fleet.domain.tool import ToolResult


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


class StopReason(StrEnum):
    """Why a run ended. Only `final_answer` is the agent's own decision; after `awaiting_approval` it can go on."""

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
    """What one tool call gave. `repairs` say what of the call was repaired before it could be carried out."""

    call_id: str
    result: ToolResult
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One turn: what the model said and what its calls gave, in the order of the calls."""

    number: int
    reply: AssistantMessage
    observations: tuple[Observation, ...]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A whole run. `answer` is what `final_answer` was called with, else the last text of the model.

    `plan` says what became of each step of its plans, where it had one.
    """

    steps: tuple[Step, ...]
    stop_reason: StopReason
    answer: str
    usage: Usage
    error: str = ""
    plan: PlanReport | None = None
