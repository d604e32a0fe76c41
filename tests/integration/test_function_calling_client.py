"""`FunctionCallingClient` against a scripted model over HTTP."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest

from swe_ai_fleet import FunctionCallingClient
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Failure, Script, ScriptedModelServer, Turn
from swe_ai_fleet.tools import ToolRegistry
from tests.tables import table

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
