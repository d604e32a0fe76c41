"""The function-calling agent over HTTP against a scripted model: what it tells, asks and is given."""

from __future__ import annotations

import asyncio
import base64
import copy
import inspect
import json
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_ai_fleet import FunctionCallingAgent, FunctionCallingClient
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Failure, Script, ScriptedModelServer, Turn
from swe_ai_fleet.tools import HttpPolicy, ToolRegistry
from tests.function_calling import answer, asked, call, events, fail, make, run, serving, stop_of, told, weather
from tests.tables import table

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)

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


class TestResponses:
    async def test_steps_logs_and_exactly_one_final_and_the_task_has_what_they_told(self) -> None:
        turns = (Turn(content="I look.", tool_calls=(("weather", {"city": "Rome"}),)), answer("Sunny."))
        async with serving(*turns) as server:
            agent = make(server, weather)
            assert agent.task is None
            responses = await run(agent, "  The weather?  ")
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
        assert agent.task is not None
        assert (agent.task.id, agent.task.description, agent.task.result, agent.task.steps_taken) == (
            final["task_id"], "The weather?", "Sunny.", 2,
        )  # fmt: skip

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

    async def test_the_text_as_it_comes_in(self) -> None:
        text = "A long reply, word by word. " * 20
        responses = await told(Turn(content=text), refine_final_answer=False, stream=True)
        deltas = [r["value"] for r in events(responses, "delta")]
        assert len(deltas) > 1
        assert "".join(deltas) == text
        assert not events(await told(Turn(content=text), refine_final_answer=False), "delta")

    @settings(max_examples=8, suppress_health_check=list(HealthCheck))
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


class TestConversation:
    async def test_recurrent_mode_puts_the_previous_task_and_result_first(self) -> None:
        async with serving(answer("1. Rome\n2. Oslo")) as server:
            agent = make(server)
            await run(agent, "Name two cities.", recurrent_mode=True)
            assert "Previous" not in str(asked(server)[0])
            await run(agent, "Tell me about the second one.", recurrent_mode=True)
            text = asked(server)[1]["messages"][-1]["content"]
            await run(agent, "And now?")
            assert asked(server)[2]["messages"][-1]["content"] == "And now?"
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
        assert '“the second one”: item "Oslo", number 2 of' in text

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
        assert '“that file”: file "docs/report.txt"' in sent[-1]["content"]
        assert responses[-1]["value"] == "Read."
        assert agent.messages[-1] == {"role": "assistant", "content": "Read."}
        assert agent.messages[1] == history[0]
        agent.messages[1]["content"] = "changed"
        assert history == before

    async def test_the_system_prompt_may_hold_the_documentation_of_the_tools(self) -> None:
        async with serving(answer()) as server:
            await run(make(server, weather, system_prompt="Tools:\n{tools}"))
            system = asked(server)[0]["messages"][0]["content"]
        assert system == "Tools:\n- weather(city: string, days: integer = 1): The weather of a city."

    @table(
        ("options", "said"),
        [
            ({"task": " \n"}, "the task is empty"),
            ({"files": "notes.txt"}, "files is a str"),
            ({"recurrent_mode": True, "chat_history": []}, "recurrent_mode"),
            ({"chat_history": [{"role": "robot", "content": "x"}]}, r"chat_history\[0\]: the role"),
            ({"chat_history": [{"role": "tool", "tool_call_id": "x", "content": ""}]}, "not the id of an earlier call"),
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
        (tmp_path / "a.png").write_bytes(PIXEL)
        os.mkfifo(tmp_path / "pipe")
        given = [tmp_path / name for name in ("notes.txt", "a.bin", "gone", "pipe")]
        files = [*given, str(tmp_path / "long.txt"), tmp_path, tmp_path / "a.png"]
        async with serving(answer()) as server:
            responses = await run(make(server), files=files)
            text = asked(server)[0]["messages"][-1]["content"]
        assert "## a.png\n[a picture (image/png), which this model can't view]" in text
        assert text.startswith("# Task\nDo it.\n\n# Files")
        assert "## notes.txt\n````\nRome is ```sunny```.\n````" in text
        assert "the first 50000 of 60000 characters" in text
        for name in ("a.bin", "gone", "pipe", tmp_path.name):
            assert f"## {name}\n[{name} could not be read: " in text
        assert len(events(responses, "file_unread")) == 4

    async def test_pages_and_pictures_come_by_the_http_rules(self, site: str) -> None:
        policy = HttpPolicy(allowed_hosts=(), private_hosts=("127.0.0.1",), ports=(int(site.rpartition(":")[2]),))
        files = [f"{site}/news?token=secret", f"{site}/a.png", f"{site}/a.zip", f"{site}/nothing"]
        async with serving(answer()) as server:
            await run(make(server, pages=policy, images=True), files=files)
            content = asked(server)[0]["messages"][-1]["content"]
            (refused,) = events(await run(make(server), files=files[:1]), "file_unread")
        assert "could not be read" in refused["value"]  # a private address, without a policy that names it
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


class TestModel:
    async def test_litellm_params_are_model_params(self) -> None:
        async with serving(answer()) as server:
            sampling = {"temperature": 0, "seed": 7, "top_p": 0.9, "stop": ["END"], "max_tokens": 99}
            given = {"api_base": server.url, "timeout": 5, "num_retries": 0, "extra_body": {"top_k": 20}, **sampling}
            agent = FunctionCallingAgent("scripted", litellm_params=given, settings=Settings())
            await run(agent)
            sent, before = asked(server)[0], server.requests
            server.fail_next(Failure(times=2))
            failed = (await run(agent))[-1]
        assert stop_of([failed]) == ("model_error", False)
        assert server.requests == before + 1, "num_retries=0 tries once"
        assert {name: sent[name] for name in ("temperature", "seed", "top_p", "stop", "top_k")} == {
            "temperature": 0, "seed": 7, "top_p": 0.9, "stop": ["END"], "top_k": 20,
        }  # fmt: skip
        assert 99 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"model_params": {"top_k": 1}}, "unknown model parameters: top_k; known are: .*extra_body"),
            ({"model_params": {"extra_body": {"messages": []}}}, "may not hold messages"),
            ({"model_params": {}, "litellm_params": {}}, "the same"),
        ]
        for refused, said in wrong:
            with pytest.raises(ValueError, match=said):
                FunctionCallingAgent("m", settings=Settings(), **refused)

    def test_defaults_are_those_that_users_rely_on(self) -> None:
        of_class, of_run = (
            {name: parameter.default for name, parameter in inspect.signature(called).parameters.items()}
            for called in (FunctionCallingAgent, FunctionCallingAgent.run)
        )
        assert list(of_class)[:3] == ["model_name", "tools", "system_prompt"]
        assert {name: of_class[name] for name in list(of_class)[3:8] if name != "model_params"} == {
            "loop_detection_threshold": 3, "max_tool_result_chars": 3000, "one_line_doc": True, "tool_timeout": 30.0,
        }  # fmt: skip
        assert list(of_run)[1:] == [
            "task", "files", "max_iterations", "refine_final_answer", "use_planning", "recurrent_mode",
            "loop_threshold", "chat_history",
        ]  # fmt: skip
        assert (of_run["refine_final_answer"], of_run["use_planning"], of_run["recurrent_mode"]) == (True, True, False)


# --- what agents do that no other test names; `docs/behaviours.md` says where everything else is tested ---


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


# --- `FunctionCallingClient` against a scripted model over HTTP ---


QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "What is 1 + 2?"}]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def adding(a: Any, b: Any) -> Turn:
    return Turn(tool_calls=(("add", {"a": a, "b": b}),))


async def answered(
    *turns: Turn | Failure, messages: Sequence[Any] = QUESTION, system_prompt: str = "Be exact.", **options: Any
) -> tuple[Any, list[dict[str, Any]]]:
    async with ScriptedModelServer(Script.of(*turns)) as server:
        client = FunctionCallingClient(
            "scripted", {"base_url": server.url}, retry_waits=(0.001, 0.001), settings=Settings()
        )
        result = await client.call_with_tools(messages, system_prompt, **{"tools": [add], **options})
        return result, [body for body in server.bodies if body["messages"][0]["content"] != "Say ok."]


async def test_calls_are_executed_and_the_first_reply_without_one_is_the_answer() -> None:
    before = copy.deepcopy(QUESTION)
    result, asked = await answered(adding(1, 2), Turn(content="It is 3."))
    assert set(result) >= {"final_text", "tool_calls_executed", "all_results", "messages", "iterations", "status"}
    assert (result["final_text"], result["status"], result["iterations"]) == ("It is 3.", "success", 2)
    (given,) = result["all_results"]
    call = {"id": given["id"], "tool": "add", "arguments": '{"a": 1, "b": 2}'}
    assert (result["tool_calls_executed"], given) == (1, {**call, "success": True, "result": "3"})
    assert [m["role"] for m in result["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert result["messages"][0]["content"] == "Be exact."
    assert result["messages"][3] == {"role": "tool", "tool_call_id": given["id"], "content": "3"}
    assert result["messages"][-1] == {"role": "assistant", "content": "It is 3."}
    assert [tool["function"]["name"] for tool in asked[0]["tools"]] == ["add"]
    assert before == QUESTION


async def test_definitions_of_registered_tools_are_tools() -> None:
    """What the registry tells a model of its tools can be handed in as it is."""
    definitions: list[Any] = ToolRegistry.get_tool_definitions(["calculator", "file_reader"])
    calling = Turn(tool_calls=(("calculator", {"expression": "1 + 2"}),))
    result, asked = await answered(calling, Turn(content="It is 3."), tools=definitions)
    assert [given["tool"] for given in result["all_results"]] == ["calculator"]
    assert result["all_results"][0]["result"] == "1 + 2 = 3"
    told = [(tool["function"]["name"], tool["function"]["description"]) for tool in asked[0]["tools"]]
    assert told == [(one["function"]["name"], one["function"]["description"]) for one in definitions]


async def test_too_many_turns_get_one_last_reply_without_tools() -> None:
    turns = [adding(number, 1) for number in range(5)]
    result, asked = await answered(*turns, Turn(content="At least 5."))
    assert (result["status"], result["iterations"], result["final_text"]) == ("max_turns_exceeded", 5, "At least 5.")
    assert result["tool_calls_executed"] == len(result["all_results"]) == 5
    assert "tools" not in asked[-1]
    two, _ = await answered(*turns, max_turns=2)
    assert two["iterations"] == 2


async def test_a_failed_call_is_a_result_and_a_model_that_fails_is_an_error_after_three_tries() -> None:
    async with ScriptedModelServer(Script.of(adding("one", 2), Turn(content="I can't."))) as server:
        client = FunctionCallingClient(
            "scripted", {"base_url": server.url}, retry_waits=(0.001, 0.001), settings=Settings()
        )
        async with client:
            given = await client.call_with_tools(QUESTION, tools=[add])
            before = server.requests
            server.fail_next(Failure(times=0))
            result = await client.call_with_tools(QUESTION, tools=[add])
        assert server.requests == before + 3
    (failed,) = given["all_results"]
    assert (failed["success"], given["status"]) == (False, "success")
    assert failed["result"].startswith("Error: argument 'a'")
    assert (result["status"], result["final_text"], result["tool_calls_executed"]) == ("error", "", 0)
    assert "503" in result["error"]


@table(
    ("messages", "options", "said"),
    [
        ([], {}, "messages is empty"),
        ("hello", {}, "messages is a str"),
        (QUESTION, {"max_turns": 0}, "max_turns"),
        ([{"role": "user"}], {}, r"messages\[0\]"),
        (QUESTION, {"tools": [{"type": "function"}]}, "a tool's definition"),
    ],
)
async def test_what_is_refused(messages: Any, options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        await answered(Turn(content="x"), messages=messages, **options)
