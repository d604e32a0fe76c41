"""What agents do that no other test names; `docs/behaviours.md` says where everything else is tested."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet import FunctionCallingAgent, ToolEnabledAgent
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import make_repository
from tests.function_calling import asked, make, run, serving

PLANNER = "You make plans for another agent"
TASK = "Look at a.py and say what one() returns."
FILES = {
    "README.md": "# Numbers\n\n## Rounding\n\nNumbers are rounded half up.\n",
    "a.py": "def one():\n    return 1\n",
}
LOOK = Turn(tool_calls=(("look", {}),))
ANSWER = Turn(tool_calls=(("final_answer", {"result": "done"}),))


def look() -> str:
    """Look around."""
    return "seen"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("template") / "clone", FILES)


@pytest.fixture
def clone(template: Path, tmp_path: Path) -> Path:
    # One home for all of them: they have the same environment, which is made once.
    home = template.with_name("home")
    home.mkdir(exist_ok=True)
    (tmp_path / "home").symlink_to(home)
    return Path(shutil.copytree(template, tmp_path / "clone"))


def coder(server: ScriptedModelServer, clone: Path, **settings: Any) -> ToolEnabledAgent:
    chosen = Settings(home=clone.parent / "home", **settings)
    return ToolEnabledAgent("agent-dev-1", "DEV", clone, server.url, "scripted", settings=chosen)


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


class TestSubAgents:
    async def test_a_coding_agent_has_them_and_pays_for_them(self, clone: Path) -> None:
        plan = Turn(content='{"plan": ["Read a.py", "Answer"], "reasoning": "It is small."}')
        turns = (
            Turn(tool_calls=(("request_tools", {"names": ["call_planner"]}),)),
            Turn(tool_calls=(("call_planner", {"goal": "find out"}), ("search_memory", {"entities": ["Rounding"]}))),
            ANSWER,
        )
        script = Script(
            conversations=(Conversation(match=PLANNER, turns=(plan,)), Conversation(match="a.py", turns=turns))
        )
        async with ScriptedModelServer(script, keep=100) as server:
            result = await coder(server, clone).execute_task(TASK)
            first, second, third, *_ = [
                body for body in asked(server) if not str(body["messages"][0]["content"]).startswith(PLANNER)
            ]
            planning = [body for body in asked(server) if str(body["messages"][0]["content"]).startswith(PLANNER)]
        names = [[tool["function"]["name"] for tool in body["tools"]] for body in (first, second)]
        assert ["call_planner" in shown for shown in names] == [False, True]
        assert len(planning) == 1
        *_, planned, remembered = (m["content"] for m in third["messages"] if m["role"] == "tool")
        assert planned.startswith("1. Read a.py\n2. Answer")
        assert remembered.startswith("Coverage: 100 %.")
        assert result.success
        # One of them is the last look of an agent that has changed nothing.
        assert result.usage.model_calls == 5
