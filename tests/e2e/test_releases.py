"""Hosts of agents of another release than the orchestrator, and nodes that are drained, on a Ray of several nodes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.domain.job import this_release
from swe_ai_fleet.testing import ScriptedModelServer
from tests.fleet_client import Client, connected, serving, to_orchestrate
from tests.scripts import HELLO, SLEEP

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# What the node's Python does first: it says that the fleet is of the version before.
_EARLIER = """
import importlib.metadata as metadata
found = metadata.version
metadata.version = lambda name: "0.0.9" if name == "swe-ai-fleet" else found(name)
"""
_CLUSTER = """
import json, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
print(cluster.address, flush=True)
for line in sys.stdin:
    for _ in range(5):
        try:
            node = cluster.add_node(num_cpus=0, resources={"agent_host": 2}, env_vars=json.loads(line))
        except Exception:
            # Ray waits for half a minute, which a busy machine may take longer than.
            continue
        print(node.node_id, flush=True)
        break
cluster.shutdown()
"""


@dataclass(kw_only=True)
class Cluster:
    """A Ray cluster on this machine. Only nodes that were added take hosts of agents."""

    process: asyncio.subprocess.Process
    variables: dict[str, str]
    address: str = ""

    async def read(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(200):
            return (await self.process.stdout.readline()).decode().strip()

    async def add(self, **variables: str) -> str:
        """A further node, with more variables; its id."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(variables).encode() + b"\n")
        return await self.read()


@asynccontextmanager
async def cluster(**more: str) -> AsyncIterator[Cluster]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "FLEET_"))}
    variables = plain | {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # On a busy machine half a minute is not enough.
        "RAY_raylet_start_wait_time_s": "150",
        **more,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _CLUSTER), env=variables, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        made = Cluster(process=process, variables=variables)
        made.address = await made.read()
        yield made
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def status(one: Client) -> pb.GetStatusResponse:
    return await one.stub.GetStatus(pb.GetStatusRequest(include_fleet=True, include_stats=True), **one.call)


async def until(one: Client, found: Any) -> pb.GetStatusResponse:
    async with asyncio.timeout(90):
        while not found(told := await status(one)):
            await asyncio.sleep(0.2)
        return told


async def ended(one: Client, execution_id: str) -> pb.Execution:
    await one.events(execution_id)
    return await one.execution(execution_id)


async def drained(one: Client, node_id: str, **more: Any) -> pb.DrainResponse:
    request = pb.DrainRequest(target=pb.DRAIN_TARGET_NODE, name=node_id, **more)
    return await one.stub.Drain(request, **one.call)


async def test_work_waits_for_hosts_that_fit_and_leaves_nodes_that_are_drained(
    model_server: ScriptedModelServer, repository: Path, tmp_path: Path
) -> None:
    (earlier := tmp_path / "earlier").mkdir()
    (earlier / "sitecustomize.py").write_text(_EARLIER)
    (home := tmp_path / "home").mkdir()
    async with cluster() as ray:
        old = await ray.add(PYTHONPATH=str(earlier))
        told = {"FLEET_RAY_ADDRESS": ray.address, "FLEET_RAY_RESOURCES": '{"agent_host": 1}'}
        told |= {"FLEET_AGENTS_PER_ACTOR": "2", "RAY_AUTH_MODE": "", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
        async with serving(home, model_server.url, **told) as (_, card), connected(card) as fleet:
            waiting = await fleet.submit(to_orchestrate(HELLO, repository))
            seen = await until(fleet, lambda told: any(node.unfit for node in told.nodes))
            (unfit,) = [node for node in seen.nodes if node.unfit]
            assert unfit.node_id == old
            assert unfit.unfit == f"the host is 0.0.9+{this_release().wire}, the orchestrator {this_release()}"
            (part,) = [one for one in seen.components if one.name == "ray"]
            assert part.state == pb.COMPONENT_STATE_DEGRADED and "the same image" in part.message
            assert (await fleet.execution(waiting)).status != pb.DELIBERATION_STATUS_FAILED

            new = await ray.add()
            assert (await ended(fleet, waiting)).status == pb.DELIBERATION_STATUS_COMPLETED
            assert {host.node_id for host in (await status(fleet)).hosts if host.node_id} == {new}

            sleeping = await fleet.submit(to_orchestrate(SLEEP, repository))
            await fleet.until(sleeping, "tool_started")
            assert (await drained(fleet, new)).waits_for
            third = await ray.add()
            assert (await ended(fleet, await fleet.submit(to_orchestrate(HELLO, repository)))).status == (
                pb.DELIBERATION_STATUS_COMPLETED
            )
            seen = await status(fleet)
            assert {(node.node_id, node.draining) for node in seen.nodes} >= {(new, True), (third, False)}
            assert {(host.node_id, host.draining) for host in seen.hosts if host.node_id} >= {
                (new, True),
                (third, False),
            }
            # Once its time is over what is at work is moved: it sleeps on at the third.
            await drained(fleet, new, undo=True)
            async with asyncio.timeout(90):
                while (await drained(fleet, new, within_seconds=1)).waits_for:
                    await asyncio.sleep(0.2)
            assert {host.node_id for host in (await status(fleet)).hosts if host.node_id} == {third}
            await fleet.cancel(sleeping)
            events = await fleet.events(sleeping)
            assert [event.type for event in events].count("run_reassigned") == 1
