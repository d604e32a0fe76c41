"""Whatever bytes a model sends: the run ends with a reason, and its history answers every call exactly once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.domain.task import PlanningMode
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.testing import Failure, Script, ScriptedModelServer, Turn
from swe_ai_fleet.tools.catalogue import operations
from tests.conformance.replies import Ran, assert_well_formed, run_agent

SCRIPT = Script.of(Turn(tool_calls=(("final_answer", {"result": "Done."}),)))
NAMES = st.one_of(
    st.sampled_from(sorted(operations())),
    st.sampled_from(["bash", "read_file", "str_replace_editor", "final_answer", "request_tools", "submit", ""]),
    st.text(max_size=30),
    st.builds("{}{}".format, st.sampled_from(["functions.", "default_api:", "<function="]), st.text(max_size=12)),
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["path", "command", "content", "paths", "result", "names", "arguments", "name", "input"])
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
# What the repair of arguments looks for, and what should not confuse it.
TOKENS = r"""{ } [ ] ( " ' : , = \ True None NaN 1e999 "path" path "a.py" 'command' "ls" ``` ```json <parameter=path>
<path> </path> </parameter> <tool_call> </tool_call> <|im_end|> {"path":"a.py"} \" \u12"""
PIECES = st.sampled_from([*TOKENS.split(), "\n", "\x00", "\ud800", " ", "9" * 400, "[" * 300])
ARGUMENTS: st.SearchStrategy[str] = st.one_of(
    JSON.map(json.dumps),
    st.lists(PIECES, max_size=12).map("".join),
    JSON.map(lambda value: json.dumps(json.dumps(value))),
    st.text(max_size=60),
)
CALLS: st.SearchStrategy[Any] = st.lists(
    st.fixed_dictionaries(
        {"function": st.fixed_dictionaries({"name": NAMES | JSON, "arguments": ARGUMENTS | JSON})},
        optional={"id": st.sampled_from(["a", "b", "", None, 3]) | st.text(max_size=5), "type": JSON},
    ),
    max_size=5,
)
TAGS = """<tool_call> </tool_call> <think> </think> [TOOL_CALLS] <|python_tag|> <function=git_status> </function> Well.
{ <parameter=path> </parameter> {"name":"git_status"} {"name":"files_read_file","arguments":{"path":"a.py"}}"""
MARKS = st.sampled_from([*TAGS.split(), "\n", "\ud83d", "<|channel|>commentary to=functions.git_status"])
SPOKEN = st.lists(MARKS | st.text(max_size=10), max_size=10).map("".join)
FINISH = st.sampled_from(["stop", "tool_calls", "length", "content_filter", "", None, 5])
MESSAGE: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {}, optional={"content": SPOKEN | JSON, "tool_calls": CALLS | JSON, "function_call": JSON, "refusal": JSON}
)
EVENT: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"choices": st.lists(st.fixed_dictionaries({"delta": MESSAGE | JSON, "finish_reason": FINISH}), max_size=2)}
)
FUZZED = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
LONGEST_SECONDS = 10.0


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(SCRIPT) as server:
        yield server


@pytest.fixture(scope="module")
async def model(server: ScriptedModelServer) -> AsyncIterator[OpenAIChatModel]:
    async with OpenAIChatModel(base_url=server.url, timeout_seconds=5.0) as model:
        await model.probe()
        yield model


async def run(
    server: ScriptedModelServer,
    model: OpenAIChatModel,
    body: bytes,
    *,
    stream: bool = False,
    times: int = 1,
    mode: PlanningMode = PlanningMode.AGENTIC,
) -> Ran:
    server.fail_next(Failure(status=200, body=body, times=times))
    async with asyncio.timeout(LONGEST_SECONDS):
        ran = await run_agent(model, "Fuzz.", stream=stream, mode=mode)
    assert_well_formed(ran)
    assert ran.trajectory.stop_reason in StopReason
    return ran


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def replied(message: Any) -> bytes:
    return encoded({"choices": [{"message": message, "finish_reason": "stop"}]})


@FUZZED
@given(body=st.binary(max_size=300) | MESSAGE.map(replied), stream=st.booleans(), mode=st.sampled_from(PlanningMode))
@example(body=b"{" * 100_000, stream=False, mode=PlanningMode.AGENTIC)
@example(body=b"data: " + b"[" * 100_000 + b"\n\n", stream=True, mode=PlanningMode.AGENTIC)
async def test_any_bytes(
    body: bytes, stream: bool, mode: PlanningMode, server: ScriptedModelServer, model: OpenAIChatModel
) -> None:
    await run(server, model, body, stream=stream, mode=mode)


@FUZZED
@given(calls=CALLS, finish=FINISH, times=st.integers(1, 4))
async def test_any_calls(
    calls: Any, finish: Any, times: int, server: ScriptedModelServer, model: OpenAIChatModel
) -> None:
    body = encoded({"choices": [{"message": {"tool_calls": calls}, "finish_reason": finish}]})
    ran = await run(server, model, body, times=times)
    seen = [observation for step in ran.trajectory.steps for observation in step.observations]
    assert len(ran.calls) <= len(seen)
    assert all(len(repair) < 200 for observation in seen for repair in observation.repairs)


@FUZZED
@given(events=st.lists(EVENT | JSON, max_size=6), done=st.booleans(), garbage=st.binary(max_size=20))
async def test_any_stream(
    events: list[Any], done: bool, garbage: bytes, server: ScriptedModelServer, model: OpenAIChatModel
) -> None:
    lines = [b"data: " + encoded(event) + b"\n\n" for event in events]
    body = b"".join([*lines[:2], garbage, *lines[2:], b"data: [DONE]\n\n" if done else b""])
    await run(server, model, body, stream=True)
