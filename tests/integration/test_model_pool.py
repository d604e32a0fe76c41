"""The pool over real HTTP: outages, overload, fail-over, routing by the servers' own metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.model_pool import Fault, ModelPool, PoolMember, PoolRules, vllm_load
from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.adapters.openai_model.faults import pushback
from swe_ai_fleet.agents.coding_run import CodingRun
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.errors import ContextTooLong, ModelRejected, ModelUnavailable
from swe_ai_fleet.domain.event import ModelAwaited
from swe_ai_fleet.domain.message import ModelRequest, UserMessage
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.script import Failure, Script, Turn
from tests.confinement import until
from tests.recorded_runs import Runs

QUICK = PoolRules(timeout=10.0, backoff=0.02, open_for=0.05, poll_every=0.02)


@asynccontextmanager
async def pool_of(*urls: str, rules: PoolRules = QUICK, **options: str) -> AsyncIterator[ModelPool]:
    async with AsyncExitStack() as stack:
        members: list[PoolMember] = []
        for url in urls:
            model = await stack.enter_async_context(OpenAIChatModel(base_url=url, **options))
            load = partial(vllm_load, model.metrics) if len(urls) > 1 else None
            members.append(PoolMember(name=url, model=model, load=load))
        yield await stack.enter_async_context(
            ModelPool(members, read_fault=lambda error: Fault.of(*pushback(error)), rules=rules)
        )


async def ask(model: ChatModel, text: str = "hello") -> str:
    return (await model.reply(ModelRequest((UserMessage(content=text),)))).message.content


def answering(text: str) -> Script:
    return Script.of(Turn(content=text))


async def test_a_failed_call_goes_to_another_endpoint_and_the_circuit_keeps_later_ones_away() -> None:
    async with (
        ScriptedModelServer(answering("one")) as one,
        ScriptedModelServer(answering("two")) as two,
        pool_of(one.url, two.url, rules=PoolRules(backoff=0.02, open_for=60.0)) as pool,
    ):
        session = pool.session("agent")
        bound = {"one": one, "two": two}[await ask(session)]
        # What no retry can help passes at once.
        for failure, fault in (
            (Failure(status=401, message="who are you"), ModelRejected),
            (Failure(status=400, param="input_tokens", message="too long"), ContextTooLong),
        ):
            bound.fail_next(failure)
            before = one.requests + two.requests
            with pytest.raises(fault):
                await ask(session)
            assert (one.requests + two.requests, pool.counters.failed_over) == (before + 1, 0)
        other = two if bound is one else one
        bound.fail_next(Failure(status=500, times=0))
        before = bound.requests
        said = {await ask(session) for _ in range(10)}
        assert said == {"two" if bound is one else "one"}
        # The third fault opens the circuit; only then does the run leave its endpoint.
        assert bound.requests - before == 3
        assert session.endpoint == other.url
        assert (pool.counters.failed_over, pool.counters.opened, pool.counters.moved) == (3, 1, 1)
        states = {one.name: (one.circuit, one.sessions) for one in pool.status().endpoints}
        assert states == {bound.url: ("open", 0), other.url: ("closed", 1)}


async def test_overload_without_retry_after_is_waited_out_with_fewer_calls_at_once() -> None:
    async with ScriptedModelServer(answering("done"), latency_seconds=0.02) as server, pool_of(server.url) as pool:
        await pool.probe()
        server.fail_next(Failure(status=503, times=10))
        assert await asyncio.gather(*(ask(pool) for _ in range(20))) == ["done"] * 20
        assert pool.counters.turned_away == 10
        # All ten were under way together: one overload, not ten.
        assert 10 <= pool.status().endpoints[0].limit < 16
        assert pool.counters.opened == 0


async def test_retry_after_is_honoured_by_every_call_and_too_long_a_one_ends_the_call() -> None:
    async with ScriptedModelServer(answering("done")) as server, pool_of(server.url) as pool:
        await pool.probe()
        loop = asyncio.get_running_loop()
        server.fail_next(Failure(status=429, retry_after_seconds=0.4))
        before, started = server.requests, loop.time()
        first = asyncio.create_task(ask(pool))
        await until(lambda: pool.counters.turned_away)
        assert await asyncio.gather(first, ask(pool), ask(pool)) == ["done"] * 3
        assert loop.time() - started >= 0.4
        assert server.requests - before == 4
        server.fail_next(Failure(status=429, retry_after_seconds=3600, message="slow down"))
        with pytest.raises(ModelUnavailable, match="slow down") as ended:
            await ask(pool)
        assert ended.value.field == "model_url"
        assert server.requests - before == 5


async def _told(pool: ModelPool, **waiting: int) -> None:
    """Wait until the pool has heard that so many requests wait at each server."""
    await until(lambda: {one.name: one.load.waiting for one in pool.status().endpoints if one.load} == waiting)


async def test_calls_go_where_the_servers_say_there_is_least_to_do() -> None:
    async with ScriptedModelServer(answering("one")) as one, ScriptedModelServer(answering("two")) as two:
        one.metrics = {"num_requests_running": 40, "num_requests_waiting": 5}
        # On a busy machine, what was heard must not be too old to count by the time that it is asked.
        async with pool_of(one.url, two.url, rules=replace(QUICK, poll_every=0.3)) as pool:
            held = pool.session("held")
            assert held.endpoint == ""
            await _told(pool, **{one.url: 5, two.url: 0})
            assert {await ask(pool) for _ in range(10)} == {"two"}
            assert {await ask(pool.session(f"agent-{number}")) for number in range(10)} == {"two"}
            assert await ask(held) == "two"
            # A bound run stays through a little more load, and leaves a server that is clearly overloaded.
            one.metrics, two.metrics = {}, {"num_requests_waiting": 2}
            await _told(pool, **{one.url: 0, two.url: 2})
            assert await ask(held) == "two"
            two.metrics = {"num_requests_running": 90, "num_requests_waiting": 30}
            await _told(pool, **{one.url: 0, two.url: 30})
            assert await ask(held) == "one"
            assert held.endpoint == one.url
            assert pool.counters.moved == 1


async def test_the_runs_of_a_task_spread_evenly_and_stay_where_they_are() -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(ScriptedModelServer(answering(name))) for name in "abc"]
        urls = [server.url for server in servers]
        # What the servers say about this moment would be about our own calls.
        pool = await stack.enter_async_context(pool_of(*urls, rules=PoolRules(poll_every=60.0)))
        sessions = [pool.session(f"agent-{number}") for number in range(30)]
        first = [await ask(session) for session in sessions]
        assert sorted(map(first.count, "abc")) == [10, 10, 10]
        assert await asyncio.gather(*map(ask, sessions)) == first
        assert await ask(pool.session("agent-7")) == first[7]
        del sessions
        assert [one.sessions for one in pool.status().endpoints] == [0, 0, 0]


async def test_a_run_whose_model_is_away_waits_for_it_and_says_so(tmp_path: Path) -> None:
    runs = Runs(tmp_path, {"app.py": "a = 1\n"}, "Look at app.py.")
    task = replace(runs.task, model_patience_seconds=600.0)
    turns = Script.of(Turn(tool_calls=(("list_directory", {}),)), Turn(tool_calls=(("final_answer", {"result": "x"}),)))
    server = ScriptedModelServer(turns)
    async with server:
        port = int(server.url.split(":")[2].split("/")[0])
    rules = PoolRules(timeout=0.0, backoff=0.02, open_for=0.02, longest_open=0.05, notice=0.05)
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(OpenAIChatModel(base_url=server.url))
        pool = await stack.enter_async_context(
            ModelPool([PoolMember(name="only", model=model)], read_fault=lambda e: Fault.of(*pushback(e)), rules=rules)
        )
        assignment = CodingAssignment(
            execution_id=task.execution_id,
            agent_id="agent-1",
            task=task,
            repository=await runs.pinned(),
            generation=1,
        )
        clone = await stack.enter_async_context(runs.clone("agent-1"))
        run = CodingRun(recorder=runs.services({"": pool}), results=runs.log)
        work = asyncio.create_task(run.run(assignment, clone))
        await until(lambda: runs.bodies(ModelAwaited))
        await stack.enter_async_context(ScriptedModelServer(turns, port=port))
        candidate = await work
    assert candidate.stop_reason is StopReason.FINAL_ANSWER
    begun, ended = runs.bodies(ModelAwaited)
    assert begun.waited_ms == 0 < ended.waited_ms


async def test_without_metrics_the_pools_own_calls_count() -> None:
    async with (
        ScriptedModelServer(answering("one"), latency_seconds=0.2) as one,
        ScriptedModelServer(answering("two"), latency_seconds=0.2) as two,
    ):
        one.metrics = two.metrics = None
        async with pool_of(one.url, two.url) as pool:
            await pool.probe()
            said = await asyncio.gather(*(ask(pool) for _ in range(10)))
            assert (said.count("one"), said.count("two")) == (5, 5)
            assert [one.load for one in pool.status().endpoints] == [None, None]
