"""Projections that are saved and restored: they come to what the log comes to, wherever a writer was killed."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import pytest
from structlog.testing import capture_logs

from swe_ai_fleet import snapshots as snapshots_module
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.orchestrator.meter import Meter
from swe_ai_fleet.orchestrator.projection import Projection
from swe_ai_fleet.ports import KeyValueEntry
from swe_ai_fleet.snapshots import Snapshot, Snapshots
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue

T = TypeVar("T")
LOGS = Path(__file__).parent / "golden_logs"


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class Bucket(MemoryKeyValue):
    """A bucket whose writer dies at a put; `puts` are those of its whole life."""

    def __init__(self, dies_at: int = -1) -> None:
        super().__init__()
        self.puts: list[str] = []
        self.dies_at = dies_at

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        if len(self.puts) == self.dies_at:
            raise Killed
        self.puts.append(key)
        return await super().put(key, value, revision=revision)


@dataclass
class Lines:
    """A projection of lines, at the position that their number is."""

    known: list[bytes] = field(default_factory=list[bytes])
    refuses: bool = False

    def load(self, lines: Iterator[bytes]) -> None:
        self.known = list(lines)
        if self.refuses and self.known:
            raise ValueError("of no use")

    def within(self, store: Snapshots) -> Snapshot:
        return store.of("lines", dump=lambda: list(self.known), load=self.load)

    async def save(self, store: Snapshots) -> bool:
        return await self.within(store).save(lambda: len(self.known))


def noise(size: int) -> list[bytes]:
    """Lines that need two parts, whatever compresses them."""
    return [hashlib.sha512(str(number).encode()).hexdigest().encode() for number in range(size)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "PART_BYTES", 2_000)


async def test_a_writer_that_is_killed_leaves_the_snapshot_before() -> None:
    first, second = noise(200), noise(400)
    for dies_at in range(100):
        bucket, now = Bucket(), [0.0]
        store = Snapshots(bucket=bucket, origin="o", pause=10.0, clock=lambda now=now: now[0])
        now[0] = 100.0
        assert await Lines(first).save(store)
        begun, bucket.dies_at = len(bucket.puts), len(bucket.puts) + dies_at
        now[0] = 200.0
        try:
            done = await Lines(second).save(store)
        except Killed:
            done = False
        restored = Lines()
        assert await restored.within(store).restore() == (400 if done else 200)
        assert restored.known == (second if done else first)
        if done:
            assert dies_at == len(bucket.puts) - begun >= 4
            return
        # Who comes later does it, once the claim of the dead one is old.
        bucket.dies_at = -1
        assert not dies_at or not await Lines(second).save(store)
        now[0] = 300.0
        assert await Lines(second).save(store) and await restored.within(store).restore() == 400


@pytest.mark.parametrize("damage", ["part", "lost", "refused", "other log"])
async def test_what_is_damaged_or_of_others_is_left_aside(damage: str) -> None:
    bucket = Bucket()
    store = Snapshots(bucket=bucket, origin="o")
    assert await Lines(noise(600)).save(store)
    part = next(key for key in bucket.puts if key.endswith(".1"))
    match damage:
        case "part":
            entry = await bucket.get(part)
            assert entry is not None
            await bucket.put(part, entry.value[:-1] + bytes([entry.value[-1] ^ 1]))
        case "lost":
            await bucket.delete(part)
        case "other log":
            store = replace(store, origin="another")
        case _:
            pass
    restored = Lines(refuses=damage == "refused")
    with capture_logs() as logs:
        assert (await restored.within(store).restore(), restored.known) == (0, [])
    assert [entry["event"] for entry in logs] == (["snapshot.ignored"] if "other" not in damage else [])


# Every projection, over its own source: what it is made of, and what can be seen of it.


@dataclass
class Events:
    """A log of events that can be read from a place on, and counts what was read."""

    events: list[ev.StoredEvent]
    read: int = 0

    async def heads(
        self, *, from_sequence: int = 0, follow: bool = False
    ) -> AsyncGenerator[ev.StoredEvent | None, None]:
        for stored in self.events:
            if stored.sequence >= from_sequence and stored.event.agent_id in (ev.EXECUTION_SUBJECT, ev.CONTROL_SUBJECT):
                self.read += 1
                yield stored
        yield None
        await asyncio.Event().wait()

    async def everything(self, start: int) -> AsyncGenerator[ev.StoredEvent | None, None]:
        for stored in self.events:
            if stored.sequence >= start:
                self.read += 1
                yield stored
        yield None
        await asyncio.Event().wait()


def golden() -> list[ev.StoredEvent]:
    """The events of whole executions, one after the other, of two tenants."""
    found: list[ev.Event] = []
    for path in sorted(LOGS.glob("v*/*.jsonl")):
        for tenant in ("acme", "umbrella"):
            lines = path.read_bytes().splitlines()
            found += [replace(from_json(ev.Event, line), tenant=tenant) for line in lines]
    events = [_of_tenant(event) for event in found]
    return [ev.StoredEvent(sequence=number, event=event) for number, event in enumerate(events, start=1)]


def _of_tenant(event: ev.Event) -> ev.Event:
    if not isinstance(event.body, ev.ExecutionStarted):
        return event
    return replace(event, body=replace(event.body, task=replace(event.body.task, tenant=event.tenant)))


async def until_saved(bucket: Bucket) -> None:
    async with asyncio.timeout(10):
        while sum(entry.value.find(b'"sha256":""') < 0 for entry in await heads(bucket)) < 1:
            await asyncio.sleep(0.001)


async def heads(bucket: Bucket) -> list[KeyValueEntry]:
    return [entry for entry in await bucket.entries() if entry.key.endswith(".head")]


@asynccontextmanager
async def running(projection: Projection) -> AsyncGenerator[Projection]:
    await projection.start()
    try:
        yield projection
    finally:
        await projection.stop()


def of_executions(projection: Projection) -> object:
    statuses = frozenset({ev.ExecutionStatus.COMPLETED})
    return [
        (
            list(projection.select(tenant)),
            [state.execution_id for state in projection.select(tenant, statuses=statuses)],
            [projection.end_sequence(tenant, state.execution_id) for state in projection.select(tenant)],
            projection.unfinished(tenant),
            [projection.total(tenant, role=role) for role in Role],
            projection.starting_with(tenant, ""),
        )
        for tenant in ("acme", "umbrella")
    ]


# At the first cut an execution has ended, and nobody is told yet.
@pytest.mark.parametrize("cut", [26, 40, 10_000])
async def test_executions_are_what_the_log_says_from_whichever_place(cut: int) -> None:
    events, bucket = golden(), Bucket()
    store = Snapshots(bucket=bucket, origin="o", pause=0.001, least=1)
    async with running(Projection(Events(events))) as whole:
        expected = of_executions(whole)
        assert {state.status for state in whole.select("acme")} > {ev.ExecutionStatus.COMPLETED}
    async with running(Projection(Events(events[:cut]), snapshots=store)):
        await until_saved(bucket)
    rest = Events(events)
    async with running(Projection(rest, snapshots=store)) as restored:
        assert of_executions(restored) == expected
    tail = [stored for stored in events[cut:] if stored.event.agent_id in (ev.EXECUTION_SUBJECT, ev.CONTROL_SUBJECT)]
    # Where the newest head stands, the position may be before the cut by events of agents.
    assert rest.read <= len(tail)


async def test_figures_are_what_the_log_says_from_whichever_place() -> None:
    events = golden()

    def at_end() -> float:
        return 1.9e9

    async def measured(meter: Meter) -> object:
        await meter.whole()
        found = [await meter.measure(tenant, start=1.9e9 - 80 * 86_400) for tenant in ("acme", "umbrella")]
        running = [meter.running(stored.event.tenant, stored.event.execution_id) for stored in events]
        return found, dict(meter.totals()), running, await meter.spent_today("acme")

    async with Meter(Events(events).everything, clock=at_end) as meter:
        expected = await measured(meter)
        assert meter.totals()["acme"].tools
    for cut in (60, len(events)):
        bucket = Bucket()
        store = Snapshots(bucket=bucket, origin="o", pause=0.001, least=1)
        async with Meter(Events(events[:cut]).everything, clock=at_end, snapshots=store):
            await until_saved(bucket)
        rest, (head,) = Events(events), await heads(bucket)
        async with Meter(rest.everything, clock=at_end, snapshots=store) as meter:
            assert await measured(meter) == expected
        assert rest.read == len(events) - json.loads(head.value)["position"] < len(events)
