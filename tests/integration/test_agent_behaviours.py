"""What agents do that no other test names; `docs/behaviours.md` says where everything else is tested."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import pytest

from swe_ai_fleet import FunctionCallingAgent
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Failure, Turn
from tests.function_calling import asked, make, run, serving

LOOK = Turn(tool_calls=(("look", {}),))
ANSWER = Turn(tool_calls=(("final_answer", {"result": "done"}),))


def look() -> str:
    """Look around."""
    return "seen"


class TestSettings:
    """Names of the environment that users of such agents know do what they say."""

    @pytest.mark.parametrize(
        ("name", "value", "stop"),
        [
            ("AGENTIC_MAX_ITERATIONS", "1", "max_iterations"),
            ("AGENTIC_TIMEOUT_SECONDS", "0.2", "timeout"),
            ("FLEET_CHAT_MAX_ITERATIONS", "1", "max_iterations"),
        ],
    )
    async def test_the_limits_of_a_chat(
        self, monkeypatch: pytest.MonkeyPatch, name: str, value: str, stop: str
    ) -> None:
        monkeypatch.setenv(name, value)

        async def look_long() -> None:
            await asyncio.Event().wait()

        tools = ("look", "look_long" if stop == "timeout" else "look")
        async with serving(Turn(tool_calls=tuple((tool, {}) for tool in tools)), ANSWER) as server:
            agent = make(server, look, look_long, limits=FunctionCallingAgent.chat_profile(Settings()))
            final = (await run(agent))[-1]
        assert (final["metadata"]["stop_reason"], final["metadata"]["success"]) == (stop, False)
        assert final["value"]

    def test_the_mode_and_the_threshold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert (Settings().planning_mode, Settings().hybrid_threshold) == ("agentic", 0.7)
        monkeypatch.setenv("PLANNER_MODE", "hybrid")
        monkeypatch.setenv("HYBRID_COMPLEXITY_THRESHOLD", "0.2")
        assert (Settings().planning_mode, Settings().hybrid_threshold) == ("hybrid", 0.2)


class TestWaits:
    async def test_a_failing_model_is_waited_for_longer_each_time(self) -> None:
        began = time.monotonic()
        async with serving(LOOK, Failure(times=2), ANSWER) as server:
            responses = await run(make(server, look, retry_waits=(0.02, 0.08)))
        failed = [r for r in responses if r["metadata"]["event"] == "model_failed"]
        assert [wait in r["value"] for r, wait in zip(failed, ("0.02 s", "0.08 s"), strict=True)] == [True, True]
        assert {(r["type"], r["channel"]) for r in failed} == {("log", "run")}
        assert time.monotonic() - began >= 0.1
        assert responses[-1]["metadata"]["success"]
        # Five and ten seconds unless said.
        async with serving(LOOK, Failure(times=0)) as server:
            agent = FunctionCallingAgent("scripted", [look], model_params={"base_url": server.url}, settings=Settings())
            async with aclosing(agent.run("Do it.", use_planning=False)) as stream:
                failure = await anext(r async for r in stream if r["metadata"]["event"] == "model_failed")
        assert "try 1 of 3" in str(failure["value"]) and "in 5 s" in str(failure["value"])


class TestEnds:
    async def test_after_a_hard_stop_of_the_model_it_is_not_asked_again(self) -> None:
        async with serving(Turn(content="I was", finish_reason="content_filter"), ANSWER) as server:
            responses = await run(make(server))
            assert len(asked(server)) == 1
        final = responses[-1]
        assert (final["value"], final["metadata"]["stop_reason"]) == ("I was", "model_stopped")
        assert (final["metadata"]["success"], final["metadata"]["refined"]) == (False, False)
