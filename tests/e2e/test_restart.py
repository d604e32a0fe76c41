"""kill -9 of the orchestrator's process: what was accepted is taken up again and ends, told once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import nats
import psutil
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.environments import home_at
from tests.processes import gone
from tests.scripts import HELLO_FILES, KILLED


@asynccontextmanager
async def serving(
    home: Path, model_url: str, **more: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, str]]]:
    """The orchestrator in a process of its own, with more variables, and where it answers."""
    variables = {
        "FLEET_HOME": str(home),
        "FLEET_MODEL_URL": model_url,
        "FLEET_MODEL": "scripted",
        "FLEET_LISTEN": "127.0.0.1:0",
        # Whoever comes after one that was killed waits for so long.
        "FLEET_LEASE_SECONDS": "3",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.orchestrator.main"),
        env={**os.environ, **variables, **more},
        cwd=home,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(150):
            while not (home / "fleet.json").exists():
                assert process.returncode is None
                await asyncio.sleep(0.05)
        yield process, json.loads((home / "fleet.json").read_text())
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


@pytest.mark.slow  # quick: integration/test_resumption.py, e2e/test_spine.py (a killed host of agents)
async def test_a_killed_orchestrator_loses_nothing(model_server: ScriptedModelServer, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", HELLO_FILES)
    home = home_at(tmp_path / "home")
    task = pb.OrchestrateRequest(
        task_id="survivor",
        task_description=KILLED,
        repo=pb.RepoRef(path=str(repository)),
        options=pb.OrchestratorOptions(num_agents=2),
    )
    async with serving(home, model_server.url) as (process, card):
        children = psutil.Process(process.pid).children(recursive=True)
        async with grpc.aio.insecure_channel(card["address"]) as channel:
            client = pb_grpc.OrchestratorServiceStub(channel)
            call: dict[str, Any] = {"metadata": (("authorization", f"Bearer {card['token']}"),), "timeout": 90}
            accepted = await client.SubmitTask(pb.SubmitTaskRequest(orchestrate=task), **call)
            watched = client.StreamExecution(pb.StreamExecutionRequest(execution_id=accepted.execution_id), **call)
            async for event in watched:
                if event.type == "tool_started":
                    break
            process.kill()
            with pytest.raises(grpc.aio.AioRpcError):
                await client.GetStatus(pb.GetStatusRequest(), **call)
        await process.wait()
    (home / "fleet.json").unlink()

    async with serving(home, model_server.url) as (_, card), grpc.aio.insecure_channel(card["address"]) as channel:
        client = pb_grpc.OrchestratorServiceStub(channel)
        call["metadata"] = (("authorization", f"Bearer {card['token']}"),)
        reply = await client.Orchestrate(task, **call)
        assert reply.execution_id == accepted.execution_id
        assert reply.status == pb.DELIBERATION_STATUS_COMPLETED
        assert git(repository, "rev-parse", "fleet/survivor") == reply.commit_sha
        watched = client.StreamExecution(pb.StreamExecutionRequest(execution_id=accepted.execution_id), **call)
        events = [event async for event in watched]
        claims = [json.loads(e.payload_json)["generation"] for e in events if e.type == "execution_claimed"]
        assert claims == [1, 2]
        connection = await nats.connect(card["nats_url"], token=card["nats_token"])
        results = await connection.jetstream().subscribe("agent.results.survivor", ordered_consumer=True)
        assert json.loads((await results.next_msg(timeout=10)).data)["status"] == "completed"
        with pytest.raises(nats.errors.TimeoutError):
            await results.next_msg(timeout=0.3)
        await connection.close()
        # What the killed process left in its workspaces was reaped at the start.
        await gone(home / "workspaces", f"{accepted.execution_id}/*")
    # Ray's own two agents take a minute to notice that their cluster is gone; nothing of ours does.
    ours = [child for child in children if _name(child) in ("nats-server", "ray::AgentHost", "bwrap", "raylet")]
    assert not ours


def _name(process: psutil.Process) -> str:
    try:
        return process.cmdline()[0].rsplit("/", 1)[-1] if process.status() != psutil.STATUS_ZOMBIE else ""
    except (psutil.NoSuchProcess, IndexError):
        return ""
