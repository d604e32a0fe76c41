"""What one agent run did, step by step, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.message import AssistantMessage
from swe_ai_fleet.domain.plan import PlanReport
from swe_ai_fleet.domain.tool import ToolResult


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
