"""A process's link to the log: slow, losing answers, standing still, gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errand import (
    Assignment,
    CheckAssignment,
    DeriveAssignment,
    Errand,
)
from swe_ai_fleet.domain.errors import AgentLost, FleetError, Unavailable
from swe_ai_fleet.domain.event import Event, EventBody, StoredEvent, Writer
from swe_ai_fleet.ports import Journal
from swe_ai_fleet.testing.fleet import ScriptedFleet
from swe_ai_fleet.testing.memory_log import MemoryLog


@dataclass(eq=False)
class Link:
    """`EventLog`, `BlobStore` and `ResultBus` as one process has them.

    While it is not `awake`, whatever the process does waits; that of a process which is gone waits for ever, so nothing
    of it is ever tidied up. With `losing`, that share of the answers to appends is lost though the event is stored.
    """

    log: MemoryLog
    random: Random
    losing: float = 0.0
    awake: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.awake.set()

    async def pass_time(self) -> None:
        await asyncio.sleep(self.random.expovariate(50))
        await self.awake.wait()

    def answer(self) -> None:
        if self.random.random() < self.losing:
            raise Unavailable("the answer was lost")

    @asynccontextmanager
    async def journal(self, writer: Writer, *, fresh: bool = False) -> AsyncGenerator[Journal]:
        await self.pass_time()
        async with self.log.journal(writer, fresh=fresh) as journal:
            linked = LinkedJournal(self, journal, writer)
            yield linked
            await linked.flush()

    async def tell(self, writer: Writer, body: EventBody) -> StoredEvent:
        await self.pass_time()
        stored = await self.log.tell(writer, body)
        await self.pass_time()
        self.answer()
        return stored

    async def read(
        self, tenant: str, execution_id: str, *, agent_id: str = "", from_sequence: int = 0, follow: bool = False
    ) -> AsyncGenerator[StoredEvent]:
        await self.pass_time()
        events = self.log.read(tenant, execution_id, agent_id=agent_id, from_sequence=from_sequence, follow=follow)
        async with aclosing(events):
            async for stored in events:
                yield stored

    async def heads(self, *, follow: bool = False) -> AsyncGenerator[StoredEvent | None]:
        async with aclosing(self.log.heads(follow=follow)) as events:
            async for stored in events:
                await self.pass_time()
                yield stored

    async def put(self, tenant: str, execution_id: str, data: bytes, media_type: str, *, place: str = "") -> BlobRef:
        await self.pass_time()
        return await self.log.put(tenant, execution_id, data, media_type, place=place)

    async def discard(self, ref: BlobRef) -> None:
        await self.pass_time()
        await self.log.discard(ref)

    async def get(self, ref: BlobRef) -> bytes:
        await self.pass_time()
        return await self.log.get(ref)

    async def publish(self, *, tenant: str, task_id: str, execution_id: str, agent_id: str, payload: bytes) -> bool:
        await self.pass_time()
        published = await self.log.publish(
            tenant=tenant, task_id=task_id, execution_id=execution_id, agent_id=agent_id, payload=payload
        )
        await self.pass_time()
        self.answer()
        return published


T = TypeVar("T")


class LinkedJournal:
    """A `Journal` over a link. Like the real one it is closed by any fault."""

    def __init__(self, link: Link, journal: Journal, writer: Writer) -> None:
        self._link = link
        self._journal = journal
        self._fault: FleetError | None = None

    def post(self, body: EventBody) -> Event:
        if self._fault is not None:
            raise self._fault
        return self._journal.post(body)

    async def append(self, body: EventBody) -> Event:
        await self._link.pass_time()
        event = self.post(body)
        await self.flush()
        return event

    async def flush(self) -> None:
        if self._fault is not None:
            raise self._fault
        await self._journal.flush()
        await self._link.pass_time()
        try:
            self._link.answer()
        except Unavailable as fault:
            self._fault = fault
            raise


@dataclass(eq=False)
class UnreliableFleet:
    """A `Fleet` whose processes are lost now and then: before their work, or when it is done and not yet told."""

    inner: ScriptedFleet
    random: Random
    losing: float

    def _maybe_lost(self) -> None:
        if self.random.random() < self.losing:
            raise AgentLost("its host died")

    async def carry_out(self, errand: Errand[T]) -> T:
        if isinstance(errand, CheckAssignment | DeriveAssignment):
            return await self.inner.carry_out(errand)
        self._maybe_lost()
        value = await self.inner.carry_out(errand)
        if isinstance(errand, Assignment):
            self._maybe_lost()
        return value
