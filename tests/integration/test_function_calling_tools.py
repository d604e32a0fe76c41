"""A function-calling agent's tools: how they are described, called, cached, and kept from going in circles."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from swe_ai_fleet import FunctionCallingAgent
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Turn
from swe_ai_fleet.tools import BaseTool, FunctionTool, ToolParameter
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

SECRET = "sk-very-secret-0815"


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

    async def test_a_slow_sync_function_does_not_block_the_loop(self) -> None:
        release = threading.Event()

        def slow() -> str:
            assert release.wait(30)
            return "slow"

        async def quick() -> str:
            release.set()
            return "quick"

        responses = await told(Turn(tool_calls=(("slow", {}), ("quick", {}))), answer(), tools=[slow, quick])
        assert observations(responses) == ["quick", "slow"]

    async def test_time_limit_of_each_tool(self) -> None:
        release = threading.Event()

        async def waiting() -> None:
            await asyncio.Event().wait()

        def sleeping() -> None:
            release.wait(30)

        class Patient(BaseTool):
            name = "patient"
            time_limit_seconds = 0.05

            async def execute(self) -> None:
                await asyncio.Event().wait()

        turn = Turn(tool_calls=(("waiting", {}), ("sleeping", {}), ("patient", {})))
        responses = await told(turn, answer(), tools=[waiting, sleeping, Patient()], tool_timeout=0.02)
        release.set()
        assert all(
            f"{name} did not finish within {limit} seconds" in "\n".join(observations(responses))
            for name, limit in (("waiting", 0.02), ("sleeping", 0.02), ("patient", 0.05))
        )
        assert stop_of(responses) == ("final_answer", True)

    @pytest.mark.parametrize(
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

    @pytest.mark.parametrize("as_base_tool", [True, False])
    async def test_none_and_empty_results_are_errors(self, as_base_tool: bool) -> None:
        given: list[Any] = [None]

        def give() -> Any:
            return given[0]

        class Give(BaseTool):
            name = "give"
            read_only = True

            async def execute(self) -> Any:
                return given[0]

        for given[0], said in (
            *((None, "nothing (None)"), ("", "an empty text"), (" \n", "an empty text"), (b"", "an empty text")),
            *(([], "an empty list"), ((), "an empty list"), (set(), "an empty list"), ({}, "an empty object")),
        ):
            responses = await told(call("give"), call("give"), answer(), tools=[Give() if as_base_tool else give])
            error = f"Error: give returned {said}. Call another tool, or this one with other arguments."
            assert observations(responses) == [error, error]
            ended = [r["metadata"] for r in events(responses, "tool_finished")]
            assert [(each["success"], each["cached"]) for each in ended] == [(False, False)] * 2
        # Zero and False are results.
        for given[0], said in (
            (0, "0"),
            (False, "False"),
            (0.0, "0.0"),
            ([0], "- 0"),
            ({"found": None}, "found: None"),
        ):
            responses = await told(call("give"), call("give"), answer(), tools=[Give() if as_base_tool else give])
            assert observations(responses) == [said, said]

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

    async def test_what_cannot_be_a_tool(self) -> None:
        async with serving(answer()) as server:
            with pytest.raises(ValueError, match="two tools have the name 'weather'"):
                make(server, weather, weather)
            with pytest.raises(NotFound, match="nonsense"):
                make(server, "nonsense")
            with pytest.raises(InvalidRequest):
                make(server, 42)

    async def test_secrets_are_masked_in_what_is_told(self) -> None:
        def leak() -> str:
            return f"the key is {SECRET}"

        async with serving(call("leak"), answer(), api_key=SECRET) as server:
            agent = FunctionCallingAgent(
                "scripted", [leak], model_params={"base_url": server.url, "api_key": SECRET}, settings=Settings()
            )
            responses = await run(agent)
            assert SECRET not in repr(responses)
            assert SECRET not in repr(asked(server))
        assert observations(responses)


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
        assert (stored, len(events(responses, "tool_started"))) == (["new", "new"], 5)


class TestToolErrors:
    async def test_three_in_a_row_end_the_run_with_one_last_call(self) -> None:
        turns = [call("fail", {"number": number}) for number in range(4)]
        async with serving(*turns[:3], Turn(content="It can't be done."), Turn(content="Never.")) as server:
            responses = await run(make(server, fail))
            last = asked(server)[-1]
            assert (len(asked(server)), last.get("tools")) == (4, None)
        assert (stop_of(responses), responses[-1]["value"]) == (("tool_error", False), "It can't be done.")
        # A success resets.
        turns.insert(2, call("weather", {"city": "Rome"}))
        assert stop_of(await told(*turns, answer(), tools=[fail, weather])) == ("final_answer", True)
