"""Real parts meet: gRPC, Ray, JetStream, git, the sandbox. Clients are generated code, buf and a plain subscriber."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import nats
import psutil
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.audit import AuditEntry, verify
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.conftest import FleetUnderTest
from tests.fleet_client import Client, bodies, to_deliberate, to_orchestrate
from tests.scripts import HELLO, HELLO_FILES, HELLO_OPERATIONS, SLEEP, SLEEPING


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository", {**HELLO_FILES, "ruff.toml": ""})


def _chains(events: list[pb.ExecutionEvent]) -> dict[str, list[AuditEntry]]:
    chains: dict[str, list[AuditEntry]] = {}
    for event in events:
        if event.type in ("tool_started", "tool_finished"):
            entry = from_plain(AuditEntry, json.loads(event.payload_json)["entry"])
            chains.setdefault(event.agent_id, []).append(entry)
    return chains


def _processes(marker: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if marker in " ".join(process.cmdline()):
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def _documented(name: str, payload: object) -> None:
    """Hold a payload as it went over NATS against the schema that the documents give for it."""
    document = json.loads((Path(__file__).parents[2] / "docs/asyncapi.yaml").read_text())
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    jsonschema.validate(payload, schema)


async def test_hello_world_over_grpc(client: Client, repository: Path, fleet: FleetUnderTest) -> None:
    """Orchestrate: agents use file, test and git tools in order; the winner is a commit; the audit verifies."""
    before = (git(repository, "rev-parse", "HEAD"), git(repository, "status", "--porcelain"))
    task = to_orchestrate(HELLO, repository, agents=2, role="DEVELOPER")
    connection = await nats.connect(fleet.running.nats_url, token=fleet.running.nats_token)
    subscription = await connection.subscribe(f"agent.results.{task.task_id}")

    reply = await client.stub.Orchestrate(task, **client.call)
    assert reply.status == pb.DELIBERATION_STATUS_COMPLETED
    assert reply.branch == f"fleet/{task.task_id}"
    assert git(repository, "rev-parse", reply.branch) == reply.commit_sha
    assert "hello_world" in git(repository, "show", f"{reply.branch}:utils.py")
    assert (git(repository, "rev-parse", "HEAD"), git(repository, "status", "--porcelain")) == before
    assert git(repository, "symbolic-ref", "--short", "HEAD") == "main"
    used = [f"{operation.tool}_{operation.operation}" for operation in reply.winner.operations]
    assert tuple(used) == HELLO_OPERATIONS
    assert reply.winner.checks.all_passed
    assert list(reply.winner.duplicates)

    events = await client.events(reply.execution_id)
    assert events[0].type == "execution_started"
    assert events[-1].type == "execution_finished"
    chains = _chains(events)
    assert set(chains) == {"agent-dev-1", "agent-dev-2"}
    ends = {event.agent_id: json.loads(event.payload_json) for event in events if event.type == "run_finished"}
    for agent, chain in chains.items():
        assert verify(chain, head=ends[agent]["audit_head"]) is None

    message = await subscription.next_msg(timeout=10)
    result = json.loads(message.data)
    _documented("Result", result)
    stored = await connection.jetstream().subscribe(
        f"agent.events.default.{reply.execution_id}.>", ordered_consumer=True
    )
    for _ in events:
        _documented("Event", json.loads((await stored.next_msg(timeout=10)).data))
    assert result["kind"] == "execution"
    assert result["status"] == "completed"
    assert result["artifacts"]["commit_sha"] == reply.commit_sha
    assert result["artifacts"]["files_changed"] == ["utils.py"]
    assert result["audit_head"] == reply.audit_head
    await connection.close()


async def test_agents_of_a_killed_host_go_on_in_another_one(client: Client, repository: Path) -> None:
    """The host of one deliberation's agents is killed in the middle of a command of theirs."""
    execution_id = await client.submit(to_deliberate(SLEEP, repository, num_agents=2))
    await client.until(execution_id, "tool_started", SLEEPING, count=2)
    mine = {child.pid for child in psutil.Process().children(recursive=True)}
    hosts = [process for process in _processes("ray::AgentHost") if process.pid in mine]
    assert hosts
    for host in hosts:
        os.kill(host.pid, signal.SIGKILL)

    events = await client.events(execution_id)
    again = bodies(events, "run_reassigned")
    assert sorted(body["lost_agent_id"] for body in again) == ["agent-dev-1", "agent-dev-2"]
    assert all("died" in body["reason"] for body in again)
    # The command that was cut off is not carried out again: its call is closed, and the model goes on from there.
    calls = [body["entry"]["call_id"] for body in bodies(events, "tool_started") if body["entry"]["call_id"]]
    assert len(calls) == len(set(calls))
    assert "interrupted" in [body["result"]["outcome"] for body in bodies(events, "tool_finished")]
    assert bodies(events, "candidate_submitted")
    while list(_processes(SLEEPING)):
        await asyncio.sleep(0.05)
