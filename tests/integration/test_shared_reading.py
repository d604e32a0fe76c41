"""What a process reads of an execution while it follows the whole log: the same events, and nothing asked for twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace

import pytest

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.adapters.jetstream.protocol import event_subject
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.event import ExecutionStarted, StoredEvent, Writer
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from tests.contract.test_event_log import everything, note, notes, write, writer

REPOSITORY = PinnedRepository(tenant="acme", location="/r", commit="a" * 40)
STARTED = ExecutionStarted(
    task=Task(task_id="t", kind=TaskKind.DELIBERATE, description="d", repo=RepoRef(location="/r")),
    repository=REPOSITORY,
    fingerprint="f",
)


@dataclass(frozen=True, kw_only=True)
class World:
    """A log that is followed as an orchestrator does it, the same log seen by nobody, and what the follower heard."""

    log: JetStream
    plain: JetStream
    heard: list[StoredEvent]
    following: asyncio.Task[None]

    async def begun(self, *texts: str) -> Writer:
        """An execution whose agent has said something."""
        head = writer("_")
        async with self.plain.journal(head, fresh=True) as journal:
            await journal.append(STARTED)
        await write(self.plain, replace(head, agent_id="agent-1"), *texts)
        return head

    async def publish(self, who: Writer, data: bytes) -> None:
        subject = event_subject(who.tenant, who.execution_id, who.agent_id)
        await self.plain.connection.publish(subject, data, headers={}, timeout=5.0)

    async def both(self, who: Writer) -> list[StoredEvent]:
        """The events of an execution, which must be those that the server has."""
        shared = await everything(self.log, who)
        assert shared == await everything(self.plain, who)
        return shared


@asynccontextmanager
async def connected(server: EmbeddedNats) -> AsyncGenerator[JetStream]:
    address = server.address
    async with JetStream.connect(address.url, credentials=NatsCredentials(token=address.token), timeout=10.0) as log:
        await log.ensure_streams()
        yield log


@pytest.fixture
async def world(nats_server: EmbeddedNats) -> AsyncIterator[World]:
    async with connected(nats_server) as log, connected(nats_server) as plain:
        heard, caught_up = list[StoredEvent](), asyncio.Event()

        async def follow() -> None:
            async with aclosing(log.everything(follow=True)) as told:
                async for one in told:
                    if one is None:
                        caught_up.set()
                    else:
                        heard.append(one)

        following = asyncio.create_task(follow())
        async with asyncio.timeout(20):
            await caught_up.wait()
        yield World(log=log, plain=plain, heard=heard, following=following)
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def consumers(world: World) -> set[str]:
    return set(await world.plain.consumers("AGENT_EVENTS"))


async def test_an_execution_that_began_meanwhile_is_read_without_a_reader(world: World) -> None:
    who = await world.begun(*map(str, range(300)))
    stored, before = await world.both(who), await consumers(world)
    agent = [one async for one in world.log.read("acme", who.execution_id, agent_id="agent-1")]
    assert notes(agent) == notes(stored) == [str(number) for number in range(300)]
    assert await everything(world.log, who, from_sequence=stored[299].sequence) == stored[299:]
    assert await everything(world.log, who, from_sequence=stored[-1].sequence + 1) == []
    # The very events that the follower got.
    assert all(any(one is heard for heard in world.heard) for one in stored[:3])
    async with aclosing(world.log.read("acme", who.execution_id, follow=True)) as reading, asyncio.timeout(20):
        assert [await anext(reading) for _ in stored] == stored
        coming = asyncio.ensure_future(anext(reading))
        await write(world.plain, replace(who, agent_id="agent-2"), "more")
        assert notes([await coming]) == ["more"]
        assert await consumers(world) == before
    # What is durable is read, whoever wrote it and however late the follower hears it.
    for number in range(20):
        await world.plain.tell(replace(who, agent_id="~", generation=0), note(f"told {number}"))
        assert notes(await everything(world.log, who))[-1] == f"told {number}"
    assert await consumers(world) == before


async def test_what_is_not_known_from_its_beginning_is_read_from_the_server(world: World) -> None:
    unknown = writer("agent-1")
    await write(world.plain, unknown, "of an execution without a start")
    assert notes(await world.both(unknown)) == ["of an execution without a start"]
    first = await world.begun("a")
    async with aclosing(world.log.read("acme", first.execution_id, follow=True)) as reading, asyncio.timeout(20):
        assert [notes([await anext(reading)]) for _ in range(2)] == [[], ["a"]]
        # Where nothing is followed any more, who reads it goes on.
        world.following.cancel()
        await write(world.plain, replace(first, agent_id="agent-2"), "f")
        assert notes([await anext(reading)]) == ["f"]
        assert len(await world.both(first)) == 3


async def test_a_writer_says_nothing_of_others_and_hides_nothing(world: World) -> None:
    mine, victim = await world.begun("mine"), await world.begun("theirs")
    told = victim.event(note("forged"), ordinal=9, at="2026-01-01T00:00:00+00:00")
    stranger = Writer(tenant="evil.one", execution_id="e", task_id="t", agent_id="agent-1", generation=1)
    for forged in (told, replace(told, tenant="evil.one"), victim.event(STARTED, ordinal=9, at=told.at)):
        await world.publish(stranger, to_json(forged))
    assert notes(await world.both(victim)) == ["theirs"]
    assert {(one.event.tenant, one.event.execution_id) for one in await world.both(stranger)} == {("evil.one", "e")}
    # An event that cannot be read is one for everybody who reads the execution.
    strange = json.loads(to_json(told)) | {"body": {"type": "of a newer version"}}
    await world.publish(replace(mine, agent_id="agent-2"), json.dumps(strange).encode())
    for log in (world.log, world.plain):
        with pytest.raises(PreconditionFailed, match="cannot be read"):
            await everything(log, mine)
    assert len(await world.both(victim)) == 2
