"""The fleet's limits on calls to models: the ledger's arithmetic, and how a process hands its lease out."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.adapters.model_pool import CallQuota, Demand, Grant, LeasedAdmission, MemoryLedger, estimated_tokens
from swe_ai_fleet.domain.message import (
    AssistantMessage,
    Message,
    ModelRequest,
    Passthrough,
    Sampling,
    ToolCall,
    UserMessage,
)
from swe_ai_fleet.domain.tool import OperationSpec
from tests.sampling import sample


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Host:
    """A host that keeps to its lease; nothing here starts by itself."""

    name: str
    ledger: MemoryLedger
    clock: Clock
    using: int = 0
    waiting: int = 0
    slots: int = 0
    ends_at: float = 0.0
    epoch: str = ""
    served: int = 0

    async def renew(self, quota: CallQuota, *, tokens: int = 0, head: int = 0) -> Grant:
        demand = Demand(
            host=self.name,
            epoch=self.epoch,
            slots=self.slots if self.clock.now < self.ends_at else 0,
            using=self.using,
            waiting=self.waiting,
            tokens=tokens,
            head=head,
        )
        grant = await self.ledger.renew(demand, quota)
        self.slots, self.ends_at, self.epoch = grant.slots, self.clock.now + grant.lease_seconds, grant.epoch
        return grant

    def start(self) -> None:
        while self.waiting and self.using < self.slots and self.clock.now < self.ends_at:
            self.waiting, self.using, self.served = self.waiting - 1, self.using + 1, self.served + 1


FIFTY = CallQuota(max_in_flight=50)
RATE = CallQuota(tokens_per_minute=6000)
"""100 a second; the bucket holds 1,000."""


async def told(ledger: MemoryLedger, host: str, quota: CallQuota = RATE, **asked: Any) -> tuple[float, ...]:
    """What a host that asks for tokens or calls is granted: calls, tokens, and when it asks again."""
    grant = await ledger.renew(Demand(host=host, **asked), quota)
    return grant.slots, grant.tokens, round(grant.again_seconds, 6)


async def thirsty(ledger: MemoryLedger, host: str, tokens: int, head: int | None = None) -> tuple[float, ...]:
    return (await told(ledger, host, waiting=1, tokens=tokens, head=tokens if head is None else head))[1:]


async def test_a_host_alone_gets_what_it_needs_and_a_little_to_spare() -> None:
    ledger = MemoryLedger(clock=Clock())
    for host, asked, slots in (
        ("a", {"waiting": 3, "spare": 2}, 5),
        ("a", {"using": 3, "waiting": 80, "spare": 2}, 50),
        # Nothing is given to spare where it is claimed.
        ("b", {"waiting": 1, "spare": 10}, 0),
    ):
        assert (await told(ledger, host, FIFTY, **asked))[0] == slots
    assert ledger.held == {"a": 50, "b": 0}
    assert (await told(ledger, "a", FIFTY))[0] == 0
    assert ledger.held == {"b": 0}
    # A host without calls keeps its lease while it wants some to spare, or tokens.
    ledger = MemoryLedger(clock=Clock())
    assert (await told(ledger, "a", FIFTY, spare=2))[0] == 2
    assert ledger.held == {"a": 2}
    assert (await told(ledger, "a", CallQuota(tokens_per_minute=60), tokens=5))[1] == 5
    assert ledger.held == {"a": 0}
    # Spare calls come out of what nobody has or needs.
    ledger = MemoryLedger(clock=Clock())
    for host, asked, slots in (
        ("a", {"using": 4, "spare": 20}, 10),
        ("b", {"waiting": 2, "spare": 1}, 0),
        ("a", {"using": 4, "spare": 20}, 8),
        ("b", {"using": 2, "spare": 1}, 2),
        ("a", {"using": 4, "spare": 1}, 5),
        ("b", {"using": 2, "spare": 9}, 5),
    ):
        assert (await told(ledger, host, CallQuota(max_in_flight=10), **asked))[0] == slots


async def test_a_host_with_nothing_to_ask_takes_nothing_of_the_bucket() -> None:
    clock, limit = Clock(), CallQuota(tokens_per_minute=60)
    ledger = MemoryLedger(clock=clock)
    assert (await told(ledger, "a", limit, waiting=1, head=8))[1] == 0
    # Six seconds' worth of debt: it is asked again after the longest pause there is while it is dry.
    for seconds, tokens, again in ((0, 8, None), (0, 8, None), (0, 0, 1.0), (5.5, 0, 0.5), (0.6, 8, None)):
        clock.now += seconds
        granted = await told(ledger, "a", limit, waiting=1, tokens=8, head=8)
        assert granted[1] == tokens and again in (None, granted[2])


async def test_a_host_hears_whether_others_wait_for_what_it_holds() -> None:
    ledger = MemoryLedger(clock=Clock())
    for host, asked, contended in (
        ("a", {"using": 50}, False),
        ("b", {"waiting": 3}, False),
        ("a", {"using": 50}, True),
        ("c", {"waiting": 1}, True),
        # Who has what it needs waits for nothing, though its calls have not begun yet.
        ("a", {"using": 10}, True),
    ):
        assert (await ledger.renew(Demand(host=host, **asked), FIFTY)).contended is contended
    for host, waiting in (("b", 3), ("c", 1)):
        assert (await told(ledger, host, FIFTY, waiting=waiting))[0] == waiting
    assert not (await ledger.renew(Demand(host="a", using=10), FIFTY)).contended


async def test_a_dead_hosts_lease_counts_until_the_moment_it_ends() -> None:
    clock = Clock()
    ledger = MemoryLedger(clock=clock, lease_seconds=5.0)
    for host, at, slots in (("dead", 1000.0, 50), ("alive", 1000.0, 0), ("alive", 1004.999, 0), ("alive", 1005.0, 10)):
        clock.now = at
        assert (await told(ledger, host, FIFTY, waiting=50 if host == "dead" else 10))[0] == slots


async def test_a_successor_lets_nobody_have_more_than_before_until_old_leases_have_ended() -> None:
    clock = Clock()
    ledger = MemoryLedger(clock=clock, lease_seconds=5.0)
    hosts = [Host(name, ledger, clock, waiting=40) for name in "ab"]
    for host in (*hosts, *hosts):
        await host.renew(FIFTY)
        host.start()
    assert sum(host.using for host in hosts) == 50
    successor = MemoryLedger(clock=clock, lease_seconds=5.0)
    newcomer = Host("c", successor, clock, waiting=10)
    for host in hosts:
        host.ledger = successor
        using = host.using
        assert (await host.renew(FIFTY)).slots == using
    assert (await newcomer.renew(FIFTY)).slots == 0
    hosts[1].using = 0
    clock.now += 3.0
    for host in (*hosts, newcomer):
        slots = host.slots
        assert (await host.renew(FIFTY)).slots == slots
    clock.now += 2.1
    for host in (*hosts, newcomer):
        await host.renew(FIFTY)
        host.start()
    # The first has more than its part and starts nothing new; the others share what is free.
    assert [host.slots for host in (*hosts, newcomer)] == [20, 10, 0]
    hosts[0].using = 20
    await hosts[0].renew(FIFTY)
    assert [(await host.renew(FIFTY)).slots for host in (newcomer, hosts[1])] == [10, 20]


@given(
    st.integers(1, 20),
    st.lists(
        st.tuples(st.sampled_from(["renew", "want", "finish", "kill", "wait"]), st.integers(0, 3), st.integers(1, 9)),
        max_size=80,
    ),
)
@settings(max_examples=60)
def test_hosts_that_keep_to_their_leases_never_have_more_under_way_than_allowed(
    capacity: int, acts: list[tuple[str, int, int]]
) -> None:
    async def play() -> None:
        clock = Clock()
        ledger = MemoryLedger(clock=clock)
        quota = CallQuota(max_in_flight=capacity)
        hosts = [Host(str(number), ledger, clock) for number in range(4)]
        for act, number, amount in acts:
            host = hosts[number]
            if act == "want":
                host.waiting += amount
            elif act == "finish":
                host.using -= min(amount, host.using)
            elif act == "kill":
                hosts[number] = Host(f"{host.name}+", ledger, clock)
            elif act == "wait":
                clock.now += amount / 3
                for one in hosts:
                    # Whoever has calls under way renews in time.
                    if one.using and one.ends_at - clock.now < 3.5:
                        await one.renew(quota)
            else:
                await host.renew(quota)
            host.start()
            assert sum(one.using for one in hosts) <= capacity
            assert sum(ledger.held.values()) <= capacity

    asyncio.run(play())


def test_an_estimate_counts_what_is_said_and_what_is_called() -> None:
    call = ToolCall(call_id="1", model_call_id="1", name="look", arguments="x" * 39)
    messages: list[Message] = [UserMessage(content="y" * 400), AssistantMessage(content="", tool_calls=(call,))]
    assert estimated_tokens(ModelRequest(messages)) == 100 + 10 + 1024
    bounded = ModelRequest(messages, (sample(OperationSpec),) * 2, Sampling(max_tokens=500))
    assert estimated_tokens(bounded) == 100 + 10 + 2 * 150 + 500
    for fields, most in (({}, 1024), ({"max_tokens": 7}, 7)):
        asked = Passthrough(fields=fields, characters=403, send=sample(Passthrough).send)
        assert estimated_tokens(ModelRequest((), passthrough=asked)) == 100 + most


@given(st.integers(1, 30), st.lists(st.integers(1, 12), min_size=1, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_calls_come_to_be_shared_by_max_min_fairness(capacity: int, needs: list[int], random: Random) -> None:
    async def shared() -> list[int]:
        clock, quota = Clock(), CallQuota(max_in_flight=capacity)
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
    clock, quota = Clock(), CallQuota(max_in_flight=8)
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
    later, last = (Host(name, ledger, clock, waiting=9) for name in ("later", "last"))
    for host in (later, last):
        clock.now += 0.1
        await host.renew(quota)
    b.using = b.waiting = late.using = late.waiting = 0
    for host in (b, late, later, last):
        await host.renew(quota)
        host.start()
    assert (a.using, later.using, last.using) == (3, 3, 2)


async def test_a_call_larger_than_the_bucket_is_served_and_leaves_a_debt() -> None:
    clock = Clock()
    ledger = MemoryLedger(clock=clock)
    assert (await thirsty(ledger, "a", 2000))[0] == 2000
    for seconds, granted in ((0, (0, 1.0)), (9.5, (0, 0.5)), (0.8, (50, 0.05))):
        clock.now += seconds
        assert await thirsty(ledger, "b", 50) == granted


async def test_whose_call_waits_longer_is_served_first_and_what_is_left_is_shared() -> None:
    clock = Clock()
    ledger = MemoryLedger(clock=clock)
    await thirsty(ledger, "rich", 1000)
    assert (await thirsty(ledger, "first", 50))[0] == 0
    clock.now += 0.1
    assert (await thirsty(ledger, "second", 30))[0] == 0
    clock.now += 0.2
    await ledger.renew(Demand(host="rich"), RATE)
    # 30 are there: they are for the first, whose call takes 50, and not for one that has no call yet either.
    assert await thirsty(ledger, "second", 30) == (0, pytest.approx(0.2))
    assert await thirsty(ledger, "third", 10, head=0) == (0, pytest.approx(0.5))
    assert (await thirsty(ledger, "first", 50))[0] == 50
    ledger = MemoryLedger(clock=(late := Clock()))
    await thirsty(ledger, "rich", 1000)
    await thirsty(ledger, "first", 10)
    late.now += 0.1
    await thirsty(ledger, "second", 20)
    await ledger.renew(Demand(host="rich"), RATE)
    late.now += 0.9
    # 100 are there, 10 of them somebody's who has waited longer; of the others half.
    assert (await thirsty(ledger, "second", 500, head=20))[0] == 45
    # Now that one has waited longest, and has a place in front again.
    assert (await thirsty(ledger, "first", 500, head=10))[0] == 27


async def test_the_bucket_holds_ten_seconds_of_tokens_and_what_comes_back_can_be_had_by_others() -> None:
    clock = Clock()
    ledger = MemoryLedger(clock=clock)
    assert (await thirsty(ledger, "a", 5000, head=1))[0] == 1000
    assert (await thirsty(ledger, "b", 500))[0] == 0
    await ledger.renew(Demand(host="a", returned=700), RATE)
    assert (await thirsty(ledger, "b", 500))[0] == 500
    for seconds, returned in ((60.0, 0), (0.0, 5000)):
        clock.now += seconds
        await ledger.renew(Demand(host="a", returned=returned), RATE)
        assert (await thirsty(ledger, "a", 5000, head=1))[0] == 1000
    # A successor begins with an empty bucket, once.
    ledger = MemoryLedger(clock=clock)
    before = {"epoch": "before", "waiting": 1, "tokens": 9, "head": 9}
    assert (await told(ledger, "a", **before))[1] == 0
    clock.now += 1.0
    assert (await thirsty(ledger, "new", 10))[0] == 10
    assert (await told(ledger, "b", **before))[1] == 9


async def test_many_hosts_ask_seldom_and_their_leases_last_longer() -> None:
    ledger = MemoryLedger(clock=Clock(), lease_seconds=5.0)
    grants = [
        await ledger.renew(Demand(host=str(number), waiting=1), CallQuota(max_in_flight=1)) for number in range(600)
    ]
    asked = {
        number: (grants[number - 1].again_seconds, grants[number - 1].lease_seconds) for number in (1, 20, 200, 600)
    }
    assert asked == {1: (0.05, 5.0), 20: (0.2, 5.0), 200: (2.0, 8.0), 600: (5.0, 20.0)}


async def test_tokens_flow_at_the_rate_whatever_is_asked() -> None:
    clock = Clock()
    ledger = MemoryLedger(clock=clock)
    quota = CallQuota(tokens_per_minute=60_000)
    hosts = [Host(name, ledger, clock, waiting=9) for name in "abc"]
    poured = Counter[str]()
    for _ in range(1200):
        clock.now += 0.1
        for host in hosts:
            # One host's calls are larger than the whole bucket.
            want = 40_000 if host.name == "a" else 3000
            poured[host.name] += (await host.renew(quota, tokens=want, head=want)).tokens
    seconds = 1200 * 0.1
    assert 0.95 * 1000 * seconds <= sum(poured.values()) <= 1000 * (seconds + 10) + 40_000
    assert min(poured.values()) > 0


async def test_more_hosts_than_calls_take_turns() -> None:
    clock = Clock()
    ledger = MemoryLedger(clock=clock)
    quota = CallQuota(max_in_flight=5)
    hosts = [Host(f"h{number}", ledger, clock, waiting=1) for number in range(60)]
    for _ in range(30):
        for host in hosts:
            clock.now += 0.001
            await host.renew(quota)
            host.start()
            assert sum(one.using for one in hosts) <= 5
        clock.now += 0.6
        for host in hosts:
            if host.using:
                host.using, host.waiting = 0, 1
                await host.renew(quota)
    served = [host.served for host in hosts]
    assert sum(served) >= 5 * 28
    assert min(served) >= 1
    assert max(served) <= 6


async def test_within_a_host_who_comes_first_goes_first_and_the_cancelled_lose_nothing() -> None:
    async with LeasedAdmission(MemoryLedger(), CallQuota(max_in_flight=1)) as admission:
        await admission.admit(0)
        order: list[int] = []

        async def agent(number: int) -> None:
            await admission.admit(0)
            order.append(number)
            admission.settle(0, 0)

        agents = [asyncio.create_task(agent(number)) for number in range(6)]
        await asyncio.sleep(0)
        assert admission.waiting == 6
        agents[2].cancel()
        await asyncio.wait(agents[2:3])
        # This one is let through and cancelled at the same moment.
        admission.settle(0, 0)
        agents[0].cancel()
        await asyncio.wait(agents)
        assert order == [1, 3, 4, 5]
        assert (admission.using, admission.waiting) == (0, 0)
