"""Middleware of models: streaming for watchers, recording of tokens, retries, other tools, uncut results, checkpoints.

Nothing else happens in a run's workspace during a call to its model.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import structlog

from swe_ai_fleet.agents.prompting import fair_shares
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import ContextTooLong, Fenced, FleetError, ModelUnavailable
from swe_ai_fleet.domain.message import (
    AssistantMessage,
    Message,
    ModelCapabilities,
    ModelReply,
    ModelRequest,
    SampledTokens,
    SystemMessage,
    TextDelta,
    ToolCall,
    ToolMessage,
)
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.ports import ChatModel, LiveText
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.secrets import Secrets
from swe_ai_fleet.tools.truncation import beginning

_PACED_BYTES = 8 * 1024 * 1024
_PACED_SHARE = 10.0
_log = structlog.get_logger()
T = TypeVar("T")
RETRY_WAITS = (5.0, 10.0)
_JITTER = 0.1
_LEAST_RESULT_CHARS = 200
_CHARS_PER_TOKEN = 3
_UNKNOWN_CONTEXT_TOKENS = 32_768
_PROMPT_SHARE = 0.75


class ModelWrapper:
    """The base of a `ChatModel` that wraps another: everything but `reply` goes to the wrapped model."""

    if TYPE_CHECKING:

        @property
        def model(self) -> ChatModel:
            """The wrapped model: a field of each subclass."""
            ...

    async def probe(self) -> ModelCapabilities:
        return await self.model.probe()

    async def ping(self) -> None:
        await self.model.ping()


@dataclass(frozen=True, kw_only=True)
class WatchedModel(ModelWrapper):
    """A `ChatModel` that streams its replies, masked, while its execution has watchers."""

    model: ChatModel
    live: LiveText
    tenant: str
    execution_id: str
    agent_id: str
    secrets: Secrets

    async def reply(self, request: ModelRequest) -> ModelReply:
        if request.on_delta is not None or not self.live.is_followed(self.tenant, self.execution_id):
            return await self.model.reply(request)
        masked, begins = self.secrets.stream(), True

        def publish(text: str) -> None:
            nonlocal begins
            if text or begins:
                delta = TextDelta(agent_id=self.agent_id, text=text, begins=begins)
                self.live.say(self.tenant, self.execution_id, delta)
                begins = False

        reply = await self.model.reply(replace(request, on_delta=lambda text: publish(masked.feed(text))))
        publish(masked.finish())
        return reply


@dataclass(frozen=True, kw_only=True)
class TokenRecordingModel(ModelWrapper):
    """A `ChatModel` whose replies refer to a blob with their `SampledTokens`, if the server sends these."""

    model: ChatModel
    store: Callable[[bytes], Awaitable[BlobRef]]

    async def reply(self, request: ModelRequest) -> ModelReply:
        tokens: list[SampledTokens] = []
        reply = await self.model.reply(replace(request, on_tokens=tokens.append))
        if not tokens:
            return reply
        try:
            return replace(reply, tokens=await self.store(to_json(tokens[-1])))
        except FleetError as error:
            _log.warning("model.tokens_not_stored", reason=str(error))
            return reply


@dataclass(frozen=True, kw_only=True)
class CheckpointPolicy:
    """How often a run stores its workspace: `store` gets the step and returns the number of bytes stored.

    The pause between two checkpoints is `every_seconds` for up to 8 MiB, grows in proportion to the size beyond that,
    and is at least ten times as long as storing took. With 0, every step that changed something is stored.
    """

    store: Callable[[int], Awaitable[int]]
    every_seconds: float = 0.0

    def pause(self, size: int, took: float) -> float:
        """Seconds until the next checkpoint, after one of `size` bytes that took `took` seconds."""
        if not self.every_seconds:
            return 0.0
        return max(self.every_seconds * max(1.0, size / _PACED_BYTES), _PACED_SHARE * took)


@dataclass(kw_only=True)
class CheckpointingModel(ModelWrapper):
    """A `ChatModel` that stores a changed workspace during its calls; a failed checkpoint does not fail the call."""

    model: ChatModel
    trail: AuditTrail
    checkpoints: CheckpointPolicy
    step: int = 0
    _stored_revision: int = field(init=False)
    _next_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._stored_revision = self.trail.revision
        self._next_at = time.monotonic() + self.checkpoints.every_seconds

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The model's reply; a checkpoint that was due is stored by then. Raises as the model does, and Fenced."""
        due = self.trail.revision != self._stored_revision and time.monotonic() >= self._next_at
        checkpoint = asyncio.create_task(self._store()) if due else None
        try:
            reply = await self.model.reply(request)
        except asyncio.CancelledError:
            if checkpoint is not None:
                checkpoint.cancel()
            raise
        finally:
            # Tools run only after this returns, so that the checkpoint is consistent.
            if checkpoint is not None:
                await asyncio.wait([checkpoint])
        if checkpoint is not None:
            checkpoint.result()
        self.step += 1
        return reply

    async def _store(self) -> None:
        revision, began, size = self.trail.revision, time.monotonic(), 0
        try:
            size = await self.checkpoints.store(self.step)
        except Fenced:
            raise
        except FleetError as error:
            _log.warning("a workspace could not be stored", reason=str(error))
        else:
            self._stored_revision = revision
        finally:
            self._next_at = began + self.checkpoints.pause(size, time.monotonic() - began)


@dataclass(frozen=True)
class RetryingModel(ModelWrapper):
    """A `ChatModel` that retries calls while the model is unavailable, after `waits` seconds each and up to a tenth
    more."""

    model: ChatModel
    waits: Sequence[float] = RETRY_WAITS
    on_retry: Callable[[str], None] | None = None

    async def probe(self) -> ModelCapabilities:
        return await self._retried(self.model.probe)

    async def reply(self, request: ModelRequest) -> ModelReply:
        return await self._retried(lambda: self.model.reply(request))

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T:
        for number, wait in enumerate(self.waits, start=1):
            try:
                return await call()
            except ModelUnavailable as fault:
                if self.on_retry is not None:
                    tries = len(self.waits) + 1
                    again = f"the next one is in {wait:g} s: {fault}"
                    self.on_retry(f"the model call failed (try {number} of {tries}), {again}")
                await asyncio.sleep(wait * random.uniform(1.0, 1.0 + _JITTER))  # noqa: S311
        return await call()


@dataclass(frozen=True)
class ShownTools(ModelWrapper):
    """A `ChatModel` that gets other descriptions `instead` of some tools, or (None) does not get them at all."""

    model: ChatModel
    instead: Mapping[str, OperationSpec | None]

    async def reply(self, request: ModelRequest) -> ModelReply:
        offered = tuple(offer for tool in request.tools if (offer := self.instead.get(tool.name, tool)) is not None)
        return await self.model.reply(replace(request, tools=offered))


def room(capabilities: ModelCapabilities) -> int:
    """The characters of a prompt that leaves a quarter of the model's context to the reply."""
    return round((capabilities.max_model_len or _UNKNOWN_CONTEXT_TOKENS) * _CHARS_PER_TOKEN * _PROMPT_SHARE)


def with_whole_results(
    messages: Sequence[Message], results: Mapping[str, str], *, max_chars: int
) -> tuple[Message, ...]:
    """The conversation with uncut tool results, in roughly `max_chars`: the longest results are cut first."""
    whole = {
        message.call_id: results.get(message.call_id, message.content)
        for message in messages
        if isinstance(message, ToolMessage)
    }
    rest = sum(len(message.content) for message in messages if not isinstance(message, ToolMessage))
    shares = dict(zip(whole, fair_shares([len(text) for text in whole.values()], max_chars - rest), strict=True))
    return tuple(
        replace(message, content=beginning(whole[message.call_id], max(_LEAST_RESULT_CHARS, shares[message.call_id])))
        if isinstance(message, ToolMessage)
        else message
        for message in messages
    )


def transcript(messages: Sequence[Message]) -> str:
    """The conversation as text, speaker by speaker, without its system message."""
    names = {call.call_id: call.name for message in messages for call in _calls(message)}
    parts: list[str] = []
    for message in messages:
        if isinstance(message, SystemMessage):
            continue
        if isinstance(message, ToolMessage):
            parts.append(f"[result of {names.get(message.call_id, 'a call')}]\n{message.content}")
        else:
            calls = [f"[calls {call.name} with {call.arguments}]" for call in _calls(message)]
            parts.append("\n".join(part for part in (f"[{message.role}]", message.content, *calls) if part))
    return "\n\n".join(parts)


def _calls(message: Message) -> Sequence[ToolCall]:
    return message.tool_calls if isinstance(message, AssistantMessage) else ()


@dataclass(frozen=True)
class WholeResults(ModelWrapper):
    """A `ChatModel` that gets uncut tool results when it is asked for an answer, that is, without tools."""

    model: ChatModel
    results: Mapping[str, str]

    async def reply(self, request: ModelRequest) -> ModelReply:
        if not request.tools and self.results:
            capabilities = await self.model.probe()
            whole = with_whole_results(request.messages, self.results, max_chars=room(capabilities))
            # If the uncut results do not fit, those in the history do.
            with suppress(ContextTooLong):
                return await self.model.reply(replace(request, messages=whole))
        return await self.model.reply(request)
