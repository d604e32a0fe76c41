"""Executions as the orchestrator itself records them, over the log in memory with scripted agents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalResolution
from swe_ai_fleet.domain.errors import AgentLost
from swe_ai_fleet.domain.event import StoredEvent
from swe_ai_fleet.domain.task import DEFAULT_TENANT, RepoRef, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.drive import Surroundings
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.orchestrator.leases import over
from swe_ai_fleet.testing.fleet import FAILED, ScriptedFleet, ScriptedModel, ScriptedRun
from swe_ai_fleet.testing.memory_log import MemoryLog
from swe_ai_fleet.testing.workspaces import ScriptedWorkspaces

SECONDS = 20


@dataclass
class Studio:
    """A log, and scripted agents that write to it."""

    log: MemoryLog = field(default_factory=MemoryLog)
    fleet: ScriptedFleet = field(init=False)

    def __post_init__(self) -> None:
        self.fleet = ScriptedFleet(storage=self.log)

    def orchestrator(self, owner: str) -> Executions:
        surroundings = Surroundings(
            log=self.log,
            blobs=self.log,
            results=self.log,
            fleet=self.fleet,
            workspaces=ScriptedWorkspaces(),
            model=ScriptedModel(),
            owner=owner,
            pauses=(0.0, 0.0),
        )
        return Executions(surroundings)

    async def events(self, execution_id: str) -> list[StoredEvent]:
        return [stored async for stored in self.log.read(DEFAULT_TENANT, execution_id)]


Scene = Callable[[Studio], Awaitable[str]]


def a_task(**changes: object) -> Task:
    base = Task(task_id="task-1", kind=TaskKind.DELIBERATE, description="Greet", repo=RepoRef(location="/srv/app"))
    return replace(base, **changes)


async def ended(executions: Executions, execution_id: str) -> str:
    """Wait until nothing is left to be done."""
    while (state := executions.projection.get(DEFAULT_TENANT, execution_id)) is None or not over(state):
        await asyncio.sleep(0)
    return execution_id


async def plain(studio: Studio) -> str:
    """One agent is slow, one fails its checks, one loses every process."""
    studio.fleet.runs = {
        "agent-dev-1": ScriptedRun(operations=3),
        "agent-dev-2": ScriptedRun(checks=(FAILED,), stop_reason=StopReason.MAX_ITERATIONS),
        "agent-dev-3": ScriptedRun(fault=AgentLost("its host died")),
    }
    async with studio.orchestrator("one") as executions:
        return await ended(executions, (await executions.submit(a_task(rounds=2))).execution_id)


async def delivered(studio: Studio) -> str:
    async with studio.orchestrator("one") as executions:
        task = a_task(kind=TaskKind.ORCHESTRATE, num_agents=2, architect_top_k=2)
        return await ended(executions, (await executions.submit(task)).execution_id)


async def approved(studio: Studio) -> str:
    studio.fleet.runs = {"agent-dev-1": ScriptedRun(asks=2), "agent-dev-2": ScriptedRun(asks=1)}
    async with studio.orchestrator("one") as executions:
        name = (await executions.submit(a_task())).execution_id
        decisions = {"agent-dev-1.1": ApprovalDecision.APPROVED, "agent-dev-2.1": ApprovalDecision.REJECTED}
        decisions["agent-dev-1.2"] = ApprovalDecision.APPROVED
        for approval_id, decision in decisions.items():
            while approval_id not in (await executions.get(DEFAULT_TENANT, name)).requests:
                await asyncio.sleep(0)
            said = ApprovalResolution(approval_id=approval_id, decision=decision, approver="ada")
            await executions.resolve(DEFAULT_TENANT, name, said)
        return await ended(executions, name)


async def cancelled(studio: Studio) -> str:
    studio.fleet.runs = {"agent-dev-2": ScriptedRun(after=asyncio.Event())}
    async with studio.orchestrator("one") as executions:
        name = (await executions.submit(a_task())).execution_id
        await studio.fleet.started(3)
        await executions.cancel(DEFAULT_TENANT, name, "enough")
        return await ended(executions, name)


async def taken_over(studio: Studio) -> str:
    """The first orchestrator leaves in the middle, the second goes on; then a third finds nothing to do."""
    gate = asyncio.Event()
    studio.fleet.runs = {name: ScriptedRun(after=gate, operations=2) for name in ("agent-dev-1", "agent-dev-2")}
    async with studio.orchestrator("one") as executions:
        name = (await executions.submit(a_task())).execution_id
        await studio.fleet.started(3)
    gate.set()
    async with studio.orchestrator("two") as executions:
        await ended(executions, name)
    async with studio.orchestrator("three") as executions:
        return await ended(executions, name)


SCENES: tuple[Scene, ...] = (plain, delivered, approved, cancelled, taken_over)


def recorded(scene: Scene) -> list[StoredEvent]:
    """The events of a scene, in the order of the log."""

    async def record() -> list[StoredEvent]:
        studio = Studio()
        async with asyncio.timeout(SECONDS):
            return await studio.events(await scene(studio))

    return asyncio.run(record())
