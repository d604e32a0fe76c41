"""CPU slots: as many holders as slots, over processes, in order, and freed by death."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from swe_ai_fleet.domain.owner import Owner
from swe_ai_fleet.sandbox import CpuSlots
from tests.confinement import until

HOLDER = """
import asyncio, sys
from pathlib import Path
from swe_ai_fleet.sandbox import CpuSlots

async def main():
    async with CpuSlots(Path(sys.argv[1]), int(sys.argv[2])).hold():
        print("held", flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


async def holder(directory: Path, count: int) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(directory), str(count), stdin=pipe, stdout=pipe
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    return process


async def test_waiters_are_served_in_order(tmp_path: Path) -> None:
    slots = CpuSlots(tmp_path, 1)
    served: list[int] = []

    async def work(number: int) -> None:
        async with slots.hold():
            served.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(number) for number in range(20)))
    assert served == list(range(20))


async def test_another_process_excludes_us_until_it_lets_go(tmp_path: Path) -> None:
    process = await holder(tmp_path, 1)
    slots = CpuSlots(tmp_path, 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1), slots.hold():
            pass
    await process.communicate(b"\n")
    async with asyncio.timeout(5), slots.hold():
        pass


async def test_a_cancelled_waiter_takes_nothing_and_blocks_nobody(tmp_path: Path) -> None:
    slots = CpuSlots(tmp_path, 1)
    async with slots.hold():
        waiter = asyncio.create_task(slots.hold().__aenter__())
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    async with asyncio.timeout(1), slots.hold():
        pass


async def served(slots: CpuSlots, arrivals: list[Owner]) -> list[Owner]:
    """Who was served in which order after all of them had come while the one slot of everybody was held."""
    order: list[Owner] = []

    async def work(owner: Owner) -> None:
        async with slots.hold(owner):
            order.append(owner)
            await asyncio.sleep(0.001)

    async with AsyncExitStack() as held:
        for tenant in sorted({owner.tenant for owner in arrivals}):
            await held.enter_async_context(slots.hold(Owner(tenant=tenant)))
        shared = AsyncExitStack()
        await shared.enter_async_context(slots.hold(Owner(tenant="first")))
        await shared.enter_async_context(slots.hold(Owner(tenant="first")))
        tasks: list[asyncio.Task[None]] = []
        for owner in arrivals:
            tasks.append(asyncio.create_task(work(owner)))
            await asyncio.sleep(0)
        await shared.aclose()
        await asyncio.gather(*tasks)
    return order


async def test_tenants_take_turns_whatever_one_has_waiting(tmp_path: Path) -> None:
    a, b = Owner(tenant="a", execution_id="1"), Owner(tenant="b", execution_id="1")
    assert await served(CpuSlots(tmp_path, 2), [a, a, a, a, b, b]) == [a, b, a, b, a, a]


async def test_executions_of_a_tenant_take_turns(tmp_path: Path) -> None:
    one, two, three = (Owner(tenant="a", execution_id=name) for name in ("1", "2", "3"))
    assert await served(CpuSlots(tmp_path, 2), [one, one, one, two, three, two]) == [one, two, three, one, two, one]


async def test_who_holds_more_than_its_own_slot_is_told(tmp_path: Path) -> None:
    one, two = CpuSlots(tmp_path, 3), CpuSlots(tmp_path, 3)
    told: list[tuple[str, bool]] = []
    for slots in (one, two):
        slots.on_crowd = lambda tenant, crowd: told.append((tenant, crowd))
    a = Owner(tenant="a", execution_id="1")
    async with one.hold(a):
        assert told == []
        async with one.hold(a), two.hold(a):
            assert told == [("a", True), ("a", True)]
        # Whoever leaves last says so.
        assert told[2:] == [("a", False)]


async def test_waiters_of_a_killed_process_are_passed_over(tmp_path: Path) -> None:
    process = await holder(tmp_path, 1)
    waiting = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, str(tmp_path), "1")
    await until(lambda: list((tmp_path / "waiting").iterdir()))
    waiting.kill()
    await waiting.wait()
    assert list((tmp_path / "waiting").iterdir())
    process.kill()
    await process.communicate()
    async with asyncio.timeout(10), CpuSlots(tmp_path, 1).hold():
        pass


def test_at_least_one_slot(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        CpuSlots(tmp_path, 0)
