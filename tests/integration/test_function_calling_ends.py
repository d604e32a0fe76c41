"""How a run of a function-calling agent ends: with an answer, a refinement, a plan carried out, a limit or a fault."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from swe_ai_fleet import FunctionCallingAgent
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, Turn
from tests.function_calling import (
    answer,
    asked,
    call,
    events,
    make,
    observations,
    run,
    serving,
    stop_of,
    told,
    weather,
)

CHAT = FunctionCallingAgent.chat_profile(Settings())


class TestFinalAnswer:
    async def test_it_is_always_there_and_takes_the_usual_keys(self) -> None:
        async with serving(answer("Rome.")) as server:
            await run(make(server))
            assert [tool["function"]["name"] for tool in asked(server)[0]["tools"]] == ["final_answer"]
        for arguments, text in (
            *(({key: "Rome."}, "Rome.") for key in ("result", "reason", "answer", "response", "output", "reply")),
            # The first key in this order counts.
            ({"reply": "last", "reason": "second", "answer": "third"}, "second"),
            # Values of an object and items of a list are joined by blank lines.
            ({"result": {"city": "Rome", "more": ["sunny", "warm"]}}, "Rome\n\nsunny\n\nwarm"),
            ({"result": ["one", {"two": 2}]}, "one\n\n2"),
            ({"result": 42}, "42"),
        ):
            responses = await told(call("final_answer", arguments))
            assert (responses[-1]["value"], stop_of(responses)) == (text, ("final_answer", True)), arguments

    @pytest.mark.parametrize("arguments", [{}, {"result": None}, {"other": 1}, '["x"]', "7"])
    async def test_no_value_and_no_object_are_error_observations(self, arguments: Any) -> None:
        async with serving(call("final_answer", arguments), answer("at last")) as server:
            responses = await run(make(server))
            told_model = asked(server)[1]["messages"][-1]
        assert (told_model["role"], told_model["content"][:7]) == ("tool", "Error: ")
        assert (responses[-1]["value"], responses[-1]["metadata"]["iterations"]) == ("at last", 2)


class TestLongResults:
    async def test_history_keeps_the_beginning_and_the_task_the_whole(self) -> None:
        def long() -> str:
            return "a" * 30 + "b" * 70

        async with serving(call("long"), answer()) as server:
            agent = make(server, long, max_tool_result_chars=30)
            responses = await run(agent)
            seen = asked(server)[1]["messages"][-1]["content"]
        assert seen.startswith("a" * 30 + "\n[")
        assert "100 characters" in seen and "b" not in seen.partition("\n")[0]
        (told_of,) = events(responses, "tool_finished")
        assert (told_of["value"], told_of["metadata"]["truncated"]) == (seen, True)
        assert agent.task is not None
        assert agent.task.results[told_of["metadata"]["call_id"]] == "a" * 30 + "b" * 70

    async def test_the_answer_is_made_from_the_whole_where_it_fits(self) -> None:
        def long() -> str:
            return "a" * 100 + "THE END"

        async with serving(call("long"), Turn(content="So so."), Turn(content="Clean.")) as server:
            await run(make(server, long, max_tool_result_chars=20))
            assert ["THE END" in str(body["messages"]) for body in asked(server)[-2:]] == [False, True]
        for context in (131_072, 300):
            async with serving(call("long"), Turn(content="So far."), max_model_len=context) as server:
                responses = await run(make(server, long, max_tool_result_chars=20), max_iterations=1)
                assert responses[-1]["value"] == "So far."
                assert context == 300 or "THE END" in str(asked(server)[-1]["messages"])


class TestModelFailures:
    async def test_three_tries_that_are_no_iterations(self) -> None:
        turns = (call("weather", {"city": "Rome"}), Failure(times=2), answer("Sunny."))
        responses = await told(*turns, tools=[weather], max_iterations=2)
        assert (stop_of(responses), responses[-1]["metadata"]["iterations"]) == (("final_answer", True), 2)
        assert ["try 1 of 3" in one["value"] for one in events(responses, "model_failed")] == [True, False]

    async def test_after_the_third_the_run_ends_without_another_call(self) -> None:
        turns = (Turn(content="Looking.", tool_calls=(("weather", {"city": "Rome"}),)), Failure(times=0))
        async with serving(*turns) as server:
            responses = await run(make(server, weather))
            assert len(asked(server)) == 1 + 3
        assert (stop_of(responses), responses[-1]["value"]) == (("model_error", False), "Looking.")
        assert "503" in responses[-1]["metadata"]["error"]
        refused = await told(Failure(status=401, times=0))
        assert (stop_of(refused), events(refused, "model_failed")) == (("model_error", False), [])


class TestPlanning:
    async def test_the_plan_comes_first_without_tools(self) -> None:
        async with serving(Turn(content="1. weather"), call("weather", {"city": "Rome"}), answer("Sunny.")) as server:
            # It is made unless refused.
            responses = [response async for response in make(server, weather).run("Do it.")]
            planning, first, _ = asked(server)
        assert "tools" not in planning
        assert "weather(city: string" in planning["messages"][-1]["content"]
        assert first["messages"][: len(planning["messages"])] == planning["messages"]
        assert first["messages"][-2] == {"role": "assistant", "content": "1. weather"}
        assert [t["function"]["name"] for t in first["tools"]] == ["weather", "final_answer"]
        (plan,) = events(responses, "plan_made")
        assert (plan["type"], plan["value"], responses[-1]["metadata"]["iterations"]) == ("step", "1. weather", 2)


class TestRefinement:
    async def test_a_model_that_stops_is_asked_once(self) -> None:
        working = Conversation(match="Rome?", turns=(call("weather", {"city": "Rome"}), Turn(content="Well, sunny.")))
        refining = Conversation(match="# Record", turns=(Turn(content="Clean."),))
        async with ScriptedModelServer(Script(conversations=(refining, working))) as server:
            responses = await run(make(server, weather), "The weather in Rome?")
            sent = asked(server)[-1]
            assert len(asked(server)) == 3
            plain = await run(make(server, weather), "The weather in Rome?", refine_final_answer=False)
            assert len(asked(server)) == 5
        assert [one[-1]["value"] for one in (responses, plain)] == ["Clean.", "Well, sunny."]
        assert [one[-1]["metadata"]["refined"] for one in (responses, plain)] == [True, False]
        assert "tools" not in sent
        for part in ("The weather in Rome?", "[calls weather with", "Rome: sunny for 1", "Well, sunny."):
            assert part in sent["messages"][-1]["content"]
        assert stop_of(responses) == ("no_tool_calls", True)

    async def test_where_it_fails_the_last_text_is_the_answer(self) -> None:
        async with serving(Turn(content="Sunny, I think.")) as server:
            agent = make(server)
            async with aclosing(agent.run("The weather?", use_planning=False)) as stream:
                responses = []
                async for response in stream:
                    responses.append(response)
                    if response["metadata"]["event"] == "model_replied":
                        server.fail_next(Failure(times=0))
        assert (responses[-1]["value"], len(events(responses, "refinement_failed"))) == ("Sunny, I think.", 1)
        assert stop_of(responses) == ("no_tool_calls", True)

    async def test_a_model_that_says_nothing_at_all(self) -> None:
        responses = await told(Turn(content=""))
        assert responses[-1]["value"] == "There is no answer: the run ended before one could be given (no tool calls)."
        assert stop_of(responses) == ("no_tool_calls", False)
        assert responses[-1]["metadata"]["error"]
        reminded = await told(Turn(content="I will look."), answer("Sunny."), max_reminders=1)
        assert (stop_of(reminded), len(events(reminded, "message_added"))) == (("final_answer", True), 1)


class TestLimits:
    async def test_the_last_call_has_no_tools_and_the_status_says_which_limit(self) -> None:
        turns = [call("weather", {"city": city}) for city in ("Rome", "Oslo")]
        async with serving(*turns, Turn(content="Rome and Oslo are sunny.")) as server:
            responses = await run(make(server, weather), max_iterations=2)
            last = asked(server)[-1]
        assert (responses[-1]["value"], stop_of(responses)) == ("Rome and Oslo are sunny.", ("max_iterations", False))
        assert "tools" not in last
        assert "max iterations" in last["messages"][-1]["content"]

    async def test_ten_iterations_unless_said_and_in_a_chat_five_twenty_calls_and_sixty_seconds(
        self,
    ) -> None:
        limits = FunctionCallingAgent.chat_profile()
        assert (limits.max_iterations, limits.max_tool_calls, limits.timeout_seconds) == (5, 20, 60.0)
        turns = [call("weather", {"city": f"City {number}"}) for number in range(12)]
        for options, iterations in (({}, 10), ({"limits": limits}, 5)):
            responses = await told(*turns, tools=[weather], **options)
            assert (stop_of(responses)[0], responses[-1]["metadata"]["iterations"]) == ("max_iterations", iterations)
        many = Turn(tool_calls=tuple(("weather", {"city": str(number)}) for number in range(25)))
        responses = await told(many, answer(), tools=[weather], limits=limits)
        assert stop_of(responses) == ("max_tool_calls", False)
        refused = [text for text in observations(responses) if text.startswith("Error: not run")]
        assert (len(observations(responses)), len(refused)) == (25, 5)

    @pytest.mark.parametrize("name", ["scripted", "*"])
    async def test_cost_is_a_limit_at_the_price_of_the_model(self, name: str) -> None:
        prices = {name: {"prompt": 1.0, "completion": 2.0}, "other": {"prompt": 1e9}}
        used = Usage(prompt_tokens=1_000_000, completion_tokens=500_000)
        turns = [replace(call("weather", {"city": str(number)}), usage=used) for number in range(5)]
        options: dict[str, Any] = {"tools": [weather], "settings": Settings(model_prices=prices)}
        final = (await told(*turns, limits=replace(CHAT, max_cost=3.5), **options))[-1]["metadata"]
        # No last words: what is spent is spent.
        assert (final["stop_reason"], final["iterations"], final["usage"]["cost"]) == ("max_cost", 2, 4.0)
        unlimited = await told(*turns, answer(), **options)
        assert (stop_of(unlimited)[0], unlimited[-1]["metadata"]["iterations"]) == ("final_answer", 6)
        assert unlimited[-1]["metadata"]["usage"]["cost"] >= 10.0

    async def test_a_limited_cost_needs_a_price(self) -> None:
        limits = replace(CHAT, max_cost=1.0)
        with pytest.raises(ValueError, match=r"limits\.max_cost .* no model has a price"):
            FunctionCallingAgent("scripted", limits=limits, settings=Settings())
        async with serving(answer()) as server:
            agent = make(server, limits=limits, settings=Settings(model_prices={"other": {"prompt": 1.0}}))
            with pytest.raises(ValueError, match=r"limits\.max_cost .* 'scripted' has no price; .* other"):
                await run(agent)
            assert asked(server) == []

    async def test_a_refinement_takes_no_longer_than_the_run_might(self) -> None:
        working = Conversation(match="Rome?", turns=(Turn(content="Sunny."),))
        refining = Conversation(match="# Record", turns=(Turn(content="Clean.", delay_seconds=60),))
        async with ScriptedModelServer(Script(conversations=(refining, working))) as server:
            agent = make(server, limits=replace(CHAT, timeout_seconds=1.0))
            responses = await asyncio.wait_for(run(agent, "The weather in Rome?"), 20)
        assert (responses[-1]["value"], len(events(responses, "refinement_failed"))) == ("Sunny.", 1)
