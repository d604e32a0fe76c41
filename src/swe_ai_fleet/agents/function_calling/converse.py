"""Answering a conversation by calling functions, as one awaitable call."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypedDict

from swe_ai_fleet.agents.agent_run import AgentRun, RunParts
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.function_calling.conversation import read_conversation, write_conversation
from swe_ai_fleet.agents.function_calling.model_middleware import RetryingModel, ShownTools, WholeResults
from swe_ai_fleet.agents.function_calling.responses import AgentResponse, AgentTask, Narration
from swe_ai_fleet.agents.function_calling.setup import Setup
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.tool_call_dialects import without_calls
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER
from swe_ai_fleet.domain.errors import ModelError
from swe_ai_fleet.domain.message import SystemMessage
from swe_ai_fleet.domain.trajectory import StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel

Status = Literal["success", "error", "max_turns_exceeded"]
_STATUS: Mapping[StopReason, Status] = {
    StopReason.FINAL_ANSWER: "success",
    StopReason.NO_TOOL_CALLS: "success",
    StopReason.MAX_ITERATIONS: "max_turns_exceeded",
}


class CallResult(TypedDict):
    """A call that the model asked for, and what it gave, whole; `arguments` is the text the model wrote."""

    id: str
    tool: str
    arguments: str
    success: bool
    result: str


class ToolConversation(TypedDict):
    """How a conversation went on. `messages` is the whole of it, what came in included; `error` says what ended it.

    `tool_calls_executed` is how many `all_results` there are.
    """

    final_text: str
    tool_calls_executed: int
    all_results: list[CallResult]
    messages: list[dict[str, object]]
    iterations: int
    status: Status
    error: str


async def converse(
    model: ChatModel, setup: Setup, messages: Sequence[object], system_prompt: str, *, max_turns: int
) -> ToolConversation:
    """Let the model answer a conversation, by calling functions where it wants; its first reply without a call is it.

    Args:
        model: The model, as it is: trying again is done here.
        setup: The functions and the rules.
        messages: The conversation in OpenAI's shape, not empty.
        system_prompt: What the model is told first; a system message in `messages` gives way to it unless it is empty.
        max_turns: How many replies with calls are carried out.

    Raises:
        ValueError: The messages are no conversation, `max_turns` is below 1, or the cost is limited and the model has
            no price.
    """
    if max_turns < 1:
        raise ValueError("max_turns must be at least 1")
    given = read_conversation(messages, known_tools=setup.known_tools, field="messages")
    if not given:
        raise ValueError("messages is empty")
    if system_prompt:
        rest = given[1:] if isinstance(given[0], SystemMessage) else given
        given = (SystemMessage(content=system_prompt), *rest)
    task = AgentTask(id=uuid.uuid4().hex[:12], description=given[-1].content)
    narration = Narration(task, _unheard)
    toolbox = setup.toolbox(narration, task)
    history = History(given)
    retrying = RetryingModel(
        WholeResults(ShownTools(model, {FINAL_ANSWER.name: None}), narration.results), waits=setup.retry_waits
    )
    budget = Budget(replace(setup.limits, max_iterations=max_turns))
    if setup.prices:
        try:
            async with asyncio.timeout(budget.seconds_left):
                budget = setup.priced(budget, await retrying.probe())
        except (ModelError, TimeoutError) as fault:
            stop = StopReason.TIMEOUT if isinstance(fault, TimeoutError) else StopReason.MODEL_ERROR
            error = str(fault) or f"the limit of {budget.limits.timeout_seconds:g} seconds was reached"
            nothing = Trajectory(steps=(), stop_reason=stop, answer="", usage=budget.total(), error=error)
            return _outcome(nothing, narration, write_conversation(history.messages))
    parts = RunParts(
        model=retrying,
        toolbox=toolbox,
        history=history,
        budget=budget,
        rules=replace(setup.rules, max_reminders=0),
        journal=narration,
        guard=setup.guard(toolbox, threshold=setup.loop_threshold),
        sampling=setup.sampling,
    )
    trajectory = await AgentRun(parts).drive()
    return _outcome(trajectory, narration, write_conversation(history.messages, answer=trajectory.answer))


def _outcome(trajectory: Trajectory, narration: Narration, messages: list[dict[str, object]]) -> ToolConversation:
    results: list[CallResult] = [
        {
            "id": call.call_id,
            "tool": call.name,
            "arguments": call.arguments,
            "success": seen.result.success,
            "result": narration.results.get(call.call_id) or seen.result.observation(),
        }
        for step in trajectory.steps
        for call, seen in zip(step.reply.tool_calls, step.observations, strict=False)
    ]
    status: Status = _STATUS.get(trajectory.stop_reason, "error")
    return {
        "final_text": without_calls(trajectory.answer),
        "tool_calls_executed": len(results),
        "all_results": results,
        "messages": messages,
        "iterations": len(trajectory.steps),
        "status": status,
        "error": "" if status == "success" else trajectory.error,
    }


def _unheard(response: AgentResponse) -> None:
    """Nobody listens to a conversation while it goes on."""
