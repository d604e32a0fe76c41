"""What every log of changes does: in memory and on a real JetStream, also when that is killed in between."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain import candidate
from swe_ai_fleet.domain.context import (
    Change,
    ChangeBody,
    Phase,
    PhaseChanged,
    StoredChange,
    Story,
    StoryCreated,
    StoryUpdated,
    WorkRecord,
    WorkRecorded,
)
from swe_ai_fleet.domain.errors import AlreadyExists, Fenced
from swe_ai_fleet.ports import ChangeLog
from swe_ai_fleet.runtime.nats_server import EmbeddedNats, NatsAddress
from swe_ai_fleet.testing.memory_stores import MemoryChanges
from tests.lost_answers import Proxy
from tests.sampling import missing

AT = "2026-11-22T12:00:00.000+00:00"


@pytest.fixture(params=["memory", "jetstream"])
async def log(request: pytest.FixtureRequest, nats_server: EmbeddedNats) -> AsyncIterator[ChangeLog]:
    if request.param == "memory":
        yield MemoryChanges()
        return
    async with connected(nats_server.address) as changes:
        yield changes


@asynccontextmanager
async def connected(address: NatsAddress, *, url: str = "") -> AsyncGenerator[ChangeLog]:
    credentials = NatsCredentials(token=address.token)
    async with JetStream.connect(url or address.url, credentials=credentials, timeout=15) as jetstream:
        await jetstream.ensure_streams()
        await jetstream.ensure_streams()
        yield jetstream.changes()


def a_tenant() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def note(tenant: str, version: int, text: str = "") -> Change:
    body = StoryUpdated(notes={"n": text or str(version)})
    return Change(tenant=tenant, story_id="S.1", version=version, at=AT, body=body)


def record(tenant: str, execution_id: str, summary: str = "", story_id: str = "S.1") -> Change:
    tests = candidate.TestSummary(passed=2, failed=1, failing=("a::b",))
    work = WorkRecord(execution_id=execution_id, task_id="T-1", summary=summary, operations={"x": 3}, tests=tests)
    return Change(tenant=tenant, story_id=story_id, version=0, at=AT, body=WorkRecorded(record=work))


async def everything(log: ChangeLog, tenant: str, from_sequence: int = 0) -> list[StoredChange]:
    found = [one async for one in log.read(from_sequence=from_sequence)]
    return [one for one in found if one is not None and one.change.tenant == tenant]


async def test_changes_are_read_back_in_order_and_as_they_were(log: ChangeLog) -> None:
    tenant = a_tenant()
    bodies = (
        StoryCreated(story=Story(story_id="S.1", title="Grüße", acceptance_criteria=("a", "b"), notes={"k": "v"})),
        PhaseChanged(phase=Phase.DESIGN, reason="why", by="ana"),
        StoryUpdated(task_id="T-1", title="x"),
    )
    written = [
        await log.append(Change(tenant=tenant, story_id="S.1", version=number, at=AT, body=body))
        for number, body in enumerate(bodies, start=1)
    ]
    written.append(await log.append(record(tenant, "e-1")))
    assert await everything(log, tenant) == written
    assert [one.sequence for one in written] == sorted({one.sequence for one in written})
    assert written[0].sequence >= 1
    assert await everything(log, tenant, written[2].sequence) == written[2:]


async def test_only_the_next_version_is_written_and_by_one(log: ChangeLog) -> None:
    tenant = a_tenant()

    async def write(name: str) -> str:
        try:
            await log.append(note(tenant, 1, name))
        except Fenced:
            return ""
        return name

    winners = [name for name in await asyncio.gather(*(write(f"w{number}") for number in range(6))) if name]
    assert [one.change.body for one in await everything(log, tenant)] == [StoryUpdated(notes={"n": winners[0]})]
    assert len(winners) == 1
    await log.append(note(tenant, 2))
    stands = await everything(log, tenant)
    for version in (0, 1, 2, 4):
        with pytest.raises(Fenced):
            await log.append(note(tenant, version, "late"))
    assert await everything(log, tenant) == stands
    await log.append(note(tenant, 3))


async def test_an_execution_is_recorded_once_beside_its_story(log: ChangeLog) -> None:
    tenant = a_tenant()
    await log.append(note(tenant, 1))
    first = await log.append(record(tenant, "e.1", "first"))
    for again in (record(tenant, "e.1", "first"), record(tenant, "e.1", "second", "S.2")):
        with pytest.raises(AlreadyExists):
            await log.append(again)
    await log.append(record(tenant, "e.2"))
    await log.append(record(a_tenant(), "e.1"))
    # The story's version is where it was.
    await log.append(note(tenant, 2))
    found = await everything(log, tenant)
    assert len(found) == 4
    assert found[1] == first


async def test_changes_are_followed_as_they_come(log: ChangeLog) -> None:
    tenant = a_tenant()
    first = await log.append(note(tenant, 1))
    async with asyncio.timeout(10), aclosing(log.read(from_sequence=first.sequence, follow=True)) as following:
        assert await anext(following) == first
        assert await anext(following) is None
        for version in (2, 3):
            written = await log.append(note(tenant, version))
            assert await anext(following) == written


@pytest.mark.parametrize("overtaken", [False, True])
async def test_a_change_whose_answer_got_lost_is_stored_once(nats_server: EmbeddedNats, overtaken: bool) -> None:
    tenant, address = a_tenant(), nats_server.address
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


GOLDEN = Path(__file__).parents[1] / "unit" / "golden_changes"
KINDS = {kind.__dataclass_fields__["type"].default: kind for kind in get_args(ChangeBody)}


def test_every_kind_of_change_has_a_golden_file() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_golden_changes_are_read_and_still_written_as_they_were(name: str) -> None:
    stored = (GOLDEN / f"{name}.json").read_bytes()
    change = from_json(Change, stored)
    assert type(change.body) is KINDS[name]
    # Fields may have been added since: what was written then is still written.
    assert not missing(json.loads(stored), json.loads(to_json(change)))
    assert {one.name for one in fields(change.body)} & set(json.loads(stored)["body"])
