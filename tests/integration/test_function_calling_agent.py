"""The function-calling agent over HTTP against a scripted model: what it tells, asks and is given."""

from __future__ import annotations

import asyncio
import base64
import copy
import inspect
import json
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_ai_fleet import FunctionCallingAgent
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Failure, Turn
from swe_ai_fleet.tools import HttpPolicy
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
