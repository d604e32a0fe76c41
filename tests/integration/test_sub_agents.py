"""Sub-agents as tools: over HTTP, in a real repository, with a web on loopback; only the model is scripted."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.agents import FunctionCallingAgent
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentLimits, SubAgentTools
from swe_ai_fleet.domain.budget import Limits, Usage
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Failure, Turn
from swe_ai_fleet.tools import ToolRegistry
from tests.sub_agent_world import EXECUTOR, GENERATOR, PLANNER, RESEARCHER, VERIFIER, World, call, says, world

PLAN = says(plan=["Read billing.py", "Round in total()"], reasoning="It is small.")
VERDICT = {"is_feasible": False, "feedback": "Step 2: there is no rounding module."}
GAP = "Stripe API"
DONE = call("final_answer", result="42")


def researched(*gaps: str) -> Turn:
    answers = [{"gap": gap, "answer": f"{gap} is a payment service."} for gap in gaps]
    fields = {"summary": "Found on a page.", "answers": answers, "data_points": ["Version 3"]}
    return call("final_answer", result=json.dumps(fields))


async def with_gap(place: World, **more: object) -> SubAgentTools:
    """Sub-agents whose memory does not know GAP."""
    kit = place.sub_agents(**more)
    found = await kit.search_memory(entities=[GAP])
    assert found.metadata["gaps"] == [GAP]
    return kit


class TestOneReply:
    async def test_the_planner_has_a_prompt_of_its_own_and_answers_in_a_shape(self, tmp_path: Path) -> None:
        async with world(tmp_path, {PLANNER: (PLAN,)}) as place:
            kit = place.sub_agents()
            result = await kit.call_planner(goal="Round totals", context="In Python", approach="Half up")
            (request,) = place.requests(PLANNER)
        assert result.content == "1. Read billing.py\n2. Round in total()\n\nIt is small."
        assert result.metadata["plan"] == ["Read billing.py", "Round in total()"]
        assert result.metadata["reasoning"] == "It is small."
        asked = request["messages"][1]["content"]
        assert [text in asked for text in ("# Goal\nRound totals", "# Context\nIn Python", "# Approach\nHalf up")] == [
            True, True, True,
        ]  # fmt: skip
        assert "tools" not in request

    async def test_the_executor_and_the_generator(self, tmp_path: Path) -> None:
        schedule = says(steps=["Edit", "Test"], timeline="Edit first.")
        outputs = (says(output="{a: 1"), says(output='{"a": 1}'))
        async with world(tmp_path, {EXECUTOR: (schedule,), GENERATOR: outputs}) as place:
            kit = place.sub_agents()
            planned = await kit.call_executor(plan="1. Edit 2. Test", resources="One person")
            made = await kit.call_generator(data="a is 1", format="json")
            first, second = place.requests(GENERATOR)
        assert (planned.metadata["steps"], planned.metadata["timeline"]) == (["Edit", "Test"], "Edit first.")
        assert (made.content, made.metadata["output"], made.metadata["format"]) == ('{"a": 1}', '{"a": 1}', "json")
        # An output that is not in its format is asked for again.
        assert "its output is not JSON" in second["messages"][-1]["content"]
        assert second["messages"][: len(first["messages"])] == first["messages"]


class TestOutsideOfARun:
    async def test_a_registry_has_them_by_name_in_the_shapes_that_programs_know(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known, plan = ["Stripe API", "rounding"], {"plan": ["Read billing.py", "Round in total()"]}
        scripted = {PLANNER: (PLAN,), VERIFIER: (says(**VERDICT),), RESEARCHER: (researched(GAP),)}
        async with world(tmp_path, scripted) as place:
            monkeypatch.chdir(place.root)
            monkeypatch.setattr(ToolRegistry, "_default", None)
            settings = Settings(home=tmp_path / "home", embeddings="none")
            served = {"MODEL_URL": place.server.url, "MODEL": "scripted", "SEARCH_URL": place.web.url()}
            for name, value in {**served, "HOME": settings.home, "EMBEDDINGS": "none"}.items():
                monkeypatch.setenv(f"FLEET_{name}", str(value))
            manager = pytest.importorskip("swe_ai_fleet.extensions.knowledge.manager")
            async with manager.MemoryManager("somebody", settings=settings) as memory:
                await memory.add_fact("The Stripe API is called from checkout.py.")
            registry = ToolRegistry.default()
            found = await registry.execute_tool("search_memory", entities=known[:1], queries=known[1:])
            planned = await registry.execute_tool("call_planner", goal="Round totals")
            judged = await registry.execute_tool("call_verifier", plan="1. Round")
            looked = await registry.execute_tool("research", gaps=[GAP], max_iterations=2)
            searched = await registry.execute_tool("web_search", query="stripe")
        # The clone in the working directory knows of one, what programs keep under the same home of the other.
        assert (found["coverage"], found["gaps"], len(found["sources"])) == (100.0, [], 2)
        assert planned == {**plan, "reasoning": "It is small."}
        assert judged == VERDICT
        assert {"summary", "sources", "data_points", "coverage"} <= looked.keys()
        assert [result["title"] for result in searched["results"]] == ["A page"]

    async def test_an_agent_asks_for_more_tools_and_calls_them(self, tmp_path: Path) -> None:
        turns = (call("request_tools", names=["calculator"]), call("calculator", expression="6 * 7"), DONE)
        async with world(tmp_path, {"What is": turns}) as place:
            settings = Settings(home=tmp_path / "home", model_url=place.server.url, model="scripted")
            agent = FunctionCallingAgent("scripted", ["request_tools", "file_reader"], settings=settings)
            responses = [one async for one in agent.run("What is 6 times 7?", use_planning=False)]
            offered = [[tool["function"]["name"] for tool in body.get("tools", ())] for body in place.server.bodies]
        assert responses[-1]["value"] == "42"
        assert offered[-3:] == [
            ["file_reader", "request_tools", "final_answer"],
            ["file_reader", "request_tools", "final_answer", "calculator"],
            ["file_reader", "request_tools", "final_answer", "calculator"],
        ]


class TestResearch:
    async def test_gaps_are_searched_read_and_put_together(self, tmp_path: Path) -> None:
        async with world(tmp_path, {}) as place:
            page = place.web.url("/page")
            turns = (call("web_search", query="stripe"), call("read_webpage", url=page), researched(GAP))
            place.follow({RESEARCHER: turns})
            kit = await with_gap(place)
            result = await kit.research(gaps=[GAP.lower()])
            assert (place.web.searches, place.web.pages) == (["stripe"], ["/page"])
            offered = [tool["function"]["name"] for tool in place.requests(RESEARCHER)[0]["tools"]]
        assert result.success
        assert result.metadata["sources"] == [page]
        assert (result.metadata["coverage"], result.metadata["open"]) == (100.0, [])
        assert result.metadata["data_points"] == ["Version 3"]
        assert f"{GAP}: {GAP} is a payment service." in result.content
        assert set(offered) == {"web_search", "read_webpage", "search_wikipedia", "final_answer"}

    async def test_only_gaps_of_memory_are_researched_and_only_what_was_read_counts(self, tmp_path: Path) -> None:
        async with world(tmp_path, {RESEARCHER: (researched(GAP, "Invoice"),)}) as place:
            kit = place.sub_agents()
            before = await kit.research(gaps=[GAP])
            assert "search memory first" in before.error
            await kit.search_memory(entities=["Invoice", GAP])
            covered = await kit.research(gaps=["Invoice"])
            assert f"open are: {GAP}" in covered.error
            assert place.requests(RESEARCHER) == []
            result = await kit.research(gaps=["Invoice", GAP])
            (asked,) = {body["messages"][1]["content"] for body in place.requests(RESEARCHER)}
        assert asked == f"# Gaps\n- {GAP}"
        assert (result.metadata["coverage"], result.metadata["sources"], result.metadata["open"]) == (0.0, [], [GAP])


class TestVerifier:
    async def test_it_looks_at_the_repository_and_judges(self, tmp_path: Path) -> None:
        turns = (call("files_read_file", path="billing.py"), call("final_answer", result=json.dumps(VERDICT)))
        async with world(tmp_path, {VERIFIER: turns}) as place:
            result = await place.sub_agents().call_verifier(plan="1. Use rounding.py", criteria="Tests pass")
            first, second = place.requests(VERIFIER)
        assert result.success
        assert (result.metadata["is_feasible"], result.metadata["feedback"]) == (False, VERDICT["feedback"])
        assert result.content == f"Not feasible.\n{VERDICT['feedback']}"
        assert "def total(prices)" in second["messages"][-1]["content"]
        names = {tool["function"]["name"] for tool in first["tools"]}
        assert {"files_read_file", "git_log", "search_memory", "final_answer"} <= names
        assert not names & {"files_write_file", "shell_run_command", "git_commit", "call_verifier"}


class TestLimits:
    async def test_how_many_there_may_be_in_one_run(self, tmp_path: Path) -> None:
        async with world(tmp_path, {PLANNER: (PLAN,)}) as place:
            kit = place.sub_agents(limits=SubAgentLimits(number=2), used=1)
            results = await asyncio.gather(*(kit.call_planner(goal="g") for _ in range(3)))
            assert len(place.requests(PLANNER)) == 1
        assert sorted(result.outcome for result in results) == [Outcome.REFUSED, Outcome.REFUSED, Outcome.SUCCESS]
        assert "this run had its 2 sub-agents" in results[1].error + results[2].error

    async def test_a_child_cannot_take_more_than_its_share(self, tmp_path: Path) -> None:
        costly = replace(call("web_search", query="x"), usage=Usage(prompt_tokens=900, completion_tokens=200))
        async with world(tmp_path, {RESEARCHER: (replace(costly, times=9), researched(GAP))}) as place:
            budget = Budget(Limits(max_tokens=4_000))
            result = await (await with_gap(place, budget=budget)).research(gaps=[GAP])
        did = result.metadata["sub_agent"]
        # Half of 4,000 is its own: the second reply crosses that, and the final prompt ends it.
        assert (did["stop_reason"], did["iterations"]) == ("max_tokens", 2)  # type: ignore[index]
        assert budget.usage.total_tokens < 4_000
        assert budget.tokens_left == 4_000 - budget.usage.total_tokens

    async def test_what_children_spend_is_the_parents(self, tmp_path: Path) -> None:
        spent = Usage(prompt_tokens=300, completion_tokens=50)
        async with world(tmp_path, {PLANNER: (replace(PLAN, usage=spent),)}) as place:
            budget = Budget(Limits(max_tokens=1_200))
            kit = place.sub_agents(budget)
            await asyncio.gather(kit.call_planner(goal="a"), kit.call_planner(goal="b"))
            assert (budget.usage.total_tokens, budget.usage.model_calls, budget.tokens_left) == (700, 2, 500)
            # With next to nothing left none is started.
            refused = await kit.call_planner(goal="c")
            assert len(place.requests(PLANNER)) == 2
        assert ("500 tokens are left" in refused.error, refused.outcome) == (True, Outcome.REFUSED)


class TestFaults:
    async def test_a_provider_that_fails_or_takes_too_long(self, tmp_path: Path) -> None:
        each, broken = Limits(timeout_seconds=0.05), (Failure(status=500, times=0), PLAN)
        async with world(
            tmp_path, {PLANNER: (replace(PLAN, delay_seconds=30),), RESEARCHER: broken, EXECUTOR: broken}
        ) as place:
            kit = await with_gap(place)
            results = [await kit.call_executor(plan="1."), await kit.research(gaps=[GAP])]
            late = await place.sub_agents(limits=SubAgentLimits(each=each)).call_planner(goal="g")
            await place.server.wait_until(in_flight=0)
        for result in results:
            assert (result.success, result.outcome) == (False, Outcome.ERROR)
            assert "the model of the sub-agent gave no answer" in result.error
            assert result.observation().startswith("Error: ")
        assert late.outcome is Outcome.TIMEOUT
        assert "did not answer within its 0.05 seconds" in late.error
