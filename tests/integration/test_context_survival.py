"""What projects know outlives whatever is killed: nothing acknowledged is lost, and nothing is there twice."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest

from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.context.book import ContextBook
from swe_ai_fleet.domain.context import Change, StoredChange, StoryUpdated, WorkRecord, WorkRecorded
from swe_ai_fleet.domain.errors import Fenced, InvalidRequest, Unavailable
from swe_ai_fleet.ports import ChangeLog
from swe_ai_fleet.runtime.nats_server import EmbeddedNats, NatsAddress
from tests.lost_answers import Proxy

TENANT = "acme"


@asynccontextmanager
async def connected(address: NatsAddress, *, url: str = "", patience: float = 15.0) -> AsyncGenerator[ChangeLog]:
    credentials = Credentials(token=address.token)
    async with JetStream.connect(url or address.url, credentials=credentials, patience=patience) as jetstream:
        await jetstream.ensure_streams()
        yield jetstream.changes()


@asynccontextmanager
async def opened(log: ChangeLog) -> AsyncGenerator[ContextBook]:
    async with ContextBook(log, mask=lambda text: text) as book:
        yield book


async def everything(log: ChangeLog, tenant: str = TENANT) -> list[StoredChange]:
    return [one async for one in log.read() if one is not None and one.change.tenant == tenant]


async def kill(server: EmbeddedNats) -> None:
    os.kill(server.address.pid, signal.SIGKILL)
    await server.wait()
    await server.__aexit__(None, None, None)


def note(tenant: str, version: int, text: str) -> Change:
    return Change(tenant=tenant, story_id="S", version=version, at="2026", body=StoryUpdated(notes={"n": text}))


def record(tenant: str, execution_id: str) -> Change:
    body = WorkRecorded(record=WorkRecord(execution_id=execution_id, task_id="T"))
    return Change(tenant=tenant, story_id="S", version=0, at="2026", body=body)


@pytest.mark.parametrize("overtaken", [False, True])
async def test_a_change_whose_answer_got_lost_is_stored_once(nats_server: EmbeddedNats, overtaken: bool) -> None:
    tenant, address = f"t-{uuid.uuid4().hex}", nats_server.address
    proxy = Proxy(address.url, only=b'"stream":"CONTEXT_CHANGES"')
    async with (
        asyncio.timeout(20),
        proxy.running(),
        connected(address) as other,
        connected(address, url=proxy.url) as log,
    ):
        ours, work, behind = note(tenant, 1, "ours"), record(tenant, "e-1"), [note(tenant, 2, "behind")][:overtaken]
        for change, meanwhile in ((ours, behind), (work, [])):
            proxy.swallowing = True
            writing = asyncio.ensure_future(log.append(change))
            await proxy.swallowed.wait()
            for another in meanwhile:
                await other.append(another)
            proxy.swallowing = False
            proxy.swallowed.clear()
            proxy.cut()
            assert (await writing).change == change
        assert [one.change for one in await everything(other, tenant)] == [ours, *behind, work]
        with pytest.raises(Fenced):
            await log.append(ours)


async def test_what_is_no_change_does_not_hide_the_others(nats_server: EmbeddedNats) -> None:
    tenant = f"t-{uuid.uuid4().hex}"
    stranger = await nats.connect(nats_server.address.url)
    try:
        async with connected(nats_server.address) as log:
            kept = (await stranger.jetstream().stream_info("CONTEXT_CHANGES")).config
            # What is known does not grow old.
            assert (kept.max_age, kept.storage, kept.discard) == (0, "file", "new")
            await log.append(note(tenant, 1, "before"))
            future = b'{"tenant": "t", "body": {"type": "from_the_future"}}'
            await stranger.jetstream().publish(f"context.changes.{tenant}.S", future, headers={"Fleet-Version": "2"})
            async with opened(log) as book:
                assert book.graph(tenant).version("S") == 1
            # Who cannot read the last change cannot go on behind it.
            with pytest.raises(Fenced):
                await log.append(note(tenant, 2, "late"))
            await log.append(note(tenant, 3, "after"))
            assert [one.change.version for one in await everything(log, tenant)] == [1, 3]
    finally:
        await stranger.close()


async def test_a_change_too_large_or_a_server_away_is_said(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path) as server, connected(server.address, patience=0.5) as log:
        with pytest.raises(InvalidRequest):
            await log.append(note(TENANT, 1, "x" * 2_000_000))
        await log.append(note(TENANT, 1, "x"))
        async with opened(log) as book:
            await kill(server)
            with pytest.raises(Unavailable):
                await book.record_work(TENANT, WorkRecord(execution_id="e", task_id="T"))
            assert book.graph(TENANT).version("S") == 1
