"""The users' examples of section D (a planner in front of MCP tools), each as a program of its own.

Only the model is scripted. The tools are those of an MCP server, confined as it is by default.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from tests.chat_script import answered, called, said
from tests.contract.example_program import EXAMPLES, printed, run_example
from tests.markdown_v2 import parse

POOLS = {"network": "base", "orderBy": "liquidity", "limit": 5}
FOUND = "I found 5 new pools on Base. The safest is SHARE/WETH with 0% tax..."
FIND = "find new safe tokens on base with good liquidity"
SCRIPT = Script(
    conversations=(
        *said(FIND, called("dexpaprika_getNetworkPools", **POOLS), answered(f"**🔍 Pool Analysis**\n\n{FOUND}")),
        *said("check the second one", called("dexpaprika_getTokenDetails", token="CAT"), answered("CAT has 1 % tax.")),
        *said("check PEPE", called("dexpaprika_getTokenDetails", token="PEPE"), answered("PEPE is trading at 0.01.")),
        *said("check that token", answered("It is still at 0.01.")),
        *said("more details", answered("It lies on base.")),
        *said("that pair", answered("It holds 90,000 dollars.")),
        *said("price of PEPE", called("dexpaprika_getTokenDetails", token="PEPE"), answered("0.01")),
        *said(
            "two at once",
            Turn(
                tool_calls=tuple(("dexpaprika_getTokenDetails", {"token": token}) for token in ("PEPE", "NONE", "DOGE"))
            ),
            answered("Two of three are known."),
        ),
    ),
    default=Conversation(turns=(answered("1. Look for pools."),)),
)
SERVER: Mapping[str, Any] = {
    "name": "dexpaprika",
    "command": ["python3", "-S", "/opt/servers/token_server.py"],
    "mounts": [{"source": str(EXAMPLES), "target": "/opt/servers"}],
    "tools": ["*"],
}
TOOLS = {"FLEET_MCP_SERVERS": json.dumps([SERVER])}
D1 = {
    "PLANNER_MODE": "agentic", "AGENTIC_MAX_ITERATIONS": "5", "AGENTIC_MAX_TOOL_CALLS": "20",
    "AGENTIC_TIMEOUT_SECONDS": "60", "AGENTIC_ENABLE_PARALLEL": "true", "HYBRID_COMPLEXITY_THRESHOLD": "0.7",
}  # fmt: skip
pytestmark = pytest.mark.slow
confined = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@asynccontextmanager
async def model() -> AsyncGenerator[ScriptedModelServer]:
    async with ScriptedModelServer(SCRIPT, keep=64) as server:
        yield server


async def ran(
    name: str, *messages: str, server: ScriptedModelServer, directory: Path, variables: Mapping[str, str] = TOOLS
) -> str:
    """What an example printed."""
    return printed(
        await run_example(name, *messages, directory=directory, model_url=server.url, variables=variables)
    ).strip()


@confined
async def test_d2_d3_d7_d8_tools_references_and_what_is_kept(tmp_path: Path) -> None:
    """The whole table of references, in one conversation over the tools of an MCP server."""
    messages = (FIND, "check the second one", "that pair", "check PEPE", "check that token", "more details")
    async with model() as server:
        told = await ran("d3_planner", *messages, server=server, directory=tmp_path)
        offered = {tool["function"]["name"]: tool["function"] for tool in server.bodies[-1]["tools"]}
    # Only what says of itself that it reads is offered, under the server's name, and with its schema.
    assert {name for name in offered if name.startswith("dexpaprika")} == {
        "dexpaprika_getNetworkPools", "dexpaprika_getTokenDetails",
    }  # fmt: skip
    pools = offered["dexpaprika_getNetworkPools"]
    assert "Get top liquidity pools on a network" in pools["description"]
    assert pools["parameters"]["required"] == ["network"]
    assert pools["parameters"]["properties"].keys() == {"network", "orderBy", "limit"}
    assert told.splitlines()[-5:] == [
        "CAT has 1 % tax. ['CAT/WETH']",
        "It holds 90,000 dollars. ['CAT/WETH']",
        "PEPE is trading at 0.01. []",
        "It is still at 0.01. ['PEPE']",
        "It lies on base. ['PEPE']",
    ]


async def test_d1_the_settings_are_the_defaults_and_hold(tmp_path: Path) -> None:
    async with model() as server:
        assert await ran("d1_settings", server=server, directory=tmp_path, variables=D1) == (
            "agentic 5 20 60.0\nTrue 0.7"
        )
        other = {**D1, "PLANNER_MODE": "hybrid", "AGENTIC_MAX_ITERATIONS": "3", "AGENTIC_ENABLE_PARALLEL": "false"}
        assert await ran("d1_settings", "changed", server=server, directory=tmp_path, variables=other) == (
            "hybrid 3 20 60.0\nFalse 0.7"
        )


@confined
async def test_d4_a_failing_call_leaves_its_siblings_results_in_the_order_of_the_calls(tmp_path: Path) -> None:
    async with model() as server:
        assert "Two of three" in await ran("d3_planner", "two at once", server=server, directory=tmp_path)
        results = [m["content"] for m in server.bodies[-1]["messages"] if m["role"] == "tool"]
    assert ["PEPE" in results[0], "no such token" in results[1], "DOGE" in results[2]] == [True] * 3


@confined
async def test_d5_the_users_prompt_with_the_documentation_of_every_tool(tmp_path: Path) -> None:
    async with model() as server:
        assert await ran("d5_prompt", "price of PEPE", server=server, directory=tmp_path) == "0.01"
        system = server.bodies[-1]["messages"][0]["content"]
        names = [tool["function"]["name"] for tool in server.bodies[-1]["tools"]]
    assert system.startswith("You are a crypto trading assistant for Base blockchain.\n\n## Available Tools\n")
    assert "- Always check token safety with honeypot before recommending" in system
    assert "{tool_docs}" not in system and all(name in system for name in names)


@confined
async def test_d6_telegram_gets_a_bold_title_the_text_and_the_data_as_a_table(tmp_path: Path) -> None:
    async with model() as server:
        (page,) = (await ran("d6_telegram", FIND, server=server, directory=tmp_path)).split("\f")
    shown = parse(page)
    bold = "".join(character for character, marks in shown.characters if "bold" in marks)
    assert bold.startswith("🔍 Pool Analysis")
    text, _, table = shown.text.partition(FOUND)
    assert "Pool Analysis" in text and [name for name in ("SHARE", "CAT", "DOG", "FROG", "OWL") if name in table] == [
        "SHARE", "CAT", "DOG", "FROG", "OWL",
    ]  # fmt: skip
    assert "liquidity_usd" in table


@confined
async def test_d9_d10_a_complex_request_begins_with_an_outline_in_hybrid_mode(tmp_path: Path) -> None:
    hybrid = {**TOOLS, "PLANNER_MODE": "hybrid"}
    async with model() as server:
        for request, outlines in (("price of PEPE", 0), (FIND, 1)):
            await ran("d3_planner", request, server=server, directory=tmp_path, variables=hybrid)
            asked = [body for body in server.bodies if request in str(body["messages"])]
            # An outline is asked for without tools.
            assert sum(not body.get("tools") for body in asked) == outlines and asked
