"""The gateway by which agents of others reach the model of their run: what they send, and what they may not.

The requests are shortened ones of opencode 1.18.33, qwen-code 0.24.4 and codex-acp 0.16.0.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from swe_ai_fleet.adapters.model_pool import Fault, ModelPool, PoolMember, PoolRules
from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.adapters.openai_model.faults import pushback
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.domain.budget import Limits, Prices, Usage
from swe_ai_fleet.domain.errors import PreconditionFailed, Unavailable
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.extensions.acp.model_gateway import ModelGateway
from swe_ai_fleet.sandbox import IsolationLevel, SandboxPolicy
from swe_ai_fleet.sandbox.interactive import InteractiveCommand, InteractiveProcess
from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, Turn
from swe_ai_fleet.tools.secrets import Secrets
from tests.confinement import needs_bwrap
from tests.tables import table

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
KEY = "sk-of-the-operator"
SECRET = "correct-horse-battery"
SHELL = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}


class Server(ScriptedModelServer):
    """One that remembers the headers of chat requests, too."""

    headers: Mapping[str, str]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.headers = request.headers
        return await super()._chat(request)


class Gate:
    """A gateway before a scripted server, and a client as an agent has one."""

    def __init__(self, server: Server, pool: ModelPool, gateway: ModelGateway, budget: Budget) -> None:
        self.server, self.pool, self.gateway, self.budget = server, pool, gateway, budget
        self.client = aiohttp.ClientSession("http://fleet", connector=aiohttp.UnixConnector(str(gateway.socket)))

    async def ask(self, path: str, body: object, **options: Any) -> tuple[int, Any]:
        """The status, and the JSON of the answer or of each event in it."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client.post(path, data=data, **options) as response:
            text = await response.text()
            if response.content_type != "text/event-stream":
                return response.status, json.loads(text)
            lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
            return response.status, [json.loads(line) for line in lines if line != "[DONE]"]

    @property
    def asked(self) -> dict[str, Any]:
        """What the server was asked last."""
        return self.server.bodies[-1]


@asynccontextmanager
async def gate(
    *turns: Turn | Failure, limits: Limits | None = None, prices: Prices | None = None, timeout: float = 30.0
) -> AsyncGenerator[Gate]:
    probed = Conversation(match="Say ok.", turns=(Turn(content="ok"),))
    rules = PoolRules(timeout=timeout, backoff=0.001, longest_backoff=0.002, open_for=0.01)
    script = Script(conversations=(probed,), default=Conversation(turns=turns))
    async with (
        Server(script, model="qwen3-coder", api_key=KEY) as server,
        OpenAIChatModel(
            base_url=server.url, api_key=KEY, session_headers=["X-Session-ID"], timeout_seconds=5.0
        ) as model,
        ModelPool(
            [PoolMember(name="only", model=model)], read_fault=lambda error: Fault.of(*pushback(error)), rules=rules
        ) as pool,
    ):
        await pool.probe()
        budget = Budget(limits or Limits(), prices=prices)
        run = pool.session("execution/agent")
        async with ModelGateway(run, budget, mask=Secrets([SECRET])) as gateway:
            made = Gate(server, pool, gateway, budget)
            async with made.client:
                yield made


def function(name: str, **more: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": SHELL, **more}}


def chat(text: object = "Fix it.", **more: object) -> dict[str, Any]:
    return {"model": "gpt-99", "messages": [{"role": "user", "content": text}], **more}


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
CALLED = {"id": "call_0_0", "type": "function", "function": {"name": "shell", "arguments": '{"cmd": "ls"}'}}
QWEN = {
    "model": "fleet",
    "messages": [
        {"role": "system", "content": "You are Qwen Code."},
        {"role": "user", "content": [{"type": "text", "text": f"Fix it with {SECRET}."}]},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "call_0_0", "content": [{"type": "text", "text": "a.py"}]},
    ],
    "max_tokens": 32000,
    "tools": [function("shell")],
    **STREAMED,
}
CODEX = {
    "model": "fleet",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"Fix it with {SECRET}."}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "name": "shell", "arguments": '{"cmd": "ls"}', "call_id": "call_0_0"},
        {"type": "function_call_output", "call_id": "call_0_0", "output": "a.py"},
    ],
    "tools": [
        {"type": "function", "name": "shell", "description": "Does it.", "strict": False, "parameters": SHELL},
        {"type": "namespace", "name": "multi_agent_v1", "tools": []},
        {"type": "web_search", "external_web_access": True},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "store": False,
    "stream": True,
    "prompt_cache_key": "01a21c62",
}
HEADERS = {
    "Authorization": "Bearer none",
    "X-Session-ID": "ses_of_its_own",
    "x-session-affinity": "ses_of_its_own",
    "x-codex-window-id": "1",
    "Host": "elsewhere",
}
MASKED = {**QWEN["messages"][1], "content": [{"type": "text", "text": "Fix it with [masked]."}]}
KEPT = [QWEN["messages"][0], MASKED, *QWEN["messages"][2:]]
CODEX_KEPT = [
    {"role": "system", "content": "You are a coding agent.\n\n<permissions>"},
    {"role": "user", "content": "Fix it with [masked]."},
    QWEN["messages"][2],
    {"role": "tool", "tool_call_id": "call_0_0", "content": "a.py"},
]


@pytest.mark.parametrize(
    ("path", "body", "kept"),
    [
        pytest.param(CHAT, QWEN, {"messages": KEPT, "tools": QWEN["tools"], "max_tokens": 32000}, id="qwen-code"),
        pytest.param(
            RESPONSES,
            CODEX,
            {
                "messages": CODEX_KEPT,
                "tools": [function("shell", strict=False)],
                "tool_choice": "auto",
                "parallel_tool_calls": False,
            },
            id="codex",
        ),
    ],
)
async def test_what_an_agent_asks_reaches_the_server_and_what_is_the_operators_does_not(
    path: str, body: dict[str, Any], kept: dict[str, Any]
) -> None:
    usage = Usage(prompt_tokens=1000, completion_tokens=10, cached_tokens=400)
    async with gate(Turn(), Turn(content="Done.", usage=usage), prices=Prices(prompt=1.0, completion=2.0)) as one:
        status, events = await one.ask(path, body, headers=HEADERS)
        assert status == 200, events
        assert one.asked == {"model": "qwen3-coder", **STREAMED, **kept}
        sent = one.server.headers
        assert sent["Authorization"] == f"Bearer {KEY}"
        assert len(sent["X-Session-ID"]) == 32
        assert not {"x-session-affinity", "x-codex-window-id"} & set(sent) and sent["Host"] != "elsewhere"
        assert one.budget.usage.model_calls == 1
        assert (one.budget.usage.total_tokens, one.budget.usage.cached_tokens) == (1010, 400)
        assert one.budget.usage.cost == pytest.approx(1020 / 1e6)


THINKING = "".join(
    f"data: {json.dumps(event)}\r\n\r\n"
    for event in (
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"index": 0, "delta": {"reasoning_content": "Let me "}}], "odd": 1},
        {"choices": [{"index": 0, "delta": {"reasoning_content": "see."}}]},
        {"choices": [{"index": 0, "delta": {"content": "I "}}]},
        {"choices": [{"index": 0, "delta": {"content": "look."}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **CALLED}]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}},
    )
)
STREAM = Failure(status=200, body=f": a comment\r\n\r\n{THINKING}data: [DONE]\r\n\r\n")


async def test_a_chat_stream_arrives_as_the_server_wrote_it() -> None:
    events = [json.loads(line.removeprefix("data: ")) for line in THINKING.split("\r\n") if line]
    async with gate(STREAM) as one:
        assert await one.ask(CHAT, chat(**STREAMED)) == (200, events)
        assert one.budget.usage.total_tokens == 14


def opened(kind: str) -> list[str]:
    more = ["response.content_part.added"] if kind == "output_text" else []
    done = ["response.content_part.done"] if kind == "output_text" else []
    deltas = [f"response.{kind}.delta"] * 2
    added, closed = "response.output_item.added", "response.output_item.done"
    return [added, *more, *deltas, f"response.{kind}.done", *done, closed]


async def test_a_response_is_made_of_a_chat_completion() -> None:
    async with gate(STREAM) as one:
        status, events = await one.ask(RESPONSES, CODEX)
        assert status == 200
        calls = [f"response.{name}" for name in ("output_item.added", "function_call_arguments.delta")]
        calls += [f"response.{name}" for name in ("function_call_arguments.done", "output_item.done")]
        kinds = ["response.created", *opened("reasoning_text"), *opened("output_text"), *calls, "response.completed"]
        assert [event["type"] for event in events] == kinds
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        response = events[-1]["response"]
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert response["output"] == done
        assert done[0]["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
        assert done[1]["content"] == [{"type": "output_text", "text": "I look.", "annotations": []}]
        named = {"type": "function_call", "call_id": "call_0_0", "name": "shell", "arguments": '{"cmd": "ls"}'}
        assert named.items() <= done[2].items()
        assert response["usage"]["input_tokens"] == 9 and response["usage"]["total_tokens"] == 14


OPERATORS = {
    "priority": -9, "service_tier": "priority", "cache_salt": "mine", "kv_transfer_params": {"remote_host": "10.0.0.1"},
    "vllm_xargs": {"kv_transfer_params": {}}, "bootstrap_host": "10.0.0.1", "api_base": "http://10.0.0.1",
    "base_url": "http://10.0.0.1", "api_key": "sk-other", "extra_headers": {"X": "y"}, "extra_body": {}, "store": True,
    "models": ["gpt-99"], "chat_template": "{{ x }}", "lora_path": "/x", "use_beam_search": True, "best_of": 40,
}  # fmt: skip


async def test_no_field_of_an_agents_chooses_where_by_whom_or_at_what_price_it_is_answered() -> None:
    mcp = {"type": "mcp", "server_url": "http://10.0.0.1", "headers": {"X": "y"}}
    async with gate() as one:
        for body in (chat(**OPERATORS, tools=[mcp], tool_choice="auto", top_k=5), chat(tools=[mcp, function("shell")])):
            assert (await one.ask(CHAT, body))[0] == 200
        first, second = one.server.bodies[-2:]
        assert first == {"model": "qwen3-coder", "messages": chat()["messages"], "top_k": 5}
        assert [tool["type"] for tool in second["tools"]] == ["function"]
        async with one.client.get("/v1/models") as response:
            listed = (await response.json())["data"]
        assert [(entry["id"], entry["max_model_len"]) for entry in listed] == [("qwen3-coder", 131_072)]


def picture(url: str) -> dict[str, Any]:
    return chat([{"type": "image_url", "image_url": {"url": url}}])


@table(
    ("path", "body", "status", "code"),
    [
        (CHAT, b"{", 400, "invalid_request"),
        (CHAT, b'{"messages": [' + b"[" * 150 + b"]" * 150 + b"]}", 400, "invalid_request"),
        (CHAT, b'{"messages": [{"role": "user"}], "temperature": NaN}', 400, "invalid_request"),
        (CHAT, chat(n=40), 400, "invalid_request"),
        (CHAT, picture("http://169.254.169.254/latest"), 400, "invalid_request"),
        (CHAT, chat("x" * 600_000), 400, "context_length_exceeded"),
        (RESPONSES, {"input": "x", "previous_response_id": "resp_1"}, 400, "invalid_request"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, 400, "invalid_request"),
        ("/v1/embeddings", {}, 404, "not_served"),
    ],
)  # fmt: skip
async def test_what_is_no_request_is_refused_in_openais_words(path: str, body: object, status: int, code: str) -> None:
    async with gate() as one:
        told, answer = await one.ask(path, body)
        assert (told, answer["error"]["code"]) == (status, code), answer
        assert {"message", "type", "param", "code"} == set(answer["error"])
        assert "127.0.0.1" not in str(answer)
        assert one.gateway.spent is None and not one.budget.usage.total_tokens
        assert (await one.ask(CHAT, chat()))[0] == 200


async def test_bodies_are_bounded_each_and_together() -> None:
    async def endless() -> AsyncGenerator[bytes]:
        yield b'{"messages": ["'
        while True:
            yield b"x" * 65536

    async with gate() as one:
        packed = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        assert (await one.ask(CHAT, b"\x1f\x8b", headers=packed))[0] == 415
        try:
            async with one.client.post(CHAT, data=endless()) as response:
                told = response.status, (await response.json())["error"]["code"]
        except aiohttp.ClientError:
            # The connection was closed while it still wrote.
            told = 413, "body_too_large"
        assert told == (413, "body_too_large")
        assert one.server.requests == 1
        assert (await one.ask(CHAT, chat()))[0] == 200


LIMITED = [
    (Limits(max_cost=0.001), StopReason.MAX_COST),
    (Limits(timeout_seconds=0.0), StopReason.TIMEOUT),
]


@table(("limits", "reason"), LIMITED)
@table("path", [CHAT, RESPONSES])
async def test_a_spent_budget_refuses_in_words_that_no_client_takes_for_a_moment(
    path: str, limits: Limits, reason: StopReason
) -> None:
    usage = Usage(prompt_tokens=1500, completion_tokens=10)
    async with gate(Turn(content="Done.", usage=usage), limits=limits, prices=Prices(prompt=1.0)) as one:
        body = {**chat(), "input": "Fix it."}
        statuses = [(await one.ask(path, body))[0] for _ in range(2)]
        status, answer = await one.ask(path, body)
        assert statuses == ([402, 402] if reason is StopReason.TIMEOUT else [200, 402])
        assert (status, answer["error"]["code"], answer["error"]["type"]) == (402, "budget_spent", "insufficient_quota")
        assert one.gateway.spent is reason and reason.value in answer["error"]["message"]


@table("path", [CHAT, RESPONSES])
async def test_a_stream_that_breaks_says_so_and_is_paid_for(path: str) -> None:
    async with gate(Failure(drop=True, after_chunks=3), Turn(content="I say much. " * 40)) as one:
        before = one.server.requests
        status, events = await one.ask(path, {**chat(stream=True), "input": "Fix it."})
        error = events[-1]["error"] if path == CHAT else events[-1]["response"]["error"]
        assert status == 200 and "broke off" in error["message"] and "127.0.0.1" not in error["message"]
        assert one.server.requests == before + 1
        assert one.budget.usage.prompt_tokens > 0 and one.budget.usage.completion_tokens >= 2


@pytest.mark.parametrize(
    ("failure", "timeout", "status", "requests"),
    [
        pytest.param(Failure(drop=True, times=2), 30.0, 200, 3, id="unreachable: tried again"),
        pytest.param(Failure(drop=True), 0.0, 503, 1, id="unreachable for good"),
        pytest.param(Failure(status=401, message=f"{KEY}?", times=0), 30.0, 400, 1, id="our key is not told"),
    ],
)
async def test_what_the_server_fails_at(failure: Failure, timeout: float, status: int, requests: int) -> None:
    async with gate(timeout=timeout) as one:
        one.server.fail_next(failure)
        before = one.server.requests
        told, answer = await one.ask(CHAT, chat(stream=True))
        assert (told, one.server.requests - before) == (status, requests), answer
        # Three faults in a row would keep every run away from the server.
        assert one.pool.status().endpoints[0].circuit == "closed"
        if told != 200:
            said = "no model server answers" if told == 503 else failure.message.replace(KEY, "***")
            assert said in answer["error"]["message"] and "127.0.0.1" not in answer["error"]["message"]


async def test_too_many_calls_wait_outside_and_a_call_given_up_is_ended_and_paid_for() -> None:
    async with gate(Turn(content="Done.", delay_seconds=60)) as one:
        asking = [asyncio.create_task(one.ask(CHAT, chat("x" * 400))) for _ in range(9)]
        done, waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        status, answer = done.pop().result()
        assert (status, answer["error"]["code"]) == (429, "too_many_calls")
        await one.server.wait_until(in_flight=8)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await one.server.wait_until(in_flight=0)
        assert one.budget.usage.model_calls == one.gateway.calls == 8
        assert one.budget.usage.prompt_tokens >= 8 * 100


ASKING = """
import json, os, socket, urllib.request
from pathlib import Path

def reached(host, port):
    try:
        return socket.create_connection((host, port), 1) and "reached"
    except OSError as error:
        return type(error).__name__

def asked(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": "Bearer none"})
    return json.load(urllib.request.urlopen(request))

base = os.environ["OPENAI_BASE_URL"]
said = asked(f"{base}/chat/completions", {"messages": [{"role": "user", "content": "Fix it."}]})
print(json.dumps({
    "said": said["choices"][0]["message"]["content"],
    "configured": Path.home().joinpath(".config/agent.json").read_text() == base,
    "argument": __import__("sys").argv[1] == base,
    "elsewhere": [reached("1.1.1.1", 53), reached("127.0.0.1", int(__import__("sys").argv[2]))],
    "key": [name for name, value in os.environ.items() if "sk-" in value],
    "places": sorted(str(path) for path in Path("/run/fleet").iterdir() if path.is_socket()),
}))
"""


@needs_bwrap
async def test_in_a_sandbox_an_agent_reaches_its_model_and_nothing_else(tmp_path: Path) -> None:
    async with gate(Turn(content="Done.")) as one:
        port = one.server.url.split(":")[2].partition("/")[0]
        command = InteractiveCommand(
            argv=("python3", "-c", ASKING, "{gateway}/v1", port),
            variables={"OPENAI_BASE_URL": "{gateway}/v1"},
            files={".config/agent.json": "{gateway}/v1"},
            gateway=one.gateway.socket,
        )
        process = await InteractiveProcess.start(tmp_path, command, policy=SandboxPolicy())
        try:
            told = json.loads(await process.stdout.read() or process.errors().text())
        finally:
            await process.kill()
        assert told["said"] == "Done." and told["configured"] and told["argument"]
        assert "reached" not in told["elsewhere"]
        assert (told["key"], told["places"]) == ([], ["/run/fleet/gateway"])
        assert one.gateway.calls == 1


@pytest.mark.parametrize(
    ("level", "change"),
    [
        (IsolationLevel.LANDLOCK, {}),
        (IsolationLevel.BUBBLEWRAP, {"confined": False}),
        (IsolationLevel.BUBBLEWRAP, {"files": {"../outside": "x"}}),
    ],
)
async def test_no_agent_of_others_starts_without_walls_around_it(
    level: IsolationLevel, change: dict[str, Any], tmp_path: Path
) -> None:
    command = InteractiveCommand(argv=("true",), gateway=tmp_path / "model.sock", **change)
    with pytest.raises((PreconditionFailed, Unavailable)):
        await InteractiveProcess.start(tmp_path, command, policy=SandboxPolicy(level=level))
