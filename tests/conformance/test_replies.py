"""Replies that are not what they should be: what is carried out, what the model is told, how the run ends.

The cases stand in `cases/`, by kind. Those of `recorded.json` were sent by vLLM 0.32 with random weights.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from swe_ai_fleet.adapters.model_pool import Fault, ModelPool, PoolMember, PoolRules
from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.adapters.openai_model.faults import pushback
from swe_ai_fleet.domain.message import ToolProtocol
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from tests.conformance.replies import DONE, Case, assert_well_formed, kind, load_cases, run_agent, script_of
from tests.tables import table

CASES = load_cases()


@pytest.fixture(scope="module")
async def servers() -> AsyncIterator[Mapping[str, ScriptedModelServer]]:
    script = script_of(CASES)
    # The probe of a server without tools takes one that answers by a schema as one that can be held to schemas.
    obeying = replace(script, default=Conversation(turns=(Turn(content='{"ok": true}'),)))
    async with (
        ScriptedModelServer(script) as native,
        ScriptedModelServer(script, native_tools=False) as text,
        ScriptedModelServer(obeying, native_tools=False) as structured,
    ):
        yield {"native": native, "text": text, "json": structured}


@pytest.fixture(scope="module")
async def models(servers: Mapping[str, ScriptedModelServer]) -> AsyncIterator[Mapping[str, ModelPool]]:
    rules, pools = PoolRules(backoff=0.001, open_for=0.001), dict[str, ModelPool]()
    async with AsyncExitStack() as stack:
        for name, server in servers.items():
            client = await stack.enter_async_context(OpenAIChatModel(base_url=server.url, timeout_seconds=10.0))
            members = [PoolMember(name=name, model=client)]
            pool = ModelPool(members, read_fault=lambda error: Fault.of(*pushback(error)), rules=rules)
            pools[name] = await stack.enter_async_context(pool)
        yield pools


async def test_the_servers_are_spoken_to_as_they_can(models: Mapping[str, ModelPool]) -> None:
    probed = {name: (await model.probe()).protocol for name, model in models.items()}
    assert probed == {"native": ToolProtocol.NATIVE, "text": ToolProtocol.TEXT, "json": ToolProtocol.JSON}


@table("case", CASES)
async def test_a_reply(case: Case, models: Mapping[str, ModelPool], servers: Mapping[str, ScriptedModelServer]) -> None:
    expect = case.expect
    before = servers[case.protocol].requests
    ran = await run_agent(models[case.protocol], case.marker, stream=case.stream)
    steps = ran.trajectory.steps
    assert_well_formed(ran)
    assert ran.trajectory.stop_reason == expect.stop, ran.trajectory.error
    assert ran.calls == [(name, dict(arguments)) for name, arguments in expect.calls], ran.told
    repairs = {kind(repair) for step in steps for seen in step.observations for repair in seen.repairs}
    assert repairs == set(expect.repairs), ran.told
    for text in expect.feedback:
        assert text in ran.told
    for text in expect.unsaid:
        assert text not in ran.told
    if expect.content is not None:
        assert steps[0].reply.content == expect.content
    if expect.answer is not None:
        assert ran.trajectory.answer == expect.answer
    elif expect.stop == "final_answer" and case.times == 1:
        assert ran.trajectory.answer == DONE
    if expect.tokens is not None:
        assert steps[0].usage.total_tokens == expect.tokens
    if expect.requests is not None:
        assert servers[case.protocol].requests - before == expect.requests
    if len(steps) > 1:
        _assert_sent_back_as_servers_take_it(servers[case.protocol].bodies[-1])


def _assert_sent_back_as_servers_take_it(body: Mapping[str, Any]) -> None:
    """What the model wrote goes back to it in a form that no server and no chat template refuses."""
    ids: list[str] = []
    for message in body["messages"]:
        for call in message.get("tool_calls", ()):
            ids.append(call["id"])
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            assert 0 < len(call["function"]["name"]) <= 64
            assert all(one.isascii() and (one.isalnum() or one in "_-") for one in call["function"]["name"])
    assert len(ids) == len(set(ids))


async def test_what_was_asked_for_is_shown_from_the_next_request_on_and_nothing_moves() -> None:
    script = Script.of(
        Turn(tool_calls=(("request_tools", {"names": ["git_log", "git_blame"]}),)),
        Turn(tool_calls=(("git_log", {"limit": 1}), ("request_tools", {"names": "files_info"}))),
        Turn(tool_calls=(("final_answer", {"result": "Done."}),)),
    )
    async with ScriptedModelServer(script) as server, OpenAIChatModel(base_url=server.url) as model:
        ran = await run_agent(model, "Look back.")
        first, second, third = (body["tools"] for body in server.bodies[-3:])
    assert_well_formed(ran)
    assert ran.calls == [("git_log", {"limit": 1})]
    assert second[: len(first)] == first
    assert [tool["function"]["name"] for tool in second[len(first) :]] == ["git_log", "git_blame"]
    assert third == second
    names = [tool["function"]["name"] for tool in first]
    assert names[-2:] == ["request_tools", "final_answer"]
    assert "git_log(limit: integer = 20" in ran.told
    assert "no tool 'files_info' for this run. Did you mean files_file_info" in ran.told
    # A line each, not a schema each.
    assert len(json.dumps(first)) < 5_000
