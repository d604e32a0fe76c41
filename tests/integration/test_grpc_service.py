"""The way of a task through the orchestrator's RPCs on real sockets; agents and repositories are scripted."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
import structlog
from google.protobuf import json_format
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from services.grpc_server import serve_grpc
from services.orchestrator.main import task_of
from swe_ai_fleet.adapters.jetstream import WorkMessage
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.candidate import CheckKind, CheckResult, TestSummary
from swe_ai_fleet.domain.errors import AgentLost, PreconditionFailed, ResourceExhausted, Unavailable
from swe_ai_fleet.domain.event import ExecutionFinished
from tests.documented import blocks
from tests.fleet_command import ran
from tests.orchestrator_service import Service, deliberation, field_named, orchestration, refusal
from tests.scripted_fleet import FAILED, PASSED, ScriptedRun
from tests.scripted_workspaces import DELIVERED_COMMIT


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with Service().running() as running:
        yield running


async def test_deliberate_answers_with_ranked_candidates(service: Service):
    evidence = (
        CheckResult(kind=CheckKind.APPLY, name="patch applies", passed=True, score=1.0),
        CheckResult(kind=CheckKind.POLICY, name="policy", passed=True, score=1.0, duration_ms=3),
        CheckResult(kind=CheckKind.LINT, name="lint", passed=False, required=False, problems=("E501",), warnings=2),
        replace(PASSED, tests=TestSummary(passed=4)),
        CheckResult(kind=CheckKind.COMMAND, name="build", passed=True, score=1.0, exit_code=0, output="ok"),
    )
    named = replace(FAILED, kind=CheckKind.COMMAND, name="pytest -q", duration_ms=5)
    service.fleet.runs = {
        "agent-qa-1": ScriptedRun(checks=evidence, operations=3),
        "agent-qa-2": ScriptedRun(checks=(evidence[-1], named)),
        "agent-qa-3": ScriptedRun(fault=AgentLost("its host died")),
    }
    reply = await service.stub.Deliberate(deliberation(role="qa", rounds=2))
    assert (reply.status, reply.task_id, reply.winner_id) == (
        *(pb.DELIBERATION_STATUS_COMPLETED, "task-1"),
        "agent-qa-1",
    )
    assert [(one.rank, one.candidate_id, one.checks.all_passed) for one in reply.results] == [
        (1, "agent-qa-1", True),
        (2, "agent-qa-2-r2", False),
    ]
    winner, second = reply.results
    assert (second.proposal.author_id, second.revises, second.round) == ("agent-qa-2", "agent-qa-2-r1", 2)
    assert list(second.proposal.revisions) == ["done", "done"]
    proposal, checks = winner.proposal, winner.checks
    assert (proposal.author_id, proposal.author_role, proposal.content) == ("agent-qa-1", "QA", "done")
    assert proposal.created_at_ms > 1_700_000_000_000
    assert winner.patch.text == b"diff of agent-qa-1\n"
    assert winner.patch.base_commit == reply.metadata["base_commit"]
    assert winner.artifacts.patch.artifact.digest == hashlib.sha256(winner.patch.text).hexdigest()
    assert winner.stop_reason == pb.STOP_REASON_FINAL_ANSWER
    critiques = [(one.reviewer_id, one.round, one.verdict) for one in winner.critiques]
    assert critiques == [("agent-qa-2", 1, pb.VERDICT_ACCEPT)]
    assert (0 < winner.evidence_score < 1, winner.review_score) == (True, 1.0)
    assert (checks.policy.passed, checks.policy.duration_ms) == (True, 3)
    assert (checks.lint.error_count, checks.lint.warning_count, checks.dryrun.output) == (1, 2, "1 passed")
    assert [one.check_type for one in checks.additional_checks] == ["patch applies", "build"]
    # The agent ran no tests; of a task that names its checks the dry run is what these come to.
    assert (winner.artifacts.tests.passed, second.artifacts.HasField("tests")) == (4, False)
    dryrun = pb.DryRunResult(output="1 failed", exit_code=1, message="pytest -q: exit code 1", duration_ms=5)
    assert second.checks.dryrun == dryrun
    operations = [(one.step, one.audit_seq, one.operation) for one in winner.operations]
    assert operations == [(number, 2 * number, "write_file") for number in (1, 2, 3)]
    assert reply.audit_head == winner.audit_head != ""
    assert (reply.usage.prompt_tokens, service.workspaces.deliveries) == (400, [])


async def test_orchestrate_delivers_the_winner(service: Service):
    reply = await service.stub.Orchestrate(
        orchestration(
            delivery=pb.Delivery(branch="topic", author_name="Ada", push=True),
            options=pb.OrchestratorOptions(num_agents=2, deliberation_rounds=1, custom_params={"temperature": "0.5"}),
        )
    )
    assert reply.status == pb.DELIBERATION_STATUS_COMPLETED
    assert (reply.commit_sha, reply.branch) == (DELIVERED_COMMIT, "topic")
    assert reply.winner == reply.candidates[0]
    assert (reply.winner.artifacts.commit_sha, reply.winner.artifacts.branch) == (DELIVERED_COMMIT, "topic")
    assert len(reply.candidates) == 2
    [(_, patch, delivery)] = service.workspaces.deliveries
    assert patch == reply.winner.patch.text
    assert (delivery.author_name, delivery.author_email, delivery.push) == ("Ada", "fleet@localhost", True)
    assert "passed_over" not in reply.metadata
    assert service.fleet.reviewed != []


async def test_a_stream_tells_every_step_in_order_and_ends_with_the_reply(service: Service):
    service.fleet.runs = {"agent-dev-2": ScriptedRun(fault=AgentLost("its host died"))}
    call, unary = service.stub.StreamOrchestration(orchestration()), service.stub.Orchestrate(orchestration())
    updates = [update async for update in call]
    sequences = [update.sequence for update in updates]
    assert sequences == sorted(set(sequences)) == [update.event.sequence for update in updates]
    percents = [update.progress_percent for update in updates]
    assert (percents, percents[0], percents[-1]) == (sorted(percents), 0, 100)
    steps = [update.current_step for update in updates]
    assert (steps[0], steps[-1], "solving" in steps) == ("accepted", "finished", True)
    shown = [(update.event.type, update.current_agent, update.partial_result) for update in updates]
    assert [agent for event, agent, _ in shown if event == "run_lost"] == ["agent-dev-2"]
    checked = {agent: partial for event, agent, partial in shown if event == "checks_finished"}
    assert sorted(checked) == ["agent-dev-1", "agent-dev-3"]
    assert checked["agent-dev-1"].checks.all_passed
    assert checked["agent-dev-1"].patch.text == b"diff of agent-dev-1\n"
    [ranked] = [partial for event, _, partial in shown if event == "candidates_ranked"]
    assert (ranked.rank, ranked.candidate_id) == (1, "agent-dev-1")
    assert [update for update in updates if update.HasField("final")] == updates[-1:]
    assert updates[-1].final == await unary


async def test_submit_then_fetch_by_task_and_by_execution(service: Service):
    gate = asyncio.Event()
    service.fleet.default = ScriptedRun(after=gate)
    by_task = pb.GetDeliberationResultRequest(task_id="task-1")
    # The result of a task is its deliberation's before its orchestration's.
    first = await service.stub.SubmitTask(pb.SubmitTaskRequest(orchestrate=orchestration(attempt=5)))
    known = await service.stub.GetDeliberationResult(by_task)
    assert known.metadata["execution_id"] == first.execution_id
    submitted = await service.stub.SubmitTask(pb.SubmitTaskRequest(deliberate=deliberation(attempt=3)))
    assert (submitted.task_id, submitted.already_existed) == ("task-1", False)
    by_id = pb.GetExecutionRequest(execution_id=submitted.execution_id)
    pending = await service.stub.GetDeliberationResult(by_task)
    assert pending.status in (pb.DELIBERATION_STATUS_PENDING, pb.DELIBERATION_STATUS_IN_PROGRESS)
    assert (list(pending.results), pending.metadata["execution_id"]) == ([], submitted.execution_id)
    await service.fleet.started(6)
    running = (await service.stub.GetExecution(by_id)).execution
    assert (running.status, running.kind) == (pb.DELIBERATION_STATUS_IN_PROGRESS, pb.EXECUTION_KIND_DELIBERATION)
    gate.set()
    await service.stub.Deliberate(deliberation(attempt=3))
    done = (await service.stub.GetExecution(by_id)).execution
    assert (done.status, done.winner_id, done.attempt) == (pb.DELIBERATION_STATUS_COMPLETED, "agent-dev-1", 3)
    assert len(done.audit_heads) == len(done.results) == len(done.agents) == 3
    fetched = await service.stub.GetDeliberationResult(by_task)
    assert (fetched.status, fetched.winner_id) == (pb.DELIBERATION_STATUS_COMPLETED, "agent-dev-1")
    assert list(fetched.results) == list(done.results)


@pytest.mark.parametrize("ending", ["deadline", "drop", "stream"])
async def test_the_end_of_a_call_ends_only_the_wait(service: Service, ending: str):
    gate = asyncio.Event()
    service.fleet.default = ScriptedRun(after=gate)
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub = OrchestratorServiceStub(channel)
        if ending == "stream":
            call = stub.StreamDeliberation(deliberation())
            assert (await anext(aiter(call))).current_step == "accepted"
            call.cancel()
        else:
            call = stub.Deliberate(deliberation(), timeout=0.2 if ending == "deadline" else None)
            waiting = asyncio.ensure_future(call)
            await service.fleet.started(3)
            if ending == "drop":
                await channel.close(None)
            await asyncio.wait([waiting])
            assert ending != "deadline" or await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await service.fleet.started(3)
    gate.set()
    reply = await service.stub.Deliberate(deliberation())
    assert (reply.status, service.fleet.cancelled) == (pb.DELIBERATION_STATUS_COMPLETED, [])
    assert len(service.fleet.begun) == 3


async def test_replies_stay_small_enough_for_default_clients(service: Service):
    names = [f"agent-dev-{number}" for number in range(1, 41)]
    words = tuple(f"problem {number} " * 20 for number in range(100))
    fat = tuple(
        CheckResult(kind=sort, name=name, passed=True, output=name * 6_000, problems=words)
        for sort, name in ((CheckKind.DRY_RUN, "tests"), (CheckKind.COMMAND, "build"))
    )
    for name in names:
        large = {"patch": name.encode() * 18_000, "operations": 20, "checks": fat, "summary": "z" * 20_000}
        service.fleet.runs[name] = ScriptedRun(**large)
    options = pb.OrchestratorOptions(num_agents=len(names))
    reply = await service.stub.Orchestrate(orchestration(options=options))
    assert reply.status == pb.DELIBERATION_STATUS_COMPLETED
    assert 512 * 1024 < reply.ByteSize() < 3 * 1024 * 1024
    assert sorted(one.candidate_id for one in reply.candidates) == sorted(names)
    assert reply.winner.patch.artifact.digest and reply.winner.audit_head == reply.audit_head
    execution = await service.stub.GetExecution(pb.GetExecutionRequest(execution_id=reply.execution_id))
    assert execution.ByteSize() < 3 * 1024 * 1024
    assert len(execution.execution.results) == len(names)
    assert reply.winner.checks.dryrun.output.startswith("tests")


async def test_lists_are_filtered_and_paged(service: Service):
    for number in range(7):
        await service.stub.Deliberate(deliberation(f"task-{number}", role="QA" if number % 2 else "DEV", num_agents=1))
    service.fleet.default = ScriptedRun(checks=(FAILED,))
    await service.stub.Orchestrate(orchestration("task-0", options=pb.OrchestratorOptions(num_agents=1)))

    async def pages(**fields: object) -> list[list[str]]:
        found: list[list[str]] = []
        token = ""
        while not found or token:
            reply = await service.stub.ListExecutions(pb.ListExecutionsRequest(page_token=token, **fields))
            found.append([one.task_id for one in reply.executions])
            token = reply.next_page_token
        return found

    newest_first = ["task-0", *(f"task-{number}" for number in reversed(range(7)))]
    listed = (await service.stub.ListExecutions(pb.ListExecutionsRequest())).executions
    assert all(not one.results for one in listed)
    assert {(one.title, bool(one.repository)) for one in listed} == {(listed[0].task_description, True)}
    middle = listed[3].created_at_ms
    for fields, expected in (
        ({}, [newest_first]),
        ({"page_size": 3}, [newest_first[:3], newest_first[3:6], newest_first[6:]]),
        ({"task_id": "task-0"}, [["task-0", "task-0"]]),
        ({"role": pb.ROLE_QA}, [["task-5", "task-3", "task-1"]]),
        ({"statuses": [pb.DELIBERATION_STATUS_NO_WINNER]}, [["task-0"]]),
        ({"created_after_ms": 10**14}, [[]]),
        ({"text": "TASK-3"}, [["task-3"]]),
    ):
        assert await pages(**fields) == expected, fields
    assert listed[3].task_id in (await pages(created_after_ms=middle, created_before_ms=middle + 1))[0]
    # What is newer moves no page, and a token is of its own filter.
    token = (await service.stub.ListExecutions(pb.ListExecutionsRequest(page_size=2))).next_page_token
    await service.stub.Deliberate(deliberation("newer", num_agents=1))
    second = await service.stub.ListExecutions(pb.ListExecutionsRequest(page_size=2, page_token=token))
    assert [one.task_id for one in second.executions] == newest_first[2:4]
    other = pb.ListExecutionsRequest(page_token=token, task_id="task-0")
    code, _, details = await refusal(service.stub.ListExecutions(other))
    assert (code, field_named(details)) == (grpc.StatusCode.INVALID_ARGUMENT, "page_token")


async def test_faults_have_their_codes_and_say_when_to_try_again(service: Service):
    failed = grpc.StatusCode.FAILED_PRECONDITION
    for fault, code, retry in (
        (Unavailable("the remote does not answer", field="repo.url"), grpc.StatusCode.UNAVAILABLE, True),
        (ResourceExhausted("the store is full"), grpc.StatusCode.RESOURCE_EXHAUSTED, True),
        (PreconditionFailed("uncommitted changes", field="repo.uncommitted"), failed, False),
        (PreconditionFailed("😀" * 50_000, field="ä" * 5_000, hint="h" * 50_000), failed, False),
    ):
        service.workspaces.faults = {"main": fault}
        told, message, details = await refusal(service.stub.Deliberate(deliberation()))
        assert (told, "RetryInfo" in details) == (code, retry)
        # What is long is cut, so that its headers still arrive.
        assert str(fault).startswith(message.removesuffix("…")) and len(message) > 15
        assert not fault.field or fault.field.startswith(field_named(details).removesuffix("…"))
        assert not retry or details["RetryInfo"].retry_delay.seconds > 0
    # A bug is logged once and keeps its secrets.
    service.workspaces.faults = {"main": KeyError("password hunter2")}
    with structlog.testing.capture_logs() as logs:
        for rpc in (service.stub.Deliberate, service.stub.StreamDeliberation):
            code, message, _ = await refusal(rpc(deliberation()))
            assert code is grpc.StatusCode.INTERNAL
            assert "KeyError" in message and "hunter2" not in message
    methods = [entry["method"].rpartition("/")[2] for entry in logs if entry["log_level"] == "error"]
    assert methods == ["Deliberate", "StreamDeliberation"]
    service.workspaces.faults = {}
    assert (await service.stub.Deliberate(deliberation())).status == pb.DELIBERATION_STATUS_COMPLETED


# --- what requests of the orchestrator bring to the task, field by field ---


EVERY_FIELD = Path(__file__).with_name("every_field.json")
"""A request with a value in every field, and the task that is stored of it."""


async def test_every_field_reaches_the_task(service: Service):
    given = json.loads(EVERY_FIELD.read_text())
    request = json_format.ParseDict(given["request"], pb.OrchestrateRequest())
    await service.stub.SubmitTask(pb.SubmitTaskRequest(orchestrate=request), metadata=(("fleet-caller", "ada"),))
    assert to_plain(service.log.events[0].body.task) == given["task"]
    # So it does from NATS; who asks, and what its council decides, is said otherwise.
    data = json.dumps({"orchestrate": given["request"]}).encode()
    work = WorkMessage(subject="agent.cmd.execute", data=data, headers={}, sequence=1, deliveries=1)
    assert to_plain(task_of(work)) == {**given["task"], "caller": "nats"}
    # A field that is new has to be in the file, or here with the reason.
    assert unset(request) == {
        *("context_options.include_decisions", "memory"),
        # Other tests have these.
        *(f"delivery.{name}" for name in ("branch", "push", "author_name", "author_email")),
        *("model_profile", "options.architect_top_k"),
    }


def unset(message: Message, path: str = "") -> set[str]:
    """Fields without a value, at any depth."""
    found: set[str] = set()
    for field in message.DESCRIPTOR.fields:
        name, value = f"{path}{field.name}", getattr(message, field.name)
        mapped = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.containing_oneof is not None and message.WhichOneof(field.containing_oneof.name) not in (
            None,
            field.name,
        ):
            continue
        if field.message_type is None or mapped or not (field.is_repeated or message.HasField(field.name)):
            given = message.HasField(field.name) if field.has_presence else bool(value)
            found |= set() if given else {name}
        elif field.is_repeated:
            inner = [unset(one, f"{name}.") for one in value]
            found |= set.intersection(*inner) if inner else {name}
        else:
            found |= unset(value, f"{name}.")
    return found


# --- who may call the orchestrator, how its server starts, is found and ends ---


TOKEN = "a-token-for-tests"
SERVICE = "fleet.orchestrator.v1.OrchestratorService"


async def test_readiness_follows_what_the_fleet_stands_on():
    service = Service(ready=False)
    async with service.running():
        stub = health_pb2_grpc.HealthStub(service.channel)
        for name in ("", SERVICE):
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
        watching = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        service.ready = True
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        service.ready = False
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watching.cancel()
        code, _, _ = await refusal(stub.Check(health_pb2.HealthCheckRequest(service="unknown")))
        assert code is grpc.StatusCode.NOT_FOUND
        assert (await service.stub.GetStatus(pb.GetStatusRequest())).uptime_seconds >= 0


async def test_stopping_ends_the_calls_and_not_the_executions_and_a_port_that_is_taken_is_said_so():
    service = Service()
    service.fleet.default = ScriptedRun(after=asyncio.Event())
    async with service.running():
        with pytest.raises(PreconditionFailed) as refused:
            async with serve_grpc([], service.address, None, service.is_ready):
                pass
        assert service.address in str(refused.value)
        waiting = asyncio.ensure_future(service.stub.Deliberate(deliberation()))
        await service.fleet.started(3)
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await waiting
    assert not any(isinstance(event.body, ExecutionFinished) for event in service.log.events)


GRPCURL = f"""#!{sys.executable}
# Stands in for grpcurl where there is none: it makes the same calls, by buf.
import argparse, subprocess, sys
known = argparse.ArgumentParser()
known.add_argument("-plaintext", action="store_true", required=True)
known.add_argument("-H", action="append", default=[])
known.add_argument("-d", default="{{}}")
known.add_argument("address")
known.add_argument("method")
given = known.parse_args()
asked = ["buf", "curl", "--http2-prior-knowledge", "--protocol=grpc", "--reflect"]
headers = [f"--header={{header}}" for header in given.H]
if given.method == "list":
    sys.exit(subprocess.call([*asked, "--list-services", f"http://{{given.address}}"]))
sys.exit(subprocess.call([*asked, *headers, "--data", given.d, f"http://{{given.address}}/{{given.method}}"]))
"""


async def test_the_documented_commands_of_foreign_clients(tmp_path: Path):
    [(_, block)] = blocks("docs/api.md")
    home, programs = tmp_path / "state/swe-ai-fleet", tmp_path / "bin"
    home.mkdir(parents=True)
    programs.mkdir()
    (home / "token").write_text(TOKEN)
    if shutil.which("grpcurl") is None:
        (programs / "grpcurl").write_text(GRPCURL)
        (programs / "grpcurl").chmod(0o755)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:{programs}"
    async with Service().running(TOKEN) as service:
        script = block.replace("127.0.0.1:50055", service.address).replace("~/.local/state", str(tmp_path / "state"))
        told = await ran("bash", "-euc", script, PATH=path)
    out = told.out + told.err
    assert told.code == 0, out
    for said in ("liveness", SERVICE, "SERVING"):
        assert said in out
    assert out.count('"stats"') == 2, out
