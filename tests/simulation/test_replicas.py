"""The orchestrator itself, three replicas of it on one log, while processes die, sleep and lose answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import pytest

from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalResolution
from swe_ai_fleet.domain.assignment import (
    Assignment,
    CheckAssignment,
    CodingAssignment,
    DeriveAssignment,
)
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import AgentLost, FleetError, Unavailable
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import DEFAULT_TENANT, Task, TaskKind
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.executions import Executions, Room
from swe_ai_fleet.orchestrator.projection import over
from swe_ai_fleet.ports import Journal
from tests.scripted_fleet import ScriptedFleet, ScriptedRun, execution_deps
from tests.simulation.virtual_loop import on_virtual_time
from tests.unit.test_executions import a_task

T = TypeVar("T")
LEASE_SECONDS = 15.0
TROUBLE_SECONDS = 120.0
TIMEOUT_SECONDS = 3600.0
TASKS = 5


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
    async def journal(self, writer: ev.Writer, *, fresh: bool = False) -> AsyncGenerator[Journal]:
        await self.pass_time()
        async with self.log.journal(writer, fresh=fresh) as journal:
            linked = LinkedJournal(self, journal, writer)
            yield linked
            await linked.flush()

    async def tell(self, writer: ev.Writer, body: ev.EventBody) -> ev.StoredEvent:
        await self.pass_time()
        stored = await self.log.tell(writer, body)
        await self.pass_time()
        self.answer()
        return stored

    async def read(
        self, tenant: str, execution_id: str, *, agent_id: str = "", from_sequence: int = 0, follow: bool = False
    ) -> AsyncGenerator[ev.StoredEvent]:
        await self.pass_time()
        events = self.log.read(tenant, execution_id, agent_id=agent_id, from_sequence=from_sequence, follow=follow)
        async with aclosing(events):
            async for stored in events:
                yield stored

    async def heads(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncGenerator[ev.StoredEvent | None]:
        async with aclosing(self.log.heads(from_sequence=from_sequence, follow=follow)) as events:
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


class LinkedJournal:
    """A `Journal` over a link. Like the real one it is closed by any fault."""

    def __init__(self, link: Link, journal: Journal, writer: ev.Writer) -> None:
        self._link = link
        self._journal = journal
        self._fault: FleetError | None = None

    def post(self, body: ev.EventBody) -> ev.Event:
        if self._fault is not None:
            raise self._fault
        return self._journal.post(body)

    async def append(self, body: ev.EventBody) -> ev.Event:
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

    async def run(self, assignment: Assignment[T]) -> T:
        if isinstance(assignment, CheckAssignment | DeriveAssignment):
            return await self.inner.run(assignment)
        self._maybe_lost()
        value = await self.inner.run(assignment)
        if isinstance(assignment, CodingAssignment):
            self._maybe_lost()
        return value


@dataclass(eq=False)
class Process:
    """One orchestrator process and its lease. What it is doing when it dies is never ended."""

    world: World
    name: str
    link: Link
    executions: Executions = field(init=False)
    gone: bool = False

    @property
    def me(self) -> str:
        return self.name

    def alive(self) -> frozenset[str]:
        return frozenset(self.world.leases)


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.log = MemoryLog()
        self.leases: set[str] = set()
        self.processes: list[Process] = []
        self.background: list[asyncio.Task[Any]] = []
        agents = ScriptedFleet(storage=Link(log=self.log, random=self.random))
        agents.runs = {"agent-dev-2": ScriptedRun(operations=2, asks=1)}
        agents.default = ScriptedRun(operations=3)
        self.fleet = UnreliableFleet(inner=agents, random=self.random, losing=0.08)
        self.names = 0

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        self.background.append(asyncio.create_task(work))

    async def start(self) -> None:
        self.names += 1
        link = Link(log=self.log, random=self.random, losing=0.02)
        process = Process(self, f"replica-{self.names}", link)
        deps = execution_deps(link, fleet=self.fleet, owner=process.name, pauses=(0.0, 1.0, 4.0))
        process.executions = Executions(deps, replicas=process, room=Room(executions=3))
        self.leases.add(process.name)
        self.processes.append(process)
        await process.executions.__aenter__()

    def _up(self) -> list[Process]:
        return [process for process in self.processes if not process.gone]

    async def lapse(self, process: Process) -> None:
        await asyncio.sleep(LEASE_SECONDS)
        if process.gone or not process.link.awake.is_set():
            self.leases.discard(process.name)

    async def crash(self, process: Process) -> None:
        process.gone = True
        process.link.awake.clear()
        self.begin(self.lapse(process))
        await asyncio.sleep(self.random.uniform(1, 30))
        await self.start()

    async def sleep(self, process: Process) -> None:
        """It stands still, longer than its lease or not, and goes on as if nothing had been."""
        process.link.awake.clear()
        self.begin(self.lapse(process))
        await asyncio.sleep(self.random.uniform(1, 4 * LEASE_SECONDS))
        if not process.gone:
            process.link.awake.set()
            self.leases.add(process.name)

    async def trouble(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + TROUBLE_SECONDS
        while loop.time() < end:
            await asyncio.sleep(self.random.expovariate(1 / 6))
            process = await self.anybody()
            self.begin(self.crash(process) if self.random.random() < 0.5 else self.sleep(process))

    async def anybody(self) -> Process:
        while True:
            up = [process for process in self._up() if process.link.awake.is_set()]
            if up:
                return self.random.choice(up)
            await asyncio.sleep(1)

    async def insist(self, ask: Any) -> Any:
        """Ask one replica after the other until one answers; a question to one that dies is given up."""
        while True:
            process = await self.anybody()
            try:
                async with asyncio.timeout(20):
                    return await ask(process.executions)
            except (FleetError, TimeoutError):
                await asyncio.sleep(1)

    def task(self, number: int) -> Task:
        kind = TaskKind.ORCHESTRATE if number % 2 else TaskKind.DELIBERATE
        waits = {"rounds": number % 2, "caller": f"caller-{number % 2}"}
        return a_task(f"task-{number}", kind=kind, num_agents=2, **waits)

    async def nudge(self, number: int, state: ExecutionState) -> None:
        """Cancels the last one, now and then."""
        if number == TASKS - 1 and state.agents:
            await self.insist(lambda executions: executions.cancel(DEFAULT_TENANT, state.execution_id, "enough"))

    async def customer(self, number: int) -> str:
        """Hands a task in, decides what is asked; through any replica."""
        await asyncio.sleep(self.random.uniform(0, TROUBLE_SECONDS / 2))
        name = (await self.insist(lambda executions: executions.submit(self.task(number)))).execution_id
        while True:
            state = await self.insist(lambda executions: executions.get(DEFAULT_TENANT, name))
            if over(state):
                return name
            for request in state.pending:
                said = ApprovalResolution(
                    approval_id=request.approval_id, decision=ApprovalDecision.APPROVED, approver="ada"
                )
                await self.insist(lambda executions, said=said: executions.resolve(DEFAULT_TENANT, name, said))
            await self.nudge(number, state)
            await asyncio.sleep(self.random.uniform(1, 10))

    async def run(self) -> list[str]:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            for _ in range(3):
                await self.start()
            async with asyncio.TaskGroup() as group:
                customers = [group.create_task(self.customer(number)) for number in range(TASKS)]
                group.create_task(self.trouble())
            return [customer.result() for customer in customers]


@pytest.fixture(autouse=True)
def no_clock_on_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still here, and these two are measured by it."""
    monkeypatch.setattr("swe_ai_fleet.orchestrator.dispatcher.HEAD_START_SECONDS", 0.0)
    monkeypatch.setattr("swe_ai_fleet.orchestrator.dispatcher.AGAIN_SECONDS", 0.0)


# In histories 11 and 108 a driver that was replaced tries again to start its agents.
@pytest.mark.parametrize("seed", [*range(3), 11, 108])
def test_whatever_happens_to_replicas_each_task_ends_once(seed: int) -> None:
    world = World(seed)
    names = on_virtual_time(world.run())
    events = world.log.events
    for name in names:
        told = [event for event in events if event.execution_id == name]
        seen = Counter(type(event.body) for event in told)
        assert (seen[ev.ExecutionStarted], seen[ev.ExecutionFinished], seen[ev.ResultPublished]) == (1, 1, 1)
        assert seen[ev.WinnerDelivered] <= 1
        assert sum(result.execution_id == name and not result.agent_id for result in world.log.results) == 1
        submitted = [
            event.body.candidate.candidate_id for event in told if isinstance(event.body, ev.CandidateSubmitted)
        ]
        assert len(set(submitted)) == len(submitted)
        [ending] = [event.body for event in told if isinstance(event.body, ev.ExecutionFinished)]
        cancelled = name == names[-1]
        expected = {ev.ExecutionStatus.COMPLETED} | ({ev.ExecutionStatus.CANCELLED} if cancelled else set())
        assert ending.status in expected, ending.error
        places: dict[str, tuple[int, int]] = {}
        for event in told:
            *_, generation, ordinal = event.id.split("/")
            place, last = (int(generation), int(ordinal)), places.get(event.agent_id, (-1, 0))
            assert place == (last[0], last[1] + 1) or (place[0] > last[0] and place[1] == 1)
            places[event.agent_id] = place
        if ending.status is ev.ExecutionStatus.COMPLETED:
            finished = {event.agent_id for event in told if isinstance(event.body, ev.RunFinished)}
            lost = {event.body.lost_agent_id for event in told if isinstance(event.body, ev.RunLost)}
            assert finished | lost >= {"agent-dev-1", "agent-dev-2"}
            # What a tool began is begun once and has one end, be it that nobody knows how it ended.
            calls = [
                (type(event.body), event.agent_id, event.body.entry.call_id)
                for event in told
                if isinstance(event.body, ev.ToolStarted | ev.ToolFinished) and event.agent_id not in lost
            ]
            assert len(set(calls)) == len(calls)
            begun, closed = (
                [call[1:] for call in calls if call[0] is kind] for kind in (ev.ToolStarted, ev.ToolFinished)
            )
            assert sorted(begun) == sorted(closed)
