"""The load that measures a model server: agents whose prompts grow, rows that add up, failures that are shown."""

from __future__ import annotations

import aiohttp
import pytest

from labs.bench.model_server import Load, Shape
from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, Turn

SMALL = Shape(shared_tokens=200, task_tokens=20, reply_tokens=10, result_tokens=40, steps=3)


async def test_agents_go_on_and_find_what_was_said_before_in_the_cache() -> None:
    async with (
        ScriptedModelServer(Script.of(Turn(content="word " * 8)), latency_seconds=0.01) as server,
        aiohttp.ClientSession() as session,
    ):
        load = Load(session, server.url, "scripted", SMALL)
        await load.calibrate()
        rows = [await load.measure(agents, seconds=0.5, warm_up=10) for agents in (1, 4)]
    for row, agents in zip(rows, (1, 4), strict=True):
        assert row.agents == agents and not row.failures
        assert len(row.replies) >= 3 * agents, "no agent got on"
        assert min(row.replies) >= 0.01 and row.seconds >= 0.5
        assert row.written == 10 * len(row.replies)
        # Shared text is 200 of 220 to 330 tokens.
        assert 0.5 < row.cached / row.prompted < 1
        assert 220 < row.prompted / len(row.replies) < 340
        assert row.first_token is None and not row.in_use
    assert len(rows[1].replies) > len(rows[0].replies)


async def test_failures_are_counted_and_the_rest_goes_on() -> None:
    faults = {number: Failure(status=503) for number in range(3, 6)}
    async with (
        ScriptedModelServer(Script.of(Turn(content="fine")), faults=faults) as server,
        aiohttp.ClientSession() as session,
    ):
        load = Load(session, server.url, "scripted", SMALL)
        await load.calibrate()
        row = await load.measure(3, seconds=0.8, warm_up=10)
    assert row.failures.total() == 3 and all("503" in what for what in row.failures)
    assert row.replies and row.line().endswith("| 3 |")


async def test_a_silent_server_is_a_failure_not_a_row_of_nothing() -> None:
    async with (
        ScriptedModelServer(Script(default=Conversation(turns=(Turn(content="late"),)))) as server,
        aiohttp.ClientSession() as session,
    ):
        load = Load(session, server.url, "scripted", SMALL)
        await load.calibrate()
        url = server.url
    async with aiohttp.ClientSession() as session:
        gone = Load(session, url, "scripted", SMALL)
        row = await gone.measure(2, seconds=0.1, warm_up=0.1)
        with pytest.raises(aiohttp.ClientError):
            await gone.calibrate()
    assert not row.replies and row.failures.total() >= 2
    assert row.line().startswith("| 2 | 0.00 | 0.0 | - / - | - | 0 | 0 | - | - |")
