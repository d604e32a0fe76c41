"""What the pool decides: circuits, windows, whom to ask, who waits for how long. The models are plain functions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.adapters.model_pool import (
    CallQuota,
    Fault,
    LeasedAdmission,
    MemoryLedger,
    ModelPool,
    PoolMember,
    PoolRules,
)
from swe_ai_fleet.adapters.model_pool.load import ServerLoad
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import ModelError, ModelRejected, ModelUnavailable
from swe_ai_fleet.domain.message import AssistantMessage, ModelCapabilities, ModelReply, ModelRequest, UserMessage
from swe_ai_fleet.ports import CallTimeout, ChatModel
from tests.simulation.virtual_loop import on_virtual_time
from tests.tables import table

FAST = PoolRules(timeout=5.0, backoff=0.001, open_for=0.002, longest_open=0.01, ramp=60.0)


class Overloaded(ModelUnavailable):
    """A fault that the pool is told to read as overload."""


class Broken(ModelUnavailable):
    """A fault that the pool is told to read as a server error."""


def read(error: ModelUnavailable) -> Fault:
    del error
    return Fault()


class Scripted:
    """A model whose replies and pings are functions; it counts what it sees."""

    def __init__(
        self, name: str = "model", answer: Callable[[], Awaitable[None]] | None = None, *, length: int = 0
    ) -> None:
        self.name, self.answer, self.length = name, answer, length
        self.calls = self.pings = self.under_way = self.most = 0
        self.down = False
        self.order: list[str] = []
        self.usage = Usage()
        self.load_of: Callable[[], ServerLoad] | None = None

    async def load(self) -> ServerLoad | None:
        return self.load_of() if self.load_of else None

    async def probe(self) -> ModelCapabilities:
        if self.down:
            raise ModelUnavailable(f"{self.name} is down", field="model_url")
        return ModelCapabilities(model=self.name, max_model_len=self.length)

    async def ping(self) -> None:
        self.pings += 1
        if self.down:
            raise ModelUnavailable(f"{self.name} is down", field="model_url")

    async def reply(self, request: ModelRequest) -> ModelReply:
        self.calls += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.order.append(request.messages[0].content)
        try:
            if self.down:
                raise ModelUnavailable(f"{self.name} is down", field="model_url")
            if self.answer is not None:
                await self.answer()
        finally:
            self.under_way -= 1
        return ModelReply(message=AssistantMessage(content=self.name), finish_reason="stop", usage=self.usage)


def pool_of(*models: Scripted, rules: PoolRules = FAST) -> ModelPool:
    members = [PoolMember(name=model.name, model=model, load=model.load if model.load_of else None) for model in models]
    return ModelPool(members, read_fault=read, rules=rules)


async def ask(model: ChatModel, text: str = "") -> str:
    return (await model.reply(ModelRequest((UserMessage(content=text),)))).message.content


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_two_hundred_wait_in_order_while_the_only_endpoint_is_down_and_one_goes_first() -> None:
    gate = asyncio.Event()
    model = Scripted(answer=gate.wait)
    model.down = True
    async with pool_of(model) as pool:
        callers = [asyncio.create_task(ask(pool, str(number))) for number in range(200)]
        async with asyncio.timeout(5):
            while pool.counters.waited < 200 or model.pings < 3:
                await asyncio.sleep(0.001)
        assert pool.status().waiting == 200
        # The third fault opened the circuit; only pings have knocked since.
        assert model.calls == 3
        model.down, model.order = False, []
        async with asyncio.timeout(5):
            while not model.under_way:
                await asyncio.sleep(0.001)
        await turns()
        assert (model.under_way, pool.status().endpoints[0].circuit) == (1, "half_open")
        gate.set()
        assert await asyncio.gather(*callers) == ["model"] * 200
        assert model.order == [str(number) for number in range(200)]
        assert pool.status().endpoints[0].circuit == "closed"
        assert model.calls == 203


async def test_sub_agents_that_name_their_run_share_its_endpoint() -> None:
    models = [Scripted(name) for name in "abcd"]
    async with pool_of(*models) as pool:
        run = pool.session("run")
        home = await ask(run)
        assert {await ask(pool.session("run")) for _ in range(10)} == {home}
        assert sum(one.sessions for one in pool.status().endpoints) == 1


def test_tenants_take_turns_sessions_with_the_least_service_go_first_and_none_waits_for_ever() -> None:
    async def second() -> None:
        await asyncio.sleep(1.0)

    model = Scripted(answer=second)

    async def play() -> None:
        clock = asyncio.get_running_loop().time
        async with (
            LeasedAdmission(MemoryLedger(clock=clock), CallQuota(max_in_flight=1), clock=clock) as admission,
            ModelPool([PoolMember(name="m", model=model)], read_fault=read, admission=admission) as pool,
        ):
            old = pool.session("old", tenant="a")
            model.usage = Usage(prompt_tokens=300_000, cached_tokens=1_000, completion_tokens=500)
            await ask(old, "old")
            model.usage = Usage(prompt_tokens=300_000, cached_tokens=290_000, completion_tokens=500)
            cached = pool.session("cached", tenant="a")
            await ask(cached, "cached")
            calls = [asyncio.create_task(ask(pool.session("first", tenant="a"), "first"))]
            await asyncio.sleep(0.5)
            for session, text in (
                (old, "old"),
                (cached, "cached"),
                (pool.session("new", tenant="a"), "new"),
                (pool.session("urgent", tenant="a", priority=7), "urgent"),
                (pool.session("one", tenant="b"), "b one"),
                (pool.session("two", tenant="b"), "b two"),
            ):
                calls.append(asyncio.create_task(ask(session, text)))
                await asyncio.sleep(0)
            await asyncio.gather(*calls)
            assert model.order[3:] == ["b one", "urgent", "b two", "cached", "new", "old"]
            # New sessions without an end: the old one has one turn of sixteen.
            model.order, first = [], asyncio.create_task(ask(pool.session("first", tenant="a")))
            await asyncio.sleep(0.5)
            waiting = asyncio.create_task(ask(old, "old"))
            line = [asyncio.create_task(ask(pool.session(str(number), tenant="a"))) for number in range(60)]
            await waiting
            assert "old" in model.order[2:17]
            await asyncio.gather(first, *line)

    on_virtual_time(play())


def test_who_waits_for_room_at_its_own_server_holds_nobody_up() -> None:
    async def play() -> None:
        gate = asyncio.Event()
        models = [Scripted(name, gate.wait) for name in ("one", "two")]
        async with pool_of(Scripted("old"), rules=replace(FAST, quantum=0)) as pool:
            # Those that come have one call at a time at first.
            pool.set_members([PoolMember(name=model.name, model=model) for model in models])
            run = pool.session("run")
            calls = [asyncio.create_task(ask(run, "run")) for _ in range(3)]
            await asyncio.sleep(1.0)
            calls.append(asyncio.create_task(ask(pool.session("other"), "other")))
            await turns()
            assert sorted(text for model in models for text in model.order) == ["other", "run"]
            gate.set()
            await asyncio.gather(*calls)

    on_virtual_time(play())


def test_what_would_wait_at_a_server_waits_in_the_pool_until_there_is_room_again() -> None:
    room, slots = 8, asyncio.Semaphore(8)

    async def work() -> None:
        async with slots:
            await asyncio.sleep(10.0)

    model = Scripted(answer=work)
    model.load_of = lambda: ServerLoad(running=min(room, model.under_way), waiting=max(0, model.under_way - room))

    async def play() -> None:
        nonlocal room
        async with pool_of(model, rules=PoolRules()) as pool:

            async def agent(number: int) -> None:
                session = pool.session(str(number))
                for _ in range(20):
                    await ask(session)

            agents = [asyncio.create_task(agent(number)) for number in range(40)]
            await asyncio.sleep(1.0)
            assert (model.under_way, pool.status().waiting) == (40, 0)
            for _ in range(20):
                await asyncio.sleep(5.0)
                assert model.under_way >= room
            # A few more than there is room for keep the server busy.
            assert model.under_way <= room + 3
            assert pool.status().waiting == 40 - model.under_way
            room += 32
            for _ in range(32):
                slots.release()
            await asyncio.sleep(60.0)
            assert (model.under_way, pool.status().waiting) == (40, 0)
            await asyncio.gather(*agents)

    on_virtual_time(play())


@table(("cached", "home"), [(20_000, "one"), (0, "two")])
def test_a_run_leaves_a_busier_server_sooner_where_its_prompt_is_not_in_the_cache(cached: int, home: str) -> None:
    one, two = Scripted("one"), Scripted("two")
    loads = {
        "one": ServerLoad(running=0, waiting=0, prefix_hits=1.0, prefix_queries=2.0),
        "two": ServerLoad(running=9, waiting=0),
    }
    one.load_of, two.load_of = lambda: loads["one"], lambda: loads["two"]

    async def play() -> None:
        async with pool_of(one, two, rules=PoolRules()) as pool:
            run = pool.session("run")
            await asyncio.sleep(3.0)
            one.usage = Usage(prompt_tokens=20_000)
            assert await ask(run) == "one"
            one.usage = Usage(prompt_tokens=21_000, cached_tokens=cached)
            assert await ask(run) == "one"
            loads["one"], loads["two"] = (
                ServerLoad(running=8, waiting=1, prefix_hits=1.0),
                ServerLoad(running=2, waiting=0),
            )
            await asyncio.sleep(3.0)
            assert await ask(run) == home

    on_virtual_time(play())


def test_members_that_come_are_pinged_first_and_those_that_leave_end_what_they_have() -> None:
    async def play() -> None:
        gate, closed = asyncio.Event(), list[str]()

        def member(model: Scripted) -> PoolMember:
            async def close() -> None:
                closed.append(model.name)

            return PoolMember(name=model.name, model=model, close=close)

        old, new, late = Scripted("old", gate.wait), Scripted("new"), Scripted("late")
        late.down = True
        members = {model.name: member(model) for model in (old, new, late)}
        async with ModelPool([members["old"]], read_fault=read, rules=PoolRules()) as pool:
            run, other = pool.session("run"), pool.session("other")
            held = asyncio.create_task(ask(run))
            await turns()
            pool.set_members([members["new"], members["late"]])
            assert await ask(other) == "new"
            assert (new.pings, old.calls, held.done(), closed) == (1, 1, False, [])
            gate.set()
            assert await held == "old"
            assert (await ask(run), run.endpoint) == ("new", "new")
            assert (late.calls, {one.name for one in pool.status().endpoints}) == (0, {"new", "late"})
            late.down = False
            await asyncio.sleep(60.0)
            assert closed == ["old"]
            others = [pool.session(str(number)) for number in range(6)]
            assert {await ask(one) for one in others} == {"new", "late"}
            # Nobody is left: calls wait, where no source says that more may come they fail at once.
            pool.set_members([])
            with pytest.raises(ModelUnavailable, match="no model server is available"):
                await ask(run)
        assert sorted(closed) == ["late", "new", "old"]

    on_virtual_time(play())


@table(("seconds", "away", "waits"), [(None, 50.0, True), (300.0, 200.0, True), (10.0, 50.0, False)])
def test_a_call_waits_as_long_as_its_run_may_and_says_so(seconds: float | None, away: float, waits: bool) -> None:
    async def play() -> None:
        heard: list[tuple[bool, float]] = []
        model, loop = Scripted("only"), asyncio.get_running_loop()
        model.down = True
        async with pool_of(model, rules=PoolRules(timeout=100.0)) as pool:
            began = loop.time()

            def hear(is_away: bool) -> None:
                heard.append((is_away, loop.time() - began))

            call = asyncio.create_task(ask(pool.session("run", timeout=CallTimeout(seconds=seconds, hear=hear))))
            await asyncio.sleep(away)
            model.down = False
            if waits:
                assert await call == "only"
            else:
                with pytest.raises(ModelUnavailable, match="is down"):
                    await call
            (begins, first), (ends, last) = heard
            assert (begins, ends) == (True, False)
            assert 5.0 <= first < 20.0
            # Pings come every ten seconds at most.
            assert away <= last < away + 20.0 if waits else last <= 20.0

    on_virtual_time(play())


@given(
    st.lists(
        st.lists(st.sampled_from(["ok", "ok", "gone", "broken", "busy", "rejected"]), max_size=12),
        min_size=1,
        max_size=3,
    )
)
@settings(max_examples=30)
def test_whatever_servers_do_every_call_ends_and_nothing_leaks(scripts: list[list[str]]) -> None:
    faults: dict[str, ModelError] = {
        "gone": ModelUnavailable("gone"),
        "broken": Broken("broken"),
        "busy": Overloaded("busy"),
        "rejected": ModelRejected("rejected"),
    }

    def answering(script: list[str]) -> Callable[[], Awaitable[None]]:
        acts = iter(script)

        async def answer() -> None:
            await asyncio.sleep(0)
            act = next(acts, "ok")
            if act != "ok":
                raise faults[act]

        return answer

    async def play() -> None:
        models = [Scripted(str(number), answering(script)) for number, script in enumerate(scripts)]
        async with pool_of(*models) as pool, asyncio.timeout(20):
            sessions = [pool.session(str(number)) for number in range(6)]
            calls = [asyncio.create_task(ask(session)) for session in sessions for _ in range(2)]
            calls[3].cancel()
            ended = await asyncio.gather(*calls, return_exceptions=True)
            for result in ended:
                assert isinstance(result, (str, ModelRejected, Broken, asyncio.CancelledError)), result
            status = pool.status()
            assert status.waiting == 0
            assert [one.in_flight for one in status.endpoints] == [0] * len(models)

    asyncio.run(play())
