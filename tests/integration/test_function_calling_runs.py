"""A function-calling agent's runs: how its tools are called, cached and kept from circles, and how a run ends."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet import FunctionCallingAgent
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, Turn
from swe_ai_fleet.tools import BaseTool, FunctionTool, ToolParameter
from tests.documented import blocks, run_python
from tests.function_calling import (
    answer,
    asked,
    call,
    events,
    fail,
    make,
    observations,
    run,
    serving,
    stop_of,
    told,
    weather,
)
from tests.tables import table


class TestTools:
    async def test_schemas_from_signature_and_first_line_of_the_docstring(self) -> None:
        async with serving(answer()) as server:
            await run(make(server, weather))
            await run(make(server, weather, one_line_doc=False))
            short, whole = (body["tools"][0]["function"] for body in asked(server))
        assert (short["name"], short["description"]) == ("weather", "The weather of a city.")
        assert whole["description"].startswith("The weather of a city.\n\nLonger words about it.")
        assert short["parameters"]["properties"]["city"] == {"type": "string", "description": "Where."}
        assert short["parameters"]["properties"]["days"]["type"] == "integer"
        assert "city" in short["parameters"]["required"]

    async def test_sync_async_base_tool_and_registered_name(self) -> None:
        class Shout(BaseTool):
            name = "shout"
            description = "Make it loud."
            parameters = (ToolParameter("text", "string"),)

            async def execute(self, text: str) -> str:
                return text.upper()

        async def later(text: str) -> str:
            """Async."""
            return f"later {text}"

        turn = Turn(
            tool_calls=(
                ("weather", {"city": "Rome"}),
                ("later", {"text": "a"}),
                ("shout", {"text": "b"}),
                ("calculator", {"expression": "6*7"}),
            )
        )
        responses = await told(turn, answer(), tools=[weather, later, Shout(), "calculator"])
        found = {r["metadata"]["tool"]: r["value"] for r in events(responses, "tool_finished")}
        assert found["weather"] == "Rome: sunny for 1"
        assert (found["later"], found["shout"]) == ("later a", "B")
        assert "42" in found["calculator"]

    async def test_time_limit_of_each_tool(self) -> None:
        release = threading.Event()

        def sleeping() -> None:
            release.wait(30)

        class Patient(BaseTool):
            name = "patient"
            time_limit_seconds = 0.05

            async def execute(self) -> None:
                await asyncio.Event().wait()

        turn = Turn(tool_calls=(("sleeping", {}), ("patient", {})))
        responses = await told(turn, answer(), tools=[sleeping, Patient()], tool_timeout=0.02)
        release.set()
        for name, limit in (("sleeping", 0.02), ("patient", 0.05)):
            assert f"{name} did not finish within {limit} seconds" in "\n".join(observations(responses))

    @table(
        ("name", "arguments", "said"),
        [
            ("weather", {}, "missing argument 'city'. Signature: weather(city: string, days: integer = 1)"),
            ("weather", {"city": "Rome", "moon": 1}, "unexpected argument 'moon'. Signature: weather("),
            ("weather", {"city": "Rome", "days": "soon"}, "argument 'days': "),
            ("weather", '["Rome"]', ""),
            ("weather", '{"city": ', ""),
            ("stock_prices", {}, "weather, final_answer"),
        ],
    )
    async def test_wrong_arguments_are_told_with_the_signature_and_an_unknown_tool_with_those_there_are(
        self, name: str, arguments: Any, said: str
    ) -> None:
        responses = await told(call(name, arguments), answer(), tools=[weather])
        (seen,) = observations(responses)
        assert seen.startswith("Error: ") and said in seen
        assert stop_of(responses) == ("final_answer", True)

    async def test_none_and_empty_results_are_errors(self) -> None:
        given: list[Any] = [None]

        def give() -> Any:
            return given[0]

        for given[0], said in ((None, "nothing (None)"), (" \n", "an empty text"), ([], "an empty list")):
            responses = await told(call("give"), call("give"), answer(), tools=[give])
            error = f"Error: give returned {said}. Call another tool, or this one with other arguments."
            assert observations(responses) == [error, error]
            ended = [r["metadata"] for r in events(responses, "tool_finished")]
            assert [(each["success"], each["cached"]) for each in ended] == [(False, False)] * 2
        # Zero and False are results.
        for given[0], said in ((0, "0"), (False, "False"), ([0], "- 0")):
            assert observations(await told(call("give"), answer(), tools=[give])) == [said]

    async def test_an_exception_is_an_error_observation_and_cancels_no_sibling(self) -> None:
        failed = asyncio.Event()

        async def fail() -> None:
            failed.set()
            raise KeyError("no such city")

        async def cancelled() -> None:
            raise asyncio.CancelledError

        async def go_on() -> str:
            await failed.wait()
            await asyncio.sleep(0)
            return "went on"

        turn = Turn(tool_calls=(("fail", {}), ("cancelled", {}), ("go_on", {})))
        responses = await told(turn, answer(), tools=[fail, cancelled, go_on])
        assert sorted(observations(responses)) == [
            "Error: cancelled failed: it was cancelled from within",
            "Error: fail failed: KeyError: 'no such city'",
            "went on",
        ]
        assert stop_of(responses) == ("final_answer", True)

    async def test_calls_of_one_reply_run_in_parallel_or_one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        at_once, most = 0, 0

        async def wait(number: int) -> int:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            for _ in range(20):
                await asyncio.sleep(0)
            at_once -= 1
            return number

        turn = Turn(tool_calls=tuple(("wait", {"number": number}) for number in range(4)))
        await told(turn, answer(), tools=[wait])
        assert most == 4
        most = 0
        responses = await told(turn, answer(), tools=[wait], parallel=False)
        assert (most, observations(responses)) == (1, ["0", "1", "2", "3"])
        monkeypatch.setenv("AGENTIC_ENABLE_PARALLEL", "false")
        await told(turn, answer(), tools=[wait], settings=Settings())
        assert most == 1


class TestLoops:
    async def test_two_nudges_then_a_stop(self) -> None:
        looping = Turn(content="Again.", tool_calls=(("weather", {"city": "Rome"}),), times=9)
        async with serving(looping) as server:
            responses = await run(make(server, weather, FunctionTool(lookup)), max_iterations=20)
            nudges = [m["content"] for m in asked(server)[-1]["messages"][2:] if m["role"] == "user"]
            # Nothing is refined after a loop.
            assert not any("# Record" in str(body["messages"]) for body in asked(server))
        noticed = [r["metadata"]["advice"] for r in events(responses, "loop_noticed")]
        assert noticed == ["nudge", "strong_nudge", "stop"]
        assert (stop_of(responses), responses[-1]["metadata"]["refined"]) == (("loop", False), False)
        assert responses[-1]["metadata"]["iterations"] == 5
        assert "lookup" in nudges[0] and nudges[0] != nudges[1]
        # The threshold is of the agent, or of the run.
        for options, iterations in (({}, 4), ({"loop_threshold": 4}, 6)):
            responses = await told(looping, tools=[weather], loop_detection_threshold=2, **options)
            assert responses[-1]["metadata"]["iterations"] == iterations

    async def test_calls_are_the_same_by_canonical_arguments_or_by_name_alone(self) -> None:
        turns = [call("weather", {"city": city}) for city in ("Rome", "Oslo", "Bonn", "Bern", "Kiel")]
        assert stop_of(await told(*turns, answer(), tools=[weather])) == ("final_answer", True)
        by_name = await told(*turns, answer(), tools=[weather], loop_by_name=True)
        assert stop_of(by_name) == ("loop", False)
        one, other = (call("weather", text) for text in ('{"city":"Rome","days":2}', '{"days": 2, "city": "Rome"}'))
        assert len(events(await told(one, other, one, answer(), tools=[weather]), "loop_noticed")) == 1


def lookup(word: str) -> str:
    """Look a word up."""
    return word


class TestCache:
    async def test_identical_calls_are_answered_from_the_cache(self) -> None:
        calls: list[str] = []

        def count(word: str) -> int:
            calls.append(word)
            return len(calls)

        turns = (call("count", {"word": "a"}), call("count", {"word": "b"}), call("count", '{ "word" : "a" }'))
        responses = await told(*turns, answer(), tools=[count])
        assert (calls, observations(responses)) == (["a", "b"], ["1", "2", "1"])
        assert [r["metadata"]["cached"] for r in events(responses, "tool_finished")] == [False, False, True]

    async def test_errors_are_not_kept_any_write_empties_it_and_an_effect_is_had_each_time(self) -> None:
        stored: list[str] = []

        def read() -> str:
            return stored[-1]

        def write(text: str) -> str:
            stored.append(text)
            return "written"

        write_one = call("write", {"text": "new"})
        turns = (call("read"), write_one, call("read"), write_one, call("read"), answer())
        responses = await told(*turns, tools=[read, FunctionTool(write, read_only=False)])
        assert observations(responses)[1:] == ["written", "new", "written", "new"]
        assert observations(responses)[0].startswith("Error: read failed: IndexError")
        assert (stored, len(events(responses, "tool_started"))) == (["new", "new"], 2)


class TestToolErrors:
    async def test_three_in_a_row_end_the_run_with_one_last_call(self) -> None:
        turns = [call("fail", {"number": number}) for number in range(4)]
        # Within a reply and across replies.
        two = Turn(tool_calls=(*turns[0].tool_calls, *turns[1].tool_calls))
        async with serving(two, turns[2], Turn(content="It can't be done."), Turn(content="Never.")) as server:
            responses = await run(make(server, fail))
            last = asked(server)[-1]
            assert (len(asked(server)), last.get("tools")) == (3, None)
        assert (stop_of(responses), responses[-1]["value"]) == (("tool_error", False), "It can't be done.")
        # A success resets.
        turns.insert(2, call("weather", {"city": "Rome"}))
        assert stop_of(await told(*turns, answer(), tools=[fail, weather])) == ("final_answer", True)


class TestFinalAnswer:
    async def test_it_is_always_there_and_takes_the_usual_keys(self) -> None:
        async with serving(answer("Rome.")) as server:
            await run(make(server))
            assert [tool["function"]["name"] for tool in asked(server)[0]["tools"]] == ["final_answer"]
        for arguments, text in (
            *(({key: "Rome."}, "Rome.") for key in ("result", "response", "output", "reply")),
            # The first key in this order counts.
            ({"reply": "last", "reason": "second", "answer": "third"}, "second"),
            # Values of an object and items of a list are joined by blank lines.
            ({"result": {"city": "Rome", "more": ["sunny", "warm"]}}, "Rome\n\nsunny\n\nwarm"),
            ({"result": ["one", {"two": 2}]}, "one\n\n2"),
            ({"result": 42}, "42"),
        ):
            responses = await told(call("final_answer", arguments))
            assert (responses[-1]["value"], stop_of(responses)) == (text, ("final_answer", True)), arguments

    @table("arguments", [{}, {"result": None}, '["x"]', "Rome.", '{"result": '])
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


ROME = call("weather", {"city": "Rome"})
MARKUP = Turn(content='<tool_call>{"city": ')
SUNNY = Turn(content="Sunny.")
PLAIN: dict[str, Any] = {"refine_final_answer": False}


class TestRefinement:
    async def test_a_model_that_stops_is_asked_once(self) -> None:
        working = Conversation(match="Rome?", turns=(call("weather", {"city": "Rome"}), Turn(content="Well, sunny.")))
        refining = Conversation(match="# Record", turns=(Turn(content="Clean."),))
        async with ScriptedModelServer(Script(conversations=(refining, working))) as server:
            responses = await run(make(server, weather), "The weather in Rome?")
            sent = asked(server)[-1]
            assert len(asked(server)) == 3
        assert (responses[-1]["value"], responses[-1]["metadata"]["refined"]) == ("Clean.", True)
        assert "tools" not in sent
        for part in ("The weather in Rome?", "[calls weather with", "Rome: sunny for 1", "Well, sunny."):
            assert part in sent["messages"][-1]["content"]
        assert stop_of(responses) == ("no_tool_calls", True)

    @table(
        ("turn", "refined", "options", "value", "stop", "asked_for"),
        [
            # What is no answer is refined, where the run may; a model that only goes on calling gives its last result.
            (MARKUP, SUNNY, {}, "Sunny.", "no_tool_calls", 3),
            (MARKUP, MARKUP, {}, "Rome: sunny for 1", "no_tool_calls", 3),
            (MARKUP, SUNNY, PLAIN, "Rome: sunny for 1", "no_tool_calls", 2),
            (Turn(content="Sunny. <tool_call>{"), MARKUP, {}, "Sunny.", "no_tool_calls", 3),
            # At a limit there is no further call where none is wanted.
            (ROME, SUNNY, PLAIN | {"max_iterations": 1}, "Rome: sunny for 1", "max_iterations", 1),
            (Failure(times=0), SUNNY, {}, "Rome: sunny for 1", "model_error", 4),
        ],
    )
    async def test_neither_markup_nor_nothing_is_an_answer_where_there_are_results(
        self, turn: Turn | Failure, refined: Turn, options: dict[str, Any], value: str, stop: str, asked_for: int
    ) -> None:
        refining = Conversation(match="# Record", turns=(refined,))
        script = Script(conversations=(refining,), default=Conversation(turns=(ROME, turn)))
        async with ScriptedModelServer(script) as server:
            final = (await run(make(server, weather), **options))[-1]
            assert len(asked(server)) == asked_for
        assert (final["value"], final["metadata"]["stop_reason"]) == (value, stop)
        assert final["metadata"]["success"] == (value == "Sunny.")

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

    async def test_ten_iterations_unless_said_and_in_a_chat_five_twenty_calls_and_sixty_seconds(self) -> None:
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


# --- docs/function-calling.md: its examples are run as they stand, in their order ---


LOOK = Turn(tool_calls=(("weather", {"city": "Rome"}),))
SCRIPT = Script(
    conversations=(
        Conversation(match="Be brief.", turns=(LOOK, Turn(content="Sunny."))),
        Conversation(
            match="What is the weather in Rome?",
            turns=(Turn(content="1. Look."), LOOK, Turn(tool_calls=(("final_answer", {"result": "1. Sun\n2. Moon"}),))),
        ),
    )
)


async def test_the_examples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("Take an umbrella.")
    names: dict[str, Any] = {}
    async with ScriptedModelServer(SCRIPT) as server:
        monkeypatch.setenv("FLEET_MODEL_URL", server.url)
        for _, block in blocks("docs/function-calling.md"):
            await run_python(block, names)
        sent = str(server.bodies)
    printed = capsys.readouterr().out
    assert "step run 1. Look." in printed
    assert "step tool Rome: sunny for 1 days" in printed
    assert "final run 1. Sun\n2. Moon\n" in printed
    assert "success Sunny. 1" in printed
    assert "Take an umbrella." in sent
