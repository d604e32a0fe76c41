"""Real parts meet: gRPC, Ray, JetStream, git, the sandbox. Clients are generated code, buf and a plain subscriber."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import jsonschema
import nats
import psutil
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.audit import AuditEntry, verify
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.conftest import FleetUnderTest
from tests.scripts import HELLO, HELLO_FILES, HELLO_OPERATIONS, SLEEP, SLEEPING


@pytest.fixture
async def client(fleet: FleetUnderTest) -> AsyncIterator[pb_grpc.OrchestratorServiceStub]:
    async with grpc.aio.insecure_channel(fleet.running.address) as channel:
        yield pb_grpc.OrchestratorServiceStub(channel)


@pytest.fixture
def token(fleet: FleetUnderTest) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {fleet.running.token}"),)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository", {**HELLO_FILES, "ruff.toml": ""})


def _task_id(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


async def _events(client, token, execution_id: str, start: int = 0) -> list[pb.ExecutionEvent]:
    request = pb.StreamExecutionRequest(execution_id=execution_id, from_sequence=start)
    return [event async for event in client.StreamExecution(request, metadata=token)]


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


async def _started(client, token, execution_id: str, text: str, *, agents: int = 1) -> None:
    """Wait until so many agents have started a tool with `text` among its arguments."""
    request, started = pb.StreamExecutionRequest(execution_id=execution_id), set()
    async for event in client.StreamExecution(request, metadata=token):
        if event.type == "tool_started" and text in event.payload_json:
            started.add(event.agent_id)
            if len(started) == agents:
                return


def _documented(name: str, payload: object) -> None:
    """Hold a payload as it went over NATS against the schema that the documents give for it."""
    document = json.loads((Path(__file__).parents[2] / "docs/asyncapi.yaml").read_text())
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    jsonschema.validate(payload, schema)


async def test_hello_world_over_grpc(client, token, repository: Path, fleet: FleetUnderTest) -> None:
    """Orchestrate: agents use file, test and git tools in order; the winner is a commit; the audit verifies."""
    before = (git(repository, "rev-parse", "HEAD"), git(repository, "status", "--porcelain"))
    task_id = _task_id("hello")
    connection = await nats.connect(fleet.running.nats_url, token=fleet.running.nats_token)
    subscription = await connection.subscribe(f"agent.results.{task_id}")

    reply = await client.Orchestrate(
        pb.OrchestrateRequest(
            task_id=task_id,
            task_description=HELLO,
            role="DEVELOPER",
            repo=pb.RepoRef(path=str(repository)),
            options=pb.OrchestratorOptions(num_agents=2),
        ),
        metadata=token,
        timeout=120,
    )

    assert reply.status == pb.DELIBERATION_STATUS_COMPLETED
    assert reply.branch == f"fleet/{task_id}"
    assert git(repository, "rev-parse", reply.branch) == reply.commit_sha
    assert "hello_world" in git(repository, "show", f"{reply.branch}:utils.py")
    assert (git(repository, "rev-parse", "HEAD"), git(repository, "status", "--porcelain")) == before
    assert git(repository, "symbolic-ref", "--short", "HEAD") == "main"
    used = [f"{operation.tool}_{operation.operation}" for operation in reply.winner.operations]
    assert tuple(used) == HELLO_OPERATIONS
    assert reply.winner.checks.all_passed
    assert list(reply.winner.duplicates)

    events = await _events(client, token, reply.execution_id)
    assert events[0].type == "execution_started"
    assert events[-1].type == "execution_finished"
    chains = _chains(events)
    assert set(chains) == {"agent-dev-1", "agent-dev-2"}
    heads = {
        event.agent_id: json.loads(event.payload_json)["audit_head"] for event in events if event.type == "run_finished"
    }
    for agent, chain in chains.items():
        assert verify(chain, head=heads[agent]) is None

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


async def test_agents_of_a_killed_host_go_on_in_another_one(client, token, repository: Path) -> None:
    """The host of one deliberation's agents is killed in the middle of a command of theirs."""
    accepted = await client.SubmitTask(
        pb.SubmitTaskRequest(
            deliberate=pb.DeliberateRequest(
                task_id=_task_id("killed"), task_description=SLEEP, repo=pb.RepoRef(path=str(repository)), num_agents=2
            )
        ),
        metadata=token,
    )
    await _started(client, token, accepted.execution_id, SLEEPING, agents=2)
    mine = {child.pid for child in psutil.Process().children(recursive=True)}
    hosts = [process for process in _processes("ray::AgentHost") if process.pid in mine]
    assert hosts
    for host in hosts:
        os.kill(host.pid, signal.SIGKILL)

    events = await _events(client, token, accepted.execution_id)
    bodies = [json.loads(event.payload_json) for event in events]
    again = [body for body in bodies if body["type"] == "run_reassigned"]
    assert sorted(body["lost_agent_id"] for body in again) == ["agent-dev-1", "agent-dev-2"]
    assert all("died" in body["reason"] for body in again)
    # The command that was cut off is not carried out again: its call is closed, and the model goes on from there.
    calls = [body["entry"]["call_id"] for body in bodies if body["type"] == "tool_started" and body["entry"]["call_id"]]
    assert len(calls) == len(set(calls))
    assert any(body["type"] == "tool_finished" and body["result"]["outcome"] == "interrupted" for body in bodies)
    assert [body["candidate"]["stop_reason"] for body in bodies if body["type"] == "candidate_submitted"]
    while list(_processes(SLEEPING)):
        await asyncio.sleep(0.05)
