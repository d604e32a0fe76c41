"""What the pool decides: circuits, windows, whom to ask, who waits for how long. The models are plain functions."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.adapters.model_pool import Fault, FaultKind, Member, ModelPool, PoolRules
from swe_ai_fleet.adapters.model_pool.breaker import Circuit, CircuitBreaker
from swe_ai_fleet.adapters.model_pool.endpoint import Binding, Endpoint
from swe_ai_fleet.adapters.model_pool.load import Load, read_load
from swe_ai_fleet.adapters.model_pool.window import Window
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import ModelError, ModelRejected, ModelUnavailable
from swe_ai_fleet.domain.message import (
    AssistantMessage,
    ModelCapabilities,
    ModelReply,
    ModelRequest,
    UserMessage,
)
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.runtime.admission import model_admission
from swe_ai_fleet.settings import Settings

FAST = PoolRules(patience=5.0, backoff=0.001, open_for=0.002, longest_open=0.01, ramp=60.0)


class Overloaded(ModelUnavailable):
    """A fault that the pool is told to read as overload."""


class Broken(ModelUnavailable):
    """A fault that the pool is told to read as a server error."""


def read(error: ModelUnavailable) -> Fault:
    if isinstance(error, Overloaded):
        return Fault(kind=FaultKind.OVERLOADED)
    return Fault(kind=FaultKind.BROKEN) if isinstance(error, Broken) else Fault()


class Scripted:
    """A model whose replies and pings are functions; it counts what it sees."""

    def __init__(
        self, name: str = "model", answer: Callable[[], Awaitable[None]] | None = None, *, length: int = 0
    ) -> None:
        self.name, self.answer, self.length = name, answer, length
        self.calls = self.pings = self.under_way = self.most = 0
        self.down = False
        self.order: list[str] = []

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
        return ModelReply(message=AssistantMessage(content=self.name), finish_reason="stop", usage=Usage())


def pool_of(*models: Scripted, rules: PoolRules = FAST) -> ModelPool:
    return ModelPool([Member(name=model.name, model=model) for model in models], read_fault=read, rules=rules)


async def ask(model: ChatModel, text: str = "") -> str:
    return (await model.reply(ModelRequest((UserMessage(content=text),)))).message.content


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# Circuits


def test_a_circuit_opens_after_faults_in_a_row_and_longer_each_time() -> None:
    breaker = CircuitBreaker(threshold=3, open_seconds=1.0, longest_seconds=4.0)
    assert not breaker.failed(0, 0.0)
    assert not breaker.failed(0, 0.0)
    assert not breaker.succeeded(0)
    assert [breaker.failed(0, 10.0) for _ in range(3)] == [False, False, True]
    waits = [breaker.retry_at - 10.0]
    for _ in range(4):
        breaker.ping_failed(10.0)
        waits.append(breaker.retry_at - 10.0)
    for wait, longest in zip(waits, (1.0, 2.0, 4.0, 4.0, 4.0), strict=True):
        assert longest / 2 <= wait <= longest
    breaker.ping_answered()
    assert breaker.circuit is Circuit.HALF_OPEN
    # A ping is not a call: where the first call fails the circuit opens at once, and not for a shorter time.
    assert breaker.failed(breaker.epoch, 20.0)
    assert 2.0 <= breaker.retry_at - 20.0 <= 4.0
    breaker.ping_answered()
    assert breaker.succeeded(breaker.epoch)
    assert [breaker.failed(breaker.epoch, 30.0) for _ in range(3)] == [False, False, True]
    assert breaker.retry_at <= 31.0


def test_what_began_before_a_circuit_opened_says_nothing_about_it_now() -> None:
    breaker = CircuitBreaker(threshold=1)
    assert breaker.failed(0, 0.0)
    assert not breaker.failed(0, 0.0)
    breaker.ping_answered()
    assert not breaker.succeeded(0)
    assert not breaker.failed(0, 0.0)
    assert breaker.circuit is Circuit.HALF_OPEN


# Windows


def test_a_window_is_wide_until_there_is_trouble_and_starts_slowly_after_it() -> None:
    window = Window(ramp_seconds=2.0)
    assert window.limit(0.0) == math.inf
    window.restart(100.0)
    assert window.limit(100.0) == 1
    assert window.next_growth(100.0) == 102.0
    assert window.limit(104.0) == 4
    window.succeeded()
    window.succeeded()
    assert window.limit(100.0) == 3
    for _ in range(1030):
        window.succeeded()
    assert window.limit(100.0) == math.inf


def test_overload_halves_a_window_once_for_calls_that_were_under_way_together() -> None:
    window = Window()
    assert window.turned_away(100, began=5.0, now=10.0)
    assert not window.turned_away(99, began=6.0, now=10.5)
    assert window.limit(10.5) == 50
    assert window.turned_away(50, began=11.0, now=12.0)
    assert window.limit(12.0) == 25
    for _ in range(26):
        window.succeeded()
    assert 26 <= window.limit(12.0) <= 27
    assert window.next_growth(12.0) == math.inf
    assert window.turned_away(1, began=13.0, now=14.0)
    assert window.limit(14.0) == 1


# Load


PAGE = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a model} {b"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0 1700000000
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:prefix_cache_hits_total{engine="0"} 99.0
"""


def test_a_load_is_read_from_all_engines() -> None:
    assert read_load(PAGE) == Load(running=5, waiting=7, cache=0.75, prefix_hits=99)
    assert read_load(b"vllm:num_requests_running 4\nvllm:gpu_cache_usage_perc 0.5\n") == Load(
        running=4, waiting=0, cache=0.5
    )
    assert read_load(b"process_cpu_seconds_total 1\n") is None
    assert read_load(b"vllm:num_requests_running{} NaN\nvllm:num_requests_waiting{} -5\n") == Load(running=0, waiting=0)


@given(st.binary(max_size=200), st.sampled_from([b"vllm:num_requests_running", b"vllm:kv_cache_usage_perc{", b""]))
def test_whatever_a_page_holds_reading_it_ends_well(noise: bytes, name: bytes) -> None:
    load = read_load(name + noise + b"\nvllm:num_requests_waiting 1\n" + name + b"} " + noise)
    assert load is None or (load.running >= 0 and load.waiting >= 0 and 0 <= load.cache <= 1)


def _endpoint(*, in_flight: int = 0, sessions: list[Binding] | None = None) -> Endpoint:
    endpoint = Endpoint(
        member=Member(name="e", model=Scripted()), breaker=CircuitBreaker(), window=Window(), in_flight=in_flight
    )
    for binding in sessions or []:
        binding.bind(endpoint)
    return endpoint


def test_pressure_adds_what_we_began_since_to_what_the_server_told() -> None:
    endpoint = _endpoint(in_flight=4)
    endpoint.heard(Load(running=10, waiting=2, cache=0.5), asked_with=3, now=100.0)
    assert endpoint.pressure(100.0, stale_after=6.0) == (False, 4 + 8 + 2, 0.5)
    endpoint.in_flight = 9
    assert endpoint.pressure(105.0, stale_after=6.0) == (False, 9 + 8 + 2, 0.5)
    assert endpoint.queues(105.0, stale_after=6.0)
    # Old news are worse than none.
    assert endpoint.pressure(107.0, stale_after=6.0) == (False, 9, 0.0)
    assert not endpoint.queues(107.0, stale_after=6.0)
    endpoint.heard(Load(running=10, waiting=2, cache=0.97), asked_with=12, now=108.0)
    assert endpoint.pressure(108.0, stale_after=6.0) == (True, 9 + 0 + 2, 0.97)
    held = [Binding(key=str(number)) for number in range(20)]
    assert _endpoint(in_flight=1, sessions=held).pressure(0.0, stale_after=6.0) == (False, 20, 0.0)


@pytest.mark.parametrize(
    ("status", "wait", "kind"),
    [
        (0, None, FaultKind.UNREACHABLE),
        (200, None, FaultKind.BROKEN),
        (500, None, FaultKind.BROKEN),
        (502, None, FaultKind.BROKEN),
        (503, None, FaultKind.OVERLOADED),
        (529, None, FaultKind.OVERLOADED),
        (429, 3.0, FaultKind.OVERLOADED),
        (500, 3.0, FaultKind.OVERLOADED),
    ],
)
def test_what_a_status_means(status: int, wait: float | None, kind: FaultKind) -> None:
    assert Fault.of(status, wait) == Fault(kind=kind, retry_after=wait)


# Calls


async def test_all_wait_in_order_while_the_only_endpoint_is_down_and_one_goes_first() -> None:
    gate = asyncio.Event()
    model = Scripted(answer=gate.wait)
    model.down = True
    async with pool_of(model) as pool:
        callers = [asyncio.create_task(ask(pool, str(number))) for number in range(50)]
        async with asyncio.timeout(5):
            while pool.counters.waited < 50 or model.pings < 3:
                await asyncio.sleep(0.001)
        assert pool.status().waiting == 50
        # The third fault opened the circuit; only pings have knocked since.
        assert model.calls == 3
        model.down, model.order = False, []
        async with asyncio.timeout(5):
            while not model.under_way:
                await asyncio.sleep(0.001)
        await turns()
        assert (model.under_way, pool.status().endpoints[0].circuit) == (1, Circuit.HALF_OPEN)
        gate.set()
        assert await asyncio.gather(*callers) == ["model"] * 50
        assert model.order == [str(number) for number in range(50)]
        assert pool.status().endpoints[0].circuit is Circuit.CLOSED
        assert model.calls == 53


async def test_a_trial_that_fails_opens_the_circuit_again() -> None:
    model = Scripted()
    model.down = True
    real_ping = model.ping

    async def lying_ping() -> None:
        with suppress(ModelUnavailable):
            await real_ping()

    model.ping = lying_ping  # type: ignore[method-assign]
    async with pool_of(model) as pool:
        callers = [asyncio.create_task(ask(pool)) for _ in range(20)]
        async with asyncio.timeout(5):
            while pool.counters.opened < 4:
                await asyncio.sleep(0.001)
        # One call for each time that a ping promised too much.
        assert model.calls <= 20 + pool.counters.opened
        model.down = False
        assert await asyncio.gather(*callers) == ["model"] * 20


async def test_a_ping_that_is_refused_says_that_somebody_is_there() -> None:
    model = Scripted()
    model.down = True

    async def refused() -> None:
        model.down = False
        raise ModelRejected("no list for you")

    model.ping = refused  # type: ignore[method-assign]
    async with pool_of(model) as pool:
        assert await ask(pool) == "model"


async def test_who_waits_for_a_busy_server_does_not_run_out_of_patience() -> None:
    gate = asyncio.Event()
    model = Scripted(answer=gate.wait)
    model.down = True
    async with pool_of(model, rules=PoolRules(patience=0.05, backoff=0.001, open_for=0.002, ramp=60.0)) as pool:
        first = [asyncio.create_task(ask(pool)) for _ in range(4)]
        async with asyncio.timeout(5):
            while model.pings < 1:
                await asyncio.sleep(0.001)
            model.down = False
            while not model.under_way:
                await asyncio.sleep(0.001)
            # It serves one call, and takes its time: the others' turn will come.
            await asyncio.sleep(0.2)
            assert not any(call.done() for call in first)
            gate.set()
            assert await asyncio.gather(*first) == ["model"] * 4


async def test_patience_of_zero_is_one_try() -> None:
    model = Scripted()
    model.down = True
    async with pool_of(model, rules=PoolRules(patience=0.0)) as pool:
        with pytest.raises(ModelUnavailable, match="model is down"):
            await ask(pool)
        assert model.calls == 1


async def test_cancelled_callers_leave_no_trace() -> None:
    gate = asyncio.Event()
    model = Scripted(answer=gate.wait)
    model.down = True
    async with pool_of(model) as pool:
        callers = [asyncio.create_task(ask(pool, str(number))) for number in range(10)]
        async with asyncio.timeout(5):
            while pool.counters.waited < 10:
                await asyncio.sleep(0.001)
        for caller in callers[:5]:
            caller.cancel()
        await asyncio.wait(callers[:5])
        assert pool.status().waiting == 5
        model.down = False
        async with asyncio.timeout(5):
            while not model.under_way:
                await asyncio.sleep(0.001)
        for caller in callers[5:]:
            caller.cancel()
        await asyncio.wait(callers[5:])
        assert all(caller.cancelled() for caller in callers)
        status = pool.status()
        assert (status.waiting, status.endpoints[0].in_flight, model.under_way) == (0, 0, 0)
        gate.set()
        assert await ask(pool) == "model"


async def test_a_pool_that_closes_lets_nobody_wait_for_ever() -> None:
    model = Scripted()
    model.down = True
    async with pool_of(model) as pool:
        callers = [asyncio.create_task(ask(pool)) for _ in range(5)]
        async with asyncio.timeout(5):
            while pool.status().waiting < 5:
                await asyncio.sleep(0.001)
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert [str(result) for result in results] == ["the pool of model servers was closed"] * 5


async def test_one_fault_does_not_unbind_a_run() -> None:
    one, two = Scripted("one"), Scripted("two")
    async with pool_of(one, two, rules=PoolRules(backoff=0.001, open_for=60.0)) as pool:
        session = pool.session("agent")
        bound = one if await ask(session) == "one" else two
        bound.down = True
        other = await ask(session)
        assert other != bound.name
        bound.down = False
        assert await ask(session) == bound.name
        assert (session.endpoint, pool.counters.moved, pool.counters.failed_over) == (bound.name, 0, 1)


async def test_sub_agents_that_name_their_run_share_its_endpoint() -> None:
    models = [Scripted(name) for name in "abcd"]
    async with pool_of(*models) as pool:
        run = pool.session("run")
        home = await ask(run)
        assert {await ask(pool.session("run")) for _ in range(10)} == {home}
        assert sum(one.sessions for one in pool.status().endpoints) == 1


async def test_the_first_in_order_names_the_model_and_the_shortest_context_counts() -> None:
    one, two, three = Scripted("one", length=9000), Scripted("two", length=5000), Scripted("three")
    one.down = True
    async with pool_of(one, two, three) as pool:
        assert await pool.probe() == ModelCapabilities(model="two", max_model_len=5000)
        one.down = False
        assert await pool.probe() == ModelCapabilities(model="one", max_model_len=5000)
        await pool.ping()
        one.down = two.down = three.down = True
        with pytest.raises(ModelUnavailable, match="one is down"):
            await pool.ping()


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


def test_admission_costs_nothing_where_there_is_no_limit() -> None:
    assert model_admission(Settings()) is None
    assert model_admission(Settings(model_max_in_flight=1)) is not None
    assert model_admission(Settings(model_tokens_per_minute=1)) is not None
