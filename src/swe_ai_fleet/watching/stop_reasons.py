"""What a person can do about a run that stopped: a sentence for each stop reason that asks for something."""

from __future__ import annotations

from collections.abc import Mapping

from swe_ai_fleet.domain.trajectory import StopReason

PAGE = "docs/stop-reasons.md"
ADVICE: Mapping[StopReason, str] = {
    StopReason.NO_TOOL_CALLS: "the model called no tool; `fleet doctor` shows whether its server offers tool calls",
    StopReason.MAX_ITERATIONS: "it took too many replies; split the task with --subtasks, or name its files",
    StopReason.MAX_TOOL_CALLS: "it made too many calls; split the task with --subtasks, or name its files",
    StopReason.MAX_TOKENS: "its tokens are used up; raise --max-tokens, or split the task with --subtasks",
    StopReason.MAX_COST: "its money is used up; raise --max-cost, or choose a cheaper model with --profile",
    StopReason.TIMEOUT: "its time is used up; raise --timeout",
    StopReason.CONTEXT_TOO_LONG: "the conversation does not fit the model; choose one with a longer context",
    StopReason.TOOL_ERROR: "its tool calls failed again and again; `fleet export ID --format markdown` shows them",
    StopReason.MODEL_ERROR: "the model server failed; `fleet doctor` says why",
    StopReason.MODEL_STOPPED: "the model refused, or its provider filtered the reply; put the task in other words",
    StopReason.MALFORMED_REPLIES: "the model's tool calls could not be read; choose a model that is made for tools",
    StopReason.LOOP: "it repeated itself; say more precisely what to do, or choose another model with --profile",
    StopReason.PLAN_FAILED: "its plan could not be read or carried out; try --mode agentic",
    StopReason.LOST: "its process died more often than it is restarted; the host may be short of memory",
}
