"""What every log of changes does: in memory and on a real JetStream, also when that is killed in between."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.domain import candidate
from swe_ai_fleet.domain.context import (
    Change,
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
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.testing.memory_changes import MemoryChanges

AT = "2026-11-22T12:00:00.000+00:00"


@pytest.fixture(params=["memory", "jetstream"])
async def log(request: pytest.FixtureRequest, nats_server: EmbeddedNats) -> AsyncIterator[ChangeLog]:
    if request.param == "memory":
        yield MemoryChanges()
        return
    address = nats_server.address
    async with JetStream.connect(address.url, credentials=Credentials(token=address.token), patience=5.0) as jetstream:
        await jetstream.ensure_streams()
        await jetstream.ensure_streams()
        yield jetstream.changes()


def a_tenant() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def note(tenant: str, version: int, text: str = "", story_id: str = "S.1") -> Change:
    return Change(
        tenant=tenant, story_id=story_id, version=version, at=AT, body=StoryUpdated(notes={"n": text or str(version)})
    )


def record(tenant: str, execution_id: str, summary: str = "", story_id: str = "S.1") -> Change:
    body = WorkRecorded(
        record=WorkRecord(
            execution_id=execution_id,
            task_id="T-1",
            summary=summary,
            operations={"files_read_file": 3},
            tests=candidate.TestSummary(passed=2, failed=1, failing=("a::b",)),
        )
    )
    return Change(tenant=tenant, story_id=story_id, version=0, at=AT, body=body)


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


@pytest.mark.parametrize("version", [0, 1, 2, 4])
async def test_only_the_next_version_is_written(log: ChangeLog, version: int) -> None:
    tenant = a_tenant()
    stands = [await log.append(note(tenant, 1)), await log.append(note(tenant, 2))]
    with pytest.raises(Fenced):
        await log.append(note(tenant, version, "late"))
    assert await everything(log, tenant) == stands
    await log.append(note(tenant, 3))


async def test_of_two_who_write_the_same_version_one_gets_through(log: ChangeLog) -> None:
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
