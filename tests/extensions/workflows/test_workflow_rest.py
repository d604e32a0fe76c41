"""Workflows over HTTP, on a real fleet."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.conftest import FleetUnderTest
from tests.integration.test_gateway_rest import Api

SQUARE = """
name: square
inputs:
  n: integer
nodes:
  - {id: square, type: tool, tool: calculator, arguments: {expression: "${inputs.n} * ${inputs.n}"}}
outputs:
  answer: ${nodes.square.output.content}
"""


@pytest.fixture
async def api(fleet: FleetUnderTest, tmp_path: Path) -> AsyncIterator[Api]:
    headers = {"authorization": f"Bearer {fleet.running.token}"}
    async with aiohttp.ClientSession(fleet.running.http, headers=headers) as session:
        yield Api(session=session, directory=tmp_path)


async def test_a_workflow_runs_where_its_location_says(api: Api) -> None:
    assert (await api.get("/api/workflows/fix-issue"))["mermaid"].startswith("flowchart")
    body = {"task_id": f"rest-{uuid.uuid4().hex[:8]}", "definition": SQUARE, "inputs": {"n": 7}}
    status, told, headers = await api.ask("POST", "/api/workflow-runs", body)
    assert (status, headers["location"]) == (202, f"/api/workflow-runs/{told['execution_id']}")
    await api.until(told["execution_id"], "COMPLETED")
    run = (await api.get(headers["location"]))["run"]
    assert {node["node_id"]: node["status"] for node in run["nodes"]} == {"square": "NODE_STATUS_COMPLETED"}
    assert "49" in json.loads(run["outputs_json"])["answer"]
