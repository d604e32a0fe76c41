"""Each provider's preset against a double on loopback that answers, and refuses, as that provider does."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from swe_ai_fleet.domain.errors import InvalidRequest, ModelRejected
from swe_ai_fleet.domain.message import ModelRequest, Sampling, ToolMessage, UserMessage
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.runtime import model_servers
from swe_ai_fleet.runtime.factories import open_model
from swe_ai_fleet.runtime.model_servers import PROVIDERS, ModelServers
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.script import Script, Turn
from tests.model_servers import play
from tests.tables import table

Refuse = Callable[[Mapping[str, Any]], web.Response | None]


def refusal(answered: int, message: str, *, listed: bool = False, **more: str) -> web.Response:
    error: Any = {"error": {"message": message, **more}}
    return web.json_response([error] if listed else error, status=answered)


def no_unknown_names(body: Mapping[str, Any]) -> web.Response | None:
    """Gemini names the field that it has not, in an error inside a list."""
    for name in ("parallel_tool_calls", "logprobs"):
        if name in body:
            said = f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
            return refusal(400, said, listed=True, status="INVALID_ARGUMENT")
    return None


@dataclass(kw_only=True)
class Provider:
    """How one of them differs. `chunks` are the deltas of a call, `finish` how it ends."""

    asked: str
    served: str
    key: str = ""
    models: object = None
    chunks: tuple[Mapping[str, Any], ...] = ()
    finish: str = "tool_calls"
    refuse: Refuse = lambda _: None
    unknown: Callable[[], web.Response] = lambda: refusal(404, "The model `other` does not exist")
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return refusal(401, "wrong key")
        if request.method == "GET":
            return web.json_response(self.models) if self.models else refusal(404, "no list")
        body = await request.json()
        self.bodies.append(body)
        if body["model"] != self.served:
            return self.unknown()
        if (refused := self.refuse(body)) is not None:
            return refused
        if not body.get("stream"):
            message = {"role": "assistant", "content": None, "tool_calls": [ADD_CALL]}
            choice = {"index": 0, "message": message, "finish_reason": self.finish}
            return web.json_response({"choices": [choice], "usage": USAGE})
        events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in self.chunks]
        events[-1]["choices"][0]["finish_reason"] = self.finish
        # The bill comes with the last piece, or behind it.
        events = [*events[:-1], {**events[-1], "usage": USAGE}] if self.served.startswith("accounts") else [
            *events, {"choices": [], "usage": USAGE},
        ]  # fmt: skip
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        return web.Response(text=text, content_type="text/event-stream")


ADD = OperationSpec(
    tool="numbers", operation="add", name="add", description="Add two numbers.", read_only=True,
    parameters={
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
    },
)  # fmt: skip
ARGUMENTS = '{"a": 2, "b": 3}'
ADD_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": ARGUMENTS}}
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
LLAMA = "accounts/fireworks/models/llama-v3p3-70b-instruct"
DOUBLES: Mapping[str, Callable[[], Provider]] = {
    # Calls without id and index, and "stop"; models are listed under another name.
    "gemini": lambda: Provider(
        asked="gemini-2.0-flash-lite", served="gemini-2.0-flash-lite", key="k-gemini", finish="stop",
        chunks=({"tool_calls": [{"id": "", "function": ADD_CALL["function"]}]},), refuse=no_unknown_names,
        models={"data": [{"id": "models/gemini-2.0-flash-lite", "owned_by": "google"}]},
        unknown=lambda: refusal(404, "models/other is not found", listed=True, status="NOT_FOUND"),
    ),
    # No list of models; a short name is completed.
    "fireworks": lambda: Provider(
        asked="llama-v3p3-70b-instruct", served=LLAMA, key="k-fireworks",
        chunks=({"role": "assistant"}, {"tool_calls": [ADD_CALL]}),
    ),
}  # fmt: skip


@asynccontextmanager
async def serving(name: str, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Provider]:
    """The double of a provider, where the preset says that it is."""
    double, app = DOUBLES[name](), web.Application()
    app.router.add_route("*", "/v1/{path:.*}", double.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        preset = replace(PROVIDERS[name], base_url=f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        monkeypatch.setattr(model_servers, "PROVIDERS", {**PROVIDERS, name: preset})
        for variable in ("FLEET_MODEL_URL", "VLLM_URL", "FLEET_MODEL_API_KEY"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv(f"{name.upper()}_API_KEY", double.key)
        yield double
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("name", DOUBLES)
async def test_a_preset_calls_tools_streamed_or_not_and_goes_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(name, monkeypatch) as double, open_model(Settings(model=f"{name}/{double.asked}")) as model:
        heard: list[str] = []
        messages: list[Any] = [UserMessage(content="What is 2 + 3?")]
        for on_delta in (None, heard.append):
            reply = await model.reply(ModelRequest(messages, (ADD,), Sampling(max_tokens=99), on_delta=on_delta))
            (call,) = reply.message.tool_calls
            assert (call.name, json.loads(call.arguments), reply.finish_reason) == (
                "add",
                {"a": 2, "b": 3},
                "tool_calls",
            )
            assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (7, 5)
            messages += [reply.message, ToolMessage(call_id=call.call_id, content="5")]
        sent = double.bodies[-1]["messages"]
        ids = [message["tool_calls"][0]["id"] for message in sent if message["role"] == "assistant"]
        # Each call goes back under an id of its own, which its result names, also where the provider gave none.
        assert ids == [message["tool_call_id"] for message in sent if message["role"] == "tool"][: len(ids)]
        assert all(ids)


async def test_what_a_provider_refuses_is_said_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving("gemini", monkeypatch) as double, open_model(Settings(model="gemini/other")) as model:
        with pytest.raises(ModelRejected, match="other") as refused:
            await model.reply(ModelRequest([UserMessage(content="Hi")]))
        assert refused.value.field == "model" and double.bodies


async def test_a_fireworks_key_alone_selects_fireworks(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving("fireworks", monkeypatch) as double, open_model(Settings()) as model:
        await model.reply(ModelRequest([UserMessage(content="Hi")], (ADD,)))
        assert {body["model"] for body in double.bodies} == {LLAMA}


async def test_a_url_that_wins_against_a_prefix_is_said() -> None:
    with capture_logs() as logs:
        async with open_model(Settings(model="gemini/g", model_url="http://10.9.9.9:1/v1")):
            pass
    [found] = [entry for entry in logs if entry["event"] == "model.provider_not_asked"]
    assert found["server"] == "http://10.9.9.9:1/v1" and "gemini" in found["reason"]


# --- thirty model servers that come, go, drain, die and saturate, over real HTTP; found by a file, by DNS, by a router


DONE = Script.of(Turn(content="done"))
FOLLOWING = """
import asyncio, json, sys
from swe_ai_fleet.runtime.factories import open_model
from swe_ai_fleet.settings import Settings

async def main():
    async with open_model(Settings(model_url=sys.argv[1], model="scripted"), look_every=0.05) as pool:
        told = None
        while True:
            names = sorted(one.name for one in pool.status().endpoints if one.circuit != "open")
            if names != told:
                told = names
                print(json.dumps(names), flush=True)
            await asyncio.sleep(0.02)

asyncio.run(main())
"""


async def test_thirty_servers_that_come_go_die_and_saturate_lose_nothing_and_keep_caches_warm(tmp_path: Path) -> None:
    outcome, what = await play(tmp_path, agents=60, steps=6)
    assert outcome.failures == []
    assert outcome.replies == 80 * 6
    # Of whoever moved nearly all had to: their server left, died or had no room. The newcomers drew nobody away.
    had_to = {server.url for server in (*what.drained, *what.died, *what.busy)}
    moves = outcome.moves
    assert sum(count for url, count in moves.items() if url in had_to) >= 0.9 * moves.total() > 0
    assert outcome.hits > 0.6
    # Those that came later have work, those that were drained end what they had.
    assert all(server.requests for server in what.came)
    assert [server.in_flight for server in what.drained] == [0] * len(what.drained)


@pytest.mark.slow  # quick: a list of servers
async def test_the_addresses_of_a_name_are_followed(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"

    def point(*numbers: int) -> None:
        hosts.write_text("".join(f"127.0.0.{number} models.test\n" for number in numbers))

    point(1, 2)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(ScriptedModelServer(DONE))
        port = int(first.url.split(":")[2].split("/")[0])
        for number in (2, 3):
            await stack.enter_async_context(ScriptedModelServer(DONE, host=f"127.0.0.{number}", port=port))
        process = await asyncio.create_subprocess_exec(
            *("bwrap", "--dev-bind", "/", "/", "--bind", str(hosts), "/etc/hosts", "--die-with-parent"),
            *(sys.executable, "-c", FOLLOWING, f"dns+http://models.test:{port}/v1"),
            stdout=asyncio.subprocess.PIPE,
        )
        stack.callback(process.kill)

        async def asked_at(*numbers: int) -> None:
            wanted = [f"http://127.0.0.{number}:{port}/v1" for number in numbers]
            assert process.stdout is not None
            async with asyncio.timeout(60):
                while json.loads(await process.stdout.readline()) != wanted:
                    pass

        await asked_at(1, 2)
        point(2, 3)
        await asked_at(2, 3)
        # A name without an address says nothing: those that are known stay.
        point()
        point(1, 2, 3)
        await asked_at(1, 2, 3)


@pytest.mark.parametrize(
    ("text", "mode", "found"),
    [
        ("http://a:1/v1 # one\n\n# two\nhttps://b/v1\n", 0o640, ["http://a:1/v1", "https://b/v1"]),
        ('["http://a:1/v1", "http://a:1/v1"]', 0o600, ["http://a:1/v1"]),
        ("http://a:1/v1", 0o602, ["http://old:1/v1"]),
        ("http://user:secret@a:1/v1", 0o600, ["http://old:1/v1"]),
        (f"http://a:1/v1 #{'x' * 300_000}", 0o600, ["http://old:1/v1"]),
    ],
)
async def test_a_list_of_servers_is_read_whole_or_not_at_all(
    text: str, mode: int, found: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "servers"
    path.write_text("http://old:1/v1")
    servers = ModelServers(settings=Settings(model_url=f"file:{path}"))
    assert [one.base_url for one in await servers.look()] == ["http://old:1/v1"]
    path.write_text(text)
    path.chmod(mode)
    assert [one.base_url for one in await servers.look()] == found
    path.unlink()
    assert [one.base_url for one in await servers.look()] == found


@table("address", ["dns+http://models/v1", "dns+https://models:8000/v1", "dns+http://u:p@models:8000", "file:servers"])
def test_an_address_that_leads_nowhere_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="malformed") as told:
        ModelServers(settings=Settings(model_url=address))
    assert told.value.field == "model_url" and "dns+http://NAME:PORT" in told.value.hint
