"""How a process keeps its lease of calls to models: what it asks for and when, on virtual time, to the moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from swe_ai_fleet.adapters.model_pool import CallQuota, Demand, Grant, LeasedAdmission
from swe_ai_fleet.domain.errors import Unavailable
from tests.simulation.virtual_loop import on_virtual_time

CALLS = CallQuota(max_in_flight=8)
TOKENS = CallQuota(tokens_per_minute=6000)
LEASE, AGAIN = 5.0, 1.0


@dataclass
class ScriptedLedger:
    """A ledger that grants what it is told to, and writes down what it was asked and when."""

    slots: int = 2
    tokens: int = 0
    contended: bool = False
    broken: bool = False
    asked: list[tuple[float, Demand]] = field(default_factory=list[tuple[float, Demand]])

    async def renew(self, demand: Demand, quota: CallQuota) -> Grant:
        self.asked.append((asyncio.get_running_loop().time(), demand))
        if self.broken:
            raise Unavailable("gone")
        return Grant(
            epoch="e",
            slots=self.slots,
            tokens=self.tokens if demand.tokens else 0,
            lease_seconds=LEASE,
            again_seconds=AGAIN,
            contended=self.contended,
        )

    @property
    def times(self) -> list[float]:
        return [round(at, 3) for at, _ in self.asked]

    @property
    def last(self) -> Demand:
        return self.asked[-1][1]


@pytest.fixture(autouse=True)
def no_dice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are as long as they are in the middle of their spread."""
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)


Scene = Callable[[LeasedAdmission, ScriptedLedger], Coroutine[Any, Any, None] | AsyncIterator[None]]


def play(ledger: ScriptedLedger, quota: CallQuota, scene: Scene) -> None:
    async def run() -> None:
        async with LeasedAdmission(ledger, quota, clock=asyncio.get_running_loop().time) as admission:
            steps = scene(admission, ledger)
            await asyncio.wait_for(anext(steps) if isinstance(steps, AsyncIterator) else steps, 3600)
        if isinstance(steps, AsyncIterator):
            assert await anext(steps, "ended") == "ended"

    on_virtual_time(run())


def played(quota: CallQuota, **made: Any) -> Callable[[Scene], Callable[[], None]]:
    """A test on virtual time: a process with calls, and the ledger that it asks; what follows a `yield` comes later."""
    return lambda scene: lambda: play(ScriptedLedger(**made), quota, scene)


@played(CALLS, slots=2)
async def test_a_call_that_takes_the_last_place_has_more_asked_for_at_once(
    admission: LeasedAdmission, ledger: ScriptedLedger
) -> None:
    await admission.admit(10)
    await asyncio.sleep(1.5)
    assert ledger.times == [0.0]
    await admission.admit(0)
    await asyncio.sleep(0)
    assert ledger.times == [0.0, 1.5]
    assert (ledger.last.using, ledger.last.waiting, ledger.last.spare, ledger.last.slots) == (2, 0, 1, 2)
    admission.settle(0, 0)
    await asyncio.sleep(AGAIN + 0.1)
    assert len(ledger.times) == 2
    admission.settle(0, 0)


@played(CALLS, slots=1)
async def test_calls_beyond_the_lease_wait_and_are_let_through_in_order(
    admission: LeasedAdmission, ledger: ScriptedLedger
) -> AsyncIterator[None]:
    first, second, third = (asyncio.create_task(admission.admit(0)) for _ in range(3))
    await first
    await asyncio.sleep(2.5 * AGAIN)
    assert (admission.using, admission.waiting) == (1, 2)
    # A call may not overtake those that wait, though there is room for it.
    admission.settle(0, 0)
    late = asyncio.create_task(admission.admit(0))
    await second
    assert not third.done() and not late.done()
    ledger.slots = 3
    await third
    await late
    assert (admission.using, admission.waiting) == (3, 0)
    for _ in range(3):
        admission.settle(0, 0)
    yield  # and the process ends
    # What waits asks again after each pause, not after a third of the lease.
    assert ledger.times[:3] == [0.0, AGAIN, 2 * AGAIN]
    assert ledger.asked[0][1].waiting == 3


@played(CALLS)
async def test_an_idle_process_gives_its_lease_back_after_two_fifths_of_it(
    admission: LeasedAdmission, ledger: ScriptedLedger
) -> AsyncIterator[None]:
    await admission.admit(0)
    await asyncio.sleep(1.2)
    admission.settle(0, 0)
    await asyncio.sleep(0)
    assert ledger.times == [0.0]  # a short pause is no reason
    await asyncio.sleep(60)
    yield  # and the process ends
    # It looks after a third of the lease, which is renewed then, and again after a pause and another third.
    assert ledger.times == pytest.approx([0.0, 1.2 + LEASE / 3, 1.2 + 2 * LEASE / 3 + AGAIN], abs=0.002)
    assert (ledger.asked[1][1].spare, ledger.asked[1][1].epoch) == (1, "e")
    assert (ledger.last.using, ledger.last.waiting, ledger.last.spare, ledger.last.slots) == (0, 0, 0, 0)
    assert ledger.last.epoch == "e"


@played(CALLS, contended=True)
async def test_where_others_wait_an_idle_process_gives_its_lease_back_at_once(
    admission: LeasedAdmission, ledger: ScriptedLedger
) -> None:
    await admission.admit(0)
    await asyncio.sleep(1.2)
    admission.settle(0, 0)
    await asyncio.sleep(0.01)
    assert ledger.times == [0.0, 1.2]
    assert (ledger.last.using, ledger.last.spare) == (0, 0)
    # What it holds no more, it may not begin with.
    again = asyncio.create_task(admission.admit(0))
    await asyncio.sleep(0)
    assert admission.waiting == 1
    await again
    assert ledger.last.waiting == 1
    admission.settle(0, 0)


@played(CALLS, slots=4)
async def test_a_lease_that_ended_lets_nothing_begin_and_is_not_claimed(
    admission: LeasedAdmission, ledger: ScriptedLedger
) -> None:
    await admission.admit(0)
    ledger.broken = True
    await asyncio.sleep(LEASE + 0.1)
    late = asyncio.create_task(admission.admit(0))
    await asyncio.sleep(1.3)
    assert (late.done(), admission.using, admission.waiting) == (False, 1, 1)
    assert (ledger.last.slots, ledger.last.using, ledger.last.waiting) == (0, 1, 1)
    ledger.broken = False
    await late
    for _ in range(2):
        admission.settle(0, 0)


def test_a_ledger_that_is_gone_is_asked_in_short_pauses_and_complained_of_once() -> None:
    ledger = ScriptedLedger(broken=True)

    async def scene(admission: LeasedAdmission, ledger: ScriptedLedger) -> None:
        waiting = asyncio.create_task(admission.admit(0))
        await asyncio.sleep(3.0)
        ledger.broken = False
        await waiting
        ledger.broken = True
        await asyncio.sleep(4.0)
        admission.settle(0, 0)
        ledger.broken = False

    with capture_logs() as said:
        play(ledger, CALLS, scene)
    # 0.2 s by three quarters, and the pause that follows each round: the first grant had none to say.
    assert ledger.times[:4] + ledger.times[-3:-1] == [0.0, 0.15, 0.3, 0.45, 5.667, 6.817]
    assert [line["reason"] for line in said] == ["gone", "gone"]


@played(TOKENS, tokens=100)
async def test_what_is_held_is_given_back_at_the_end(
    admission: LeasedAdmission, ledger: ScriptedLedger
) -> AsyncIterator[None]:
    await admission.admit(30)
    admission.settle(30, 20)
    yield  # and the process ends
    assert (ledger.last.using, ledger.last.waiting, ledger.last.tokens, ledger.last.returned) == (0, 0, 0, 80)


def test_a_ledger_that_does_not_answer_holds_the_end_up_for_a_second_at_most() -> None:
    ledger = ScriptedLedger()
    ended: list[float] = []

    async def played() -> None:
        loop = asyncio.get_running_loop()
        async with LeasedAdmission(ledger, CALLS, clock=loop.time) as admission:
            await admission.admit(0)
            await asyncio.sleep(2.0)
            admission.settle(0, 0)

            async def silent(demand: Demand, quota: CallQuota) -> Grant:
                await asyncio.Event().wait()
                raise AssertionError

            ledger.renew = silent  # type: ignore[method-assign]
        ended.append(loop.time())

    on_virtual_time(played())
    assert ended == [3.0]


@played(TOKENS, slots=0, tokens=250)
async def test_tokens_are_asked_for_before_the_next_call_would_wait(
    admission: LeasedAdmission, ledger: ScriptedLedger
) -> None:
    await admission.admit(100)
    assert ledger.asked[0][1].head == 100
    # In its line, and as much again for each call under way and the next.
    assert ledger.asked[0][1].tokens == 100 + 100
    await asyncio.sleep(1.5)
    assert ledger.times == [0.0]
    ledger.tokens = 500
    await admission.admit(100)  # 50 are left, less than a call takes
    await asyncio.sleep(0)
    assert ledger.times == [0.0, 1.5]
    assert (ledger.last.tokens, ledger.last.head, ledger.last.spare) == (3 * 100 - 50, 0, 0)
    for _ in range(2):
        admission.settle(100, 40)


@played(TOKENS, tokens=100, contended=True)
async def test_debts_outlive_a_lease_and_what_is_left_of_it_does_not(
    admission: LeasedAdmission, ledger: ScriptedLedger
) -> None:
    await admission.admit(50)
    await asyncio.sleep(1.2)
    admission.settle(50, 10)
    await asyncio.sleep(0.01)
    assert ledger.last.returned == 90
    ledger.tokens = 0
    again = asyncio.create_task(admission.admit(10))
    await asyncio.sleep(AGAIN + 0.5)
    assert not again.done() and ledger.last.head == 10
    ledger.tokens = 10
    await again
    admission.settle(10, 500)
    await asyncio.sleep(2.0)
    ledger.tokens = 200
    last = asyncio.create_task(admission.admit(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ledger.last.head == 1 + 490
    last.cancel()


@played(TOKENS, tokens=100)
async def test_who_is_cancelled_in_line_lets_the_next_one_through(
    admission: LeasedAdmission, ledger: ScriptedLedger
) -> None:
    await admission.admit(60)
    ledger.tokens = 0
    large, small = (asyncio.create_task(admission.admit(tokens)) for tokens in (90, 20))
    await asyncio.sleep(0.1)
    assert (large.done(), small.done()) == (False, False)
    large.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    # At once, and not when the ledger is asked the next time.
    assert small.done()
    assert (admission.using, admission.waiting) == (2, 0)
    for reserved in (60, 20):
        admission.settle(reserved, reserved)


@played(CALLS, slots=3, contended=True)
async def test_where_others_wait_each_call_that_ends_is_told(
    admission: LeasedAdmission, ledger: ScriptedLedger
) -> None:
    for _ in range(2):
        await admission.admit(0)
    await asyncio.sleep(1.5)
    told = len(ledger.asked)
    admission.settle(0, 0)
    await asyncio.sleep(0.01)
    assert len(ledger.asked) == told + 1
    assert ledger.last.using == 1
    admission.settle(0, 0)


@played(TOKENS, tokens=1000)
async def test_what_was_spent_since_is_asked_for_twice_over(admission: LeasedAdmission, ledger: ScriptedLedger) -> None:
    await admission.admit(100)
    await admission.admit(100)
    admission.settle(100, 300)
    await asyncio.sleep(LEASE)
    # A call and the next, and two times 300; 1,000 - 100 - 300 are left.
    assert ledger.asked[1][1].tokens == max(0, 2 * 100 + 2 * 300 - 600)
    admission.settle(100, 100)


@played(TOKENS, tokens=1000)
async def test_a_typical_call_follows_the_calls_slowly(admission: LeasedAdmission, ledger: ScriptedLedger) -> None:
    await admission.admit(100)
    await admission.admit(200)
    waiting = asyncio.create_task(admission.admit(2000))
    await asyncio.sleep(AGAIN)
    assert ledger.last.head == 2000 - 700
    assert ledger.last.tokens == 2000 + round((0.9 * 110 + 0.1 * 2000) * 3) - 700
    ledger.tokens = 2000
    await waiting
    for reserved in (100, 200, 2000):
        admission.settle(reserved, reserved)
