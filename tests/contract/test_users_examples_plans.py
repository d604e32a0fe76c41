"""The users' examples of planning with approval and of workflows (C, E1 to E4, E15), each a program of its own."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from tests.conftest import FleetUnderTest
from tests.contract.example_program import EXAMPLES, printed, run_example
from tests.fleet_command import Shell
from tests.plan_script import PLAN_GOAL, RESEARCH_CONVERSATIONS, RESEARCH_QUESTION
from tests.search_server import SearchServer

REPLY = {"entities": ["company_metrics"], "queries": ["current ARR"]}
STATES = ("running", "completed")
RESEARCH = """
name: research
inputs: {query: string}
nodes:
  - {id: researcher, type: agent, agent_config: {use_tools: true, tools: [web_search]}}
  - {id: analyzer, type: agent, agent_config: {use_tools: true, tools: [python_executor]}}
  - {id: reporter, type: agent}
edges:
  - {source: researcher, target: analyzer}
  - {source: analyzer, target: reporter}
"""
"""Example E15 as a file for a fleet."""


async def test_c1_to_c4_a_conversation_with_tools(tmp_path: Path, warm: str) -> None:
    said = "I will search your memory for..."
    turns = (Turn(content=said, tool_calls=(("search_memory", REPLY),)), Turn(content="Nobody wrote that down."))
    async with ScriptedModelServer(Script(default=Conversation(turns=turns))) as model:
        out = printed(await run_example("c4_call_with_tools", directory=tmp_path, model_url=model.url, warm=warm))
        first, second = (body for body in model.bodies if body["messages"][0]["role"] == "system")
    called, told = out.splitlines()
    assert called == "search_memory ['company_metrics'] ['current ARR']"
    result: dict[str, Any] = json.loads(told)
    assert (result["final_text"], result["status"], result["iterations"]) == ("Nobody wrote that down.", "success", 2)
    assert [one["role"] for one in result["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    # The request carries system prompt, messages and tools, and leaves the choice to the model.
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first.get("tool_choice", "auto") == "auto"
    assert [tool["function"]["name"] for tool in first["tools"]] == ["search_memory"]
    # The result is fed back once, under the call's id; not as JSON but in lines, which cost the model less.
    asked, answer = second["messages"][-2:]
    assert (answer["role"], answer["tool_call_id"]) == ("tool", asked["tool_calls"][0]["id"])
    assert answer["content"].startswith("coverage: 0")
    assert json.loads(asked["tool_calls"][0]["function"]["arguments"]) == REPLY


async def test_e1_and_e15_a_workflow_is_run_and_broadcast(
    tmp_path: Path, warm: str, search_server: SearchServer
) -> None:
    async with ScriptedModelServer(Script(conversations=RESEARCH_CONVERSATIONS)) as model:
        variables = {"FLEET_SEARCH_URL": search_server.url}
        ran = await run_example(
            "e1_research_workflow", directory=tmp_path, model_url=model.url, variables=variables, warm=warm
        )
    *watched, answer, status = printed(ran).splitlines()
    assert (answer, status) == ("Final report: 2,800,000.", "completed")
    nodes = [line for line in watched if line.startswith("Node ")]
    assert nodes == [f"Node {name}: {state}" for name in ("researcher", "analyzer", "reporter") for state in STATES]
    assert (watched[0].split()[0], watched[-1].split()[0]) == ("status", "completion")
    logs = [line for line in watched if line.startswith("LOG: ")]
    assert "LOG: analyzer: python_executor started" in logs and "LOG: researcher: 2.8 million" in logs


@pytest.mark.slow
async def test_c6_to_c9_a_plan_over_http(fleet: FleetUnderTest, shell: Shell, tmp_path: Path) -> None:
    """Quick counterparts: integration/test_planning_service.py."""
    ran = await run_example("c6_plan_over_http", fleet.running.http, fleet.running.token, directory=tmp_path)
    proposal, adjusted, approved, result, other, rejected = map(json.loads, printed(ran).splitlines())
    assert {name: proposal[name] for name in ("status", "goal", "approach")} == {
        "status": "awaiting_approval", "goal": PLAN_GOAL, "approach": "Add them up.",
    }  # fmt: skip
    # Without selected entities there is no coverage: nothing is known of it.
    assert {"content", "gaps", "sources"} <= proposal["memory_results"].keys()
    assert (adjusted["status"], adjusted["approach"]) == ("awaiting_approval", "Add them up, twice.")
    assert (approved["status"], result["status"], result["results"]) == ("approved", "completed", "They come to 25.")
    assert result["final_plan"] == "Add them up, twice."
    assert [call["tool"] for call in result["tool_calls_made"]][-3:] == [
        "calculator", "python_executor", "final_answer",
    ]  # fmt: skip
    assert (other["status"], rejected["status"]) == ("awaiting_approval", "rejected")
    assert "not today" in rejected["message"]
    # Each is logged for later recommendations, by these names.
    rating = await shell.fleet("rate", proposal["session_id"], "5", "--json")
    assert rating.code == 0, rating.out + rating.err
    rated = rating.document
    assert (rated["goal_type"], rated["approach_ratio"], rated["agents_used"], rated["rating"]) == (
        "investigate", 0.5, [], 5,
    )  # fmt: skip
    assert (rated["memory_share"], rated["tool_share"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))


@pytest.mark.slow
async def test_e3_and_e4_a_workflow_on_a_fleet_is_watched(fleet: FleetUnderTest, tmp_path: Path) -> None:
    """The program as it stands, but for what is the reader's own: where the gateway is, which execution, and the token.

    Quick counterpart: integration/test_gateway_streams.py.
    """
    running = fleet.running
    headers = {"authorization": f"Bearer {running.token}"}
    async with aiohttp.ClientSession(running.http, headers=headers) as session:
        body = {
            "task_id": f"research-{uuid.uuid4().hex[:8]}",
            "definition": RESEARCH,
            "inputs": {"query": RESEARCH_QUESTION},
        }
        async with session.post("/api/workflow-runs", json=body) as answer:
            execution_id = (await answer.json())["execution_id"]
        async with aiohttp.ClientSession() as anybody, anybody.get(f"{running.http}/health") as health:
            assert health.status == 200
    program = (EXAMPLES / "e3_watch.py").read_text()
    for word, meant in {
        "localhost:8000": running.http.removeprefix("http://"),
        "execution-id": execution_id,
        "connect(uri)": f"connect(uri, additional_headers={headers!r})",
    }.items():
        assert program.count(word) == 1
        program = program.replace(word, meant)
    (tmp_path / "watch.py").write_text(program)
    lines = printed(await run_example(str(tmp_path / "watch.py"), directory=tmp_path)).splitlines()
    nodes = [line for line in lines if line.startswith("Node ") and "node-" not in line]
    assert nodes == [f"Node {name}: {state}" for name in ("researcher", "analyzer", "reporter") for state in STATES]
    assert any(line.startswith("LOG: ") and "web_search" in line for line in lines)
    assert lines[-1].startswith("Completed: ") and "Final report: 2,800,000." in lines[-1]
