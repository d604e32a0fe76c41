"""The agent loop: ask the model, carry out its calls, tell it the results, until it is done or a limit is hit.

The rules of a run say what ends it beside its budget, and what the agent is told where it goes wrong.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.loop_guard import LoopAction, LoopAdvice, LoopGuard
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER, ApprovalGate, CallVerdict, Toolbox
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import ContextTooLong, ModelError
from swe_ai_fleet.domain.event import CallRepaired, EventBody, LoopNoticed, MessageAdded, ModelReplied
from swe_ai_fleet.domain.message import (
    AssistantMessage,
    ModelReply,
    ModelRequest,
    Sampling,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import Step, StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel, Journal

REMINDER = (
    "Your reply called no tool. Go on with the task by calling one, "
    "or call final_answer with your result if it is done."
)
CUT_OFF = "Your reply was cut off because it was too long. Go on in smaller steps: one call, with shorter arguments."
FINAL_PROMPT = (
    "The run ends here: {limit}. Call nothing. Answer from what you have found: "
    "what is done, what is not, what is next."
)
LAST_LOOK_TITLE = "Before this ends: "
"""How the observation of a `final_answer` begins that did not end its run."""
LIMITS = frozenset(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What ends a run beside its budget. Counts are of things in a row; 0 means never.

    `abort_on_error` ends it at the first failed call; `answer_at_limit` asks once more, without tools, for an answer
    where a limit ended it, and allows `final_prompt_seconds` for that, and no more than the whole run had.
    """

    max_reminders: int = 2
    max_malformed_replies: int = 5
    max_tool_errors: int = 0
    abort_on_error: bool = False
    answer_at_limit: bool = False
    final_prompt_seconds: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What follows from a step: the run ends, or the agent is told something; `loop` is what the guard noticed."""

    stop: StopReason | None = None
    texts: tuple[str, ...] = ()
    loop: LoopAdvice | None = None


class StopPolicy:
    """Decides after each step whether the run ends, and what the agent is told if it goes on."""

    def __init__(self, rules: Rules, guard: LoopGuard | None = None) -> None:
        self._rules = rules
        self._guard = guard
        self._idle, self._malformed, self._failed = 0, 0, 0

    def judge(self, step: Step, *, truncated: bool, calls_left: int) -> Judgement:
        """What follows from a step whose calls are answered; `calls_left` is what the budget leaves of them."""
        stop = self._stop(step, truncated, calls_left)
        if stop is not None:
            return Judgement(stop=stop)
        texts = () if step.observations else (CUT_OFF if truncated else REMINDER,)
        loop = self._guard.observe(step) if self._guard is not None else None
        if loop is None:
            return Judgement(texts=texts)
        if loop.action is LoopAction.STOP:
            return Judgement(stop=StopReason.LOOP, loop=loop)
        return Judgement(texts=(*texts, loop.text), loop=loop)

    def _stop(self, step: Step, truncated: bool, calls_left: int) -> StopReason | None:
        rules, seen = self._rules, [observation.result for observation in step.observations]
        if any(map(_answers, seen)):
            return StopReason.FINAL_ANSWER
        if rules.abort_on_error and any(not result.success for result in seen):
            return StopReason.TOOL_ERROR
        for result in seen:
            self._failed = 0 if result.success else self._failed + 1
        self._idle = 0 if seen else self._idle + 1
        malformed = truncated or (bool(seen) and all(result.outcome is Outcome.INVALID for result in seen))
        self._malformed = self._malformed + 1 if malformed else 0
        # Calls that were not run because none are left have not failed.
        if rules.max_tool_errors and calls_left and self._failed >= rules.max_tool_errors:
            return StopReason.TOOL_ERROR
        if rules.max_malformed_replies and self._malformed >= rules.max_malformed_replies:
            return StopReason.MALFORMED_REPLIES
        return StopReason.NO_TOOL_CALLS if self._idle > rules.max_reminders else None


def answer_of(steps: list[Step]) -> str:
    """What `final_answer` was given, else the last thing the model said."""
    for step in reversed(steps):
        for seen in step.observations:
            if _answers(seen.result):
                return seen.result.content
            if answer := seen.result.metadata.get(LAST_LOOK_TITLE):
                return str(answer)
        if step.reply.content:
            return step.reply.content
    return ""


def _answers(result: ToolResult) -> bool:
    """Whether it is an answer that ends a run, in one that goes on from its log too."""
    answered = result.operation == FINAL_ANSWER.name and result.success
    return answered and not result.content.startswith(LAST_LOOK_TITLE)


def ends_with_step(history: History) -> bool:
    """Whether nothing was said since the last reply and the results of its calls."""
    return isinstance(history.messages[-1], AssistantMessage | ToolMessage)


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """The same for a run that goes step by step, by a plan, or by one and then the other.

    Attributes:
        history: The conversation; calls in it that nothing answers yet are carried out first.
        journal: Where each reply is recorded (tool calls are recorded by the toolbox's audit trail); None: nowhere.
        news: Gives what the agent is to be told before its next reply, empty where there is nothing.
        last_look: Gives what speaks against an answer, by the steps before it, empty where nothing does. The first
            answer is met by that, if anything can still be done about it; the next one counts.
    """

    model: ChatModel
    toolbox: Toolbox
    history: History
    budget: Budget
    rules: Rules = field(default_factory=Rules)
    journal: Journal | None = None
    guard: LoopGuard | None = None
    gate: ApprovalGate | None = None
    sampling: Sampling = field(default_factory=Sampling)
    steps: Sequence[Step] = ()
    on_delta: Callable[[str], None] | None = None
    on_step: Callable[[Step], None] | None = None
    news: Callable[[], Awaitable[str]] | None = None
    last_look: Callable[[Sequence[Step]], Awaitable[str]] | None = None

    def post(self, body: EventBody | None) -> None:
        if self.journal is not None and body is not None:
            self.journal.post(body)

    async def reply(
        self,
        tools: Sequence[OperationSpec],
        sampling: Sampling,
        *,
        step: int,
        schema: Mapping[str, object] | None = None,
        on_shrunk: Callable[[], None] = lambda: None,
    ) -> ModelReply:
        """The model's reply to the history, which shrinks while the server calls it too long. Raises ModelError."""
        while True:
            request = ModelRequest(self.history.messages, tools, sampling, schema=schema, on_delta=self.on_delta)
            try:
                return await self.model.reply(request)
            except ContextTooLong:
                condensed = await self.history.shrink(step=step)
                if condensed is None:
                    raise
                self.post(condensed)
                on_shrunk()

    def affordable(self) -> Sampling:
        """The sampling, its completion bounded by the tokens that are left, and that by what the context holds."""
        sampling, tokens_left, room = self.sampling, self.budget.tokens_left, self.history.room
        if tokens_left is None or (sampling.max_tokens is not None and sampling.max_tokens <= tokens_left):
            return sampling
        # Servers refuse a bound that they could not keep; one that is no bound need not be sent.
        return replace(sampling, max_tokens=tokens_left) if room is None or tokens_left < room * 3 // 4 else sampling


class AgentRun:
    """One agent, from its first message to its stop reason; or from where an earlier process left it."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._toolbox, self._history, self._budget = parts.toolbox, parts.history, parts.budget
        self._stop_policy = StopPolicy(parts.rules, parts.guard)
        self._steps = list(parts.steps)

    async def drive(self) -> Trajectory:
        """Run to the end. Spent limits and model faults are stop reasons; a cancellation and bugs are raised."""
        error, limit = "", self._budget.limits.timeout_seconds
        try:
            async with self._budget.time_limit():
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
        elif self._steps and ends_with_step(self._history):
            last = self._steps[-1]
            # The process that took it may have ended before it drew the consequence. A reminder is not made up for:
            # a plan's own replies call nothing either.
            if last.observations or not self._parts.rules.max_reminders:
                stop = self._judged(last, truncated=False)
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
        reply = await self._parts.reply(self._toolbox.specs, self._parts.affordable(), step=number)
        self._budget.settle(reply.usage)
        self._history.count_prompt(reply.usage)
        self._parts.post(
            ModelReplied(step=number, reply=reply, duration_ms=round((time.monotonic() - asked_at) * 1000))
        )
        if reply.repairs:
            self._parts.post(CallRepaired(step=number, repairs=reply.repairs))
        self._history.add(reply.message)
        return reply

    async def _observe(self, step: Step, calls: Sequence[ToolCall], *, truncated: bool = False) -> StopReason | None:
        """Carry out a reply's calls, as many as limits and people allow; each call gets exactly one observation."""
        gate = self._parts.gate
        ruled = await gate.review(calls, step=step.number, truncated=truncated) if gate is not None and calls else ()
        rulings = {call.call_id: ruling for call, ruling in zip(calls, ruled, strict=bool(ruled))}
        verdicts = {ruling.verdict for ruling in ruled}
        if CallVerdict.WAIT in verdicts:
            self._steps.append(step)
            return StopReason.AWAITING_APPROVAL
        limit = f"not run: the limit of {self._budget.limits.max_tool_calls} tool calls is reached"
        beyond = {call.call_id: limit for call in calls[self._budget.tool_calls_left :]}
        refusals = {name: ruling.text for name, ruling in rulings.items() if ruling.verdict is not CallVerdict.GO}
        observations = await self._toolbox.call_all(calls, refusals=refusals | beyond, truncated=truncated)
        self._budget.settle(Usage(tool_calls=len(calls)))
        before = len(step.observations)
        step = await self._looked_at(replace(step, observations=(*step.observations, *observations)))
        for seen in step.observations[before:]:
            note = "" if seen.call_id in refusals or seen.call_id not in rulings else rulings[seen.call_id].text
            texts = filter(None, (note, seen.result.observation()))
            self._add(ToolMessage(call_id=seen.call_id, content="\n".join(texts)), step=step.number)
            if seen.repairs:
                self._parts.post(CallRepaired(step=step.number, call_id=seen.call_id, repairs=seen.repairs))
        self._steps.append(step)
        if self._parts.on_step is not None:
            self._parts.on_step(step)
        return StopReason.REJECTED if CallVerdict.END in verdicts else self._judged(step, truncated=truncated)

    async def _looked_at(self, step: Step) -> Step:
        """A step; in place of an answer that something speaks against, it has what that is, once."""
        ask, steps = self._parts.last_look, (*self._steps, step)
        if ask is None or not step.observations or not _answers((last := step.observations[-1]).result):
            return step
        looks = (m.content.startswith(LAST_LOOK_TITLE) for m in self._history.messages if isinstance(m, ToolMessage))
        if any(looks) or self._budget.spent(iterations=len(steps)) is not None or not (text := await ask(steps)):
            return step
        metadata = {LAST_LOOK_TITLE: last.result.content}
        result = replace(last.result, content=f"{LAST_LOOK_TITLE}{text}", metadata=metadata)
        return replace(step, observations=(*step.observations[:-1], replace(last, result=result)))

    def _judged(self, step: Step, *, truncated: bool) -> StopReason | None:
        judgement = self._stop_policy.judge(step, truncated=truncated, calls_left=self._budget.tool_calls_left)
        if (loop := judgement.loop) is not None:
            self._parts.post(LoopNoticed(step=step.number, pattern=loop.pattern, advice=loop.action))
            if loop.action is LoopAction.REPLAN:
                self._parts.post(self._history.forget(loop.steps, step=step.number))
        for text in judgement.texts:
            self._add(UserMessage(content=text), step=step.number)
        return judgement.stop

    def _add(self, message: ToolMessage | UserMessage, *, step: int) -> None:
        self._history.add(message)
        self._parts.post(MessageAdded(step=step, message=message))

    async def _ended(self, stop: StopReason, error: str) -> Trajectory:
        answer = answer_of(self._steps)
        if stop is not StopReason.AWAITING_APPROVAL:
            for call in self._history.unanswered():
                self._history.add(ToolMessage(call_id=call.call_id, content=f"Error: not finished: {stop}"))
        if self._parts.rules.answer_at_limit and stop in LIMITS:
            answer = await self._send_final_prompt(stop) or answer
        if not error and stop is not StopReason.FINAL_ANSWER:
            error = f"the run stopped: {stop}{self._budget.overshoot if stop is StopReason.MAX_TOKENS else ''}"
        return Trajectory(
            steps=tuple(self._steps), stop_reason=stop, answer=answer, usage=self._budget.total(), error=error
        )

    async def _send_final_prompt(self, stop: StopReason) -> str:
        """The model's answer to `FINAL_PROMPT`, where a limit ended the run; empty where there is none."""
        parts, text = self._parts, FINAL_PROMPT.format(limit=str(stop).replace("_", " "))
        self._add(UserMessage(content=text), step=len(self._steps))
        try:
            async with asyncio.timeout(min(parts.rules.final_prompt_seconds, self._budget.limits.timeout_seconds)):
                reply = await parts.model.reply(
                    ModelRequest(self._history.messages, (), parts.sampling, on_delta=parts.on_delta)
                )
        except (ModelError, TimeoutError):
            return ""
        self._budget.settle(reply.usage)
        parts.post(ModelReplied(step=len(self._steps) + 1, reply=reply, duration_ms=reply.usage.duration_ms))
        return reply.message.content
