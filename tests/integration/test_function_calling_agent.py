"""`FunctionCallingAgent` against a scripted model over HTTP, behaviour by behaviour."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import swe_ai_fleet.agents
from swe_ai_fleet.agents import FunctionCallingAgent
from swe_ai_fleet.agents.function_calling.profiles import CHAT
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, Turn
from swe_ai_fleet.tools import BaseTool, FunctionTool, HttpPolicy, HttpTool, ToolParameter

SECRET = "sk-very-secret-0815"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def call(name: str, arguments: dict[str, Any] | str | None = None) -> Turn:
    return Turn(tool_calls=((name, {} if arguments is None else arguments),))


def answer(text: Any = "done", key: str = "result") -> Turn:
    return call("final_answer", {key: text})


@asynccontextmanager
async def serving(*turns: Turn | Failure, **options: Any) -> AsyncGenerator[ScriptedModelServer]:
    async with ScriptedModelServer(Script.of(*turns), **options) as server:
        yield server


def make(server: ScriptedModelServer, *tools: Any, **options: Any) -> FunctionCallingAgent:
    given: dict[str, Any] = {"retry_waits": (0.001, 0.001), "settings": Settings(), **options}
    return FunctionCallingAgent("scripted", list(tools), model_params={"base_url": server.url}, **given)


async def run(agent: FunctionCallingAgent, task: str = "Do it.", **options: Any) -> list[Any]:
    return [response async for response in agent.run(task, **{"use_planning": False, **options})]


async def told(*turns: Turn | Failure, tools: Sequence[Any] = (), **options: Any) -> list[Any]:
    """The responses of one run over these turns."""
    of_run = {name: options.pop(name) for name in RUN_OPTIONS & options.keys()}
    async with serving(*turns) as server:
        return await run(make(server, *tools, **options), **of_run)


RUN_OPTIONS = {"files", "max_iterations", "refine_final_answer", "use_planning", "loop_threshold", "chat_history"}


def observations(responses: Sequence[Any]) -> list[str]:
    return [r["value"] for r in responses if (r["type"], r["channel"]) == ("step", "tool")]


def events(responses: Sequence[Any], name: str) -> list[Any]:
    return [r for r in responses if r["metadata"]["event"] == name]


def asked(server: ScriptedModelServer) -> list[dict[str, Any]]:
    """The chat requests, probes aside."""
    return [body for body in server.bodies if body["messages"][0]["content"] != "Say ok."]


def stop_of(responses: Sequence[Any]) -> tuple[str, bool]:
    return responses[-1]["metadata"]["stop_reason"], responses[-1]["metadata"]["success"]


TURNS = st.builds(
    Turn,
    content=st.text(max_size=40),
    tool_calls=st.lists(
        st.tuples(
            st.sampled_from(["weather", "fail", "final_answer", "nonsense", ""]),
            st.sampled_from(['{"city": "Rome"}', '{"number": 1}', "{}", "", "[", "null", '{"city": null}']) | st.text(),
        ),
        max_size=3,
    ).map(tuple),
)


def weather(city: str, days: int = 1) -> str:
    """The weather of a city.

    Longer words about it.

    Args:
        city: Where.
    """
    return f"{city}: sunny for {days}"


class TestResponses:
    async def test_steps_logs_and_exactly_one_final(self) -> None:
        turns = (Turn(content="I look.", tool_calls=(("weather", {"city": "Rome"}),)), answer("Sunny."))
        responses = await told(*turns, tools=[weather])
        assert [(r["type"], r["channel"]) for r in responses] == [
            ("step", "run"), ("step", "tool"), ("step", "run"), ("final", "run"),
        ]  # fmt: skip
        assert all(set(r) == {"type", "channel", "value", "metadata"} for r in responses)
        assert [r["value"] for r in responses] == ["I look.", "Rome: sunny for 1", "", "Sunny."]
        called = responses[0]["metadata"]["tool_calls"][0]
        assert (called["name"], called["id"]) == ("weather", responses[1]["metadata"]["call_id"])
        final = responses[-1]["metadata"]
        assert (final["stop_reason"], final["success"], final["iterations"], final["error"]) == (
            "final_answer", True, 2, "",
        )  # fmt: skip
        assert final["usage"]["model_calls"] == 2

    async def test_task_has_id_description_result_and_steps_taken(self) -> None:
        async with serving(call("weather", {"city": "Rome"}), answer("Sunny.")) as server:
            agent = make(server, weather)
            assert agent.task is None
            responses = await run(agent, "  The weather?  ")
        assert agent.task is not None
        assert agent.task.id == responses[-1]["metadata"]["task_id"]
        assert (agent.task.description, agent.task.result, agent.task.steps_taken) == ("The weather?", "Sunny.", 2)

    async def test_closing_the_iterator_early_cancels_the_run_and_its_tools(self) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def forever() -> str:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return "never"

        async with serving(call("forever"), answer()) as server:
            agent = make(server, forever)
            async with aclosing(agent.run("Wait.", use_planning=False)) as responses:
                assert (await anext(responses))["type"] == "step"
                await begun.wait()
            assert ended.is_set()
            assert agent.task is not None
            assert agent.task.result is None
            assert (server.in_flight, len(asked(server))) == (0, 1)

    async def test_cancelling_the_consumer_cancels_the_run(self) -> None:
        async with serving(Turn(content="late", delay_seconds=60)) as server:
            consumer = asyncio.create_task(run(make(server)))
            await server.wait_until(in_flight=1)
            consumer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await consumer
            await asyncio.wait_for(server.wait_until(in_flight=0), 5)

    async def test_the_text_as_it_comes_in(self) -> None:
        text = "A long reply, word by word. " * 20
        responses = await told(Turn(content=text), refine_final_answer=False, stream=True)
        deltas = [r["value"] for r in events(responses, "delta")]
        assert len(deltas) > 1
        assert "".join(deltas) == text
        assert not events(await told(Turn(content=text), refine_final_answer=False), "delta")

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(turns=st.lists(TURNS, min_size=1, max_size=6))
    async def test_whatever_the_model_says_there_is_one_final_and_each_call_is_answered_once(
        self, turns: list[Turn]
    ) -> None:
        async with serving(*turns) as server:
            agent = make(server, weather, fail)
            responses = await run(agent, max_iterations=5)
        assert [r["type"] for r in responses].count("final") == 1
        assert responses[-1]["type"] == "final"
        assert responses[-1]["metadata"]["stop_reason"]
        asked_for = [c["id"] for m in agent.messages for c in m.get("tool_calls") or []]
        answered = [m["tool_call_id"] for m in agent.messages if m["role"] == "tool"]
        assert sorted(asked_for) == sorted(answered) == sorted(set(answered))
        json.dumps(responses)

    async def test_a_bug_surfaces(self) -> None:
        class Broken(BaseTool):
            name = "broken"

            async def execute(self) -> str:
                return "x"

            def checked(self, arguments: Any, spec: Any) -> Any:
                raise RuntimeError("a bug in the declaration")

        async with serving(call("broken"), answer()) as server:
            with pytest.raises((RuntimeError, ExceptionGroup)) as caught:
                await run(make(server, Broken()))
        assert "a bug in the declaration" in repr(caught.value)

    async def test_two_runs_of_one_agent_at_a_time(self) -> None:
        async with serving(call("weather", {"city": "Rome"}), answer("Sunny.")) as server:
            async with make(server, weather) as agent:
                both = await asyncio.gather(run(agent, "one"), run(agent, "two"))
            assert [responses[-1]["value"] for responses in both] == ["Sunny.", "Sunny."]
            probes = [body for body in server.bodies if body["messages"][0]["content"] == "Say ok."]
            assert len(probes) == 1


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

    @pytest.mark.parametrize("asynchronous", [True, False])
    async def test_time_limit_of_each_tool(self, asynchronous: bool) -> None:
        release = threading.Event()

        async def waiting() -> None:
            await asyncio.Event().wait()

        def sleeping() -> None:
            release.wait(30)

        tool = waiting if asynchronous else sleeping
        responses = await told(call(tool.__name__), answer(), tools=[tool], tool_timeout=0.05)
        release.set()
        assert observations(responses)[0].startswith(f"Error: {tool.__name__} did not finish within 0.05 seconds")
        assert stop_of(responses) == ("final_answer", True)

    async def test_a_base_tool_keeps_a_limit_of_its_own(self) -> None:
        class Patient(BaseTool):
            name = "patient"
            time_limit_seconds = 0.05

            async def execute(self) -> None:
                await asyncio.Event().wait()

        class Usual(Patient):
            name = "usual"
            time_limit_seconds = BaseTool.time_limit_seconds

        turn = Turn(tool_calls=(("patient", {}), ("usual", {})))
        responses = await told(turn, answer(), tools=[Patient(), Usual()], tool_timeout=0.02)
        assert ["within 0.05" in observations(responses)[0], "within 0.02" in observations(responses)[1]] == [True] * 2

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({}, "Error: missing argument 'city'. Signature: weather(city: string, days: integer = 1)"),
            ({"city": "Rome", "moon": 1}, "Error: unexpected argument 'moon'. Signature: weather("),
            ({"city": "Rome", "days": "soon"}, "Error: argument 'days': "),
            ('["Rome"]', "Error: "),
            ('{"city": ', "Error: "),
        ],
    )
    async def test_wrong_arguments_are_told_with_the_signature(self, arguments: Any, said: str) -> None:
        responses = await told(call("weather", arguments), answer(), tools=[weather])
        assert observations(responses)[0].startswith(said)
        assert stop_of(responses) == ("final_answer", True)

    async def test_an_unknown_tool_is_told_with_those_there_are(self) -> None:
        responses = await told(call("stock_prices"), answer(), tools=[weather])
        (seen,) = observations(responses)
        assert seen.startswith("Error: ")
        assert "weather, final_answer" in seen

    @pytest.mark.parametrize(
        ("value", "said"),
        [(None, "nothing (None)"), ("", "an empty text"), (" \n", "an empty text"), (b"", "an empty text"),
         ([], "an empty list"), ((), "an empty list"), (set(), "an empty list"), ({}, "an empty object")],
    )  # fmt: skip
    @pytest.mark.parametrize("as_base_tool", [True, False])
    async def test_none_and_empty_results_are_errors(self, value: Any, said: str, as_base_tool: bool) -> None:
        def give() -> Any:
            return value

        class Give(BaseTool):
            name = "give"
            read_only = True

            async def execute(self) -> Any:
                return value

        responses = await told(call("give"), call("give"), answer(), tools=[Give() if as_base_tool else give])
        error = f"Error: give returned {said}. Call another tool, or this one with other arguments."
        assert observations(responses) == [error, error]
        ended = [r["metadata"] for r in events(responses, "tool_finished")]
        assert [(each["success"], each["cached"]) for each in ended] == [(False, False)] * 2
        assert stop_of(responses) == ("final_answer", True)

    @pytest.mark.parametrize(
        ("value", "said"), [(0, "0"), (False, "False"), (0.0, "0.0"), ([0], "- 0"), ({"found": None}, "found: None")]
    )
    async def test_zero_and_false_are_results(self, value: Any, said: str) -> None:
        def give() -> Any:
            return value

        responses = await told(call("give"), call("give"), answer(), tools=[give])
        assert observations(responses) == [said, said]
        assert [r["metadata"]["cached"] for r in events(responses, "tool_finished")] == [False, True]

    async def test_nothing_from_a_tool_with_an_effect_warns_of_calling_it_again(self) -> None:
        sent: list[str] = []

        def send(text: str) -> None:
            sent.append(text)

        responses = await told(call("send", {"text": "hi"}), answer(), tools=[FunctionTool(send, read_only=False)])
        assert observations(responses)[0].startswith("Error: send returned nothing (None). It may have had its effect")
        assert sent == ["hi"]

    async def test_an_empty_answer_over_http_is_no_error(self) -> None:
        async def nothing(request: web.Request) -> web.Response:
            return web.Response(text="")

        application = web.Application()
        application.router.add_get("/nothing", nothing)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            server = web.TCPSite(runner, "127.0.0.1", 0)
            await server.start()
            place = f"127.0.0.1:{runner.addresses[0][1]}"
            http = HttpTool(policy=HttpPolicy(private_hosts=(place,)))
            responses = await told(call("http_get", {"url": f"http://{place}/nothing"}), answer(), tools=[http])
        finally:
            await runner.cleanup()
        (seen,) = events(responses, "tool_finished")
        assert (seen["metadata"]["success"], seen["value"].startswith("Error:")) == (True, False)

    async def test_an_exception_is_an_error_observation(self) -> None:
        def fail() -> None:
            raise KeyError("no such city")

        (seen,) = observations(await told(call("fail"), answer(), tools=[fail]))
        assert seen.startswith("Error: fail failed: KeyError")

    async def test_a_tool_that_cancels_itself_fails_like_any_other(self) -> None:
        async def cancelled() -> None:
            raise asyncio.CancelledError

        responses = await told(call("cancelled"), answer(), tools=[cancelled])
        assert observations(responses) == ["Error: cancelled failed: it was cancelled from within"]
        assert stop_of(responses) == ("final_answer", True)

    async def test_a_toolkit_brings_all_of_its_own(self) -> None:
        turn = call("http_get", {"url": "http://127.0.0.1:1/"})
        async with serving(turn, answer()) as server:
            responses = await run(make(server, weather, HttpTool()))
            offered = [tool["function"]["name"] for tool in asked(server)[0]["tools"]]
            assert {"weather", "http_get", "final_answer"} <= set(offered)
            with pytest.raises(ValueError, match="two tools have the name 'http_get'"):
                make(server, FunctionTool(lookup, name="http_get"), HttpTool())
        assert observations(responses)[0].startswith("Error: ")

    async def test_calls_of_one_reply_run_in_parallel_or_one_by_one(self) -> None:
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
        await told(turn, answer(), tools=[wait], settings=Settings(parallel_calls=False))
        assert most == 1

    async def test_a_failing_call_cancels_no_sibling(self) -> None:
        failed = asyncio.Event()

        async def fail() -> None:
            failed.set()
            raise ValueError("no")

        async def go_on() -> str:
            await failed.wait()
            await asyncio.sleep(0)
            return "went on"

        responses = await told(Turn(tool_calls=(("fail", {}), ("go_on", {}))), answer(), tools=[fail, go_on])
        assert observations(responses) == ["Error: fail failed: ValueError: no", "went on"]

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


class TestFinalAnswer:
    @pytest.mark.parametrize("key", ["result", "reason", "answer", "response", "output", "reply"])
    async def test_it_is_always_there_and_takes_the_usual_keys(self, key: str) -> None:
        async with serving(answer("Rome.", key)) as server:
            responses = await run(make(server))
            assert [tool["function"]["name"] for tool in asked(server)[0]["tools"]] == ["final_answer"]
        assert (responses[-1]["value"], stop_of(responses)) == ("Rome.", ("final_answer", True))

    async def test_the_first_key_in_order_counts(self) -> None:
        turn = call("final_answer", {"reply": "last", "reason": "second", "answer": "third"})
        assert (await told(turn))[-1]["value"] == "second"

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ({"city": "Rome", "more": ["sunny", "warm"]}, "Rome\n\nsunny\n\nwarm"),
            (["one", {"two": 2}], "one\n\n2"),
            (42, "42"),
        ],
    )
    async def test_dict_values_and_list_items_are_joined_by_blank_lines(self, value: Any, text: str) -> None:
        assert (await told(answer(value)))[-1]["value"] == text

    @pytest.mark.parametrize("arguments", [{}, {"result": None}, {"other": 1}, '["x"]', "7"])
    async def test_no_value_and_no_object_are_error_observations(self, arguments: Any) -> None:
        async with serving(call("final_answer", arguments), answer("at last")) as server:
            responses = await run(make(server))
            told_model = asked(server)[1]["messages"][-1]
        assert told_model["role"] == "tool"
        assert told_model["content"].startswith("Error: ")
        assert (responses[-1]["value"], responses[-1]["metadata"]["iterations"]) == ("at last", 2)


class TestLoops:
    async def test_two_nudges_then_a_stop(self) -> None:
        async with serving(Turn(content="Again.", tool_calls=(("weather", {"city": "Rome"}),), times=9)) as server:
            responses = await run(make(server, weather, FunctionTool(lookup)), max_iterations=20)
            nudges = [m["content"] for m in asked(server)[-1]["messages"][2:] if m["role"] == "user"]
        noticed = [r["metadata"]["advice"] for r in events(responses, "loop_noticed")]
        assert noticed == ["nudge", "strong_nudge", "stop"]
        assert stop_of(responses) == ("loop", False)
        assert responses[-1]["metadata"]["iterations"] == 5
        assert "lookup" in nudges[0]
        assert nudges[0] != nudges[1]

    async def test_the_threshold_is_of_the_agent_or_of_the_run(self) -> None:
        turn = Turn(tool_calls=(("weather", {"city": "Rome"}),), times=9)
        first = await told(turn, tools=[weather], loop_detection_threshold=2)
        second = await told(turn, tools=[weather], loop_detection_threshold=2, loop_threshold=4)
        assert [r[-1]["metadata"]["iterations"] for r in (first, second)] == [4, 6]

    async def test_other_arguments_are_no_loop_unless_judged_by_name_alone(self) -> None:
        turns = [call("weather", {"city": city}) for city in ("Rome", "Oslo", "Bonn", "Bern", "Kiel")]
        assert stop_of(await told(*turns, answer(), tools=[weather])) == ("final_answer", True)
        by_name = await told(*turns, answer(), tools=[weather], loop_by_name=True)
        assert stop_of(by_name) == ("loop", False)

    async def test_the_order_of_arguments_makes_no_difference(self) -> None:
        turns = [call("weather", text) for text in ('{"city":"Rome","days":2}', '{"days": 2, "city": "Rome"}')]
        responses = await told(turns[0], turns[1], turns[0], answer(), tools=[weather])
        assert len(events(responses, "loop_noticed")) == 1


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

    async def test_errors_are_not_kept(self) -> None:
        tries: list[int] = []

        def flaky() -> str:
            tries.append(1)
            if len(tries) == 1:
                raise OSError("try again")
            return "there"

        responses = await told(call("flaky"), call("flaky"), answer(), tools=[flaky])
        assert observations(responses)[1] == "there"

    async def test_any_write_empties_it(self) -> None:
        stored = ["old"]

        def read() -> str:
            return stored[-1]

        def write(text: str) -> str:
            stored.append(text)
            return "written"

        turns = (call("read"), call("write", {"text": "new"}), call("read"), answer())
        responses = await told(*turns, tools=[read, FunctionTool(write, read_only=False)])
        assert observations(responses) == ["old", "written", "new"]

    async def test_an_effect_is_had_each_time(self) -> None:
        sent: list[str] = []

        def send(text: str) -> str:
            sent.append(text)
            return "sent"

        turn = call("send", {"text": "hi"})
        responses = await told(turn, turn, answer(), tools=[FunctionTool(send)])
        assert (sent, len(events(responses, "tool_started"))) == (["hi", "hi"], 2)


class TestLongResults:
    async def test_history_keeps_the_beginning_and_the_task_the_whole(self) -> None:
        def long() -> str:
            return "a" * 30 + "b" * 70

        async with serving(call("long"), answer()) as server:
            agent = make(server, long, max_tool_result_chars=30)
            responses = await run(agent)
            seen = asked(server)[1]["messages"][-1]["content"]
        assert seen.startswith("a" * 30 + "\n[")
        assert "100 characters" in seen
        assert "b" not in seen.partition("\n")[0]
        (told_of,) = events(responses, "tool_finished")
        assert (told_of["value"], told_of["metadata"]["truncated"]) == (seen, True)
        assert agent.task is not None
        assert agent.task.results[told_of["metadata"]["call_id"]] == "a" * 30 + "b" * 70

    async def test_the_refinement_reads_them_whole(self) -> None:
        def long() -> str:
            return "a" * 100 + "THE END"

        async with serving(call("long"), Turn(content="So so."), Turn(content="Clean.")) as server:
            await run(make(server, long, max_tool_result_chars=20))
            before, refining = (str(body["messages"]) for body in asked(server)[-2:])
        assert "THE END" not in before
        assert "THE END" in refining

    async def test_the_answer_at_a_limit_reads_them_whole_where_they_fit(self) -> None:
        def long() -> str:
            return "a" * 100 + "THE END"

        turns = (call("long"), Turn(content="At the end is THE END."))
        async with serving(*turns) as server:
            await run(make(server, long, max_tool_result_chars=20), max_iterations=1)
            assert "THE END" in str(asked(server)[-1]["messages"])
        async with serving(*turns, max_model_len=300) as server:
            responses = await run(make(server, long, max_tool_result_chars=20), max_iterations=1)
        assert responses[-1]["value"] == "At the end is THE END."


class TestModelFailures:
    async def test_three_tries_that_are_no_iterations(self) -> None:
        turns = (call("weather", {"city": "Rome"}), Failure(times=2), answer("Sunny."))
        responses = await told(*turns, tools=[weather], max_iterations=2)
        assert (stop_of(responses), responses[-1]["metadata"]["iterations"]) == (("final_answer", True), 2)
        assert len(events(responses, "model_failed")) == 2
        assert "try 1 of 3" in events(responses, "model_failed")[0]["value"]

    async def test_after_the_third_the_run_ends_without_another_call(self) -> None:
        turns = (Turn(content="Looking.", tool_calls=(("weather", {"city": "Rome"}),)), Failure(times=0))
        async with serving(*turns) as server:
            responses = await run(make(server, weather))
            assert len(asked(server)) == 1 + 3
        assert stop_of(responses) == ("model_error", False)
        assert responses[-1]["value"] == "Looking."
        assert "503" in responses[-1]["metadata"]["error"]

    async def test_nothing_said_yet_gives_a_fixed_sentence(self) -> None:
        responses = await told(Failure(times=0))
        assert stop_of(responses) == ("model_error", False)
        assert responses[-1]["value"] == "There is no answer: the run ended before one could be given (model error)."

    async def test_a_refusal_is_not_tried_again(self) -> None:
        responses = await told(Failure(status=401, times=0))
        assert stop_of(responses) == ("model_error", False)
        assert events(responses, "model_failed") == []

    async def test_the_default_waits_grow(self) -> None:
        from swe_ai_fleet.agents.function_calling.patience import RETRY_WAITS

        assert RETRY_WAITS == (5.0, 10.0)


def fail(number: int) -> None:
    """Fails, each time with other words."""
    raise ValueError(f"failure {number}")


class TestToolErrors:
    async def test_three_in_a_row_end_the_run_with_one_last_call(self) -> None:
        turns = [call("fail", {"number": number}) for number in range(3)]
        async with serving(*turns, Turn(content="It can't be done."), Turn(content="Never.")) as server:
            responses = await run(make(server, fail))
            last = asked(server)[-1]
            assert (len(asked(server)), last.get("tools")) == (4, None)
        assert stop_of(responses) == ("tool_error", False)
        assert responses[-1]["value"] == "It can't be done."

    async def test_results_that_are_none_count(self) -> None:
        def find(word: str) -> str | None:
            return None if word != "c" else "there"

        turns = [call("find", {"word": word}) for word in "abcdef"]
        responses = await told(*turns, Turn(content="Not found."), tools=[find])
        assert (stop_of(responses), responses[-1]["metadata"]["iterations"]) == (("tool_error", False), 6)

    async def test_a_success_resets(self) -> None:
        turns = [call("fail", {"number": number}) for number in range(4)]
        turns.insert(2, call("weather", {"city": "Rome"}))
        assert stop_of(await told(*turns, answer(), tools=[fail, weather])) == ("final_answer", True)


class TestPlanning:
    async def test_the_plan_comes_first_without_tools(self) -> None:
        async with serving(Turn(content="1. weather"), call("weather", {"city": "Rome"}), answer("Sunny.")) as server:
            responses = await run(make(server, weather), use_planning=True)
            planning, first, _ = asked(server)
        assert "tools" not in planning
        assert "weather(city: string" in planning["messages"][-1]["content"]
        assert first["messages"][: len(planning["messages"])] == planning["messages"]
        assert first["messages"][-2] == {"role": "assistant", "content": "1. weather"}
        assert [t["function"]["name"] for t in first["tools"]] == ["weather", "final_answer"]
        (plan,) = events(responses, "plan_made")
        assert (plan["type"], plan["value"], responses[-1]["metadata"]["iterations"]) == ("step", "1. weather", 2)

    async def test_it_is_made_unless_refused(self) -> None:
        async with serving(Turn(content="A plan."), answer()) as server:
            agent = make(server)
            assert events([r async for r in agent.run("Do it.")], "plan_made")

    async def test_an_empty_plan_is_none(self) -> None:
        async with serving(Turn(content=" "), answer()) as server:
            responses = await run(make(server), use_planning=True)
            assert [m["role"] for m in asked(server)[1]["messages"]] == ["system", "user"]
        assert events(responses, "plan_made") == []

    async def test_a_model_that_fails_at_the_plan(self) -> None:
        async with serving(answer()) as server:
            async with make(server) as agent:
                await run(agent)
                server.fail_next(Failure(times=0))
                before = len(asked(server))
                responses = await run(agent, use_planning=True)
            assert len(asked(server)) == before + 3
        assert stop_of(responses) == ("model_error", False)


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
        text = sent["messages"][-1]["content"]
        for part in ("The weather in Rome?", "[calls weather with", "Rome: sunny for 1", "Well, sunny."):
            assert part in text
        assert stop_of(responses) == ("no_tool_calls", True)

    async def test_a_reminder_may_come_first(self) -> None:
        responses = await told(Turn(content="I will look."), answer("Sunny."), max_reminders=1)
        assert (responses[-1]["value"], stop_of(responses)) == ("Sunny.", ("final_answer", True))
        assert len(events(responses, "message_added")) == 1

    async def test_switched_off_the_last_text_is_the_answer(self) -> None:
        async with serving(Turn(content="Sunny.")) as server:
            responses = await run(make(server), refine_final_answer=False)
            assert len(asked(server)) == 1
        assert (responses[-1]["value"], responses[-1]["metadata"]["refined"]) == ("Sunny.", False)

    async def test_where_it_fails_the_last_text_is_the_answer(self) -> None:
        async with serving(Turn(content="Sunny, I think.")) as server:
            agent = make(server)
            async with aclosing(agent.run("The weather?", use_planning=False)) as stream:
                responses = []
                async for response in stream:
                    responses.append(response)
                    if response["metadata"]["event"] == "model_replied":
                        server.fail_next(Failure(times=0))
        assert responses[-1]["value"] == "Sunny, I think."
        assert len(events(responses, "refinement_failed")) == 1
        assert stop_of(responses) == ("no_tool_calls", True)

    async def test_a_model_that_says_nothing_at_all(self) -> None:
        responses = await told(Turn(content=""))
        assert responses[-1]["value"] == "There is no answer: the run ended before one could be given (no tool calls)."
        assert stop_of(responses) == ("no_tool_calls", False)
        assert responses[-1]["metadata"]["error"]

    async def test_not_after_a_loop(self) -> None:
        async with serving(Turn(content="Hm.", tool_calls=(("weather", {"city": "Rome"}),), times=9)) as server:
            responses = await run(make(server, weather))
            assert not any("# Record" in str(body["messages"]) for body in asked(server))
        assert (stop_of(responses), responses[-1]["metadata"]["refined"]) == (("loop", False), False)


class TestLimits:
    async def test_the_last_call_has_no_tools_and_the_status_says_which_limit(self) -> None:
        turns = [call("weather", {"city": city}) for city in ("Rome", "Oslo")]
        async with serving(*turns, Turn(content="Rome and Oslo are sunny.")) as server:
            responses = await run(make(server, weather), max_iterations=2)
            last = asked(server)[-1]
        assert (responses[-1]["value"], stop_of(responses)) == ("Rome and Oslo are sunny.", ("max_iterations", False))
        assert "tools" not in last
        assert "max iterations" in last["messages"][-1]["content"]

    async def test_ten_iterations_unless_said(self) -> None:
        turns = [call("weather", {"city": f"City {number}"}) for number in range(12)]
        responses = await told(*turns, tools=[weather])
        assert responses[-1]["metadata"]["iterations"] == 10

    async def test_the_chat_profile_has_five_iterations_twenty_calls_and_sixty_seconds(self) -> None:
        limits = FunctionCallingAgent.chat_profile()
        assert limits == CHAT
        assert (limits.max_iterations, limits.max_tool_calls, limits.timeout_seconds) == (5, 20, 60.0)
        theirs = FunctionCallingAgent.chat_profile(Settings(chat_max_iterations=2, chat_timeout_seconds=7))
        assert (theirs.max_iterations, theirs.max_tool_calls, theirs.timeout_seconds) == (2, 20, 7)
        turns = [call("weather", {"city": f"City {number}"}) for number in range(9)]
        responses = await told(*turns, tools=[weather], limits=limits)
        assert (stop_of(responses)[0], responses[-1]["metadata"]["iterations"]) == ("max_iterations", 5)
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
        responses = await told(*turns, limits=replace(CHAT, max_cost=3.5), **options)
        final = responses[-1]["metadata"]
        assert (final["stop_reason"], final["iterations"]) == ("max_cost", 2)
        # No last words: what is spent is spent.
        assert final["usage"]["cost"] == 4.0
        unlimited = await told(*turns, answer(), **options)
        assert (stop_of(unlimited)[0], unlimited[-1]["metadata"]["iterations"]) == ("final_answer", 6)
        assert unlimited[-1]["metadata"]["usage"]["cost"] >= 10.0

    async def test_a_plan_is_paid_for(self) -> None:
        plan = Turn(content="A plan.", usage=Usage(prompt_tokens=1_000_000))
        prices = Settings(model_prices={"scripted": {"prompt": 2.0}})
        limits = replace(CHAT, max_cost=1.0)
        responses = await told(plan, answer(), use_planning=True, limits=limits, settings=prices)
        assert (stop_of(responses), responses[-1]["metadata"]["iterations"]) == (("max_cost", False), 0)

    async def test_a_price_may_stand_under_the_name_that_the_caller_gives(self) -> None:
        prices = Settings(model_prices={"vllm/scripted": {"prompt": 1e6}})
        async with serving(answer()) as server:
            agent = FunctionCallingAgent("vllm/scripted", model_params={"base_url": server.url}, settings=prices)
            responses = await run(agent)
        assert responses[-1]["metadata"]["usage"]["cost"] > 1

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
        assert stop_of(responses) == ("no_tool_calls", True)

    async def test_a_time_out_is_a_limit_too(self) -> None:
        slow = Turn(content="late", delay_seconds=60)
        responses = await told(slow, limits=replace(CHAT, timeout_seconds=0.2))
        assert stop_of(responses) == ("timeout", False)


class TestConversation:
    async def test_recurrent_mode_puts_the_previous_task_and_result_first(self) -> None:
        async with serving(answer("1. Rome\n2. Oslo")) as server:
            agent = make(server)
            await run(agent, "Name two cities.", recurrent_mode=True)
            assert "Previous" not in str(asked(server)[0])
            await run(agent, "Tell me about the second one.", recurrent_mode=True)
            text = asked(server)[1]["messages"][-1]["content"]
        order = [
            "Previous task",
            "Name two cities.",
            "Its result",
            "1. Rome",
            "# Task",
            "Tell me about the second one.",
        ]
        places = [text.index(part) for part in order]
        assert places == sorted(places)
        assert "item 2: Oslo" in text
        assert "('the second one' is: Oslo)" in text

    async def test_without_it_nothing_is_carried_over(self) -> None:
        async with serving(answer("Rome")) as server:
            agent = make(server)
            await run(agent, "Name a city.")
            await run(agent, "And now?")
            assert asked(server)[1]["messages"][-1]["content"] == "And now?"

    async def test_a_chat_history_is_gone_on_with_and_left_alone(self) -> None:
        history: list[dict[str, Any]] = [
            {"role": "user", "content": "Where is report.txt?"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            {"role": "assistant", "content": "In docs/report.txt."},
        ]  # fmt: skip
        before = copy.deepcopy(history)
        async with serving(answer("Read.")) as server:
            agent = make(server, weather, system_prompt="Be brief.")
            responses = await run(agent, "Read that file.", chat_history=history)
            sent = asked(server)[0]["messages"]
        assert history == before
        assert sent[0] == {"role": "system", "content": "Be brief."}
        assert sent[1:4] == [history[0], history[1], history[2]]
        assert "('that file' is: docs/report.txt)" in sent[-1]["content"]
        assert responses[-1]["value"] == "Read."
        assert agent.messages[-1] == {"role": "assistant", "content": "Read."}
        assert agent.messages[1] == history[0]
        agent.messages[1]["content"] = "changed"
        assert history == before

    async def test_the_conversation_of_one_run_is_a_history_of_the_next(self) -> None:
        async with serving(call("weather", {"city": "Rome"}), answer("Sunny.")) as server:
            agent = make(server, weather)
            await run(agent, "The weather?")
            first = agent.messages
            responses = await run(agent, "And now?", chat_history=first)
        assert stop_of(responses) == ("final_answer", True)
        assert agent.messages[: len(first)] == first

    async def test_a_system_message_of_the_history_stays(self) -> None:
        async with serving(answer()) as server:
            history = [{"role": "system", "content": "Theirs."}]
            await run(make(server, system_prompt="Ours."), chat_history=history)
            assert [m["content"] for m in asked(server)[0]["messages"]] == ["Theirs.", "Do it."]

    async def test_the_system_prompt_may_hold_the_documentation_of_the_tools(self) -> None:
        async with serving(answer()) as server:
            await run(make(server, weather, system_prompt="Tools:\n{tools}"))
            system = asked(server)[0]["messages"][0]["content"]
        assert system == "Tools:\n- weather(city: string, days: integer = 1): The weather of a city."

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"task": " \n"}, "the task is empty"),
            ({"files": "notes.txt"}, "files is a str"),
            ({"files": ("notes.txt",)}, "files is a tuple"),
            ({"files": [1]}, "neither a path nor a URL"),
            ({"recurrent_mode": True, "chat_history": []}, "recurrent_mode"),
            ({"chat_history": "hello"}, "chat_history is a str"),
            ({"chat_history": [{"role": "robot", "content": "x"}]}, r"chat_history\[0\]: the role"),
            ({"chat_history": [{"role": "tool", "tool_call_id": "x", "content": ""}]}, "no call before it"),
            ({"max_iterations": 0}, "max_iterations"),
        ],
    )
    async def test_what_is_refused(self, options: dict[str, Any], said: str) -> None:
        async with serving(answer()) as server:
            with pytest.raises(ValueError, match=said):
                await run(make(server), **options)
            assert server.requests == 0


@pytest.fixture(scope="module")
async def site() -> AsyncGenerator[str]:
    """A site with a page, a picture, and something else."""

    async def page(request: web.Request) -> web.Response:
        text = "<html><title>News</title><script>x()</script><p>Rain in Rome.</p></html>"
        return web.Response(text=text, content_type="text/html")

    async def picture(request: web.Request) -> web.Response:
        return web.Response(body=PIXEL, content_type="image/png")

    async def archive(request: web.Request) -> web.Response:
        return web.Response(body=b"PK\x03\x04\0\0", content_type="application/zip")

    application = web.Application()
    application.add_routes([web.get("/news", page), web.get("/a.png", picture), web.get("/a.zip", archive)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


class TestFiles:
    async def test_paths_are_read_with_a_bound_and_binary_ones_named(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("Rome is ```sunny```.")
        (tmp_path / "long.txt").write_text("x" * 60_000)
        (tmp_path / "a.bin").write_bytes(b"\0\1\2\3")
        os.mkfifo(tmp_path / "pipe")
        given = [tmp_path / name for name in ("notes.txt", "a.bin", "gone", "pipe")]
        files = [*given, str(tmp_path / "long.txt"), tmp_path]
        async with serving(answer()) as server:
            responses = await run(make(server), files=files)
            text = asked(server)[0]["messages"][-1]["content"]
        assert text.startswith("# Task\nDo it.\n\n# Files")
        assert "## notes.txt\n````\nRome is ```sunny```.\n````" in text
        assert "the first 50000 of 60000 characters" in text
        for name in ("a.bin", "gone", "pipe", tmp_path.name):
            assert f"## {name}\n[{name} could not be read: " in text
        assert len(events(responses, "file_unread")) == 4

    async def test_all_files_together_have_a_bound(self, tmp_path: Path) -> None:
        for number in range(6):
            (tmp_path / f"{number}.txt").write_text("x" * 45_000)
        async with serving(answer()) as server:
            await run(make(server), files=[tmp_path / f"{number}.txt" for number in range(6)])
            text = asked(server)[0]["messages"][-1]["content"]
        assert text.count("x" * 45_000) == 4
        assert "the first 20000 of 45000 characters" in text
        assert "5.txt could not be read: the files before it have 200000 characters already" in text

    async def test_pages_and_pictures_come_by_the_http_rules(self, site: str) -> None:
        policy = HttpPolicy(allowed_hosts=(), private_hosts=("127.0.0.1",), ports=(int(site.rpartition(":")[2]),))
        files = [f"{site}/news?token=secret", f"{site}/a.png", f"{site}/a.zip", f"{site}/nothing"]
        async with serving(answer()) as server:
            await run(make(server, pages=policy, images=True), files=files)
            content = asked(server)[0]["messages"][-1]["content"]
        text = next(part["text"] for part in content if part["type"] == "text")
        pictures = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
        assert pictures == [f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"]
        assert "News" in text
        assert "Rain in Rome." in text
        assert "x()" not in text
        assert "secret" not in text
        assert "picture 1 of this message" in text
        assert "no text at this address" in text
        assert "answered HTTP 404" in text

    async def test_a_model_that_takes_no_pictures_hears_that_there_is_one(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(PIXEL)
        async with serving(answer()) as server:
            await run(make(server), files=[tmp_path / "a.png"])
            content = asked(server)[0]["messages"][-1]["content"]
        assert "## a.png\n[a picture (image/png), which this model can't view]" in content

    async def test_private_addresses_are_refused(self, site: str) -> None:
        responses = await told(answer(), files=[f"{site}/news"])
        (fault,) = events(responses, "file_unread")
        assert "could not be read" in fault["value"]


class TestModel:
    @pytest.mark.parametrize(
        ("name", "asked_for"),
        [("vllm/qwen3", "qwen3"), ("ollama/llama3.1", "llama3.1"), ("gemini/gemini-flash", "gemini-flash"),
         ("fireworks/llama-v3", "accounts/fireworks/models/llama-v3"), ("openai/gpt-oss", "openai/gpt-oss")],
    )  # fmt: skip
    async def test_prefixes_pick_the_provider(self, name: str, asked_for: str) -> None:
        async with serving(answer()) as server:
            agent = FunctionCallingAgent(name, model_params={"base_url": server.url}, settings=Settings())
            await run(agent)
            assert asked(server)[0]["model"] == asked_for

    async def test_a_server_without_tool_calls(self) -> None:
        turns = (Turn(content="1. weather"), call("weather", {"city": "Rome"}), answer("Sunny."))
        async with serving(*turns, native_tools=False) as server:
            responses = await run(make(server, weather), use_planning=True)
            assert not any(body.get("tools") for body in asked(server))
        assert (observations(responses), responses[-1]["value"]) == (["Rome: sunny for 1"], "Sunny.")

    async def test_several_servers_stand_in_for_each_other(self) -> None:
        async with serving(answer("Sunny.")) as server:
            gone = "http://127.0.0.1:9/v1"
            settings = Settings(model_url=f"{gone},{server.url}", model="scripted")
            responses = await run(FunctionCallingAgent(settings=settings))
        assert stop_of(responses) == ("final_answer", True)

    async def test_litellm_params_are_model_params(self) -> None:
        async with serving(answer()) as server:
            given = {"api_base": server.url, "temperature": 0, "seed": 7, "max_tokens": 99, "timeout": 5}
            await run(FunctionCallingAgent("scripted", litellm_params=given, settings=Settings()))
            sent = asked(server)[0]
        assert (sent["temperature"], sent["seed"]) == (0, 7)
        assert 99 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))

    def test_parameters_that_are_refused(self) -> None:
        with pytest.raises(ValueError, match="unknown model parameters: top_p"):
            FunctionCallingAgent("m", model_params={"top_p": 1}, settings=Settings())
        with pytest.raises(ValueError, match="the same"):
            FunctionCallingAgent("m", model_params={}, litellm_params={}, settings=Settings())
        with pytest.raises(ValueError, match="seed is a str"):
            FunctionCallingAgent("m", model_params={"seed": "x"}, settings=Settings())

    def test_defaults_are_those_that_users_rely_on(self) -> None:
        import inspect

        of_class = {n: p.default for n, p in inspect.signature(FunctionCallingAgent).parameters.items()}
        of_run = {n: p.default for n, p in inspect.signature(FunctionCallingAgent.run).parameters.items()}
        assert list(of_class)[:8] == [
            "model_name", "tools", "system_prompt", "loop_detection_threshold", "model_params",
            "max_tool_result_chars", "one_line_doc", "tool_timeout",
        ]  # fmt: skip
        assert [of_class[n] for n in ("loop_detection_threshold", "max_tool_result_chars", "one_line_doc")] == [
            3, 3000, True,
        ]  # fmt: skip
        assert of_class["tool_timeout"] == 30.0
        assert list(of_run)[1:] == [
            "task", "files", "max_iterations", "refine_final_answer", "use_planning", "recurrent_mode",
            "loop_threshold", "chat_history",
        ]  # fmt: skip
        assert (of_run["refine_final_answer"], of_run["use_planning"], of_run["recurrent_mode"]) == (True, True, False)

    def test_the_doors_are_lazy(self) -> None:
        program = "import sys, swe_ai_fleet.agents; sys.exit('swe_ai_fleet.runtime' in sys.modules)"
        subprocess.run([sys.executable, "-c", program], check=True)
        assert swe_ai_fleet.FunctionCallingAgent is FunctionCallingAgent
        assert swe_ai_fleet.agents.ToolEnabledAgent is swe_ai_fleet.ToolEnabledAgent
        with pytest.raises(ImportError):
            from swe_ai_fleet.agents import NoSuchAgent  # noqa: F401
