"""The model client against a server, over real HTTP."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import ContextTooLong, ModelError, ModelRejected, ModelUnavailable
from swe_ai_fleet.domain.message import (
    AssistantMessage,
    Message,
    ModelCapabilities,
    ModelReply,
    ModelRequest,
    Sampling,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolProtocol,
    UserMessage,
)
from swe_ai_fleet.domain.tool import FOR_PROGRAMS, OperationSpec
from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, Turn

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
LOOK = OperationSpec(name="files_look", tool="files", operation="look", description="Look.", parameters=PARAMETERS)
WRITE = OperationSpec(name="files_write", tool="files", operation="write", description="Write.", parameters=PARAMETERS)
TOOLS = (LOOK, WRITE)
OPENING: tuple[Message, ...] = (SystemMessage(content="You are an agent."), UserMessage(content="Fix it."))
PROBES = 1
KEY = "sk-very-secret"


def client(url: str, **options: Any) -> OpenAIChatModel:
    settings: dict[str, Any] = {"base_url": url, "retry_wait_seconds": 0.001, "timeout_seconds": 5.0, **options}
    return OpenAIChatModel(**settings)


async def ask(model: OpenAIChatModel, messages: tuple[Message, ...] = OPENING, seed: int | None = None) -> ModelReply:
    return await model.reply(ModelRequest(messages, TOOLS, Sampling(seed=seed)))


def call(call_id: str, model_call_id: str) -> ToolCall:
    return ToolCall(call_id=call_id, model_call_id=model_call_id, name="files_look", arguments="{}")


@asynccontextmanager
async def bare_server(
    chat: Callable[[web.Request], Awaitable[web.StreamResponse]], models: web.Response | None = None
) -> AsyncGenerator[str]:
    """A server with odd answers; without `models` it has no such route."""

    async def on_models(request: web.Request) -> web.StreamResponse:
        assert models is not None
        return web.Response(status=models.status, body=models.body, content_type=models.content_type)

    application = web.Application()
    application.router.add_post("/v1/chat/completions", chat)
    if models is not None:
        application.router.add_get("/v1/models", on_models)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def completion(**message: object) -> web.Response:
    return web.json_response({"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}]})


# What goes out and what comes back


async def test_parallel_calls_usage_and_the_way_back() -> None:
    script = Script.of(
        Turn(
            content="I look.",
            tool_calls=(("files_look", {"path": "ä"}), ("files_write", "{not json")),
            usage=Usage(prompt_tokens=100, completion_tokens=20, cached_tokens=60),
        ),
        Turn(content="Done."),
    )
    async with ScriptedModelServer(script, model="m1") as server, client(server.url) as model:
        first = await model.reply(ModelRequest(OPENING, TOOLS, Sampling(temperature=0.5, seed=7, max_tokens=99)))
        assert first.message.content == "I look."
        assert first.finish_reason == "tool_calls"
        assert first.model == "m1"
        one, two = first.message.tool_calls
        assert (one.name, json.loads(one.arguments)) == ("files_look", {"path": "ä"})
        assert (two.name, two.arguments) == ("files_write", "{not json")
        assert one.call_id != two.call_id
        assert (one.model_call_id, two.model_call_id) == ("call_0_0", "call_0_1")
        usage = first.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (100, 20, 60)
        assert usage.model_calls == 1
        observed = (
            ToolMessage(call_id=one.call_id, content="x = 1"),
            ToolMessage(call_id=two.call_id, content="Error: bad"),
        )
        second = await model.reply(ModelRequest((*OPENING, first.message, *observed), TOOLS, Sampling(seed=7)))
        assert (second.message.content, second.finish_reason, second.message.tool_calls) == ("Done.", "stop", ())
        opened, went_on = server.bodies[-2:]
    given = {"model": "m1", "temperature": 0.5, "seed": 7, "max_tokens": 99}
    assert opened | given == opened
    assert "temperature" not in went_on
    function = {"name": "files_look", "description": "Look.", "parameters": PARAMETERS, "strict": True}
    assert opened["tools"][0]["function"] == function
    assert went_on["messages"][:2] == opened["messages"]
    assert [entry["id"] for entry in went_on["messages"][2]["tool_calls"]] == ["call_0_0", "call_0_1"]
    assert went_on["messages"][3:] == [
        {"role": "tool", "tool_call_id": "call_0_0", "content": "x = 1"},
        {"role": "tool", "tool_call_id": "call_0_1", "content": "Error: bad"},
    ]


async def test_what_can_be_left_out_is_not_offered_as_null_nor_what_is_for_programs() -> None:
    left_out = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None, "description": "Last."}
    told = {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}], "default": None}
    needed = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    properties: dict[str, object] = {"end": left_out, "both": told, "must": needed, "any": True}
    properties["sum"] = {"type": "string", FOR_PROGRAMS: True}
    parameters = {"type": "object", "properties": properties, "required": ["must"]}
    spec = replace(TOOLS[0], parameters=parameters)
    async with ScriptedModelServer(Script.of(Turn(content="Done."))) as server, client(server.url) as model:
        await model.reply(ModelRequest(OPENING, (spec,)))
        sent = server.bodies[-1]["tools"][0]["function"]["parameters"]
    assert sent["properties"] == {
        "end": {"type": "integer", "minimum": 1, "description": "Last."},
        "both": told,
        "must": needed,
        "any": True,
    }
    assert spec.parameters == parameters


@pytest.mark.parametrize("model_ids", [("same", "same"), ("", ""), ("x", "new")])
async def test_every_id_on_the_wire_is_unique_and_answered(model_ids: tuple[str, str]) -> None:
    script = Script.of(
        *(Turn(content="so"), Turn(content="so")),
        Turn(tool_calls=(("files_look", {}), ("files_look", {})), call_ids=model_ids),
    )
    # A history from elsewhere that repeats an id.
    history: tuple[Message, ...] = (
        *OPENING,
        AssistantMessage(tool_calls=(call("a", "x"), call("b", "x"))),
        ToolMessage(call_id="b", content="b"),
        ToolMessage(call_id="a", content="a"),
        AssistantMessage(content="so"),
    )
    async with ScriptedModelServer(script) as server, client(server.url) as model:
        reply = await ask(model, history)
        answers = (ToolMessage(call_id=one.call_id, content="2") for one in reply.message.tool_calls)
        await ask(model, (*history, reply.message, *answers))
        wire = server.bodies[-1]["messages"]
        # The same messages behind a shorter history: what was written for the longer one must not be reused.
        other = (*OPENING, AssistantMessage(tool_calls=(call("c", "x"),)), *history[2:])
        await ask(model, other)
        second = server.bodies[-1]["messages"]
    asked = [entry["id"] for message in wire for entry in message.get("tool_calls", [])]
    answered = [message["tool_call_id"] for message in wire if message["role"] == "tool"]
    assert (asked[:2], answered[:2]) == (["x", "b"], ["b", "x"])
    assert len(set(asked)) == 4 and asked[2:] == answered[2:]
    assert [entry["id"] for entry in second[3]["tool_calls"]] == ["a", "b"]
    assert [message["tool_call_id"] for message in second[4:6]] == ["b", "a"]


# The probe


async def test_the_probe_is_asked_once_by_many() -> None:
    async with ScriptedModelServer(Script(), max_model_len=4321) as server, client(server.url) as model:
        found = await asyncio.gather(*(model.probe() for _ in range(20)))
        expected = ModelCapabilities(
            model="scripted", max_model_len=4321, strict_schemas=True, structured_output=True, server="scripted"
        )
        assert found == [expected] * 20
        assert server.requests == PROBES


@pytest.mark.parametrize(
    ("options", "protocol", "strict", "probes"),
    [
        ({}, ToolProtocol.NATIVE, True, 1),
        ({"strict_schemas": False}, ToolProtocol.NATIVE, False, 2),
        ({"native_tools": False, "json_schema": "obeyed"}, ToolProtocol.JSON, False, 2),
        ({"native_tools": False, "json_schema": "ignored"}, ToolProtocol.TEXT, False, 2),
        ({"native_tools": False, "json_schema": "refused"}, ToolProtocol.TEXT, False, 2),
    ],
)
async def test_the_probe_finds_out(options: dict[str, Any], protocol: ToolProtocol, strict: bool, probes: int) -> None:
    async with ScriptedModelServer(Script(), **options) as server, client(server.url) as model:
        found = await model.probe()
        assert (found.protocol, found.strict_schemas) == (protocol, strict)
        assert found.structured_output is (protocol is not ToolProtocol.TEXT)
        assert found.parallel_tools
        assert server.requests == probes
        assert (await ask(model)).message.content == "Done."
        body = server.bodies[-1]
        tools = body.get("tools", [])
        assert bool(tools) is found.native_tools
        assert all(("strict" in tool["function"]) is strict for tool in tools)
        assert ("response_format" in body) is (protocol is ToolProtocol.JSON)


@pytest.mark.parametrize(
    ("status", "text", "native"),
    [
        (400, "registry.ollama.ai/library/phi does not support tools", False),
        (500, "tools param requires --jinja flag", False),
        (404, "No endpoints found that support tool use", False),
        (422, "", False),
        (400, "Unknown name strict: Cannot find field.", True),
        (400, "Invalid JSON payload received.", True),
    ],
)
async def test_the_probe_understands_refusals(status: int, text: str, native: bool) -> None:
    async def chat(request: web.Request) -> web.Response:
        tools = (await request.json()).get("tools", [])
        if tools and (not native or "strict" in tools[0]["function"]):
            return web.json_response([{"error": {"message": text, "code": status}}], status=status)
        return completion(content="fine")

    async with bare_server(chat) as url, client(url, model="m") as model:
        expected = ToolProtocol.NATIVE if native else ToolProtocol.TEXT
        assert await model.probe() == ModelCapabilities(model="m", protocol=expected, structured_output=native)
        assert (await ask(model)).message.content == "fine"


LISTED = [
    {"id": ""},
    {"id": "odd", "context_length": "long", "context_window": 9, "capabilities": {"vision": True}, "owned_by": None},
    {"name": "x"},
    None,
]
PICTURES = [{"id": "m", "max_model_len": -1, "architecture": {"input_modalities": ["text", "image"]}}]


async def test_a_list_of_models_is_read_as_far_as_it_can_be_and_parameters_may_be_refused() -> None:
    seen: list[dict[str, Any]] = []
    refused = "parallel_tool_calls"

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        if refused in body:
            text = f"Unsupported parameter: '{refused}' is not supported. Use 'max_completion_tokens' instead."
            return web.json_response({"error": {"message": text, "param": refused}}, status=400)
        seen.append(body)
        return completion(content=body["model"])

    async with bare_server(chat, web.json_response({"data": LISTED})) as url, client(url) as model:
        found = await model.probe()
        assert (found.model, found.max_model_len, found.images) == ("odd", 9, True)
        assert (found.native_tools, found.strict_schemas, found.parallel_tools) == (True, True, False)
    refused = "max_tokens"
    async with bare_server(chat, web.json_response({"data": PICTURES})) as url, client(url) as model:
        found = await model.probe()
        assert (found.max_model_len, found.images, found.strict_schemas) == (0, True, True)
        await model.reply(ModelRequest(OPENING, (), Sampling(max_tokens=5)))
        assert seen[-1]["max_completion_tokens"] == 5
    for models in (web.json_response({"data": []}), None, web.Response(text="<html>", content_type="text/html")):
        async with bare_server(chat, models) as url:
            async with client(url) as model:
                with pytest.raises(ModelRejected) as raised:
                    await ask(model)
                assert raised.value.field in ("model", "model_url")
            async with client(url, model="mine") as model:
                assert (await ask(model)).message.content == "mine"


# Faults


@pytest.mark.parametrize(
    ("failure", "kind", "field"),
    [
        (Failure(status=400, message="too much", param="input_tokens"), ContextTooLong, ""),
        (Failure(status=400, code="context_length_exceeded"), ContextTooLong, ""),
        (Failure(status=400, message="This model's maximum context length is 8 tokens."), ContextTooLong, ""),
        (Failure(status=400, message="The input token count exceeds the maximum number of tokens"), ContextTooLong, ""),
        (Failure(status=404, message="The model `x` does not exist."), ModelRejected, "model"),
        (Failure(status=404, body='{"detail": "Not Found"}'), ModelRejected, "model_url"),
        (Failure(status=401, message=f"bad key {KEY}"), ModelRejected, "model_api_key"),
        (Failure(status=429, code="insufficient_quota"), ModelRejected, "model_api_key"),
        (Failure(status=400, message="temperature must be at most 2"), ModelRejected, ""),
        (Failure(status=422, body="[1]"), ModelRejected, ""),
    ],
)
async def test_what_no_retry_can_help_is_raised_at_once(failure: Failure, kind: type[ModelError], field: str) -> None:
    async with ScriptedModelServer(Script(), api_key=KEY) as server, client(server.url, api_key=KEY) as model:
        await model.probe()
        server.fail_next(failure)
        with pytest.raises(kind) as raised:
            await ask(model)
        assert raised.value.field == field
        assert KEY not in str(raised.value)
        assert server.requests == PROBES + 1
        assert (await ask(model)).message.content == "Done."


@pytest.mark.parametrize(
    "failure",
    [
        Failure(status=503),
        Failure(status=500, body="<html>oops</html>"),
        Failure(status=429),
        Failure(status=429, retry_after_seconds=0.01),
        Failure(status=408),
        Failure(drop=True),
        Failure(status=200, body="not json"),
        Failure(status=200, body='{"choices": []}'),
        Failure(status=200, body='{"choices": [{"message": "no object"}]}'),
        Failure(status=200, body='{"error": {"message": "overloaded"}}'),
        Failure(status=200, body=""),
    ],
)
async def test_what_may_pass_is_retried_and_given_up(failure: Failure) -> None:
    async with ScriptedModelServer(Script()) as server, client(server.url) as model:
        await model.probe()
        server.fail_next(failure)
        assert (await ask(model)).message.content == "Done."
        assert server.requests == PROBES + 2

        server.fail_next(replace(failure, times=3))
        with pytest.raises(ModelUnavailable) as raised:
            await ask(model)
        assert server.requests == PROBES + 5
        assert server.url in raised.value.message
        assert (await ask(model)).message.content == "Done."


async def test_a_user_in_the_url_is_sent_unless_there_is_a_key_and_not_shown() -> None:
    seen: list[str] = []

    async def chat(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return completion()

    async with bare_server(chat) as url:
        with_user = url.replace("//", "//me:secret@")
        for key in ("", KEY):
            async with client(with_user, model="m", api_key=key) as model:
                await ask(model)
    assert set(seen) == {"Basic bWU6c2VjcmV0", f"Bearer {KEY}"}
    async with client(with_user, model="m") as model:
        with pytest.raises(ModelUnavailable) as raised:
            await ask(model)
    assert url in raised.value.message and "secret" not in str(raised.value)


async def test_cancelling_ends_the_request_and_nothing_else() -> None:
    late = Conversation(match="Fix it.", turns=(Turn(content="late", delay_seconds=30),))
    async with ScriptedModelServer(Script(conversations=(late,))) as server, client(server.url) as model:
        await model.probe()
        waiting = asyncio.create_task(ask(model))
        async with asyncio.timeout(5):
            await server.wait_until(in_flight=1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            # The server hears of it, so that it can stop generating.
            await server.wait_until(in_flight=0)


async def test_a_ping_is_one_question_and_is_not_repeated_at_once() -> None:
    async with ScriptedModelServer(Script()) as server:
        async with OpenAIChatModel(base_url=server.url) as model:
            await model.ping()
            asked = server.requests
            await model.ping()
            assert server.requests == asked
        async with OpenAIChatModel(base_url=server.url, api_key="wrong") as model:
            await model.ping()
    async with OpenAIChatModel(base_url=server.url, retry_wait_seconds=60) as model:
        with pytest.raises(ModelUnavailable, match="cannot be reached") as down:
            await model.ping()
    assert down.value.field == "model_url" and "ssl" not in str(down.value)
    assert down.value.hint == "start the server, or name another one"
