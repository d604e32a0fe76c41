"""The scripted model server: what it says to whom, and how it fails."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, Turn

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def opening(text: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": text}]


def later(text: str, turns: int) -> list[dict[str, Any]]:
    said = [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "go on"}]
    return opening(text) + said * turns


async def post(server: ScriptedModelServer, messages: object, **fields: object) -> tuple[int, dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/chat/completions", json={"messages": messages, **fields}) as response,
    ):
        return response.status, await response.json()


async def say(server: ScriptedModelServer, messages: object, **fields: object) -> str:
    status, body = await post(server, messages, **fields)
    assert status == 200, body
    return body["choices"][0]["message"]["content"]


async def test_seed_and_agent_number_part_a_shared_prompt() -> None:
    script = Script(
        conversations=(
            Conversation(match="task", seed=99, turns=(Turn(content="ninety-nine"),)),
            *(Conversation(match="task", agent=n, turns=(Turn(content=f"agent {n}"),)) for n in range(3)),
        )
    )
    async with ScriptedModelServer(script) as server:
        assert {await say(server, opening("task"), seed=seed) for seed in (40, 41, 42)} == {
            "agent 0",
            "agent 1",
            "agent 2",
        }
        assert await say(server, opening("task"), seed=99) == "ninety-nine"
        assert await say(server, opening("task")) == "agent 0"


async def test_usage_counts_the_shared_prefix() -> None:
    async with ScriptedModelServer(Script()) as server:
        _, first = await post(server, opening("x" * 400))
        _, second = await post(server, later("x" * 400, 1))
        _, rewritten = await post(server, [{"role": "system", "content": ""}, *opening("x" * 400)[1:]])
    assert first["usage"]["prompt_tokens"] == (len("You are an agent.") + 400) // 4
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == first["usage"]["prompt_tokens"]
    assert rewritten["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_refusals_of_a_real_server() -> None:
    async with ScriptedModelServer(Script(), max_model_len=10, native_tools=False, api_key="k") as server:
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/models") as response:
            assert response.status == 401
        assert (await post(server, opening("x")))[0] == 401
    async with ScriptedModelServer(Script(), max_model_len=10) as server:
        assert (await post(server, opening("x" * 100)))[1]["error"]["param"] == "input_tokens"
        assert (await post(server, "no list"))[0] == 400
        assert (await post(server, [{"role": "assistant", "tool_calls": [{}]}]))[0] == 400
    async with ScriptedModelServer(Script(), native_tools=False) as server:
        assert (await post(server, opening("x"), tools=TOOLS))[0] == 400


SCRIPT = {
    "conversations": [
        {
            "match": "parser",
            "agent": 1,
            "turns": [
                {"tool_calls": [["look", {"at": "a.py"}]], "delay_seconds": 0},
                {"status": 503, "times": 2},
                {"content": "Fixed."},
            ],
        }
    ],
    "default": {"turns": [{"content": "Nothing to do."}]},
}


def test_a_script_file_is_read_as_written(tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    file.write_text(json.dumps(SCRIPT))
    script = Script.from_json(file)
    assert script.conversations[0] == Conversation(
        match="parser",
        agent=1,
        turns=(Turn(tool_calls=(("look", {"at": "a.py"}),)), Failure(status=503, times=2), Turn(content="Fixed.")),
    )
    assert script.default.turns == (Turn(content="Nothing to do."),)


@pytest.mark.parametrize("wrong", ['{"conversation": []}', '{"default": {"turns": [{"contents": "x"}]}}', "[]", "{"])
def test_a_script_file_with_a_mistake_is_refused(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "script.json"
    file.write_text(wrong)
    with pytest.raises(ValueError):
        Script.from_json(file)


async def test_the_command_prints_its_url_first_and_ends_on_sigterm(tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    file.write_text(json.dumps(SCRIPT))
    command = [sys.executable, "-m", "swe_ai_fleet.testing.scripted_model", str(file), "--model", "mine"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        async with aiohttp.ClientSession() as session, session.get(f"{url}/models") as response:
            assert (await response.json())["data"][0]["id"] == "mine"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
