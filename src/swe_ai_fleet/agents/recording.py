"""A recorded run as a model and as a gate: it says again what it said, and what was refused stays refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from swe_ai_fleet.agents.agent_run import LAST_LOOK_TITLE
from swe_ai_fleet.agents.opening import TITLE
from swe_ai_fleet.agents.toolbox import CallVerdict, Ruling
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import ModelRejected
from swe_ai_fleet.domain.message import (
    AssistantMessage,
    Message,
    ModelCapabilities,
    ModelReply,
    ModelRequest,
    ToolCall,
    ToolMessage,
)
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.tool import PolicyDecision
from swe_ai_fleet.domain.trajectory import Step, StopReason
from swe_ai_fleet.ports import ChatModel

NEVER = "not carried out: it was not when this was recorded"


class RecordedModel:
    """A `ChatModel` that gives a run's replies again, `until` so many, in their order, whatever it is asked.

    `then` answers behind them; None: asking for more raises ModelRejected.
    """

    def __init__(self, run: RunState, *, until: int | None = None, then: ChatModel | None = None) -> None:
        self._name = run.started.model if run.started else ""
        self._replies = [step.reply for step in run.steps][:until]
        self._next = 0
        self._then = then

    @property
    def exhausted(self) -> bool:
        return self._next >= len(self._replies)

    async def probe(self) -> ModelCapabilities:
        """The recorded model's name; of the model that goes on, what it can do. Raises ModelError."""
        return await self._then.probe() if self._then is not None else ModelCapabilities(model=self._name)

    async def ping(self) -> None:
        """Raises ModelError where the model that goes on does not answer."""
        if self._then is not None:
            await self._then.ping()

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The next recorded reply, at no cost. Raises ModelRejected behind the last one where nothing goes on."""
        if self.exhausted:
            if self._then is None:
                raise ModelRejected("the recording ends here")
            return await self._then.reply(request)
        message = self._replies[self._next]
        self._next += 1
        finish = "tool_calls" if message.tool_calls else "stop"
        return ModelReply(message=message, finish_reason=finish, usage=Usage(model_calls=1), model=self._name)


class RecordedGate:
    """An `ApprovalGate` that decides as was decided: a call that a person refused is refused in the same words, and one
    that was never carried out is not carried out now."""

    def __init__(self, run: RunState) -> None:
        refused = {entry.call_id for entry in run.entries if entry.decision is PolicyDecision.REFUSED}
        seen = {observation.call_id for step in run.steps for observation in step.observations}
        self._refusals = {
            call.call_id: NEVER for step in run.steps for call in step.reply.tool_calls if call.call_id not in seen
        }
        self._refusals |= {
            seen.call_id: seen.result.error
            for step in run.steps
            for seen in step.observations
            if seen.call_id in refused
        }

    async def review(self, calls: Sequence[ToolCall], *, step: int, truncated: bool = False) -> Sequence[Ruling]:
        return [
            Ruling(verdict=CallVerdict.REFUSE, text=self._refusals[call.call_id])
            if call.call_id in self._refusals
            else Ruling()
            for call in calls
        ]


class RecordedNews:
    """The baseline as a recorded run was told of it: the same words, before the same reply."""

    def __init__(self, run: RunState, failing: Collection[str]) -> None:
        self._run, self._failing = run, failing
        opening = len(run.started.messages) if run.started else 0
        self._told = _news_in(run.messages[:opening]) != ""
        self._next = 0
        self._texts: list[str] = []
        text = ""
        for message in run.messages[opening:]:
            if isinstance(message, AssistantMessage):
                self._texts.append(text)
                text = ""
            text = text or _news_in([message])

    async def text(self) -> str:
        text = self._texts[self._next] if self._next < len(self._texts) else ""
        self._next += 1
        self._told = self._told or bool(text)
        return text

    async def last_look(self, steps: Sequence[Step]) -> str:
        """What the run was told in place of the end that its first answer asked for; empty where it ended."""
        texts = (message.content for message in self._run.messages if isinstance(message, ToolMessage))
        return next((text.removeprefix(LAST_LOOK_TITLE) for text in texts if text.startswith(LAST_LOOK_TITLE)), "")

    async def failing(self) -> Collection[str] | None:
        """The tests that fail on the untouched commit; None until they were told of."""
        return self._failing if self._told else None


def _news_in(messages: Sequence[Message]) -> str:
    return next((message.content for message in messages if TITLE in message.content), "")


def forked_history(run: RunState, prompt: str) -> tuple[Message, ...]:
    """The opening of a run, its system message replaced where another prompt is given."""
    opening = run.started.messages if run.started else ()
    if not prompt or not opening:
        return opening
    return (replace(opening[0], content=prompt), *opening[1:])


def went_the_same_way(stop: StopReason, recorded: RunState) -> bool:
    """Whether a replay ended as its recording did; a recording without an end is followed to its last reply."""
    if recorded.finished is None:
        return stop is StopReason.MODEL_ERROR
    return stop is recorded.finished.stop_reason or (
        stop is StopReason.MODEL_ERROR and recorded.finished.stop_reason is not StopReason.FINAL_ANSWER
    )
