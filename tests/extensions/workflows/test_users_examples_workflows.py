"""The users' examples of workflows (E1 to E4, E15), each a program of its own."""

from __future__ import annotations

import uuid
from pathlib import Path

import aiohttp
import pytest

from swe_ai_fleet.testing import Script, ScriptedModelServer
from tests.conftest import FleetUnderTest
from tests.contract.example_program import EXAMPLES, printed, run_example
from tests.plan_script import RESEARCH_CONVERSATIONS, RESEARCH_QUESTION
from tests.search_server import SearchServer

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
