"""A batch against a real server on a real socket: fullness, faults and servers that come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from services.grpc_server import serve_grpc
from services.orchestrator.server import orchestrator_service
from swe_ai_fleet.cli.batch.plan import Plan
from swe_ai_fleet.cli.batch.run import batch
from swe_ai_fleet.cli.client import FleetClient, connect
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.orchestrator.drive import Surroundings
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.testing.fleet import FAILED, PROVEN, ScriptedFleet, ScriptedModel, ScriptedRun
from swe_ai_fleet.testing.memory_log import MemoryLog
from swe_ai_fleet.testing.workspaces import ScriptedWorkspaces
from tests.orchestrator_service import servicer_of

SECONDS = 30


@dataclass(kw_only=True)
class Service:
    """An orchestrator that can go away and come back at the same address; its agents are scripted."""

    log: MemoryLog = field(default_factory=MemoryLog)
    address: str = "127.0.0.1:0"

    def __post_init__(self) -> None:
        self.fleet = ScriptedFleet(storage=self.log)
        self.fleet.default = ScriptedRun(checks=(PROVEN,))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Executions]:
        surroundings = Surroundings(
            log=self.log,
            blobs=self.log,
            results=self.log,
            fleet=self.fleet,
            workspaces=ScriptedWorkspaces(),
            model=ScriptedModel(),
            owner="test",
        )
        async with Executions(surroundings) as executions:
            servicer = servicer_of(executions, self.log)
            async with serve_grpc(
                [orchestrator_service(servicer)], self.address, None, _ready, grace_seconds=0.05
            ) as self.address:
                yield executions

    def client(self) -> AbstractAsyncContextManager[FleetClient]:
        return connect(self.address, "")


async def _ready() -> bool:
    return True


@dataclass(kw_only=True)
class Desk:
    """A batch file and what came of it."""

    directory: Path

    def write(self, *names: str, **fields: object) -> None:
        where = self.directory / "repository"
        where.mkdir(exist_ok=True)
        records = [{"instance_id": name, "task": "Greet", "repo": str(where), **fields} for name in names]
        (self.directory / "set.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))

    def plan(self, **changes: object) -> Plan:
        given = {
            "file": self.directory / "set.jsonl",
            "name": "set",
            "order": Order(description="", agents=1, rounds=0, deliberate_only=True),
            "results": self.directory / "set.results.jsonl",
            "predictions": self.directory / "set.preds.json",
            "stagger": 0.0,
        }
        return Plan(**{**given, **changes})

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "set.results.jsonl").read_text().splitlines()]

    @property
    def patches(self) -> Mapping[str, str]:
        found = json.loads((self.directory / "set.preds.json").read_text())
        return {one["instance_id"]: one["model_patch"] for one in found}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(directory=tmp_path)


@pytest.fixture
def service() -> Service:
    return Service()


def a_screen(*, json: bool = False, terminal: bool = False) -> Screen:
    return Screen(
        json=json,
        out=Console(file=StringIO(), width=160),
        err=Console(file=StringIO(), width=160, force_terminal=terminal),
    )


def printed(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


async def test_no_more_than_asked_for_are_under_way(service: Service, desk: Desk) -> None:
    let = asyncio.Event()
    service.fleet.default = ScriptedRun(checks=(PROVEN,), after=let)
    desk.write(*(f"r{number}" for number in range(5)))
    screen = a_screen(terminal=True)
    async with asyncio.timeout(SECONDS), service.running() as executions:
        running = asyncio.create_task(batch(screen, service.client(), desk.plan(parallel=2)))
        await service.fleet.started(2)
        under_way = len(executions.projection.all(DEFAULT_TENANT))
        let.set()
        code = await running
    assert (under_way, code) == (2, Exit.ACCEPTED)
    assert sorted(desk.patches) == ["r0", "r1", "r2", "r3", "r4"]
    assert all(patch.startswith("diff of agent-dev-1") for patch in desk.patches.values())
    assert "completed" in printed(screen.out) and "100.0 %" in printed(screen.out)
    assert "0 of 5 ended" in printed(screen.err)


async def test_what_was_not_accepted_runs_again_on_request_only(service: Service, desk: Desk) -> None:
    service.fleet.default = ScriptedRun(checks=(FAILED,))
    desk.write("a", "b")
    async with asyncio.timeout(SECONDS), service.running():
        assert await batch(a_screen(), service.client(), desk.plan()) is Exit.NOT_ACCEPTED
        assert await batch(a_screen(), service.client(), desk.plan()) is Exit.NOT_ACCEPTED
        assert len(service.fleet.begun) == 2
        service.fleet.default = ScriptedRun(checks=(PROVEN,))
        screen = a_screen(json=True)
        assert await batch(screen, service.client(), desk.plan(retry=True)) is Exit.ACCEPTED
    assert [(row["status"], row["attempt"]) for row in desk.rows] == [("no_winner", 1)] * 2 + [("completed", 2)] * 2
    *told, summary = [json.loads(line) for line in printed(screen.out).splitlines()]
    assert sorted(row["instance_id"] for row in told) == ["a", "b"]
    assert (summary["records"], summary["exit_code"], summary["accepted"]) == ({"completed": 2}, 0, 2)


async def test_what_the_fleet_refuses_is_told_and_holds_nobody_up(service: Service, desk: Desk) -> None:
    desk.write("a", "b", timeout_seconds=10**9)
    content = (desk.directory / "set.jsonl").read_text().replace("1000000000", "60", 1)
    (desk.directory / "set.jsonl").write_text(content)
    screen = a_screen()
    async with asyncio.timeout(SECONDS), service.running():
        assert await batch(screen, service.client(), desk.plan()) is Exit.NOT_ACCEPTED
        desk.write("a", "b", timeout_seconds=60)
        assert "constraints.timeout_seconds" in printed(screen.err)
        assert await batch(a_screen(), service.client(), desk.plan()) is Exit.ACCEPTED
    assert [(row["instance_id"], row["status"]) for row in desk.rows if row["instance_id"] == "b"] == [
        ("b", "error"),
        ("b", "completed"),
    ]


async def test_a_fleet_that_comes_back_is_gone_on_with(service: Service, desk: Desk) -> None:
    let = asyncio.Event()
    service.fleet.default = ScriptedRun(checks=(PROVEN,), after=let)
    desk.write("a", "b")
    screen = a_screen()
    async with asyncio.timeout(SECONDS):
        async with service.running():
            running = asyncio.create_task(batch(screen, service.client(), desk.plan()))
            await service.fleet.started(2)
        while "waiting" not in printed(screen.err):
            await asyncio.sleep(0.01)
        let.set()
        async with service.running() as executions:
            assert await running is Exit.ACCEPTED
            assert len(executions.projection.all(DEFAULT_TENANT)) == 2
    assert sorted(desk.patches) == ["a", "b"]


async def test_a_fleet_that_stays_away_ends_the_batch_with_nothing_lost(service: Service, desk: Desk) -> None:
    desk.write("a")
    async with asyncio.timeout(SECONDS):
        async with service.running():
            assert await batch(a_screen(), service.client(), desk.plan()) is Exit.ACCEPTED
        desk.write("a", "b", "c")
        with pytest.raises(CommandFault) as fault:
            await batch(a_screen(), service.client(), desk.plan(), patience_seconds=0.1)
    assert fault.value.exit_code is Exit.UNAVAILABLE
    assert list(desk.patches) == ["a"] and len(desk.rows) == 1
