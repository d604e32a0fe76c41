"""Real parts meet: gRPC, Ray, JetStream, git, the sandbox. Clients are generated code, buf and a plain subscriber."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
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
from tests.scripts import FAILING, GREETINGS, HELLO, HELLO_FILES, HELLO_OPERATIONS, SLEEP, SLEEPING, SLOW


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


async def _started(client, token, execution_id: str, text: str) -> None:
    """Wait until some tool has started with `text` among its arguments."""
    request = pb.StreamExecutionRequest(execution_id=execution_id)
    async for event in client.StreamExecution(request, metadata=token):
        if event.type == "tool_started" and text in event.payload_json:
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


async def test_evidence_picks_the_good_one(client, token, repository: Path) -> None:
    reply = await client.Deliberate(
        pb.DeliberateRequest(
            task_id=_task_id("greetings"),
            task_description=f"{GREETINGS} write hello_world",
            repo=pb.RepoRef(path=str(repository)),
            num_agents=3,
        ),
        metadata=token,
        timeout=120,
    )
    assert reply.status == pb.DELIBERATION_STATUS_COMPLETED
    assert [result.proposal.author_id for result in reply.results] == ["agent-dev-3", "agent-dev-2", "agent-dev-1"]
    assert reply.winner_id == "agent-dev-3"
    best, sloppy, wrong = reply.results
    assert best.score > sloppy.score > wrong.score
    assert sloppy.checks.dryrun.passed
    assert not sloppy.checks.lint.passed
    assert not wrong.checks.all_passed


async def test_no_candidate_passing_is_a_status_of_its_own(client, token, repository: Path) -> None:
    request = pb.OrchestrateRequest(
        task_id=_task_id("failing"), task_description=FAILING, repo=pb.RepoRef(path=str(repository))
    )
    reply = await client.Orchestrate(request, metadata=token, timeout=120)
    assert reply.status == pb.DELIBERATION_STATUS_NO_WINNER
    assert not reply.commit_sha
    assert git(repository, "branch", "--list", "fleet/*") == ""
    assert reply.candidates


async def test_a_dropped_client_fetches_its_result_afterwards(client, token, repository: Path) -> None:
    task_id = _task_id("dropped")
    request = pb.DeliberateRequest(
        task_id=task_id, task_description=HELLO, repo=pb.RepoRef(path=str(repository)), num_agents=1
    )
    with pytest.raises(grpc.aio.AioRpcError) as dropped:
        await client.Deliberate(request, metadata=token, timeout=0.2)
    assert dropped.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    again = await client.Deliberate(request, metadata=token, timeout=120)
    assert again.status == pb.DELIBERATION_STATUS_COMPLETED
    fetched = await client.GetDeliberationResult(pb.GetDeliberationResultRequest(task_id=task_id), metadata=token)
    assert fetched.winner_id == again.winner_id == "agent-dev-1"


async def test_a_late_subscriber_reads_everything(client, token, repository: Path, fleet: FleetUnderTest) -> None:
    task_id = _task_id("late")
    request = pb.DeliberateRequest(
        task_id=task_id, task_description=HELLO, repo=pb.RepoRef(path=str(repository)), num_agents=2
    )
    reply = await client.Deliberate(request, metadata=token, timeout=120)
    connection = await nats.connect(fleet.running.nats_url, token=fleet.running.nats_token)
    subscription = await connection.jetstream().subscribe(f"agent.results.{task_id}.>", ordered_consumer=True)
    agents = {json.loads((await subscription.next_msg(timeout=10)).data)["agent_id"] for _ in range(2)}
    assert agents == {"agent-dev-1", "agent-dev-2"}
    final = await connection.jetstream().subscribe(f"agent.results.{task_id}", ordered_consumer=True)
    assert json.loads((await final.next_msg(timeout=10)).data)["execution_id"] == reply.execution_id
    with pytest.raises(nats.errors.TimeoutError):
        await final.next_msg(timeout=0.3)
    await connection.close()


async def test_cancel_reaches_the_tool_processes(client, token, repository: Path, fleet: FleetUnderTest) -> None:
    submit = pb.SubmitTaskRequest(
        deliberate=pb.DeliberateRequest(
            task_id=_task_id("cancel"), task_description=SLEEP, repo=pb.RepoRef(path=str(repository)), num_agents=2
        )
    )
    accepted = await client.SubmitTask(submit, metadata=token)
    await _started(client, token, accepted.execution_id, SLEEPING)
    while len(list(_processes(SLEEPING))) < 2:
        await asyncio.sleep(0.05)

    await client.CancelExecution(
        pb.CancelExecutionRequest(execution_id=accepted.execution_id, reason="changed my mind"),
        metadata=token,
        timeout=30,
    )

    assert list(_processes(SLEEPING)) == []
    execution = await client.GetExecution(pb.GetExecutionRequest(execution_id=accepted.execution_id), metadata=token)
    assert getattr(execution, "execution", execution).status == pb.DELIBERATION_STATUS_CANCELLED
    events = await _events(client, token, accepted.execution_id)
    outcomes = [chain[-1].outcome for chain in _chains(events).values()]
    assert outcomes == ["cancelled", "cancelled"]
    assert [event.type for event in events].count("run_finished") == 2
    assert not list((fleet.settings.home / "workspaces").glob(f"{accepted.execution_id}/*/tree"))


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
    await _started(client, token, accepted.execution_id, SLEEPING)
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

    reply = await client.Deliberate(
        pb.DeliberateRequest(
            task_id=_task_id("after"), task_description=HELLO, repo=pb.RepoRef(path=str(repository)), num_agents=1
        ),
        metadata=token,
        timeout=120,
    )
    assert reply.status == pb.DELIBERATION_STATUS_COMPLETED


async def test_bad_input_leaves_nothing_behind(client, token, repository: Path, tmp_path: Path) -> None:
    empty = make_repository(tmp_path / "empty")
    good = pb.RepoRef(path=str(repository))
    table = [
        (pb.DeliberateRequest(task_description="x", repo=pb.RepoRef(path=str(repository), ref="nowhere")), "repo.ref"),
        (pb.DeliberateRequest(task_description="x", repo=pb.RepoRef(path=str(tmp_path / "absent"))), "repo"),
        (pb.DeliberateRequest(task_description="x", repo=pb.RepoRef(path=str(empty))), "repo"),
        (pb.DeliberateRequest(task_description="  ", repo=good), "task_description"),
        (pb.DeliberateRequest(task_description="x" * 100 * 1024, repo=good), "task_description"),
        (pb.DeliberateRequest(task_description="x", role="WIZARD", repo=good), "role"),
        (pb.DeliberateRequest(task_description="x", repo=good, num_agents=-1), "num_agents"),
        (
            pb.DeliberateRequest(task_description="x", repo=good, constraints=pb.TaskConstraints(max_iterations=-5)),
            "constraints.max_iterations",
        ),
        (pb.DeliberateRequest(task_description="x"), "repo"),
    ]
    for request, field in table:
        request.task_id = _task_id("bad")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.Deliberate(request, metadata=token, timeout=30)
        assert refused.value.code() in (
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.FAILED_PRECONDITION,
            grpc.StatusCode.NOT_FOUND,
        ), (field, refused.value.code(), refused.value.details())
        details = dict(refused.value.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
        assert field.encode() in details, (field, refused.value.details())
        with pytest.raises(grpc.aio.AioRpcError) as absent:
            await client.GetDeliberationResult(pb.GetDeliberationResultRequest(task_id=request.task_id), metadata=token)
        assert absent.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_repository_that_cannot_be_reached(client, token) -> None:
    request = pb.DeliberateRequest(
        task_id=_task_id("far"), task_description="x", repo=pb.RepoRef(url="https://host.invalid/repository.git")
    )
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.Deliberate(request, metadata=token, timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    details = dict(refused.value.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    assert b"repo.url" in details, refused.value.details()


async def test_a_foreign_client_through_reflection(fleet: FleetUnderTest, repository: Path) -> None:
    task_id = _task_id("buf")
    buf = str(Path(sys.executable).with_name("buf"))
    request = {"task_id": task_id, "task_description": HELLO, "repo": {"path": str(repository)}, "num_agents": 1}
    process = await asyncio.create_subprocess_exec(
        buf,
        "curl",
        "--protocol=grpc",
        "--http2-prior-knowledge",
        "--header",
        f"authorization: Bearer {fleet.running.token}",
        "--reflect",
        "--reflect-header",
        f"authorization: Bearer {fleet.running.token}",
        "--data",
        json.dumps(request),
        f"http://{fleet.running.address}/fleet.orchestrator.v1.OrchestratorService/Deliberate",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    reply = json.loads(out)
    assert reply["status"] == "DELIBERATION_STATUS_COMPLETED"
    assert reply["winnerId"] == "agent-dev-1"


async def test_watchers_see_the_same_log_while_it_grows(client, token, repository: Path) -> None:
    accepted = await client.SubmitTask(
        pb.SubmitTaskRequest(
            deliberate=pb.DeliberateRequest(
                task_id=_task_id("watch"), task_description=SLOW, repo=pb.RepoRef(path=str(repository)), num_agents=2
            )
        ),
        metadata=token,
    )
    early, second = await asyncio.gather(
        _events(client, token, accepted.execution_id), _events(client, token, accepted.execution_id)
    )
    late = await _events(client, token, accepted.execution_id)
    assert [e.event_id for e in early] == [e.event_id for e in second] == [e.event_id for e in late]
    assert len({e.event_id for e in late}) == len(late)
    middle = late[len(late) // 2]
    assert await _events(client, token, accepted.execution_id, middle.sequence) == late[len(late) // 2 :]
