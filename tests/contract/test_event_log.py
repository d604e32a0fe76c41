"""What every event log, blob store and result bus does: in memory and on a real JetStream."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Protocol

import pytest

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import AlreadyExists, Fenced, NotFound
from swe_ai_fleet.domain.event import CancelRequested, Event, RunClaimed, RunLost, StoredEvent, Writer
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.ports import BlobStore, EventLog, ResultBus
from swe_ai_fleet.runtime.nats_server import EmbeddedNats


class Log(EventLog, BlobStore, ResultBus, Protocol):
    def everything(
        self, *, from_sequence: int = 0, follow: bool = False
    ) -> AsyncGenerator[StoredEvent | None, None]: ...


async def take_batches(log: JetStream) -> None:
    """Have the stream take atomic batches, which it does by itself where it has copies."""
    config = (await log.connection.api("STREAM.INFO.AGENT_EVENTS", timeout=10))["config"] | {"allow_atomic": True}
    await log.connection.api("STREAM.UPDATE.AGENT_EVENTS", config, timeout=10)


@pytest.fixture(params=["memory", "jetstream", "batches"])
async def log(request: pytest.FixtureRequest, nats_server: EmbeddedNats) -> AsyncIterator[Log]:
    if request.param == "memory":
        yield MemoryLog()
        return
    address = nats_server.address
    async with JetStream.connect(
        address.url, credentials=NatsCredentials(token=address.token), timeout=5.0
    ) as jetstream:
        await jetstream.ensure_streams()
        await jetstream.ensure_streams()
        if request.param == "batches":
            await take_batches(jetstream)
        yield jetstream
        assert jetstream.connection.batches or request.param == "jetstream"


def writer(agent_id: str = "agent-1", *, execution_id: str = "", generation: int = 1, tenant: str = "acme") -> Writer:
    execution = execution_id or str(uuid.uuid4())
    return Writer(tenant=tenant, execution_id=execution, task_id="task.1", agent_id=agent_id, generation=generation)


def note(text: str) -> CancelRequested:
    return CancelRequested(reason=text)


def notes(stored: list[StoredEvent]) -> list[str]:
    return [one.event.body.reason for one in stored if isinstance(one.event.body, CancelRequested)]


async def everything(log: Log, who: Writer, *, from_sequence: int = 0) -> list[StoredEvent]:
    return [one async for one in log.read(who.tenant, who.execution_id, from_sequence=from_sequence)]


async def write(log: Log, who: Writer, *texts: str, fresh: bool = True) -> list[Event]:
    async with log.journal(who, fresh=fresh) as journal:
        return [await journal.append(note(text)) for text in texts]


async def test_events_are_read_back_in_order(log: Log) -> None:
    who = writer()
    assert await everything(log, who) == []
    written = await write(log, who, *map(str, range(10)))
    stored = await everything(log, who)
    assert [one.event for one in stored] == written
    assert [one.sequence for one in stored] == sorted({one.sequence for one in stored})
    assert stored[0].sequence >= 1
    assert [event.id for event in written][:2] == [f"{who.execution_id}/agent-1/1/{n}" for n in (1, 2)]
    assert notes(await everything(log, who, from_sequence=stored[7].sequence)) == ["7", "8", "9"]
    assert await everything(log, who, from_sequence=stored[7].sequence + 1000) == []


async def test_posted_events_are_durable_after_the_append_and_on_leaving(log: Log) -> None:
    who, failing, large = writer(), writer(), 'ä\n"body_ref"' * 40_000
    async with log.journal(who, fresh=True) as journal:
        for number in range(50):
            journal.post(note(str(number)))
        journal.post(note(large))
        await journal.append(note('"body_ref"'))
        assert notes(await everything(log, who)) == [*(str(number) for number in range(50)), large, '"body_ref"']
    with pytest.raises(RuntimeError, match="the agent broke"):
        async with log.journal(failing, fresh=True) as journal:
            journal.post(note("before"))
            raise RuntimeError("the agent broke")
    assert notes(await everything(log, failing)) == ["before"]


async def test_an_execution_reads_all_its_agents_and_nobody_else(log: Log) -> None:
    execution_id = str(uuid.uuid4())
    strangers = (
        *(writer("agent-2"), writer("agent-2", execution_id=execution_id, tenant="other")),
        *(writer("one", execution_id=f"{execution_id}.agent"), writer("x", execution_id=f"{execution_id}.agent.one")),
    )
    for who in (*(writer(name, execution_id=execution_id) for name in ("_", "agent.one", "agent-2")), *strangers):
        await write(log, who, who.agent_id)
    assert notes(await everything(log, writer(execution_id=execution_id))) == ["_", "agent.one", "agent-2"]
    assert notes([one async for one in log.read("acme", execution_id, agent_id="agent-2")]) == ["agent-2"]
    for who in strangers:
        assert notes(await everything(log, who)) == [who.agent_id]


async def test_a_fresh_journal_wants_an_empty_subject(log: Log) -> None:
    who, contested = writer("_"), writer("_")
    await write(log, who, "first")
    with pytest.raises(AlreadyExists):
        await write(log, who, "second")
    assert notes(await everything(log, who)) == ["first"]

    async def accept(name: str) -> str:
        try:
            await write(log, contested, name)
        except AlreadyExists:
            return "refused"
        return name

    outcomes = await asyncio.gather(accept("a"), accept("b"))
    assert outcomes.count("refused") == 1
    assert notes(await everything(log, contested)) == [name for name in outcomes if name != "refused"]


async def test_every_generation_has_ids_of_its_own_and_is_opened_once(log: Log) -> None:
    who = writer()
    rivals = writer(execution_id=who.execution_id, generation=3)
    await write(log, who, "x", "x", fresh=False)
    with pytest.raises(Fenced):
        async with log.journal(who):
            pass
    with pytest.raises(Fenced):
        async with log.journal(rivals) as second:
            await write(log, rivals, "third", fresh=False)
            await second.append(note("second"))
    with pytest.raises(Fenced):
        await write(log, writer(execution_id=who.execution_id, generation=2), "two", fresh=False)
    stored = await everything(log, who)
    assert notes(stored) == ["x", "x", "third"]
    assert [one.event.id.split("/", 2)[2] for one in stored] == ["1/1", "1/2", "3/1"]


async def test_a_take_over_fences_the_writer_before_it(log: Log) -> None:
    old = writer()
    with pytest.raises(Fenced):  # leaving the fenced journal says so once more
        async with log.journal(old, fresh=True) as first:
            await first.append(note("mine"))
            async with log.journal(writer(execution_id=old.execution_id, generation=2)) as second:
                # Until its claim stands the old owner is let in.
                await first.append(note("mine still"))
                await second.append(RunClaimed(generation=2, host="b"))
                for late in (first.append(note("too late")), first.append(note("still too late")), first.flush()):
                    with pytest.raises(Fenced):
                        await late
                await second.append(note("new owner"))
    assert notes(await everything(log, old)) == ["mine", "mine still", "new owner"]


async def test_many_may_tell_an_execution_something(log: Log) -> None:
    control = writer("~", generation=0)
    told = await asyncio.gather(*(log.tell(control, note(str(number))) for number in range(8)))
    stored = await everything(log, control)
    assert sorted(notes(stored)) == [str(number) for number in range(8)]
    assert sorted(one.sequence for one in told) == [one.sequence for one in stored]
    assert len({one.event.id for one in stored}) == 8
    heads = [one.event.execution_id async for one in log.heads() if one is not None]
    assert heads.count(control.execution_id) == 8


async def test_following_sees_what_was_and_what_comes(log: Log) -> None:
    who = writer()
    async with asyncio.timeout(20), aclosing(log.read(who.tenant, who.execution_id, follow=True)) as early:
        # Before there is anything.
        first = asyncio.ensure_future(anext(early))
        async with log.journal(who, fresh=True) as journal:
            await journal.append(note("stored"))
            assert notes([await first]) == ["stored"]
            async with aclosing(log.read(who.tenant, who.execution_id, follow=True)) as events:
                assert notes([await anext(events)]) == ["stored"]
                journal.post(note("coming"))
                assert notes([await anext(events)]) == ["coming"]
                await journal.append(note("later"))
                assert notes([await anext(events)]) == ["later"]


async def test_heads_are_what_executions_say_themselves_and_mark_where_the_past_ends(log: Log) -> None:
    before, agent, after = writer("_"), writer("agent-1"), writer("_")
    async with log.journal(before, fresh=True) as journal:
        await journal.append(RunLost(lost_agent_id="agent-1", reason="gone"))
    await write(log, agent, "agent")
    async with asyncio.timeout(20), aclosing(log.heads(follow=True)) as heads:
        past: set[str] = set()
        while (one := await anext(heads)) is not None:
            past.add(one.event.execution_id)
        assert before.execution_id in past
        assert agent.execution_id not in past
        await write(log, after, "after")
        present = await anext(heads)
        assert present is not None
        assert present.event.execution_id == after.execution_id


async def test_a_blob_comes_back_and_is_named_by_its_content(log: Log) -> None:
    for size in (0, 1, 200_000, 1_500_000):
        data, execution_id = bytes(range(256)) * (size // 256) + b"x" * (size % 256), str(uuid.uuid4())
        ref = await log.put("acme", execution_id, data, "text/x-diff")
        digest = hashlib.sha256(data).hexdigest()
        assert ref == BlobRef(name=f"acme/{execution_id}/{digest}", digest=digest, size=size, media_type="text/x-diff")
        assert await log.put("acme", execution_id, data, "text/x-diff") == ref
        assert await log.get(ref) == data
        for name in ("acme/none/00", ref.name):
            with pytest.raises(NotFound):
                await log.get(BlobRef(name=name, digest="00", size=1))


async def test_a_result_stands_once_for_each_execution(log: Log) -> None:
    task_id = f"task-{uuid.uuid4()}"

    async def publish(execution_id: str, agent_id: str = "") -> bool:
        return await log.publish(
            tenant="default", task_id=task_id, execution_id=execution_id, agent_id=agent_id, payload=b"{}"
        )

    said = ("first", ""), ("first", ""), ("second", ""), ("second", ""), ("first", ""), ("first", "_"), ("first", "a")
    assert [await publish(*one) for one in said] == [True, False, True, False, False, False, True]
    assert not await publish("first", "a")
    racing = await asyncio.gather(*(publish(execution_id) for execution_id in ("a", "b", "a", "b", "c", "a")))
    assert racing.count(True) == 3


async def test_what_is_put_into_a_place_takes_the_place_of_what_was_there(log: Log) -> None:
    execution_id, place = str(uuid.uuid4()), "checkpoints/agent-1/x-0"
    texts = (b"first" * 100_000, b"half-!", b"second")
    first, _, second = [await log.put("acme", execution_id, data, "text/plain", place=place) for data in texts]
    others = [await log.put("acme", execution_id, b"second", "text/plain", place=at) for at in ("", "checkpoints/b")]
    assert (first.name, second.name) == (f"acme/{execution_id}/{place}",) * 2
    assert await log.get(second) == b"second"
    await log.discard(second)
    await log.discard(second)
    with pytest.raises(NotFound):
        await log.get(second)
    assert [await log.get(other) for other in others] == [b"second"] * 2
    again = await log.put("acme", execution_id, b"third", "text/plain", place=place)
    assert await log.get(again) == b"third"
