"""The model client over real HTTP: requests, probes, faults, the three protocols, structured replies and streams."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import ContextTooLong, ModelError, ModelRejected, ModelUnavailable
from swe_ai_fleet.domain.message import (
    Message,
    ModelReply,
    ModelRequest,
    SampledTokens,
    Sampling,
    SystemMessage,
    ToolMessage,
    ToolProtocol,
    UserMessage,
)
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.runtime.factories import open_model
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, Turn
from tests.tables import table

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
LOOK = OperationSpec(name="files_look", tool="files", operation="look", description="Look.", parameters=PARAMETERS)
WRITE = OperationSpec(name="files_write", tool="files", operation="write", description="Write.", parameters=PARAMETERS)
TOOLS = (LOOK, WRITE)
OPENING: tuple[Message, ...] = (SystemMessage(content="You are an agent."), UserMessage(content="Fix it."))
PROBES = 1
KEY = "sk-very-secret"


def client(server: ScriptedModelServer | str, **options: Any) -> OpenAIChatModel:
    url = server if isinstance(server, str) else server.url
    settings: dict[str, Any] = {"base_url": url, "timeout_seconds": 5.0, **options}
    return OpenAIChatModel(**settings)


async def ask(model: OpenAIChatModel, messages: tuple[Message, ...] = OPENING, seed: int | None = None) -> ModelReply:
    return await model.reply(ModelRequest(messages, TOOLS, Sampling(seed=seed)))


@asynccontextmanager
async def bare_server(chat: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncGenerator[str]:
    """A server with odd answers."""
    application = web.Application()
    application.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def completion(**message: object) -> web.Response:
    return web.json_response({"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}]})


# The probe


@table(
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
    async with ScriptedModelServer(Script(), **options) as server, client(server) as model:
        found = await model.probe()
        assert (found.protocol, found.strict_schemas) == (protocol, strict)
        assert found.structured_output is (protocol is not ToolProtocol.TEXT)
        assert found.parallel_tools
        assert server.requests == probes
        assert (await ask(model)).message.content == "Done."
        body = server.bodies[-1]
        tools = body.get("tools", [])
        assert bool(tools) is (found.protocol == "native")
        assert all(("strict" in tool["function"]) is strict for tool in tools)
        assert ("response_format" in body) is (protocol is ToolProtocol.JSON)


# Faults


@table(
    ("failure", "kind", "field"),
    [
        (Failure(status=400, message="too much", param="input_tokens"), ContextTooLong, ""),
        (Failure(status=400, message="This model's maximum context length is 8 tokens."), ContextTooLong, ""),
        (Failure(status=404, message="The model `x` does not exist."), ModelRejected, "model"),
        (Failure(status=404, body='{"detail": "Not Found"}'), ModelRejected, "model_url"),
        (Failure(status=401, message=f"bad key {KEY}"), ModelRejected, "model_api_key"),
        (Failure(status=429, code="insufficient_quota"), ModelRejected, "model_api_key"),
        (Failure(status=400, message="temperature must be at most 2"), ModelRejected, ""),
    ],
)
async def test_what_no_retry_can_help_is_raised_at_once(failure: Failure, kind: type[ModelError], field: str) -> None:
    async with ScriptedModelServer(Script(), api_key=KEY) as server, client(server, api_key=KEY) as model:
        await model.probe()
        server.fail_next(failure)
        with pytest.raises(kind) as raised:
            await ask(model)
        assert raised.value.field == field
        assert KEY not in str(raised.value)
        assert server.requests == PROBES + 1
        assert (await ask(model)).message.content == "Done."


@table(
    "failure",
    [
        Failure(status=503),
        Failure(drop=True),
        Failure(status=200, body="not json"),
        Failure(status=200, body='{"error": {"message": "overloaded"}}'),
    ],
)
async def test_what_may_pass_is_told_as_such_and_not_tried_again(failure: Failure) -> None:
    async with ScriptedModelServer(Script()) as server, client(server) as model:
        await model.probe()
        server.fail_next(failure)
        with pytest.raises(ModelUnavailable) as raised:
            await ask(model)
        assert server.requests == PROBES + 1
        assert server.url in raised.value.message
        assert (await ask(model)).message.content == "Done."


async def test_the_calls_of_a_run_carry_one_id_that_says_nothing_of_it_where_routers_look() -> None:
    seen: list[dict[str, str]] = []

    async def chat(request: web.Request) -> web.Response:
        seen.append({name.lower(): value for name, value in request.headers.items()})
        return completion(content="x")

    names = ("x-session-id", "x-session-affinity", "x-smg-routing-key")
    async with bare_server(chat) as url:
        asked = Settings(model_url=url, model="m")
        async with open_model(asked) as pool, open_model(asked) as elsewhere:
            await ask(pool.session("an-execution/agent-1", tenant="acme"))
            seen.clear()
            for model in (pool, elsewhere):
                await ask(model.session("an-execution/agent-1", tenant="acme"))
            for model in (pool.session("an-execution/agent-2"), pool, pool):
                await ask(model)
        calls = [{headers[name] for name in names} for headers in seen if "x-session-id" in headers]
        # Another process tells the same; calls that belong to no run go wherever they like.
        ids = [value for (value,) in calls[-6:]]
        assert len(set(ids)) == 4 and ids.count(ids[-5]) == 2, ids
        assert all(len(value) == 32 and not {"agent", "acme", "execution"} & set(value.split("-")) for value in ids)


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


SPENT = Usage(prompt_tokens=100, completion_tokens=20, cached_tokens=60)
CALLS = Turn(
    content="I look at ä 😀.",
    tool_calls=(("files_look", {"path": "ä" * 50}), ("files_write", {"path": "b"})),
    usage=SPENT,
)
PROTOCOLS: dict[str, dict[str, Any]] = {
    "native": {},
    "json": {"native_tools": False, "json_schema": "obeyed"},
    "text": {"native_tools": False},
}


def script(*turns: Turn | Failure) -> Script:
    """For the task of these tests; the probe gets a reply of its own."""
    return Script(conversations=(Conversation(match="Fix it.", turns=turns),))


def essence(reply: ModelReply) -> object:
    calls = [(call.name, json.loads(call.arguments)) for call in reply.message.tool_calls]
    return reply.message.content, calls, reply.finish_reason, reply.repairs, reply.usage.total_tokens


# The protocols


@table("protocol", PROTOCOLS)
async def test_the_same_history_and_the_same_calls_in_every_protocol(protocol: str) -> None:
    turns = script(CALLS, Turn(content="Done."))
    async with ScriptedModelServer(turns, **PROTOCOLS[protocol]) as server, client(server) as model:
        assert (await model.probe()).protocol == ToolProtocol(protocol)
        first = await model.reply(ModelRequest(OPENING, TOOLS, Sampling(temperature=0.5, seed=3, max_tokens=99)))
        assert essence(first) == (
            CALLS.content,
            [("files_look", {"path": "ä" * 50}), ("files_write", {"path": "b"})],
            "tool_calls",
            (),
            120,
        )
        one, two = first.message.tool_calls
        history = (
            *OPENING,
            first.message,
            ToolMessage(call_id=one.call_id, content="saw a"),
            ToolMessage(call_id=two.call_id, content="wrote b"),
        )
        second = await model.reply(ModelRequest(history, TOOLS, Sampling(seed=3)))
        assert (second.message.content, second.message.tool_calls, second.finish_reason) == ("Done.", (), "stop")
        opened, went_on = server.bodies[-2:]
    assert opened | {"temperature": 0.5, "seed": 3, "max_tokens": 99} == opened and "temperature" not in went_on
    assert went_on["messages"][:2] == opened["messages"]
    assert went_on.get("response_format") == opened.get("response_format")


# Streams


@table("protocol", PROTOCOLS)
@table("characters", [1, 10_000])
async def test_a_streamed_reply_is_the_same_reply(protocol: str, characters: int) -> None:
    said: list[str] = []
    options: dict[str, Any] = {**PROTOCOLS[protocol], "stream_characters": characters}
    async with ScriptedModelServer(script(CALLS), **options) as server, client(server) as model:
        plain = await model.reply(ModelRequest(OPENING, TOOLS))
        streamed = await model.reply(ModelRequest(OPENING, TOOLS, on_delta=said.append))
        assert server.bodies[-1]["stream_options"] == {"include_usage": True}
        assert "stream" not in server.bodies[-2]
    assert essence(streamed) == essence(plain)
    assert [call.model_call_id for call in streamed.message.tool_calls if protocol == "native"] == [
        call.model_call_id for call in plain.message.tool_calls if protocol == "native"
    ]
    assert streamed.usage.cached_tokens == 60
    if protocol != "text":
        assert "".join(said) == CALLS.content
    assert len(said) > 10 or characters > 1


async def test_a_stream_that_breaks_off_is_a_fault_and_the_next_one_begins_anew() -> None:
    said: list[str] = []
    turn = Turn(content="a" * 10 + "b" * 10)
    broken = (Failure(drop=True, after_chunks=2), Failure(status=503, message="dying", after_chunks=3))
    async with ScriptedModelServer(script(*broken, turn), stream_characters=10) as server, client(server) as model:
        for _ in broken:
            with pytest.raises(ModelUnavailable) as raised:
                await model.reply(ModelRequest(OPENING, TOOLS, on_delta=said.append))
            assert raised.value.field == "model_url"
        reply = await model.reply(ModelRequest(OPENING, TOOLS, on_delta=said.append))
        assert reply.message.content == turn.content
        assert said == ["a" * 10, "a" * 10, "b" * 10, "a" * 10, "b" * 10]
        assert server.requests == 1 + 3


@table("streams", [True, False])
async def test_an_answer_without_end_is_not_taken(streams: bool) -> None:
    async def chat(request: web.Request) -> web.StreamResponse:
        if (await request.json())["messages"][0]["content"] == "Say ok.":
            return web.json_response({"choices": [{"message": {"content": "ok"}}]})
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"data: " + b" " * 1024 * 1024)
        return response

    async with bare_server(chat) as url, client(url, model="m") as model:
        with pytest.raises(ModelUnavailable, match="did not answer with a completion"):
            await model.reply(ModelRequest(OPENING, on_delta=(lambda _: None) if streams else None))


@table("streams", [False, True])
@table("protocol", ["native", "json", "text"])
async def test_each_token_comes_with_its_id_and_log_probability(protocol: str, streams: bool) -> None:
    tokens: list[SampledTokens] = []
    on_delta = (lambda _: None) if streams else None
    asked = ModelRequest(OPENING, TOOLS, on_delta=on_delta, on_tokens=tokens.append)
    async with ScriptedModelServer(script(CALLS), **PROTOCOLS[protocol]) as server, client(server) as model:
        reply = await model.reply(asked)
        prompt, total = reply.usage.prompt_tokens, reply.usage.total_tokens
        whole = SampledTokens(
            prompt_token_ids=tuple(range(prompt)),
            completion_token_ids=tuple(range(prompt, total)),
            logprobs=tuple(-number / 1024 for number in range(prompt, total)),
        )
        assert tokens == [whole] and len(reply.message.tool_calls) == 2 and not reply.repairs
        # A verifier's question has log-probabilities of its own shape; nobody who does not ask is given tokens.
        await model.reply(ModelRequest(OPENING, TOOLS))
        assert len(tokens) == 1 and "return_token_ids" not in server.bodies[-1]


TOKENS = {"prompt_token_ids": [1, 2], "token_ids": [3, 4], "logprobs": {"content": [{"logprob": -1}, {"logprob": -2}]}}


@table(
    ("given", "read"),
    [
        ({}, ((3, 4), (-1.0, -2.0))),
        ({"logprobs": None}, ((3, 4), ())),
        ({"token_ids": [3, -4]}, None),
    ],
)
async def test_tokens_that_do_not_match_one_by_one_are_left_out(
    given: dict[str, Any], read: tuple[tuple[int, ...], tuple[float, ...]] | None
) -> None:
    tokens: list[SampledTokens] = []
    fields = TOKENS | given
    choice = {"message": {"content": "Yes"}, "finish_reason": "stop", **fields}
    body = json.dumps({"choices": [choice], "prompt_token_ids": fields["prompt_token_ids"]})
    async with ScriptedModelServer(script(Turn(content="yes"))) as server, client(server) as model:
        await model.probe()
        server.fail_next(Failure(status=200, body=body))
        reply = await model.reply(ModelRequest(OPENING, on_tokens=tokens.append))
    assert [(each.completion_token_ids, each.logprobs) for each in tokens] == ([] if read is None else [read])
    matched = read is None or bool(read[1]) or given.get("logprobs", ...) is None
    assert any("log-probabilities" in repair for repair in reply.repairs) is not matched
