"""Middleware of a model: text passed on while it comes in, tokens recorded, checkpoints made while the model thinks.

While the model thinks nothing else happens in its run's workspace.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import structlog

from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import Fenced, FleetError
from swe_ai_fleet.domain.message import ModelCapabilities, ModelReply, ModelRequest, SampledTokens, TextDelta
from swe_ai_fleet.ports import ChatModel, LiveText
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.secrets import Secrets

_PACED_BYTES = 8 * 1024 * 1024
_PACED_SHARE = 10.0
_log = structlog.get_logger()


class ModelWrapper:
    """The base of a `ChatModel` that wraps another: everything but `reply` goes to the wrapped model."""

    model: ChatModel

    async def probe(self) -> ModelCapabilities:
        return await self.model.probe()

    async def ping(self) -> None:
        await self.model.ping()


class WatchedModel(ModelWrapper):
    """A `ChatModel` that streams for watchers of its execution; unwatched it is the model itself.

    Args:
        model: Who answers.
        live: Where watchers are.
        tenant: Whose execution it is.
        execution_id: What is watched.
        agent_id: Who is spoken to.
        secrets: What watchers must not see.
    """

    def __init__(
        self,
        model: ChatModel,
        live: LiveText,
        *,
        tenant: str,
        execution_id: str,
        agent_id: str,
        secrets: Secrets,
    ) -> None:
        self.model = model
        self._live = live
        self._tenant, self._execution_id, self._agent_id = tenant, execution_id, agent_id
        self._secrets = secrets

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The model's reply, its text told to watchers as it comes. Raises as the model does."""
        if request.on_delta is not None or not self._live.is_followed(self._tenant, self._execution_id):
            return await self.model.reply(request)
        masked, begins = self._secrets.stream(), True

        def tell(text: str) -> None:
            nonlocal begins
            if text or begins:
                delta = TextDelta(agent_id=self._agent_id, text=text, begins=begins)
                self._live.say(self._tenant, self._execution_id, delta)
                begins = False

        def hear(text: str) -> None:
            tell(masked.feed(text))

        reply = await self.model.reply(replace(request, on_delta=hear))
        tell(masked.finish())
        return reply


@dataclass(frozen=True, kw_only=True)
class TokenRecordingModel(ModelWrapper):
    """A `ChatModel` whose replies name a blob with their `SampledTokens`, where the server gives these.

    A reply whose tokens cannot be stored is a reply without them.

    Args:
        model: Who replies.
        store: Takes what is too long for an event.
    """

    model: ChatModel
    store: Callable[[bytes], Awaitable[BlobRef]]

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The model's reply, its tokens stored. Raises as the model does."""
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
    """How often a run stores its workspace: `store` is given the step and returns the number of bytes stored.

    No more often than every so many seconds, and more seldom where there is much to store: each further 8 MiB of the
    last time makes the pause longer by as much again, and it is ten times what storing took at least. With 0 it is
    stored after every step that changed something.
    """

    store: Callable[[int], Awaitable[int]]
    every_seconds: float = 0.0

    def pause(self, size: int, took: float) -> float:
        """Seconds until the next time, after one of so many bytes that took so many seconds."""
        if not self.every_seconds:
            return 0.0
        return max(self.every_seconds * max(1.0, size / _PACED_BYTES), _PACED_SHARE * took)


@dataclass(kw_only=True)
class CheckpointingModel(ModelWrapper):
    """A `ChatModel` beside whose replies the workspace is stored, where something has changed since the last time.

    A workspace that cannot be stored costs nothing but that checkpoint.

    Args:
        model: Who replies.
        trail: Counts what changed something.
        checkpoints: When and how the workspace is stored.
        step: How many steps were done before.
    """

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
        """The model's reply, the workspace stored by then where that was due. Raises as the model does, and Fenced."""
        checkpoint = asyncio.create_task(self._store()) if self._due() else None
        try:
            reply = await self.model.reply(request)
        except asyncio.CancelledError:
            if checkpoint is not None:
                checkpoint.cancel()
            raise
        finally:
            # No tool runs before this returns, so that what is stored is the workspace of one moment.
            if checkpoint is not None:
                await asyncio.wait([checkpoint])
        if checkpoint is not None:
            checkpoint.result()
        self.step += 1
        return reply

    def _due(self) -> bool:
        changed = self.trail.revision != self._stored_revision
        return changed and time.monotonic() >= self._next_at

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
