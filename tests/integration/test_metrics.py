"""What a fleet at work says of itself: figures over time, and what it is doing now."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.testing import ScriptedModelServer
from tests.fleet_client import Client, to_deliberate
from tests.fleet_command import Shell
from tests.scripts import HELLO, HELLO_OPERATIONS, SLEEP

SECONDS = 90


async def measured(client: Client, **fields: object) -> pb.GetMetricsResponse:
    return await client.stub.GetMetrics(pb.GetMetricsRequest(**fields), **client.call)


def latencies(reply: pb.GetMetricsResponse) -> dict[str, pb.LatencySummary]:
    return {one.operation: one for one in reply.latencies}


async def counted(client: Client, executions: int, **fields: object) -> pb.GetMetricsResponse:
    """The figures once so many executions are counted as ended."""
    async with asyncio.timeout(SECONDS):
        while True:
            reply = await measured(client, **fields)
            if sum(one.count for one in reply.executions) >= executions and not reply.incomplete:
                return reply
            await asyncio.sleep(0.05)


async def test_a_run_is_measured(client: Client, repository: Path) -> None:
    before = await counted(client, 0, role=pb.ROLE_DATA)
    ended = sum(one.count for one in before.executions)
    execution_id = await client.submit(to_deliberate(HELLO, repository, role="DATA"))
    events = await client.events(execution_id)
    state = await client.execution(execution_id)
    after = await counted(client, ended + 1, role=pb.ROLE_DATA)

    def grew(name: str) -> int:
        return latencies(after)[name].count - latencies(before)[name].count

    replies = sum(event.type == "model_replied" for event in events)
    calls = sum(event.type == "tool_finished" for event in events)
    counts = {"deliberation": 1, "queue_wait": 1, "orchestration": 0, "workflow": 0, "agent": 1}
    counts |= {"model_call": replies, "tool_call": calls}
    assert {name: grew(name) for name in counts} == counts
    assert grew("check") >= 1
    assert after.agents.succeeded - before.agents.succeeded == after.agents.started - before.agents.started == 1
    assert after.usage.model_calls - before.usage.model_calls == state.usage.model_calls
    took = latencies(after)["deliberation"]
    assert 0 < took.p50_ms <= took.p95_ms * 1.0001 <= took.p99_ms * 1.0002
    assert {tool.name for tool in after.tools} >= set(HELLO_OPERATIONS)
    assert sum(tool.calls for tool in after.tools) == latencies(after)["tool_call"].count
    assert [model.model for model in after.models] == ["scripted"]
    assert 0 < after.quantile_error < 0.1 and 0 <= after.cache_hit_rate <= 1


async def test_the_fleet_shows_what_it_does(
    client: Client, model_server: ScriptedModelServer, repository: Path
) -> None:
    execution_id = await client.submit(to_deliberate(SLEEP, repository, num_agents=2))
    await client.until(execution_id, "tool_started")
    asked = pb.GetStatusRequest(include_stats=True, include_fleet=True)
    try:
        async with asyncio.timeout(SECONDS):
            while True:
                status = await client.stub.GetStatus(asked, **client.call)
                running = (await measured(client)).agents.running
                if sum(host.running for host in status.hosts) >= 2 and running >= 2 and status.hosts[0].node_id:
                    break
                await asyncio.sleep(0.2)
        [me] = [one for one in status.replicas if one.answering]
        host, node, [endpoint] = status.hosts[0], status.nodes[0], status.model_endpoints
        assert (host.alive, host.replica, host.node_id) == (True, me.name, node.node_id)
        assert host.slots >= 2 and host.memory_bytes > 1_000_000
        assert node.alive and 0 < node.memory_used_bytes < node.memory_total_bytes
        assert (endpoint.url, endpoint.state) == (model_server.url, pb.COMPONENT_STATE_UP)
        assert status.queue.driven >= 1 and me.driven >= 1 and status.queue.max_waiting > 0
        storage = {one.name: one for one in status.storage}
        assert storage["AGENT_EVENTS"].messages > 0 and storage["AGENT_EVENTS"].bytes > 0
    finally:
        await client.cancel(execution_id)
    async with asyncio.timeout(SECONDS):
        while (reply := await measured(client)).agents.running:
            await asyncio.sleep(0.05)
    assert reply.agents.cancelled >= 2


async def test_the_command_line_tells_both(shell: Shell) -> None:
    status, metrics = [(await shell.fleet(name, "--json")).document for name in ("status", "metrics")]
    assert (status["status"], status["nodes"][0]["alive"], metrics["step_seconds"]) == ("healthy", True, 60)
    plain = [await shell.fleet("status"), await shell.fleet("metrics", "--since", "2h", "--role", "dev")]
    assert all(word in plain[0].out + plain[1].out for word in ("AGENT_EVENTS", "executions ended", "model server"))
    for option, value, said in (
        ("--since", "yesterday", "--since: 'yesterday'"),
        ("--role", "KING", "'KING' is unknown"),
    ):
        wrong = await shell.fleet("metrics", option, value)
        assert (wrong.code, said in wrong.err) == (2, True)
