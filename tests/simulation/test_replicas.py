"""The orchestrator itself, three replicas of it on one log, while processes die, sleep and lose answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalResolution
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import (
    CandidateSubmitted,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    ResultPublished,
    RunClaimed,
    RunFinished,
    RunLost,
    ToolStarted,
)
from swe_ai_fleet.domain.task import DEFAULT_TENANT, RepoRef, Task, TaskKind
from swe_ai_fleet.orchestrator import dispatcher
from swe_ai_fleet.orchestrator.drive import Surroundings
from swe_ai_fleet.orchestrator.executions import Executions, Room
from swe_ai_fleet.orchestrator.leases import over
from swe_ai_fleet.testing.fleet import ScriptedFleet, ScriptedModel, ScriptedRun
from swe_ai_fleet.testing.memory_log import MemoryLog
from swe_ai_fleet.testing.workspaces import ScriptedWorkspaces
from tests.simulation.unreliable import Link, UnreliableFleet
from tests.simulation.virtual_loop import on_virtual_time

LEASE_SECONDS = 15.0
TROUBLE_SECONDS = 120.0
PATIENCE_SECONDS = 3600.0
TASKS = 5


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
        surroundings = Surroundings(
            log=link,
            blobs=link,
            results=link,
            fleet=self.fleet,
            workspaces=ScriptedWorkspaces(),
            model=ScriptedModel(),
            owner=process.name,
            pauses=(0.0, 1.0, 4.0),
        )
        process.executions = Executions(surroundings, replicas=process, room=Room(executions=3))
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

    async def customer(self, number: int) -> str:
        """Hands a task in, decides what is asked, cancels every now and then; through any replica."""
        await asyncio.sleep(self.random.uniform(0, TROUBLE_SECONDS / 2))
        task = Task(
            task_id=f"task-{number}",
            kind=TaskKind.ORCHESTRATE if number % 2 else TaskKind.DELIBERATE,
            description="Greet",
            repo=RepoRef(location="/srv/app"),
            num_agents=2,
            rounds=number % 2,
            caller=f"caller-{number % 2}",
        )
        name = (await self.insist(lambda executions: executions.submit(task))).execution_id
        cancels = number == TASKS - 1
        while True:
            state = await self.insist(lambda executions: executions.get(DEFAULT_TENANT, name))
            if over(state):
                return name
            for request in state.pending:
                said = ApprovalResolution(
                    approval_id=request.approval_id, decision=ApprovalDecision.APPROVED, approver="ada"
                )
                await self.insist(lambda executions, said=said: executions.resolve(DEFAULT_TENANT, name, said))
            if cancels and state.agents:
                await self.insist(lambda executions: executions.cancel(DEFAULT_TENANT, name, "enough"))
            await asyncio.sleep(self.random.uniform(1, 10))

    async def run(self) -> list[str]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(3):
                await self.start()
            async with asyncio.TaskGroup() as group:
                customers = [group.create_task(self.customer(number)) for number in range(TASKS)]
                group.create_task(self.trouble())
            return [customer.result() for customer in customers]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_replicas_each_task_ends_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # These two are measured by the clock on the wall, which stands still here.
    monkeypatch.setattr(dispatcher, "HEAD_START_SECONDS", 0.0)
    monkeypatch.setattr(dispatcher, "AGAIN_SECONDS", 0.0)
    world = World(seed)
    names = on_virtual_time(world.run())
    events = world.log.events
    for name in names:
        told = [event for event in events if event.execution_id == name]
        seen = Counter(type(event.body) for event in told)
        assert (seen[ExecutionStarted], seen[ExecutionFinished], seen[ResultPublished]) == (1, 1, 1)
        assert sum(result.execution_id == name and not result.agent_id for result in world.log.results) == 1
        submitted = [event.body.candidate.candidate_id for event in told if isinstance(event.body, CandidateSubmitted)]
        assert len(set(submitted)) == len(submitted)
        [ending] = [event.body for event in told if isinstance(event.body, ExecutionFinished)]
        cancelled = name == names[-1]
        expected = {ExecutionStatus.COMPLETED} | ({ExecutionStatus.CANCELLED} if cancelled else set())
        assert ending.status in expected, ending.error
        places: dict[str, tuple[int, int]] = {}
        for event in told:
            *_, generation, ordinal = event.id.split("/")
            place, last = (int(generation), int(ordinal)), places.get(event.agent_id, (-1, 0))
            assert place == (last[0], last[1] + 1) or (place[0] > last[0] and place[1] == 1)
            places[event.agent_id] = place
        if ending.status is ExecutionStatus.COMPLETED:
            finished = {event.agent_id for event in told if isinstance(event.body, RunFinished)}
            lost = {event.body.lost_agent_id for event in told if isinstance(event.body, RunLost)}
            assert finished | lost >= {"agent-dev-1", "agent-dev-2"}


def test_an_agent_that_begins_after_its_driver_was_replaced_has_not_worked_for_nothing() -> None:
    """What it did stands in the log by the time its successor claims the run, so nothing is done a second time."""

    async def history() -> MemoryLog:
        log, random = MemoryLog(), Random(1)
        task = Task(
            task_id="t", kind=TaskKind.DELIBERATE, description="d", repo=RepoRef(location="/srv/app"), num_agents=1
        )

        def replica(name: str) -> tuple[Executions, Link, Link]:
            own, agents = Link(log=log, random=random), Link(log=log, random=random)
            agents.awake.clear()
            surroundings = Surroundings(
                log=own,
                blobs=own,
                results=own,
                fleet=ScriptedFleet(storage=agents, default=ScriptedRun(operations=3)),
                workspaces=ScriptedWorkspaces(),
                model=ScriptedModel(),
                owner=name,
            )
            return Executions(surroundings), own, agents

        first, first_link, first_agents = replica("first")
        await first.__aenter__()
        await first.submit(task)
        await asyncio.sleep(5)
        first_link.awake.clear()
        second, _, second_agents = replica("second")
        await second.__aenter__()
        await asyncio.sleep(5)
        first_agents.awake.set()
        await asyncio.sleep(5)
        second_agents.awake.set()
        await second.wait(DEFAULT_TENANT, task.execution_id)
        return log

    log = on_virtual_time(history())
    claims = [event.body for event in log.events if isinstance(event.body, RunClaimed)]
    assert [(claim.generation, claim.resumes) for claim in claims] == [(1, False), (2, True)]
    calls = Counter(event.body.entry.call_id for event in log.events if isinstance(event.body, ToolStarted))
    assert calls == {"call-1": 1, "call-2": 1, "call-3": 1}
