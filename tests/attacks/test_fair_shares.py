"""One tenant's commands must not keep another's waiting: whatever a tenant runs, one command of another begins.

Each attack fills a machine of two slots from many executions of one tenant; the control is the rule that knew no
tenants, where everything is done in one name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import NOBODY, CommandResult, Owner
from swe_ai_fleet.sandbox import ControlGroups, CpuSlots, IsolationLevel, LocalWorkspace, Sandbox, SandboxPolicy
from tests.confinement import CONFINED, shell, until
from tests.unit.test_cpu_slots import holder

SLOTS = 2
ATTACKERS = 6
SCRIPTS = ("sleep 600", "while :; do :; done")
VICTIM = Owner(tenant="victim", execution_id="theirs")


async def test_a_tenant_that_fills_the_machine_from_another_process(tmp_path: Path) -> None:
    # Its own slot, and the one of everybody.
    processes = [await holder(tmp_path, SLOTS, "attacker") for _ in range(SLOTS)]
    try:
        slots = CpuSlots(tmp_path, SLOTS)
        async with asyncio.timeout(5), slots.hold(VICTIM):
            pass
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), slots.hold(Owner(tenant="attacker", execution_id="3")):
                pass
    finally:
        for process in processes:
            process.kill()
            await process.communicate()


@asynccontextmanager
async def beside(
    tmp_path: Path, level: IsolationLevel, script: str, owners: list[Owner], victim: Owner, *, slots: int = SLOTS
) -> AsyncGenerator[LocalWorkspace]:
    """A workspace on a machine on which as many commands of attackers run as fit, and the others wait behind them."""
    sandbox = Sandbox(SandboxPolicy(level=level), CpuSlots(tmp_path / "slots", slots))
    places = {tmp_path / f"attacker-{number}": owner for number, owner in enumerate(owners)}
    async with AsyncExitStack() as stack:
        commands: list[asyncio.Task[CommandResult]] = []
        for root, owner in (*places.items(), (tmp_path / "victim", victim)):
            root.mkdir()
            workspace = await stack.enter_async_context(sandbox.workspace(root, owner=owner))
            if root in places:
                commands.append(asyncio.create_task(workspace.run(shell(f"touch begun; {script}"))))
        await until(lambda: sum((root / "begun").exists() for root in places) >= min(slots, len(owners)))
        assert not any(command.done() for command in commands)
        try:
            yield workspace
        finally:
            for command in commands:
                command.cancel()
            await asyncio.gather(*commands, return_exceptions=True)


@pytest.mark.parametrize(
    ("level", "script"),
    [pytest.param(*level.values, script, marks=level.marks) for level, script in zip(CONFINED, SCRIPTS, strict=True)],
)
async def test_a_tenant_that_fills_the_machine_keeps_no_other_waiting(
    tmp_path: Path, level: IsolationLevel, script: str
) -> None:
    owners = [Owner(tenant="attacker", execution_id=f"run-{number}") for number in range(ATTACKERS)]
    async with beside(tmp_path, level, script, owners, VICTIM) as workspace:
        assert (await workspace.run(shell("echo done"))).stdout.text() == "done\n"
        assert len(list(tmp_path.glob("attacker-*/begun"))) == SLOTS


async def test_control_without_tenants_it_waits_for_all_of_them(tmp_path: Path) -> None:
    async with beside(tmp_path, IsolationLevel.NONE, SCRIPTS[0], [NOBODY] * ATTACKERS, NOBODY) as workspace:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await workspace.run(shell("touch begun"))
    assert not (tmp_path / "victim/begun").exists()


@pytest.mark.slow
@pytest.mark.skipif(not ControlGroups.discover().cpu, reason="no CPU control group can be made here")
@pytest.mark.parametrize("level", CONFINED)
async def test_a_tenant_with_many_processes_has_no_more_of_a_cpu(tmp_path: Path, level: IsolationLevel) -> None:
    """All on one CPU: six commands of eight processes each, and one that counts what it gets."""
    cpu = min(os.sched_getaffinity(0))
    burn = f"for i in 1 2 3 4 5 6 7 8; do taskset -c {cpu} sh -c 'while :; do :; done' & done; wait"
    count = (
        f"taskset -c {cpu} python3 -c 'import time; end = time.monotonic() + 2\n"
        "while time.monotonic() < end: pass\nprint(time.process_time())'"
    )
    owners = [Owner(tenant="attacker", execution_id=f"run-{number}") for number in range(ATTACKERS)]
    seconds: list[float] = []
    for tenant in ("victim", "attacker"):
        place, victim = tmp_path / tenant, Owner(tenant=tenant, execution_id="theirs")
        place.mkdir()
        async with beside(place, level, burn, owners, victim, slots=ATTACKERS + 1) as workspace:
            seconds.append(float((await workspace.run(shell(count))).stdout.text()))
    of_its_own, as_one_of_theirs = seconds
    assert of_its_own > 1.5 * as_one_of_theirs
