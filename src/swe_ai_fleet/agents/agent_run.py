"""The agent loop: ask the model, run its tool calls, add the results to the conversation, until it is done or a limit
is reached.

`Rules` say what ends a run besides its budget; `StopPolicy` applies them, and corrects an agent that goes wrong.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.loop_guard import LoopAction, LoopAdvice, LoopGuard
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER, ApprovalGate, CallVerdict, Ruling, Toolbox
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
"""The beginning of the observation of a `final_answer` that did not end the run."""
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
"""Limits after which one more reply may be asked for; the limit on cost is not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What ends a run besides its budget. Counts are of consecutive events; 0 means never.

    `abort_on_error` ends the run at the first failed call. After a limit, `answer_at_limit` asks once more, without
    tools, for an answer; that reply may take `final_prompt_seconds`, or the run's own time limit where that is shorter.
    """

    max_reminders: int = 2
    max_malformed_replies: int = 5
    max_tool_errors: int = 0
    abort_on_error: bool = False
    answer_at_limit: bool = False
    final_prompt_seconds: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The consequence of a step: a stop reason, or messages for the agent; `loop` is what the loop guard noticed."""

    stop: StopReason | None = None
    texts: tuple[str, ...] = ()
    loop: LoopAdvice | None = None


class StopPolicy:
    """Decides after each step whether the run ends, and which messages the agent gets if it does not."""

    def __init__(self, rules: Rules, guard: LoopGuard | None = None) -> None:
        self._rules = rules
        self._guard = guard
        self._idle, self._malformed, self._failed = 0, 0, 0

    def judge(self, step: Step, *, truncated: bool, calls_left: int) -> Judgement:
        """Judge a step whose calls are all answered; `calls_left` is how many tool calls the budget still allows."""
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
        rules, results = self._rules, [observation.result for observation in step.observations]
        if any(map(_answers, results)):
            return StopReason.FINAL_ANSWER
        if rules.abort_on_error and any(not result.success for result in results):
            return StopReason.TOOL_ERROR
        for result in results:
            self._failed = 0 if result.success else self._failed + 1
        self._idle = 0 if results else self._idle + 1
        malformed = truncated or (bool(results) and all(result.outcome is Outcome.INVALID for result in results))
        self._malformed = self._malformed + 1 if malformed else 0
        # A call that was not run because the limit of tool calls is reached has not failed.
        if rules.max_tool_errors and calls_left and self._failed >= rules.max_tool_errors:
            return StopReason.TOOL_ERROR
        if rules.max_malformed_replies and self._malformed >= rules.max_malformed_replies:
            return StopReason.MALFORMED_REPLIES
        return StopReason.NO_TOOL_CALLS if self._idle > rules.max_reminders else None


def answer_of(steps: list[Step]) -> str:
    """The argument of `final_answer`, else the model's last text."""
    for step in reversed(steps):
        for observation in step.observations:
            if _answers(observation.result):
                return observation.result.content
            if answer := observation.result.metadata.get(LAST_LOOK_TITLE):
                return str(answer)
        if step.reply.content:
            return step.reply.content
    return ""


def _answers(result: ToolResult) -> bool:
    """Whether this is the result of a `final_answer` that ends the run; also in a run that is resumed from its log."""
    answered = result.operation == FINAL_ANSWER.name and result.success
    return answered and not result.content.startswith(LAST_LOOK_TITLE)


def ends_with_step(history: History) -> bool:
    """Whether no user message follows the last reply and the results of its calls."""
    return isinstance(history.messages[-1], AssistantMessage | ToolMessage)


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """What a run is made of, whether it goes step by step, by a plan, or by a plan first and then step by step.

    Attributes:
        history: The conversation; its unanswered calls are run first.
        journal: Where each reply is recorded (tool calls are recorded by the toolbox's audit trail); None: nowhere.
        news: Returns a message for the agent before its next reply; empty for none.
        last_look: Returns objections to the final answer, given all steps; empty for none. The first final answer is
            met by them as long as the budget allows another step; the second one ends the run.
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
        """The model's reply to the history, condensed as often as the server finds it too long. Raises ModelError."""
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
        """The sampling, with completions no longer than the tokens left in the budget, if the context has room."""
        sampling, tokens_left, room = self.sampling, self.budget.tokens_left, self.history.room
        if tokens_left is None or (sampling.max_tokens is not None and sampling.max_tokens <= tokens_left):
            return sampling
        # Servers refuse a bound beyond their context; a bound near the room left in it would limit nothing.
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
                stop = await self._run_steps()
        except TimeoutError:
            stop, error = StopReason.TIMEOUT, f"the limit of {limit:g} seconds was reached"
        except ContextTooLong as fault:
            stop, error = StopReason.CONTEXT_TOO_LONG, fault.message
        except ModelError as fault:
            stop, error = StopReason.MODEL_ERROR, str(fault)
        return await self._ended(stop, error)

    async def _run_steps(self) -> StopReason:
        stop: StopReason | None = None
        if calls := self._history.unanswered():
            stop = await self._observe(self._steps.pop(), calls)
        elif self._steps and ends_with_step(self._history):
            last = self._steps[-1]
            # The process that recorded this step may have ended before it judged it. A missing reminder is not added
            # now: the replies of a plan call no tools either.
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
        """The model's next reply to a history that fits; recorded, charged to the budget and added to the history."""
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
        """Run a reply's calls, as far as limits and approvals allow; each call gets exactly one observation."""
        gate, rulings = self._parts.gate, dict[str, Ruling]()
        if gate is not None and calls:
            review = await gate.review(calls, step=step.number, truncated=truncated)
            rulings = {call.call_id: ruling for call, ruling in zip(calls, review, strict=True)}
        verdicts = {ruling.verdict for ruling in rulings.values()}
        if CallVerdict.WAIT in verdicts:
            self._steps.append(step)
            return StopReason.AWAITING_APPROVAL
        limit = f"not run: the limit of {self._budget.limits.max_tool_calls} tool calls is reached"
        beyond = {call.call_id: limit for call in calls[self._budget.tool_calls_left :]}
        refusals = {name: ruling.text for name, ruling in rulings.items() if ruling.verdict is not CallVerdict.GO}
        observations = await self._toolbox.call_all(calls, refusals=refusals | beyond, truncated=truncated)
        self._budget.settle(Usage(tool_calls=len(calls)))
        before = len(step.observations)
        step = await self._with_last_look(replace(step, observations=(*step.observations, *observations)))
        for observation in step.observations[before:]:
            call_id = observation.call_id
            note = "" if call_id in refusals or call_id not in rulings else rulings[call_id].text
            texts = filter(None, (note, observation.result.observation()))
            self._add(ToolMessage(call_id=call_id, content="\n".join(texts)), step=step.number)
            if observation.repairs:
                self._parts.post(CallRepaired(step=step.number, call_id=call_id, repairs=observation.repairs))
        self._steps.append(step)
        if self._parts.on_step is not None:
            self._parts.on_step(step)
        return StopReason.REJECTED if CallVerdict.END in verdicts else self._judged(step, truncated=truncated)

    async def _with_last_look(self, step: Step) -> Step:
        """The step; objections to a final answer take the place of its result, once a run."""
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
        """The model's answer to `FINAL_PROMPT` after a limit ended the run; empty if it fails."""
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
