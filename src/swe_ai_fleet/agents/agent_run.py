"""The agent loop: ask the model, carry out its calls, tell it what they gave, until it is done or a limit is hit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from swe_ai_fleet.agents.approval_gate import ruled_on
from swe_ai_fleet.agents.conduct import Conduct, answer_of
from swe_ai_fleet.agents.loop_guard import Remedy
from swe_ai_fleet.agents.run_parts import RunParts
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import ContextTooLong, ModelError
from swe_ai_fleet.domain.event import CallRepaired, LoopNoticed, MessageAdded, ModelReplied
from swe_ai_fleet.domain.message import ModelReply, ModelRequest, Sampling, ToolCall, ToolMessage, UserMessage
from swe_ai_fleet.domain.trajectory import Step, StopReason, Trajectory

LAST_WORDS = (
    "The run ends here: {limit}. Call nothing. Answer from what you have found: "
    "what is done, what is not, what is next."
)
_LIMITS = frozenset(
    {
        StopReason.MAX_ITERATIONS,
        StopReason.MAX_TOOL_CALLS,
        StopReason.MAX_TOKENS,
        StopReason.TIMEOUT,
        StopReason.LOOP,
        StopReason.TOOL_ERROR,
    }
)
"""Limits behind which one more reply is asked for; where the money is spent, none is."""


class AgentRun:
    """One agent, from its first message to its stop reason; or from where an earlier process left it.

    Args:
        parts: What the run is made of.
    """

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._toolbox, self._history, self._budget = parts.toolbox, parts.history, parts.budget
        self._conduct = Conduct(parts.rules, parts.guard)
        self._steps = list(parts.steps)

    async def drive(self) -> Trajectory:
        """Run to the end. Spent limits and model faults are stop reasons; a cancellation and bugs are raised."""
        error, limit = "", self._budget.limits.timeout_seconds
        try:
            async with asyncio.timeout(self._budget.seconds_left):
                stop = await self._go_on()
        except TimeoutError:
            stop, error = StopReason.TIMEOUT, f"the limit of {limit:g} seconds was reached"
        except ContextTooLong as fault:
            stop, error = StopReason.CONTEXT_TOO_LONG, fault.message
        except ModelError as fault:
            stop, error = StopReason.MODEL_ERROR, str(fault)
        return await self._ended(stop, error)

    async def _go_on(self) -> StopReason:
        stop: StopReason | None = None
        if calls := self._history.unanswered():
            stop = await self._observe(self._steps.pop(), calls)
        while stop is None and (stop := self._budget.spent(iterations=len(self._steps))) is None:
            reply = await self._ask()
            step = Step(number=len(self._steps) + 1, reply=reply.message, observations=(), usage=reply.usage)
            stop = await self._observe(step, reply.message.tool_calls, truncated=reply.finish_reason == "length")
            if reply.finish_reason == "content_filter":
                stop = StopReason.MODEL_STOPPED
        return stop

    async def _ask(self) -> ModelReply:
        """The model's next reply to a history that fits; recorded, paid for and part of the history."""
        number = len(self._steps) + 1
        if self._parts.news is not None and (text := await self._parts.news()):
            self._add(UserMessage(content=text), step=number)
        asked_at = time.monotonic()
        self._parts.post(await self._history.fit(step=number))
        while True:
            try:
                reply = await self._parts.model.reply(
                    ModelRequest(
                        self._history.messages, self._toolbox.specs, self._affordable(), on_delta=self._parts.on_delta
                    )
                )
                break
            except ContextTooLong:
                condensed = await self._history.shrink(step=number)
                if condensed is None:
                    raise
                self._parts.post(condensed)
        self._budget.settle(reply.usage)
        self._history.told(reply.usage)
        self._parts.post(
            ModelReplied(step=number, reply=reply, duration_ms=round((time.monotonic() - asked_at) * 1000))
        )
        if reply.repairs:
            self._parts.post(CallRepaired(step=number, repairs=reply.repairs))
        self._history.add(reply.message)
        return reply

    async def _observe(self, step: Step, calls: Sequence[ToolCall], *, truncated: bool = False) -> StopReason | None:
        """Carry out a reply's calls, as many as limits and people allow; each call gets exactly one observation."""
        ruled = await ruled_on(calls, self._parts.gate, step=step.number, truncated=truncated)
        if ruled.waits:
            self._steps.append(step)
            return StopReason.AWAITING_APPROVAL
        limit = f"not run: the limit of {self._budget.limits.max_tool_calls} tool calls is reached"
        beyond = {call.call_id: limit for call in calls[self._budget.tool_calls_left :]}
        observations = await self._toolbox.call_all(calls, refusals=ruled.refusals | beyond, truncated=truncated)
        self._budget.settle(Usage(tool_calls=len(calls)))
        for seen in observations:
            told = (ruled.notes.get(seen.call_id, ""), seen.result.observation())
            self._add(ToolMessage(call_id=seen.call_id, content="\n".join(filter(None, told))), step=step.number)
            if seen.repairs:
                self._parts.post(CallRepaired(step=step.number, call_id=seen.call_id, repairs=seen.repairs))
        step = replace(step, observations=(*step.observations, *observations))
        self._steps.append(step)
        if self._parts.on_step is not None:
            self._parts.on_step(step)
        return StopReason.REJECTED if ruled.ends else self._judged(step, truncated=truncated)

    def _judged(self, step: Step, *, truncated: bool) -> StopReason | None:
        """Whether a step ends the run; where it went wrong, the agent is told, and a loop is taken out."""
        judgement = self._conduct.judge(step, truncated=truncated, calls_left=self._budget.tool_calls_left)
        if (loop := judgement.loop) is not None:
            self._parts.post(LoopNoticed(step=step.number, pattern=loop.pattern, advice=loop.remedy))
            if loop.remedy is Remedy.REPLAN:
                self._parts.post(self._history.forget(loop.steps, step=step.number))
        for text in judgement.texts:
            self._add(UserMessage(content=text), step=step.number)
        return judgement.stop

    def _add(self, message: ToolMessage | UserMessage, *, step: int) -> None:
        self._history.add(message)
        self._parts.post(MessageAdded(step=step, message=message))

    def _affordable(self) -> Sampling:
        """The sampling, its completion bounded by the tokens that are left, and that by what the context holds."""
        sampling, left, room = self._parts.sampling, self._budget.tokens_left, self._history.room
        if left is None or (sampling.max_tokens is not None and sampling.max_tokens <= left):
            return sampling
        # Servers refuse a bound that they could not keep; one that is no bound need not be sent.
        return replace(sampling, max_tokens=left) if room is None or left < room * 3 // 4 else sampling

    async def _ended(self, stop: StopReason, error: str) -> Trajectory:
        answer = answer_of(self._steps)
        if stop is not StopReason.AWAITING_APPROVAL:
            for call in self._history.unanswered():
                self._history.add(ToolMessage(call_id=call.call_id, content=f"Error: not finished: {stop}"))
        if self._parts.rules.answer_at_limit and stop in _LIMITS:
            answer = await self._last_words(stop) or answer
        if not error and stop is not StopReason.FINAL_ANSWER:
            error = f"the run stopped: {stop}"
        return Trajectory(
            steps=tuple(self._steps), stop_reason=stop, answer=answer, usage=self._budget.total(), error=error
        )

    async def _last_words(self, stop: StopReason) -> str:
        """What the model makes of what it has, where a limit ended the run; empty where it can't be had."""
        parts, text = self._parts, LAST_WORDS.format(limit=str(stop).replace("_", " "))
        self._add(UserMessage(content=text), step=len(self._steps))
        try:
            async with asyncio.timeout(min(parts.rules.last_words_seconds, self._budget.limits.timeout_seconds)):
                reply = await parts.model.reply(
                    ModelRequest(self._history.messages, (), parts.sampling, on_delta=parts.on_delta)
                )
        except (ModelError, TimeoutError):
            return ""
        self._budget.settle(reply.usage)
        parts.post(ModelReplied(step=len(self._steps) + 1, reply=reply, duration_ms=reply.usage.duration_ms))
        return reply.message.content
