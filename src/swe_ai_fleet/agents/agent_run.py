"""The agent loop: ask the model, carry out its calls, tell it what they gave, until it is done or a limit is hit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from swe_ai_fleet.agents.toolbox import FINAL_ANSWER, Toolbox
from swe_ai_fleet.domain.budget import Limits, Usage
from swe_ai_fleet.domain.errors import ContextTooLong, ModelError
from swe_ai_fleet.domain.event import MessageAdded, ModelReplied
from swe_ai_fleet.domain.message import AssistantMessage, Message, Sampling, ToolMessage, UserMessage
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import Observation, Step, StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel, Journal

REMINDER = (
    "Your reply called no tool. Go on with the task by calling one, "
    "or call final_answer with your result if it is done."
)
MAX_REMINDERS = 2


class AgentRun:
    """One agent in one workspace, from its first message to its stop reason.

    Args:
        model: The model that plans.
        toolbox: What it can call.
        journal: Where each reply is recorded (tool calls are recorded by the toolbox's audit trail).
        limits: What the run may spend.
        sampling: How the model samples.
        abort_on_error: Stop at the first tool call that fails.
    """

    def __init__(
        self,
        *,
        model: ChatModel,
        toolbox: Toolbox,
        journal: Journal | None,
        limits: Limits,
        sampling: Sampling | None = None,
        abort_on_error: bool = False,
    ) -> None:
        self._model = model
        self._toolbox = toolbox
        self._journal = journal
        self._limits = limits
        self._sampling = sampling or Sampling()
        self._abort_on_error = abort_on_error
        self._history: list[Message] = []
        self._steps: list[Step] = []
        self._usage = Usage()
        self._reminders = 0
        self._started_at = time.monotonic()

    async def drive(self, opening: Sequence[Message]) -> Trajectory:
        """Run to the end. Spent limits and model faults are stop reasons; a cancellation and bugs are raised."""
        self._history.extend(opening)
        try:
            async with asyncio.timeout(self._limits.timeout_seconds):
                while (stop := self._spent()) is None:
                    step = await self._step()
                    if (stop := self._decided(step)) is not None:
                        break
        except TimeoutError:
            return self._ended(StopReason.TIMEOUT, f"the limit of {self._limits.timeout_seconds:g} seconds was reached")
        except ContextTooLong as error:
            return self._ended(StopReason.CONTEXT_TOO_LONG, error.message)
        except ModelError as error:
            return self._ended(StopReason.MODEL_ERROR, str(error))
        return self._ended(stop)

    async def _step(self) -> Step:
        number, asked_at = len(self._steps) + 1, time.monotonic()
        reply = await self._model.reply(self._history, self._toolbox.specs, self._sampling)
        self._usage += reply.usage
        if self._journal is not None:
            elapsed = round((time.monotonic() - asked_at) * 1000)
            self._journal.post(ModelReplied(step=number, reply=reply, duration_ms=elapsed))
        self._history.append(reply.message)
        observations = await self._observe(reply.message)
        self._history += [ToolMessage(call_id=seen.call_id, content=seen.result.observation()) for seen in observations]
        step = Step(number=number, reply=reply.message, observations=observations, usage=reply.usage)
        self._steps.append(step)
        return step

    async def _observe(self, message: AssistantMessage) -> tuple[Observation, ...]:
        """Carry out a reply's calls, as many as the limit leaves; each call gets exactly one observation."""
        left = self._limits.max_tool_calls - self._usage.tool_calls
        calls = message.tool_calls[:left]
        observations = await self._toolbox.call_all(calls)
        self._usage += Usage(tool_calls=len(calls))
        refusal = f"not run: the limit of {self._limits.max_tool_calls} tool calls is reached"
        unrun = tuple(
            Observation(
                call_id=call.call_id,
                result=ToolResult(success=False, operation=call.name, error=refusal, outcome=Outcome.REFUSED),
            )
            for call in message.tool_calls[left:]
        )
        return observations + unrun

    def _decided(self, step: Step) -> StopReason | None:
        """Whether this step ends the run; a reply without calls first earns a reminder."""
        if any(o.result.operation == FINAL_ANSWER.name and o.result.success for o in step.observations):
            return StopReason.FINAL_ANSWER
        if self._abort_on_error and any(not seen.result.success for seen in step.observations):
            return StopReason.TOOL_ERROR
        if step.reply.tool_calls:
            self._reminders = 0
            return None
        if self._reminders == MAX_REMINDERS:
            return StopReason.NO_TOOL_CALLS
        self._reminders += 1
        reminder = UserMessage(content=REMINDER)
        self._history.append(reminder)
        if self._journal is not None:
            self._journal.post(MessageAdded(step=step.number, message=reminder))
        return None

    def _spent(self) -> StopReason | None:
        limits, usage = self._limits, self._usage
        if len(self._steps) >= limits.max_iterations:
            return StopReason.MAX_ITERATIONS
        if usage.tool_calls >= limits.max_tool_calls:
            return StopReason.MAX_TOOL_CALLS
        if limits.max_tokens and usage.total_tokens >= limits.max_tokens:
            return StopReason.MAX_TOKENS
        return None

    def _ended(self, stop: StopReason, error: str = "") -> Trajectory:
        elapsed = round((time.monotonic() - self._started_at) * 1000)
        return Trajectory(
            steps=tuple(self._steps),
            stop_reason=stop,
            answer=self._answer(),
            usage=self._usage + Usage(duration_ms=elapsed - self._usage.duration_ms),
            error=error or ("" if stop is StopReason.FINAL_ANSWER else f"the run stopped: {stop}"),
        )

    def _answer(self) -> str:
        """What `final_answer` was given, else the last thing the model said."""
        for step in reversed(self._steps):
            for seen in step.observations:
                if seen.result.operation == FINAL_ANSWER.name and seen.result.success:
                    return seen.result.content
            if step.reply.content:
                return step.reply.content
        return ""
