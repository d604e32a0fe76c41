"""One tenant's commands must not keep another's waiting: whatever a tenant runs, one command of another begins.

Each attack fills a machine of two slots from many executions of one tenant; the control is the rule that knew no
tenants, where everything is done in one name.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import CommandResult
from swe_ai_fleet.domain.owner import NOBODY, Owner
from swe_ai_fleet.sandbox import CpuSlots, LocalWorkspace, Rung, Sandbox, SandboxPolicy
from swe_ai_fleet.sandbox.control_groups import ControlGroups
from tests.confinement import CONFINED, shell

SLOTS = 2
ATTACKERS = 6
VICTIM = Owner(tenant="victim", execution_id="theirs")

HOLDER = """
import asyncio, sys
from pathlib import Path
from swe_ai_fleet.domain.owner import Owner
from swe_ai_fleet.sandbox import CpuSlots

async def main():
    slots = CpuSlots(Path(sys.argv[1]), int(sys.argv[2]))
    async with slots.hold(Owner(tenant=sys.argv[3], execution_id="1")):
        print("held", flush=True)
        async with slots.hold(Owner(tenant=sys.argv[3], execution_id="2")):
            print("held", flush=True)
            sys.stdin.readline()

asyncio.run(main())
"""


@asynccontextmanager
async def filled(
    tmp_path: Path, rung: Rung, script: str, owners: list[Owner], *, slots: int = SLOTS
) -> AsyncGenerator[Sandbox]:
    """A machine on which as many commands of an attacker run as fit, and the others wait behind them."""
    sandbox = Sandbox(SandboxPolicy(rung=rung), CpuSlots(tmp_path / "slots", slots))
    async with AsyncExitStack() as stack:
        commands: list[asyncio.Task[CommandResult]] = []
        for number, owner in enumerate(owners):
            root = tmp_path / f"attacker-{number}"
            root.mkdir()
            workspace = await stack.enter_async_context(sandbox.workspace(root, owner=owner))
            commands.append(asyncio.create_task(workspace.run(shell(f"touch begun; {script}"))))
        while sum((tmp_path / f"attacker-{number}/begun").exists() for number in range(len(owners))) < min(
            slots, len(owners)
        ):
            assert not any(command.done() for command in commands)
            await asyncio.sleep(0.01)
        try:
            yield sandbox
        finally:
            for command in commands:
                command.cancel()
            await asyncio.gather(*commands, return_exceptions=True)


@asynccontextmanager
async def theirs(sandbox: Sandbox, tmp_path: Path, owner: Owner) -> AsyncGenerator[LocalWorkspace]:
    root = tmp_path / "victim"
    root.mkdir()
    async with sandbox.workspace(root, owner=owner) as workspace:
        yield workspace


@pytest.mark.parametrize("rung", CONFINED)
@pytest.mark.parametrize("script", ["sleep 600", "while :; do :; done"])
async def test_a_tenant_that_fills_the_machine_keeps_no_other_waiting(tmp_path: Path, rung: Rung, script: str) -> None:
    owners = [Owner(tenant="attacker", execution_id=f"run-{number}") for number in range(ATTACKERS)]
    async with filled(tmp_path, rung, script, owners) as sandbox, theirs(sandbox, tmp_path, VICTIM) as workspace:
        done = await workspace.run(shell("echo done"))
        assert done.stdout.text() == "done\n"
        begun = [number for number in range(ATTACKERS) if (tmp_path / f"attacker-{number}/begun").exists()]
        assert len(begun) == SLOTS


@pytest.mark.parametrize("rung", CONFINED)
async def test_control_without_tenants_it_waits_for_all_of_them(tmp_path: Path, rung: Rung) -> None:
    async with (
        filled(tmp_path, rung, "sleep 600", [NOBODY] * ATTACKERS) as sandbox,
        theirs(sandbox, tmp_path, NOBODY) as workspace,
    ):
        waiting = asyncio.create_task(workspace.run(shell("touch begun")))
        await asyncio.wait([waiting], timeout=1)
        assert not waiting.done()
        assert not (tmp_path / "victim/begun").exists()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_tenant_that_fills_the_machine_from_another_process(tmp_path: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(tmp_path), str(SLOTS), "attacker", stdin=pipe, stdout=pipe
    )
    try:
        assert process.stdout is not None
        assert [await process.stdout.readline() for _ in range(SLOTS)] == [b"held\n"] * SLOTS
        slots = CpuSlots(tmp_path, SLOTS)
        async with asyncio.timeout(5), slots.hold(VICTIM):
            pass
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), slots.hold(Owner(tenant="attacker", execution_id="3")):
                pass
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.slow
@pytest.mark.skipif(not ControlGroups.discover().cpu, reason="no CPU control group can be made here")
@pytest.mark.parametrize("rung", CONFINED)
async def test_a_tenant_with_many_processes_has_no_more_of_a_cpu(tmp_path: Path, rung: Rung) -> None:
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
        place = tmp_path / tenant
        place.mkdir()
        victim = Owner(tenant=tenant, execution_id="theirs")
        async with (
            filled(place, rung, burn, owners, slots=ATTACKERS + 1) as sandbox,
            theirs(sandbox, place, victim) as workspace,
        ):
            seconds.append(float((await workspace.run(shell(count))).stdout.text()))
    of_its_own, as_one_of_theirs = seconds
    assert of_its_own > 1.5 * as_one_of_theirs
