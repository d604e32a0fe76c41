"""The ledger's arithmetic: who gets how many calls and tokens, and when it is asked again."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.adapters.model_pool import MemoryLedger, Quota
from swe_ai_fleet.adapters.model_pool.admission import Demand, Grant
from tests.unit.test_model_admission import Clock, Host

RATE = Quota(tokens_per_minute=6000)
"""100 a second; the bucket holds 1,000."""


async def thirsty(ledger: MemoryLedger, host: str, tokens: int, head: int | None = None) -> Grant:
    asked = Demand(host=host, waiting=1, tokens=tokens, head=tokens if head is None else head)
    return await ledger.renew(asked, RATE)


@given(st.integers(1, 30), st.lists(st.integers(1, 12), min_size=1, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_calls_come_to_be_shared_by_max_min_fairness(capacity: int, needs: list[int], random: Random) -> None:
    async def shared() -> list[int]:
        clock, quota = Clock(), Quota(max_in_flight=capacity)
        ledger = MemoryLedger(clock=clock)
        hosts = [Host(str(number), ledger, clock) for number in range(len(needs))]
        for turn in range(6):
            for number in random.sample(range(len(needs)), len(needs)):
                clock.now += 0.01
                if turn < 4:
                    hosts[number].using, hosts[number].waiting = 0, needs[number]
                await hosts[number].renew(quota)
                hosts[number].start()
        return [host.using for host in hosts]

    using = asyncio.run(shared())
    assert sum(using) == min(capacity, sum(needs))
    short = [has for has, need in zip(using, needs, strict=True) if has < need]
    if short:
        # Nobody has more than one call more than somebody who lacks some.
        assert max(using) <= min(short) + 1


async def test_what_does_not_divide_goes_to_those_who_have_waited_longest() -> None:
    clock, quota = Clock(), Quota(max_in_flight=8)
    ledger = MemoryLedger(clock=clock)
    full, a, b, late = (Host(name, ledger, clock, waiting=9) for name in ("full", "a", "b", "late"))
    full.waiting = 8
    for host in (full, b, a, late):
        clock.now += 1.0
        await host.renew(quota)
        host.start()
        assert host.using == (8 if host is full else 0)
    full.using = 0
    await full.renew(quota)
    # The odd ones are kept for those who have waited longer, though they ask later.
    for host in (late, a, b):
        clock.now += 0.01
        await host.renew(quota)
        host.start()
    assert (a.using, b.using, late.using) == (3, 3, 2)
    for host in (late, b, a):
        assert (await host.renew(quota)).slots <= host.using
    assert ledger.held == {"a": 3, "b": 3, "late": 2}


async def test_spare_calls_come_out_of_what_nobody_has_or_needs() -> None:
    quota = Quota(max_in_flight=10)
    ledger = MemoryLedger(clock=Clock())
    assert (await ledger.renew(Demand(host="a", using=4, spare=20), quota)).slots == 10
    assert (await ledger.renew(Demand(host="b", waiting=2, spare=1), quota)).slots == 0
    assert (await ledger.renew(Demand(host="a", using=4, spare=20), quota)).slots == 8
    assert (await ledger.renew(Demand(host="b", using=2, spare=1), quota)).slots == 2
    assert (await ledger.renew(Demand(host="a", using=4, spare=1), quota)).slots == 5
    assert (await ledger.renew(Demand(host="b", using=2, spare=9), quota)).slots == 5


async def test_a_call_larger_than_the_bucket_is_served_and_leaves_a_debt() -> None:
    clock = Clock()
    ledger = MemoryLedger(clock=clock)
    assert (await thirsty(ledger, "a", 2000)).tokens == 2000
    dry = await thirsty(ledger, "b", 50)
    assert (dry.tokens, dry.again_seconds) == (0, 1.0)
    clock.now += 9.5
    dry = await thirsty(ledger, "b", 50)
    assert (dry.tokens, dry.again_seconds) == (0, 0.5)
    clock.now += 0.8
    poured = await thirsty(ledger, "b", 50)
    assert (poured.tokens, poured.again_seconds) == (50, 0.05)


async def test_whose_call_waits_longer_is_served_first() -> None:
    clock = Clock()
    ledger = MemoryLedger(clock=clock)
    await thirsty(ledger, "rich", 1000)
    assert (await thirsty(ledger, "first", 50)).tokens == 0
    clock.now += 0.1
    assert (await thirsty(ledger, "second", 30)).tokens == 0
    clock.now += 0.2
    await ledger.renew(Demand(host="rich"), RATE)
    # 30 are there: they are for the first, whose call takes 50, and not for one that has no call yet either.
    kept = await thirsty(ledger, "second", 30)
    assert (kept.tokens, kept.again_seconds) == (0, pytest.approx(0.2))
    kept = await thirsty(ledger, "third", 10, head=0)
    assert (kept.tokens, kept.again_seconds) == (0, pytest.approx(0.5))
    assert (await thirsty(ledger, "first", 50)).tokens == 50


async def test_what_is_left_is_shared_among_those_whose_calls_wait() -> None:
    clock = Clock()
    ledger = MemoryLedger(clock=clock)
    await thirsty(ledger, "rich", 1000)
    await thirsty(ledger, "first", 10)
    clock.now += 0.1
    await thirsty(ledger, "second", 20)
    await ledger.renew(Demand(host="rich"), RATE)
    clock.now += 0.9
    # 100 are there, 10 of them somebody's who has waited longer; of the others half.
    assert (await thirsty(ledger, "second", 500, head=20)).tokens == 45
    # Now that one has waited longest, and has a place in front again.
    assert (await thirsty(ledger, "first", 500, head=10)).tokens == 27


async def test_the_bucket_holds_ten_seconds_of_tokens() -> None:
    clock = Clock()
    ledger = MemoryLedger(clock=clock)
    assert (await thirsty(ledger, "a", 5000, head=1)).tokens == 1000
    clock.now += 60.0
    assert (await thirsty(ledger, "a", 5000, head=1)).tokens == 1000
    await ledger.renew(Demand(host="a", returned=5000), RATE)
    assert (await thirsty(ledger, "a", 5000, head=1)).tokens == 1000


async def test_a_successor_begins_with_an_empty_bucket_once() -> None:
    clock = Clock()
    ledger = MemoryLedger(clock=clock)
    assert (await ledger.renew(Demand(host="a", epoch="before", waiting=1, tokens=9, head=9), RATE)).tokens == 0
    clock.now += 1.0
    assert (await thirsty(ledger, "new", 10)).tokens == 10
    assert (await ledger.renew(Demand(host="b", epoch="before", waiting=1, tokens=9, head=9), RATE)).tokens == 9


async def test_many_hosts_ask_seldom_and_their_leases_last_longer() -> None:
    ledger = MemoryLedger(clock=Clock(), lease_seconds=5.0)
    grants = [await ledger.renew(Demand(host=str(number), waiting=1), Quota(max_in_flight=1)) for number in range(600)]
    asked = {
        number: (grants[number - 1].again_seconds, grants[number - 1].lease_seconds) for number in (1, 20, 200, 600)
    }
    assert asked == {1: (0.05, 5.0), 20: (0.2, 5.0), 200: (2.0, 8.0), 600: (5.0, 20.0)}


async def test_a_lease_counts_until_the_moment_it_ends() -> None:
    clock, quota = Clock(), Quota(max_in_flight=1)
    ledger = MemoryLedger(clock=clock, lease_seconds=5.0)
    assert (await ledger.renew(Demand(host="a", waiting=1), quota)).slots == 1
    clock.now += 4.999
    assert (await ledger.renew(Demand(host="b", waiting=1), quota)).slots == 0
    clock.now = 1005.0
    assert (await ledger.renew(Demand(host="b", waiting=1), quota)).slots == 1
