"""Workspaces are stored beside the model's replies, when something has changed and no tool runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from swe_ai_fleet.agents.model_middleware import CheckpointingModel, CheckpointPolicy
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import Fenced, FleetError, Unavailable
from swe_ai_fleet.domain.message import AssistantMessage, ModelCapabilities, ModelReply, ModelRequest
from swe_ai_fleet.tools.audit import AuditTrail


@dataclass
class Thinker:
    """A model that replies when it is let."""

    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def probe(self) -> ModelCapabilities:
        return ModelCapabilities(model="thinker")

    async def ping(self) -> None:
        return None

    async def reply(self, request: ModelRequest) -> ModelReply:
        await self.go.wait()
        return ModelReply(message=AssistantMessage(content="ok"), finish_reason="stop", usage=Usage())


@dataclass
class Store:
    """Where workspaces are kept, once `go` is set."""

    kept: list[int] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    fault: FleetError | None = None

    async def store(self, step: int) -> int:
        self.begun.set()
        await self.go.wait()
        if self.fault is not None:
            raise self.fault
        self.kept.append(step)
        return 100


def a_model(store: Store, *, answering: bool = True) -> tuple[CheckpointingModel, AuditTrail]:
    thinker, trail = Thinker(), AuditTrail(agent_id="agent-1")
    if answering:
        thinker.go.set()
    return CheckpointingModel(
        model=thinker, trail=trail, checkpoints=CheckpointPolicy(store=store.store), step=4
    ), trail


async def ask(model: CheckpointingModel) -> ModelReply:
    return await model.reply(ModelRequest(()))


async def test_only_what_changed_is_stored_and_the_reply_waits_for_it() -> None:
    store = Store()
    model, trail = a_model(store)
    await ask(model)
    assert not store.begun.is_set()
    trail.revision += 1
    asking = asyncio.create_task(ask(model))
    await store.begun.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asking.done()
    store.go.set()
    assert (await asking).message.content == "ok"
    await ask(model)
    assert store.kept == [5]


async def test_a_workspace_that_cannot_be_stored_costs_the_checkpoint_only_but_whoever_was_fenced_stops() -> None:
    store = Store(fault=Unavailable("no room"))
    store.go.set()
    model, trail = a_model(store)
    trail.revision += 1
    assert (await ask(model)).message.content == "ok"
    store.fault = Fenced("taken over")
    with pytest.raises(Fenced):
        await ask(model)
    store.fault = None
    await ask(model)
    assert len(store.kept) == 1


async def test_a_cancellation_ends_both() -> None:
    store = Store()
    model, trail = a_model(store, answering=False)
    trail.revision += 1
    asking = asyncio.create_task(ask(model))
    await store.begun.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    store.go.set()
    await asyncio.sleep(0)
    assert store.kept == []


async def test_a_large_workspace_is_stored_more_seldom() -> None:
    checkpoints = CheckpointPolicy(store=Store().store, every_seconds=20)
    assert checkpoints.pause(1024, 0.05) == 20
    assert checkpoints.pause(64 * 1024**2, 1.0) == 160
    assert checkpoints.pause(1024, 30.0) == 300
    assert CheckpointPolicy(store=Store().store).pause(64 * 1024**2, 1.0) == 0
