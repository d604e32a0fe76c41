"""CPU slots: as many holders as slots, over processes, in order, and freed by death."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import Owner
from swe_ai_fleet.sandbox import CpuSlots, cpu_slots
from tests.confinement import until
from tests.tables import table

HOLDER = """
import asyncio, sys
from pathlib import Path
from swe_ai_fleet.domain.command import Owner
from swe_ai_fleet.sandbox import CpuSlots

async def main():
    async with CpuSlots(Path(sys.argv[1]), int(sys.argv[2])).hold(Owner(tenant=sys.argv[3])):
        print("held", flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


async def holder(directory: Path, count: int, tenant: str = "") -> asyncio.subprocess.Process:
    """A process of its own that holds one of so many slots."""
    pipe, argv = asyncio.subprocess.PIPE, (sys.executable, "-c", HOLDER, str(directory), str(count), tenant)
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    return process


async def served(slots: CpuSlots, arrivals: list[Owner]) -> list[Owner]:
    """Who was served in which order after all of them had come while the one slot of everybody was held."""
    order: list[Owner] = []

    async def work(owner: Owner) -> None:
        async with slots.hold(owner):
            order.append(owner)
            await asyncio.sleep(0.001)

    async with AsyncExitStack() as held, asyncio.TaskGroup() as group:
        for tenant in {owner.tenant for owner in arrivals}:
            await held.enter_async_context(slots.hold(Owner(tenant=tenant)))
        async with slots.hold(Owner(tenant="first")), slots.hold(Owner(tenant="first")):
            for owner in arrivals:
                group.create_task(work(owner))
                await asyncio.sleep(0)
    return order


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        # One execution's waiters in their order, tenants in turns whatever one has waiting, executions of one in turns.
        (("a/1", "a/1", "a/1"), ("a/1", "a/1", "a/1")),
        (("a/1", "a/1", "a/1", "a/1", "b/1", "b/1"), ("a/1", "b/1", "a/1", "b/1", "a/1", "a/1")),
        (("a/1", "a/1", "a/1", "a/2", "a/3", "a/2"), ("a/1", "a/2", "a/3", "a/1", "a/2", "a/1")),
    ],
)
async def test_turns(tmp_path: Path, arrivals: tuple[str, ...], expected: tuple[str, ...]) -> None:
    owners = [Owner(tenant=name[0], execution_id=name[2:]) for name in arrivals]
    order = await served(CpuSlots(tmp_path, 2), owners)
    assert tuple(f"{owner.tenant}/{owner.execution_id}" for owner in order) == expected


async def test_waiters_of_a_killed_process_are_skipped(tmp_path: Path) -> None:
    async with CpuSlots(tmp_path, 1).hold():
        waiting = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, str(tmp_path), "1", "")
        await until(lambda: list((tmp_path / "waiting").iterdir()))
        waiting.kill()
        await waiting.wait()
        assert list((tmp_path / "waiting").iterdir())
    async with asyncio.timeout(10), CpuSlots(tmp_path, 1).hold():
        pass


async def test_a_release_skips_a_process_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_slots, "_POLL_SECONDS", (60.0, 60.0))
    monkeypatch.setattr(cpu_slots, "_STALE_SECONDS", 60.0)
    slots = CpuSlots(tmp_path, 1)
    async with slots.hold():
        killed = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, str(tmp_path), "1", "")
        await until(lambda: list((tmp_path / "waiting").iterdir()))
        waiter = asyncio.create_task(slots.hold().__aenter__())
        await asyncio.sleep(0)
        killed.kill()
        await killed.wait()
    async with asyncio.timeout(20):
        await waiter


@table("when", ["while it waits", "as the slot comes free", "when it is served"])
async def test_a_cancelled_waiter_keeps_no_slot_and_blocks_nobody(tmp_path: Path, when: str) -> None:
    slots = CpuSlots(tmp_path, 1)
    async with slots.hold():
        waiter = asyncio.create_task(slots.hold().__aenter__())
        await until(lambda: list((tmp_path / "waiting").iterdir()))
        if when == "while it waits":
            waiter.cancel()
            await asyncio.wait([waiter])
    while when == "when it is served" and list((tmp_path / "waiting").iterdir()):
        await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    async with asyncio.timeout(20), slots.hold():
        pass


@pytest.mark.parametrize("pipes", [True, False], ids=["told by a pipe", "without named pipes"])
async def test_a_release_wakes_a_waiter_of_another_process(
    pipes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(path: str, mode: int) -> None:
        raise PermissionError(path)

    if not pipes:
        # Then waiters look for themselves.
        monkeypatch.setattr(os, "mkfifo", unsupported)
    monkeypatch.setattr(cpu_slots, "_POLL_SECONDS", (60.0, 60.0))
    first = await holder(tmp_path, 1)
    slot = CpuSlots(tmp_path, 1).hold()
    waiter = asyncio.create_task(slot.__aenter__())
    await until(lambda: list((tmp_path / "waiting").iterdir()))
    await first.communicate(b"\n")
    async with asyncio.timeout(20):
        await waiter
    await slot.__aexit__(None, None, None)
    await until(lambda: sorted(path.name for path in tmp_path.iterdir()) == ["own-", "turns", "waiting"])
    assert not list((tmp_path / "waiting").iterdir())


async def test_executions_that_wait_in_one_process_leave_one_ticket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots, reads, waiting, listing = CpuSlots(tmp_path, 1), 0, 200, os.listdir

    def counted(path: str) -> list[str]:
        nonlocal reads
        reads += path.endswith("waiting")
        return listing(path)

    async def work(number: int) -> None:
        async with slots.hold(Owner(tenant="t", execution_id=f"e{number}")):
            assert len(listing(tmp_path / "waiting")) <= 1

    async with asyncio.TaskGroup() as group, slots.hold(Owner(tenant="t", execution_id="first")):
        for number in range(waiting):
            group.create_task(work(number))
        await until(lambda: listing(tmp_path / "waiting"))
        monkeypatch.setattr(os, "listdir", counted)
    # A release and the service that follows it read the tickets once each.
    assert waiting <= reads <= 3 * waiting
