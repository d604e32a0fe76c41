"""The agent loop: ask the model, carry out its calls, tell it what they gave, until it is done or a limit is hit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.approval_gate import ApprovalGate, Verdict
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.loop_guard import LoopGuard, Remedy
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER, Toolbox
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import ContextTooLong, ModelError
from swe_ai_fleet.domain.event import CallRepaired, EventBody, LoopNoticed, MessageAdded, ModelReplied
from swe_ai_fleet.domain.message import ModelReply, Sampling, ToolCall, ToolMessage, UserMessage
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.domain.trajectory import Step, StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel, Journal

REMINDER = (
    "Your reply called no tool. Go on with the task by calling one, "
    "or call final_answer with your result if it is done."
)
CUT_OFF = "Your reply was cut off because it was too long. Go on in smaller steps: one call, with shorter arguments."
LAST_WORDS = (
    "The run ends here: {limit}. Call nothing. Answer from what you have found: "
    "what is done, what is not, what is next."
)
_LIMITS = frozenset(
    {
        StopReason.MAX_ITERATIONS,
        StopReason.MAX_TOOL_CALLS,
        StopReason.MAX_TOKENS,
        StopReason.MAX_COST,
        StopReason.TIMEOUT,
        StopReason.LOOP,
        StopReason.TOOL_ERROR,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What ends a run beside its budget. Counts are of things in a row; 0 means never.

    `abort_on_error` ends it at the first failed call; `answer_at_limit` asks once more, without tools, for an answer
    where a limit ended it, and allows `last_words_seconds` for that.
    """

    max_reminders: int = 2
    max_malformed_replies: int = 5
    max_tool_errors: int = 0
    abort_on_error: bool = False
    answer_at_limit: bool = False
    last_words_seconds: float = 60.0


class AgentRun:
    """One agent, from its first message to its stop reason; or from where an earlier process left it.

    Args:
        model: The model that plans.
        toolbox: What it can call.
        history: The conversation; calls in it that nothing answers yet are carried out first.
        budget: What the run may spend.
        rules: What ends it beside that.
        journal: Where each reply is recorded (tool calls are recorded by the toolbox's audit trail).
        guard: Notices loops; None: nobody does.
        gate: Decides which calls wait for a person; None: none does.
        sampling: How the model samples.
        steps: What an earlier part of the same run did.
        on_delta: Hears the model's text as it comes in.
        on_step: Hears each step once its calls are answered.
    """

    def __init__(
        self,
        *,
        model: ChatModel,
        toolbox: Toolbox,
        history: History,
        budget: Budget,
        rules: Rules | None = None,
        journal: Journal | None = None,
        guard: LoopGuard | None = None,
        gate: ApprovalGate | None = None,
        sampling: Sampling | None = None,
        steps: Sequence[Step] = (),
        on_delta: Callable[[str], None] | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        self._model = model
        self._toolbox = toolbox
        self._history = history
        self._budget = budget
        self._rules = rules or Rules()
        self._journal = journal
        self._guard = guard
        self._gate = gate
        self._sampling = sampling or Sampling()
        self._steps = list(steps)
        self._on_delta = on_delta
        self._on_step = on_step
        self._idle, self._malformed, self._failed = 0, 0, 0

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
        number, asked_at = len(self._steps) + 1, time.monotonic()
        self._post(await self._history.fit(step=number))
        while True:
            try:
                reply = await self._model.reply(
                    self._history.messages, self._toolbox.specs, self._affordable(), on_delta=self._on_delta
                )
                break
            except ContextTooLong:
                condensed = await self._history.shrink(step=number)
                if condensed is None:
                    raise
                self._post(condensed)
        self._budget.settle(reply.usage)
        self._history.told(reply.usage)
        self._post(ModelReplied(step=number, reply=reply, duration_ms=round((time.monotonic() - asked_at) * 1000)))
        if reply.repairs:
            self._post(CallRepaired(step=number, repairs=reply.repairs))
        self._history.add(reply.message)
        return reply

    async def _observe(self, step: Step, calls: Sequence[ToolCall], *, truncated: bool = False) -> StopReason | None:
        """Carry out a reply's calls, as many as limits and people allow; each call gets exactly one observation."""
        refusals: dict[str, str] = {}
        notes: dict[str, str] = {}
        if self._gate is not None and calls:
            rulings = await self._gate.review(calls, step=step.number, truncated=truncated)
            if any(ruling.verdict is Verdict.WAIT for ruling in rulings):
                self._steps.append(step)
                return StopReason.AWAITING_APPROVAL
            for call, ruling in zip(calls, rulings, strict=True):
                (notes if ruling.verdict is Verdict.GO else refusals)[call.call_id] = ruling.text
            ends = any(ruling.verdict is Verdict.END for ruling in rulings)
        else:
            ends = False
        for call in calls[self._budget.tool_calls_left :]:
            refusals[call.call_id] = f"not run: the limit of {self._budget.limits.max_tool_calls} tool calls is reached"
        observations = await self._toolbox.call_all(calls, refusals=refusals, truncated=truncated)
        self._budget.settle(Usage(tool_calls=len(calls)))
        for seen in observations:
            note = notes.get(seen.call_id, "")
            text = seen.result.observation()
            message = ToolMessage(call_id=seen.call_id, content=f"{note}\n{text}" if note else text)
            self._history.add(message)
            self._post(MessageAdded(step=step.number, message=message))
            if seen.repairs:
                self._post(CallRepaired(step=step.number, call_id=seen.call_id, repairs=seen.repairs))
        step = replace(step, observations=(*step.observations, *observations))
        self._steps.append(step)
        if self._on_step is not None:
            self._on_step(step)
        return StopReason.REJECTED if ends else self._decided(step, truncated=truncated)

    def _decided(self, step: Step, *, truncated: bool) -> StopReason | None:
        """Whether this step ends the run; where it went wrong, what the model is told about it."""
        seen = [observation.result for observation in step.observations]
        if any(result.operation == FINAL_ANSWER.name and result.success for result in seen):
            return StopReason.FINAL_ANSWER
        if self._rules.abort_on_error and any(not result.success for result in seen):
            return StopReason.TOOL_ERROR
        for result in seen:
            self._failed = 0 if result.success else self._failed + 1
        self._idle = 0 if seen else self._idle + 1
        malformed = truncated or (bool(seen) and all(result.outcome is Outcome.INVALID for result in seen))
        self._malformed = self._malformed + 1 if malformed else 0
        # Calls that were not run because none are left have not failed.
        failed = self._failed if self._budget.tool_calls_left else 0
        if self._rules.max_tool_errors and failed >= self._rules.max_tool_errors:
            return StopReason.TOOL_ERROR
        if self._rules.max_malformed_replies and self._malformed >= self._rules.max_malformed_replies:
            return StopReason.MALFORMED_REPLIES
        if not seen:
            if self._idle > self._rules.max_reminders:
                return StopReason.NO_TOOL_CALLS
            self._say(CUT_OFF if truncated else REMINDER, step=step.number)
        return self._advised(step)

    def _advised(self, step: Step) -> StopReason | None:
        advice = self._guard.observe(step) if self._guard is not None else None
        if advice is None:
            return None
        self._post(LoopNoticed(step=step.number, pattern=advice.pattern, advice=advice.remedy))
        if advice.remedy is Remedy.STOP:
            return StopReason.LOOP
        if advice.remedy is Remedy.REPLAN:
            self._post(self._history.forget(advice.steps, step=step.number))
        self._say(advice.text, step=step.number)
        return None

    def _say(self, text: str, *, step: int) -> None:
        message = UserMessage(content=text)
        self._history.add(message)
        self._post(MessageAdded(step=step, message=message))

    def _post(self, body: EventBody | None) -> None:
        if self._journal is not None and body is not None:
            self._journal.post(body)

    def _affordable(self) -> Sampling:
        """The sampling, its completion bounded by the tokens that are left, and that by what the context holds."""
        left, room = self._budget.tokens_left, self._history.room
        if left is None or (self._sampling.max_tokens is not None and self._sampling.max_tokens <= left):
            return self._sampling
        # Servers refuse a bound that they could not keep; one that is no bound need not be sent.
        return replace(self._sampling, max_tokens=left) if room is None or left < room * 3 // 4 else self._sampling

    async def _ended(self, stop: StopReason, error: str) -> Trajectory:
        answer = self._answer()
        if stop is not StopReason.AWAITING_APPROVAL:
            for call in self._history.unanswered():
                self._history.add(ToolMessage(call_id=call.call_id, content=f"Error: not finished: {stop}"))
        if self._rules.answer_at_limit and stop in _LIMITS:
            answer = await self._last_words(stop) or answer
        if not error and stop is not StopReason.FINAL_ANSWER:
            error = f"the run stopped: {stop}"
        return Trajectory(
            steps=tuple(self._steps), stop_reason=stop, answer=answer, usage=self._budget.total(), error=error
        )

    async def _last_words(self, stop: StopReason) -> str:
        """What the model makes of what it has, where a limit ended the run; empty where it can't be had."""
        self._say(LAST_WORDS.format(limit=str(stop).replace("_", " ")), step=len(self._steps))
        try:
            async with asyncio.timeout(self._rules.last_words_seconds):
                reply = await self._model.reply(self._history.messages, (), self._sampling, on_delta=self._on_delta)
        except (ModelError, TimeoutError):
            return ""
        self._budget.settle(reply.usage)
        self._post(ModelReplied(step=len(self._steps) + 1, reply=reply, duration_ms=reply.usage.duration_ms))
        return reply.message.content

    def _answer(self) -> str:
        """What `final_answer` was given, else the last thing the model said."""
        for step in reversed(self._steps):
            for seen in step.observations:
                if seen.result.operation == FINAL_ANSWER.name and seen.result.success:
                    return seen.result.content
            if step.reply.content:
                return step.reply.content
        return ""
