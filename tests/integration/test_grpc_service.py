"""The orchestrator's RPCs over a real server and real sockets; agents and repositories are scripted."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import pytest
import structlog
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from services.grpc_server import serve_grpc
from services.orchestrator.requests import deliberation_task, orchestration_task
from services.orchestrator.server import SERVICE, orchestrator_service
from services.orchestrator.servicer import OrchestratorServicer
from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.codec import from_json, to_plain
from swe_ai_fleet.domain.candidate import CheckKind, CheckResult
from swe_ai_fleet.domain.errors import AgentLost, PreconditionFailed, ResourceExhausted, Unavailable
from swe_ai_fleet.domain.event import ExecutionFinished
from swe_ai_fleet.domain.health import Component, ComponentState
from swe_ai_fleet.orchestrator.drive import Surroundings
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.testing.fleet import FAILED, PASSED, ScriptedFleet, ScriptedModel, ScriptedRun
from swe_ai_fleet.testing.memory_log import MemoryLog
from swe_ai_fleet.testing.workspaces import DELIVERED_COMMIT, ScriptedWorkspaces

SECONDS = 20
TOKEN = "a-token-for-tests"
NOWHERE = "00000000-0000-4000-8000-000000000000"
REPO = pb.RepoRef(path="/srv/app", ref="main")


@dataclass
class Service:
    """A running service, and the doubles behind it."""

    log: MemoryLog | JetStream = field(default_factory=MemoryLog)
    workspaces: ScriptedWorkspaces = field(default_factory=ScriptedWorkspaces)
    components: list[Component] = field(default_factory=list)
    ready: bool = True
    address: str = ""
    fleet: ScriptedFleet = field(init=False)
    channel: grpc.aio.Channel = field(init=False)
    executions: Executions = field(init=False)

    def __post_init__(self) -> None:
        self.fleet = ScriptedFleet(storage=self.log)

    @property
    def stub(self) -> OrchestratorServiceStub:
        return OrchestratorServiceStub(self.channel)

    async def is_ready(self) -> bool:
        return self.ready

    async def measure(self) -> list[Component]:
        return self.components

    @asynccontextmanager
    async def running(self, token: str | None = None) -> AsyncIterator[Service]:
        surroundings = Surroundings(
            log=self.log,
            blobs=self.log,
            results=self.log,
            fleet=self.fleet,
            workspaces=self.workspaces,
            model=ScriptedModel(),
            owner="test",
            pauses=(0.0,),
        )
        async with asyncio.timeout(SECONDS), Executions(surroundings, priced=True) as self.executions:
            servicer = OrchestratorServicer(
                executions=self.executions, blobs=self.log, log=self.log, components=self.measure
            )
            serving = serve_grpc(
                [orchestrator_service(servicer)],
                "127.0.0.1:0",
                token,
                self.is_ready,
                readiness_seconds=0.02,
                grace_seconds=0.1,
            )
            async with serving as self.address, grpc.aio.insecure_channel(self.address) as self.channel:
                yield self


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with Service().running() as running:
        yield running


def deliberation(task_id: str = "task-1", **fields: object) -> pb.DeliberateRequest:
    return pb.DeliberateRequest(**{"task_id": task_id, "task_description": "Add a greeting", "repo": REPO} | fields)


def orchestration(task_id: str = "task-1", **fields: object) -> pb.OrchestrateRequest:
    return pb.OrchestrateRequest(**{"task_id": task_id, "task_description": "Add a greeting", "repo": REPO} | fields)


async def refusal(call) -> tuple[grpc.StatusCode, str, dict[str, Message]]:
    """What a call is refused with: the code, the message, the details by their type."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        if hasattr(call, "__await__"):
            await call
        else:
            async for _ in call:
                pass
    status = await rpc_status.aio.from_call(_Ended(refused.value))
    details: dict[str, Message] = {}
    for packed in status.details if status else ():
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
            if packed.Is(kind.DESCRIPTOR):
                details[kind.__name__] = kind()
                packed.Unpack(details[kind.__name__])
    return refused.value.code(), refused.value.details() or "", details


class _Ended:
    """An error in the shape of the call that `from_call` asks."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self._error = error

    async def code(self):
        return self._error.code()

    async def details(self):
        return self._error.details()

    async def trailing_metadata(self):
        return self._error.trailing_metadata()


def field_named(details: dict[str, Message]) -> str:
    [violation] = details["BadRequest"].field_violations
    assert violation.description
    return violation.field


# --- the way of a task --------------------------------------------------------------------------------------------


async def test_deliberate_answers_with_ranked_candidates(service: Service):
    evidence = (
        CheckResult(kind=CheckKind.APPLY, name="patch applies", passed=True, score=1.0),
        CheckResult(kind=CheckKind.POLICY, name="policy", passed=True, score=1.0, duration_ms=3),
        CheckResult(kind=CheckKind.LINT, name="lint", passed=False, required=False, problems=("E501",), warnings=2),
        PASSED,
        CheckResult(kind=CheckKind.COMMAND, name="build", passed=True, score=1.0, exit_code=0, output="ok"),
    )
    service.fleet.runs = {
        "agent-qa-1": ScriptedRun(checks=evidence, operations=3),
        "agent-qa-2": ScriptedRun(checks=(FAILED,)),
        "agent-qa-3": ScriptedRun(fault=AgentLost("its host died")),
    }
    reply = await service.stub.Deliberate(deliberation(role="qa", rounds=2))
    assert reply.status == pb.DELIBERATION_STATUS_COMPLETED
    assert reply.task_id == "task-1"
    assert reply.winner_id == "agent-qa-1"
    assert [(one.rank, one.candidate_id, one.checks.all_passed) for one in reply.results] == [
        (1, "agent-qa-1", True),
        (2, "agent-qa-2-r2", False),
    ]
    second = reply.results[1]
    assert (second.proposal.author_id, second.revises, second.round) == ("agent-qa-2", "agent-qa-2-r1", 2)
    assert list(second.proposal.revisions) == ["done", "done"]
    winner = reply.results[0]
    assert (winner.proposal.author_id, winner.proposal.author_role, winner.proposal.content) == (
        "agent-qa-1",
        "QA",
        "done",
    )
    assert winner.proposal.created_at_ms > 1_700_000_000_000
    assert winner.patch.text == b"diff of agent-qa-1\n"
    assert winner.patch.base_commit == reply.metadata["base_commit"]
    assert winner.artifacts.patch.artifact.digest == hashlib.sha256(winner.patch.text).hexdigest()
    assert winner.stop_reason == pb.STOP_REASON_FINAL_ANSWER
    assert [(one.reviewer_id, one.round, one.verdict) for one in winner.critiques] == [
        ("agent-qa-2", 1, pb.VERDICT_ACCEPT)
    ]
    assert 0 < winner.evidence_score < 1
    assert winner.review_score == 1.0
    assert winner.checks.policy.passed
    assert winner.checks.policy.duration_ms == 3
    assert (winner.checks.lint.error_count, winner.checks.lint.warning_count) == (1, 2)
    assert winner.checks.dryrun.output == "1 passed"
    assert [one.check_type for one in winner.checks.additional_checks] == ["patch applies", "build"]
    assert [(one.step, one.audit_seq, one.operation) for one in winner.operations] == [
        (1, 2, "write_file"),
        (2, 4, "write_file"),
        (3, 6, "write_file"),
    ]
    assert dict(winner.operations[0].params) == {"path": "file-1.py", "lines": 1}
    assert not winner.operations[0].HasField("exit_code")
    assert reply.audit_head == winner.audit_head != ""
    assert reply.usage.prompt_tokens == 400
    assert service.workspaces.deliveries == []


async def test_no_winner_and_failure_are_answers(service: Service):
    service.fleet.default = ScriptedRun(checks=(FAILED,))
    reply = await service.stub.Deliberate(deliberation())
    assert (reply.status, reply.winner_id) == (pb.DELIBERATION_STATUS_NO_WINNER, "")
    assert "exit code 1" in reply.metadata["error"]
    assert len(reply.results) == 3
    service.fleet.default = ScriptedRun(fault=AgentLost("its host died"))
    reply = await service.stub.Orchestrate(orchestration("task-2"))
    assert reply.status == pb.DELIBERATION_STATUS_FAILED
    assert not reply.HasField("winner")
    assert "its host died" in reply.metadata["error"]


async def test_orchestrate_delivers_the_winner(service: Service):
    reply = await service.stub.Orchestrate(
        orchestration(
            delivery=pb.Delivery(branch="topic", author_name="Ada", push=True),
            options=pb.OrchestratorOptions(num_agents=2, custom_params={"colour": "blue"}),
        )
    )
    assert reply.status == pb.DELIBERATION_STATUS_COMPLETED
    assert (reply.commit_sha, reply.branch) == (DELIVERED_COMMIT, "topic")
    assert reply.winner == reply.candidates[0]
    assert len(reply.candidates) == 2
    [(_, patch, delivery)] = service.workspaces.deliveries
    assert patch == reply.winner.patch.text
    assert (delivery.author_name, delivery.author_email, delivery.push) == ("Ada", "fleet@localhost", True)
    assert reply.metadata["passed_over"] == "options.custom_params"
    assert service.fleet.reviewed == []


@pytest.mark.parametrize("kind", ["deliberate", "orchestrate"])
async def test_a_stream_tells_every_step_in_order_and_ends_with_the_reply(service: Service, kind: str):
    service.fleet.runs = {"agent-dev-2": ScriptedRun(fault=AgentLost("its host died"))}
    if kind == "deliberate":
        call, unary = service.stub.StreamDeliberation(deliberation()), service.stub.Deliberate(deliberation())
    else:
        call, unary = service.stub.StreamOrchestration(orchestration()), service.stub.Orchestrate(orchestration())
    updates = [update async for update in call]
    sequences = [update.sequence for update in updates]
    assert sequences == sorted(set(sequences))
    assert sequences == [update.event.sequence for update in updates]
    percents = [update.progress_percent for update in updates]
    assert percents == sorted(percents)
    assert (percents[0], percents[-1]) == (0, 100)
    assert [update.HasField("final") for update in updates] == [False] * (len(updates) - 1) + [True]
    assert updates[0].current_step == "accepted"
    assert updates[-1].current_step == "finished"
    assert "solving" in {update.current_step for update in updates}
    shown = [(update.event.type, update.current_agent, update.partial_result) for update in updates]
    lost = [agent for event, agent, _ in shown if event == "run_lost"]
    assert lost == ["agent-dev-2"]
    checked = {agent: partial for event, agent, partial in shown if event == "checks_finished"}
    assert sorted(checked) == ["agent-dev-1", "agent-dev-3"]
    assert checked["agent-dev-1"].checks.all_passed
    assert checked["agent-dev-1"].patch.text == b"diff of agent-dev-1\n"
    [ranked] = [partial for event, _, partial in shown if event == "candidates_ranked"]
    assert (ranked.rank, ranked.candidate_id) == (1, "agent-dev-1")
    assert updates[-1].final == await unary


async def test_submit_then_fetch_by_task_and_by_execution(service: Service):
    gate = asyncio.Event()
    service.fleet.default = ScriptedRun(after=gate)
    submitted = await service.stub.SubmitTask(pb.SubmitTaskRequest(deliberate=deliberation(attempt=3)))
    assert (submitted.task_id, submitted.already_existed) == ("task-1", False)
    pending = await service.stub.GetDeliberationResult(pb.GetDeliberationResultRequest(task_id="task-1"))
    assert pending.status in (pb.DELIBERATION_STATUS_PENDING, pb.DELIBERATION_STATUS_IN_PROGRESS)
    assert list(pending.results) == []
    assert pending.metadata["execution_id"] == submitted.execution_id
    await service.fleet.started(3)
    running = await service.stub.GetExecution(pb.GetExecutionRequest(execution_id=submitted.execution_id))
    assert running.execution.status == pb.DELIBERATION_STATUS_IN_PROGRESS
    assert running.execution.kind == pb.EXECUTION_KIND_DELIBERATION
    assert {one.status for one in running.execution.agents} == {pb.AGENT_STATUS_RUNNING}
    assert {(one.step, one.last_tool) for one in running.execution.agents} == {(1, "files_write_file")}
    gate.set()
    await service.stub.Deliberate(deliberation(attempt=3))
    done = (await service.stub.GetExecution(pb.GetExecutionRequest(execution_id=submitted.execution_id))).execution
    assert (done.status, done.winner_id, done.attempt) == (pb.DELIBERATION_STATUS_COMPLETED, "agent-dev-1", 3)
    assert done.finished_at_ms >= done.created_at_ms > 0
    assert len(done.audit_heads) == len(done.results) == len(done.agents) == 3
    assert {one.stop_reason for one in done.agents} == {pb.STOP_REASON_FINAL_ANSWER}
    fetched = await service.stub.GetDeliberationResult(pb.GetDeliberationResultRequest(task_id="task-1"))
    assert (fetched.status, fetched.winner_id) == (pb.DELIBERATION_STATUS_COMPLETED, "agent-dev-1")
    assert list(fetched.results) == list(done.results)


async def test_the_result_of_a_task_is_its_deliberations_before_its_orchestrations(service: Service):
    orchestrated = await service.stub.Orchestrate(orchestration(attempt=5))
    request = pb.GetDeliberationResultRequest(task_id="task-1")
    assert (await service.stub.GetDeliberationResult(request)).metadata["execution_id"] == orchestrated.execution_id
    deliberated = await service.stub.Deliberate(deliberation())
    assert (await service.stub.GetDeliberationResult(request)).metadata["execution_id"] == deliberated.execution_id


async def test_the_same_task_twice_and_other_content(service: Service):
    first = await service.stub.Deliberate(deliberation())
    again = await service.stub.Deliberate(deliberation())
    assert again == first
    assert len(service.fleet.begun) == 3
    resubmitted = await service.stub.SubmitTask(pb.SubmitTaskRequest(deliberate=deliberation()))
    assert (resubmitted.already_existed, resubmitted.status) == (True, pb.DELIBERATION_STATUS_COMPLETED)
    code, message, details = await refusal(service.stub.Deliberate(deliberation(context="more")))
    assert code is grpc.StatusCode.ALREADY_EXISTS
    assert "attempt" in message
    assert details["ErrorInfo"].reason == "ALREADY_EXISTS"
    assert field_named(details) == "task_id"
    other = await service.stub.Orchestrate(orchestration())
    assert other.execution_id != first.execution_id


async def test_concurrent_duplicates_share_one_execution(service: Service):
    replies = await asyncio.gather(*(service.stub.Deliberate(deliberation()) for _ in range(12)))
    assert len({reply.SerializeToString(deterministic=True) for reply in replies}) == 1
    assert len(service.fleet.begun) == 3


@pytest.mark.parametrize("ending", ["cancel", "deadline", "drop", "stream"])
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
            if ending == "deadline":
                with pytest.raises(grpc.aio.AioRpcError) as expired:
                    await waiting
                assert expired.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            elif ending == "cancel":
                call.cancel()
            else:
                await channel.close(None)
            await asyncio.gather(waiting, return_exceptions=True)
    await service.fleet.started(3)
    gate.set()
    reply = await service.stub.Deliberate(deliberation())
    assert reply.status == pb.DELIBERATION_STATUS_COMPLETED
    assert service.fleet.cancelled == []
    assert len(service.fleet.begun) == 3


async def test_cancel_stops_the_agents(service: Service):
    service.fleet.default = ScriptedRun(after=asyncio.Event())
    submitted = await service.stub.SubmitTask(pb.SubmitTaskRequest(deliberate=deliberation()))
    await service.fleet.started(3)
    watching = service.stub.StreamDeliberation(deliberation())
    assert (await anext(aiter(watching))).current_step == "accepted"
    request = pb.CancelExecutionRequest(execution_id=submitted.execution_id, reason="changed my mind")
    cancelled = await service.stub.CancelExecution(request)
    assert (cancelled.status, cancelled.already_ended) == (pb.DELIBERATION_STATUS_CANCELLED, False)
    assert len(service.fleet.cancelled) == 3
    updates = [update async for update in watching]
    assert updates[-1].final.status == pb.DELIBERATION_STATUS_CANCELLED
    assert updates[-1].final.metadata["error"] == "changed my mind"
    again = await service.stub.CancelExecution(request)
    assert (again.status, again.already_ended) == (pb.DELIBERATION_STATUS_CANCELLED, True)


async def test_stream_execution_is_the_log(service: Service):
    gate = asyncio.Event()
    service.fleet.default = ScriptedRun(after=gate)
    submitted = await service.stub.SubmitTask(pb.SubmitTaskRequest(orchestrate=orchestration()))

    async def watch(start: int = 0) -> list[pb.ExecutionEvent]:
        request = pb.StreamExecutionRequest(execution_id=submitted.execution_id, from_sequence=start)
        return [event async for event in service.stub.StreamExecution(request)]

    watchers = [asyncio.create_task(watch()) for _ in range(3)]
    await service.fleet.started(3)
    gate.set()
    whole, *others = await asyncio.gather(*watchers)
    assert others == [whole, whole]
    assert whole[0].type == "execution_started"
    assert whole[-1].type == "execution_finished"
    assert from_json(ExecutionFinished, whole[-1].payload_json).winner_id == "agent-dev-1"
    stored = {event.id: event for event in service.log.events}
    assert [json.loads(one.payload_json) for one in whole] == [to_plain(stored[one.event_id].body) for one in whole]
    assert {one.agent_id for one in whole} == {"_", "agent-dev-1", "agent-dev-2", "agent-dev-3"}
    middle = whole[7].sequence
    assert await watch(middle) == whole[7:]
    assert await watch(whole[-1].sequence) == whole[-1:]
    assert await watch(whole[-1].sequence + 1) == []


async def test_large_patches_come_by_reference_and_as_artifacts(service: Service):
    large = bytes(range(256)) * 1200
    service.fleet.runs = {"agent-dev-1": ScriptedRun(patch=large)}
    reply = await service.stub.Deliberate(deliberation(num_agents=1))
    ref = reply.results[0].patch.artifact
    assert (ref.size_bytes, ref.media_type) == (len(large), "text/x-diff")

    async def fetch(offset: int) -> list[pb.GetArtifactResponse]:
        request = pb.GetArtifactRequest(execution_id=ref.execution_id, digest=ref.digest, offset_bytes=offset)
        return [part async for part in service.stub.GetArtifact(request)]

    first, *chunks = await fetch(0)
    assert (first.artifact.digest, first.artifact.size_bytes) == (ref.digest, len(large))
    assert len(chunks) > 1
    assert b"".join(part.chunk for part in chunks) == large
    assert b"".join(part.chunk for part in (await fetch(300_000))[1:]) == large[300_000:]
    assert len(await fetch(len(large))) == 1
    beyond = pb.GetArtifactRequest(execution_id=ref.execution_id, digest=ref.digest, offset_bytes=len(large) + 1)
    assert (await refusal(service.stub.GetArtifact(beyond)))[0] is grpc.StatusCode.INVALID_ARGUMENT
    other = pb.GetArtifactRequest(execution_id=NOWHERE, digest=ref.digest)
    assert (await refusal(service.stub.GetArtifact(other)))[0] is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("kind", ["patches", "texts"])
async def test_replies_stay_small_enough_for_default_clients(service: Service, kind: str):
    if kind == "patches":
        names = [f"agent-dev-{number}" for number in range(1, 41)]
        runs = {name: ScriptedRun(patch=name.encode() * 18_000, operations=20) for name in names}
    else:
        names = [f"agent-dev-{number}" for number in range(1, 101)]
        words = tuple(f"problem {number} " * 20 for number in range(100))
        fat = CheckResult(kind=CheckKind.DRY_RUN, name="tests", passed=True, output="x" * 30_000, problems=words)
        more = CheckResult(kind=CheckKind.COMMAND, name="build", passed=True, output="y" * 30_000, problems=words)
        runs = {name: ScriptedRun(checks=(fat, more), summary="z" * 20_000) for name in names}
    service.fleet.runs = runs
    options = pb.OrchestratorOptions(num_agents=len(names))
    reply = await service.stub.Orchestrate(orchestration(options=options))
    assert reply.status == pb.DELIBERATION_STATUS_COMPLETED
    assert 512 * 1024 < reply.ByteSize() < 3 * 1024 * 1024
    assert sorted(one.candidate_id for one in reply.candidates) == sorted(names)
    assert reply.winner.patch.text
    assert reply.winner.audit_head == reply.audit_head
    execution = await service.stub.GetExecution(pb.GetExecutionRequest(execution_id=reply.execution_id))
    assert execution.ByteSize() < 3 * 1024 * 1024
    assert len(execution.execution.results) == len(names)
    if kind == "patches":
        assert {one.patch.WhichOneof("content") for one in reply.candidates} == {"text", "artifact"}
        assert len(reply.winner.operations) == 20
    else:
        assert reply.winner.checks.dryrun.output.startswith("xxx")


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
    assert await pages() == [newest_first]
    assert await pages(page_size=3) == [newest_first[:3], newest_first[3:6], newest_first[6:]]
    assert await pages(page_size=4) == [newest_first[:4], newest_first[4:]]
    assert await pages(task_id="task-0") == [["task-0", "task-0"]]
    assert await pages(role=pb.ROLE_QA) == [["task-5", "task-3", "task-1"]]
    assert await pages(statuses=[pb.DELIBERATION_STATUS_NO_WINNER]) == [["task-0"]]
    assert await pages(statuses=[pb.DELIBERATION_STATUS_FAILED, pb.DELIBERATION_STATUS_CANCELLED]) == [[]]
    listed = (await service.stub.ListExecutions(pb.ListExecutionsRequest())).executions
    assert all(not one.results for one in listed)
    middle = listed[3].created_at_ms
    assert await pages(created_after_ms=middle + 1, created_before_ms=middle + 1) == [[]]
    around = await pages(created_after_ms=middle, created_before_ms=middle + 1)
    assert listed[3].task_id in around[0]
    assert await pages(created_after_ms=10**14) == [[]]
    token = (await service.stub.ListExecutions(pb.ListExecutionsRequest(page_size=2))).next_page_token
    await service.stub.Deliberate(deliberation("newer", num_agents=1))
    second = await service.stub.ListExecutions(pb.ListExecutionsRequest(page_size=2, page_token=token))
    assert [one.task_id for one in second.executions] == newest_first[2:4]
    for bad in (
        pb.ListExecutionsRequest(page_token="nonsense"),
        pb.ListExecutionsRequest(page_token="WzEsMiwzXQ"),
        pb.ListExecutionsRequest(page_token=token, task_id="task-0"),
    ):
        code, _, details = await refusal(service.stub.ListExecutions(bad))
        assert (code, field_named(details)) == (grpc.StatusCode.INVALID_ARGUMENT, "page_token")


async def test_status_tells_components_and_counts(service: Service):
    service.components = [
        Component(name="nats", state=ComponentState.UP, version="2.15", latency_ms=0.5),
        Component(name="model", state=ComponentState.DEGRADED, message="slow"),
    ]
    await service.stub.Deliberate(deliberation(role="QA"))
    await service.stub.Orchestrate(orchestration())
    reply = await service.stub.GetStatus(pb.GetStatusRequest(include_stats=True))
    assert reply.status == "degraded"
    assert [(one.name, one.state, one.version) for one in reply.components] == [
        ("nats", pb.COMPONENT_STATE_UP, "2.15"),
        ("model", pb.COMPONENT_STATE_DEGRADED, ""),
    ]
    assert (reply.stats.total_deliberations, reply.stats.total_orchestrations) == (1, 1)
    assert dict(reply.stats.role_counts) == {"QA": 1, "DEV": 1}
    service.components[0] = Component(name="nats", state=ComponentState.DOWN, message="refused")
    reply = await service.stub.GetStatus(pb.GetStatusRequest())
    assert (reply.status, reply.HasField("stats")) == ("unhealthy", False)
    service.components.clear()
    assert (await service.stub.GetStatus(pb.GetStatusRequest())).status == "healthy"


# --- what is refused ----------------------------------------------------------------------------------------------

CHECK = pb.CheckSpec(command="make test")
BAD_DELIBERATIONS = {
    "task_id": [
        {"task_id": ""},
        {"task_id": "a b"},
        {"task_id": "../x"},
        {"task_id": "x" * 129},
        {"task_id": "x.lock"},
        {"task_id": "ä"},
    ],
    "task_description": [{"task_description": "  "}, {"task_description": "x" * 70_000}],
    "role": [{"role": "PLUMBER"}],
    "num_agents": [{"num_agents": -1}, {"num_agents": 301}],
    "rounds": [{"rounds": -2}, {"rounds": 17}],
    "attempt": [{"attempt": -1}, {"attempt": 10_001}],
    "repo": [{"repo": None}, {"repo": pb.RepoRef(path="")}],
    "repo.path": [{"repo": pb.RepoRef(path="relative/path")}, {"repo": pb.RepoRef(path="/srv/\0")}],
    "repo.url": [{"repo": pb.RepoRef(url="/srv/app")}],
    "repo.upload_id": [{"repo": pb.RepoRef(upload_id="u1")}],
    "repo.uncommitted": [{"repo": pb.RepoRef(path="/srv/app", uncommitted=99)}],
    "approval": [{"approval": 77}],
    "context": [{"context": "x" * 1_100_000}],
    "tools[1]": [{"tools": ["files", "\0"]}],
    "constraints.max_iterations": [
        {"constraints": pb.TaskConstraints(max_iterations=-1)},
        {"constraints": pb.TaskConstraints(max_iterations=10_001)},
    ],
    "constraints.timeout_seconds": [{"constraints": pb.TaskConstraints(timeout_seconds=-5)}],
    "constraints.max_tool_calls": [{"constraints": pb.TaskConstraints(max_tool_calls=-5)}],
    "constraints.max_tokens": [{"constraints": pb.TaskConstraints(max_tokens=-5)}],
    "constraints.max_cost": [
        {"constraints": pb.TaskConstraints(max_cost=cost)} for cost in (-0.5, float("nan"), float("inf"))
    ],
    "constraints.metadata[k]": [{"constraints": pb.TaskConstraints(metadata={"k": "\0"})}],
    "constraints.checks[1].command": [{"constraints": pb.TaskConstraints(checks=[CHECK, pb.CheckSpec(name="x")])}],
    "constraints.checks[1].name": [{"constraints": pb.TaskConstraints(checks=[CHECK, CHECK])}],
    "constraints.checks[0].timeout_seconds": [
        {"constraints": pb.TaskConstraints(checks=[pb.CheckSpec(command="x", timeout_seconds=-1)])},
        {"constraints": pb.TaskConstraints(checks=[pb.CheckSpec(command="x", timeout_seconds=86_401)])},
    ],
    "constraints.checks[0].expected_exit_code": [
        {"constraints": pb.TaskConstraints(checks=[pb.CheckSpec(command="x", expected_exit_code=256)])},
        {"constraints": pb.TaskConstraints(checks=[pb.CheckSpec(command="x", expected_exit_code=-9)])},
    ],
    "memory": [{"memory": pb.MemoryOptions(read=True)}, {"memory": pb.MemoryOptions(write=True)}],
    "memory.read": [
        {"memory": pb.MemoryOptions(namespaces=["fleet"])},
        {"memory": pb.MemoryOptions(entities=["Invoice"])},
    ],
    "memory.entities[1]": [{"memory": pb.MemoryOptions(entities=["Invoice", " "])}],
    "environment.variables[A=B]": [{"environment": pb.EnvironmentSpec(variables={"A=B": "c"})}],
}


@pytest.mark.parametrize("named", BAD_DELIBERATIONS)
async def test_bad_input_is_refused_with_the_field_named(service: Service, named: str):
    for changes in BAD_DELIBERATIONS[named]:
        request = deliberation(**changes)
        for call, prefix in (
            (service.stub.Deliberate(request), ""),
            (service.stub.StreamDeliberation(request), ""),
            (service.stub.SubmitTask(pb.SubmitTaskRequest(deliberate=request)), "deliberate."),
        ):
            code, message, details = await refusal(call)
            assert code is grpc.StatusCode.INVALID_ARGUMENT, changes
            assert field_named(details) == prefix + named
            assert message
            assert details["ErrorInfo"].reason == "INVALID_REQUEST"
    assert service.log.events == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (pb.OrchestratorOptions(num_agents=301), "options.num_agents"),
        (pb.OrchestratorOptions(num_agents=-1), "options.num_agents"),
        (pb.OrchestratorOptions(deliberation_rounds=17, enable_peer_review=True), "options.deliberation_rounds"),
    ],
)
async def test_fields_of_an_orchestration_are_named_as_the_request_names_them(service: Service, options, named: str):
    request = orchestration(options=options)
    assert field_named((await refusal(service.stub.Orchestrate(request)))[2]) == named
    assert field_named((await refusal(service.stub.StreamOrchestration(request)))[2]) == named
    submitted = service.stub.SubmitTask(pb.SubmitTaskRequest(orchestrate=request))
    assert field_named((await refusal(submitted))[2]) == f"orchestrate.{named}"


@pytest.mark.parametrize(
    "repo",
    [
        pb.RepoRef(url="https://example.org/app.git", credential_ref="../other/bot"),
        pb.RepoRef(path="/srv/app", credential_ref="deploy-key"),
        pb.RepoRef(upload_id="a" * 64, credential_ref="deploy-key"),
    ],
)
async def test_a_credential_is_a_name_and_opens_a_url(service: Service, repo: pb.RepoRef):
    code, _, details = await refusal(service.stub.Orchestrate(orchestration(repo=repo)))
    assert (code, field_named(details)) == (grpc.StatusCode.INVALID_ARGUMENT, "repo.credential_ref")


LATER_FEATURES = {
    "environment.container_image": {"environment": pb.EnvironmentSpec(container_image="python:3.11")},
}


@pytest.mark.parametrize("named", LATER_FEATURES)
async def test_what_is_not_there_yet_is_refused_and_never_passed_over(service: Service, named: str):
    code, message, details = await refusal(service.stub.Orchestrate(orchestration(**LATER_FEATURES[named])))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert named in message
    assert field_named(details) == named
    assert service.log.events == []


@pytest.mark.parametrize("host", ["not a host", "example.org:22", ""])
async def test_a_host_that_is_not_granted_is_named(service: Service, host: str):
    network = pb.NetworkPolicy(allowed_hosts=["example.org", host])
    request = orchestration(constraints=pb.TaskConstraints(network=network))
    code, _, details = await refusal(service.stub.Orchestrate(request))
    assert (code, field_named(details)) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "constraints.network.allowed_hosts[1]",
    )
    assert service.log.events == []


async def test_every_field_reaches_the_task(service: Service):
    request = orchestration(
        role="developer",
        context="Some context",
        repo=pb.RepoRef(
            url="https://example.org/app.git",
            ref="v1",
            commit="c" * 40,
            subdirectory="api",
            credential_ref="deploy-key",
            uncommitted=pb.UNCOMMITTED_CHANGES_IGNORE,
        ),
        constraints=pb.TaskConstraints(
            rubric="Short",
            requirements=["one", "two"],
            metadata={"k": "v"},
            max_iterations=7,
            timeout_seconds=90,
            max_tool_calls=8,
            max_tokens=9_000,
            max_cost=2.5,
            allowed_tools=["files"],
            denied_tools=["files_delete"],
            network=pb.NetworkPolicy(allowed_hosts=["example.org"]),
            mcp_servers=[
                pb.McpServer(
                    name="maths", command=["python3", "x.py"], variables={"A": "b"}, allowed_hosts=["example.org"]
                ),
                pb.McpServer(name="far", url="https://example.org/mcp", tools=["get_*"]),
            ],
            allowed_paths=["src/**"],
            checks=[
                pb.CheckSpec(command="make", required=False, expected_exit_code=2),
                pb.CheckSpec(name="t", command="x", timeout_seconds=5),
            ],
            abort_on_error=True,
            total_max_tokens=1000,
            total_max_tool_calls=100,
            total_max_cost=2.5,
        ),
        options=pb.OrchestratorOptions(
            enable_peer_review=True,
            deliberation_rounds=4,
            num_agents=2,
            derive_subtasks=True,
            enable_architect_selection=True,
        ),
        priority=7,
        environment=pb.EnvironmentSpec(
            setup_commands=["make deps"], variables={"A": "b"}, path_directories=["bin"], disable_detection=True
        ),
        delivery=pb.Delivery(message="Say hello"),
        approval=pb.APPROVAL_POLICY_RISKY,
        planning_mode=pb.PLANNING_MODE_HYBRID,
        enable_tools=False,
        tools=["files"],
        attempt=2,
        case_id="case",
        story_id="story",
        plan_id="plan",
        context_options=pb.ContextOptions(phase="Build", token_budget=900, include_history=False),
    )
    caller = (("fleet-caller", "ada"),)
    await service.stub.SubmitTask(pb.SubmitTaskRequest(orchestrate=request), metadata=caller)
    task = service.log.events[0].body.task
    assert to_plain(task) == {
        "task_id": "task-1",
        "kind": "orchestrate",
        "description": "Add a greeting",
        "repo": {
            "location": "https://example.org/app.git",
            "ref": "v1",
            "commit": "c" * 40,
            "subdirectory": "api",
            "credential": "deploy-key",
            "uncommitted": "ignore",
        },
        "tenant": "default",
        "approval": "risky",
        "planning_mode": "hybrid",
        "role": "DEV",
        "context": "Some context",
        "constraints": {
            "rubric": "Short",
            "requirements": ["one", "two"],
            "metadata": {"k": "v"},
            "totals": {"max_tokens": 1000, "max_tool_calls": 100, "max_cost": 2.5},
            "limits": to_plain(task.constraints.limits)
            | {"max_iterations": 7, "max_tool_calls": 8, "max_tokens": 9_000, "timeout_seconds": 90.0}
            | {"max_cost": 2.5},
            "allowed_tools": ["files"],
            "denied_tools": ["files_delete"],
            "allowed_paths": ["src/**"],
            "allowed_hosts": ["example.org"],
            "checks": [
                {
                    "name": "make",
                    "command": "make",
                    "timeout_seconds": 600.0,
                    "required": False,
                    "expected_exit_code": 2,
                },
                {"name": "t", "command": "x", "timeout_seconds": 5.0, "required": True, "expected_exit_code": 0},
            ],
            "mcp_servers": [
                {
                    "name": "maths",
                    "command": ["python3", "x.py"],
                    "url": "",
                    "variables": {"A": "b"},
                    "tools": ["*"],
                    "allowed_hosts": ["example.org"],
                },
                {
                    "name": "far",
                    "command": [],
                    "url": "https://example.org/mcp",
                    "variables": {},
                    "tools": ["get_*"],
                    "allowed_hosts": [],
                },
            ],
            "abort_on_error": True,
        },
        "environment": {
            "setup": ["make deps"],
            "variables": {"A": "b"},
            "path": ["bin"],
            "image": "",
            "detect": False,
        },
        "delivery": {
            "branch": "",
            "push": False,
            "author_name": "SWE AI Fleet",
            "author_email": "fleet@localhost",
            "message": "Say hello",
        },
        "num_agents": 2,
        "rounds": 4,
        "enable_tools": False,
        "tools": ["files"],
        "model_profile": "",
        "attempt": 2,
        "case_id": "case",
        "story_id": "story",
        "plan_id": "plan",
        "priority": 7,
        "caller": "ada",
        "architect_top_k": 3,
        "derive_subtasks": True,
        "parent_execution_id": "",
        "memory": {"read": False, "write": False, "namespaces": [], "entities": []},
        "context_options": {
            "phase": "build",
            "token_budget": 900,
            "include_decisions": True,
            "include_history": False,
        },
        "workflow": None,
        "traceparent": "",
    }


async def test_an_architect_chooses_only_where_one_is_asked_for(service: Service):
    asked = (
        orchestration(options=pb.OrchestratorOptions(architect_top_k=2)),
        orchestration(options=pb.OrchestratorOptions(enable_architect_selection=True, architect_top_k=2)),
        deliberation(architect_top_k=4),
    )
    tasks = [orchestration_task(asked[0]), orchestration_task(asked[1]), deliberation_task(asked[2])]
    assert [task.architect_top_k for task in tasks] == [0, 2, 4]
    request = orchestration(options=pb.OrchestratorOptions(enable_architect_selection=True, architect_top_k=99))
    refused = await refusal(service.stub.SubmitTask(pb.SubmitTaskRequest(orchestrate=request)))
    assert field_named(refused[2]) == "orchestrate.options.architect_top_k"


async def test_what_is_not_given_has_its_default(service: Service):
    await service.stub.SubmitTask(pb.SubmitTaskRequest(deliberate=deliberation()))
    task = service.log.events[0].body.task
    assert (task.role, task.num_agents, task.rounds, task.attempt, task.enable_tools) == ("DEV", 3, 1, 1, True)
    assert task.constraints == type(task.constraints)()
    assert task.environment == type(task.environment)()


async def test_ids_that_cannot_be_and_ids_that_are_not(service: Service):
    stub = service.stub
    calls = {
        "GetExecution": pb.GetExecutionRequest,
        "StreamExecution": pb.StreamExecutionRequest,
        "CancelExecution": pb.CancelExecutionRequest,
        "GetArtifact": lambda execution_id: pb.GetArtifactRequest(execution_id=execution_id, digest="0" * 64),
    }
    for name, request in calls.items():
        for malformed in ("", "nonsense", NOWHERE.replace("-", ""), "{" + NOWHERE + "}", "*", NOWHERE + "\0"):
            code, _, details = await refusal(getattr(stub, name)(request(execution_id=malformed)))
            assert code is grpc.StatusCode.INVALID_ARGUMENT, (name, malformed)
            assert field_named(details) == "execution_id"
        code, _, _ = await refusal(getattr(stub, name)(request(execution_id=NOWHERE)))
        assert code is grpc.StatusCode.NOT_FOUND, name
    for digest in ("", "x", "A" * 64):
        _, _, details = await refusal(stub.GetArtifact(pb.GetArtifactRequest(execution_id=NOWHERE, digest=digest)))
        assert field_named(details) == "digest"
    code, _, _ = await refusal(stub.GetDeliberationResult(pb.GetDeliberationResultRequest(task_id="unknown")))
    assert code is grpc.StatusCode.NOT_FOUND
    code, _, _ = await refusal(stub.GetDeliberationResult(pb.GetDeliberationResultRequest()))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    code, _, details = await refusal(stub.SubmitTask(pb.SubmitTaskRequest()))
    assert (code, field_named(details)) == (grpc.StatusCode.INVALID_ARGUMENT, "task")


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (pb.ListExecutionsRequest(page_size=-1), "page_size"),
        (pb.ListExecutionsRequest(page_size=501), "page_size"),
        (pb.ListExecutionsRequest(role=42), "role"),
        (pb.ListExecutionsRequest(statuses=[pb.DELIBERATION_STATUS_COMPLETED, 0]), "statuses[1]"),
        (pb.ListExecutionsRequest(statuses=[55]), "statuses[0]"),
        (pb.ListExecutionsRequest(created_after_ms=-1), "created_after_ms"),
        (pb.ListExecutionsRequest(created_before_ms=2**62), "created_before_ms"),
    ],
)
async def test_bad_lists(service: Service, request_: pb.ListExecutionsRequest, named: str):
    code, _, details = await refusal(service.stub.ListExecutions(request_))
    assert (code, field_named(details)) == (grpc.StatusCode.INVALID_ARGUMENT, named)


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("RegisterAgent", pb.RegisterAgentRequest()),
        ("UnregisterAgent", pb.UnregisterAgentRequest()),
        ("CreateCouncil", pb.CreateCouncilRequest()),
        ("ListCouncils", pb.ListCouncilsRequest()),
        ("DeleteCouncil", pb.DeleteCouncilRequest()),
        ("ProcessPlanningEvent", pb.ProcessPlanningEventRequest()),
        ("DeriveSubtasks", pb.DeriveSubtasksRequest()),
        ("GetTaskContext", pb.GetTaskContextRequest()),
        ("GetMetrics", pb.GetMetricsRequest()),
        ("UploadRepository", iter([pb.UploadRepositoryRequest()])),
    ],
)
async def test_what_is_missing_is_said(service: Service, name: str, request_):
    code, message, details = await refusal(getattr(service.stub, name)(request_))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "yet" in message or "here" in message
    assert details["ErrorInfo"].reason == "NOT_AVAILABLE"


async def test_every_rpc_of_the_contract_is_answered_by_us():
    declared = {method.name for method in pb.DESCRIPTOR.services_by_name["OrchestratorService"].methods}
    assert {name for name in declared if name not in vars(OrchestratorServicer)} == set()


@pytest.mark.parametrize(
    ("fault", "code", "retry"),
    [
        (Unavailable("the remote does not answer", field="repo.url"), grpc.StatusCode.UNAVAILABLE, True),
        (ResourceExhausted("the store is full"), grpc.StatusCode.RESOURCE_EXHAUSTED, True),
        (PreconditionFailed("uncommitted changes", field="repo.uncommitted"), grpc.StatusCode.FAILED_PRECONDITION, 0),
    ],
)
async def test_faults_have_their_codes_and_say_when_to_try_again(service: Service, fault, code, retry):
    service.workspaces.faults = {"main": fault}
    told, message, details = await refusal(service.stub.Deliberate(deliberation()))
    assert told is code
    assert message == str(fault)
    assert ("RetryInfo" in details) == bool(retry)
    if retry:
        assert details["RetryInfo"].retry_delay.seconds > 0
    service.workspaces.faults = {}
    assert (await service.stub.Deliberate(deliberation())).status == pb.DELIBERATION_STATUS_COMPLETED


async def test_long_messages_still_arrive(service: Service):
    fault = PreconditionFailed("😀" * 50_000, field="ä" * 5_000, hint="h" * 50_000)
    service.workspaces.faults = {"main": fault}
    code, message, details = await refusal(service.stub.Deliberate(deliberation()))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert message.startswith("😀😀")
    assert message.endswith("…")
    assert field_named(details).endswith("…")


async def test_a_bug_is_internal_logged_once_and_keeps_its_secrets(service: Service):
    service.workspaces.faults = {"main": KeyError("password hunter2")}
    with structlog.testing.capture_logs() as logs:
        code, message, _ = await refusal(service.stub.Deliberate(deliberation()))
        stream_code, _, _ = await refusal(service.stub.StreamDeliberation(deliberation()))
    assert code is stream_code is grpc.StatusCode.INTERNAL
    assert "KeyError" in message
    assert "hunter2" not in message
    assert [entry["method"].rpartition("/")[2] for entry in logs if entry["log_level"] == "error"] == [
        "Deliberate",
        "StreamDeliberation",
    ]


async def test_a_request_that_is_too_large_is_refused(service: Service):
    code, _, _ = await refusal(service.stub.Deliberate(deliberation(context="x" * (5 * 1024 * 1024))))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


# --- who may call, and is anybody there ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", TOKEN),),
        (("authorization", f"Basic {TOKEN}"),),
        (("authorization", "Bearer "),),
        (("authorization", f"Bearer {TOKEN}x"),),
        (("authorization", "Bearer wrong"), ("authorization", f"Bearer {TOKEN}")),
        (("x-authorization", f"Bearer {TOKEN}"),),
    ],
)
async def test_without_the_token_nothing_is_served(metadata):
    async with Service().running(TOKEN) as service:
        calls = [
            service.stub.GetStatus(pb.GetStatusRequest(), metadata=metadata),
            service.stub.StreamDeliberation(deliberation(), metadata=metadata),
            service.stub.UploadRepository(iter([pb.UploadRepositoryRequest()]), metadata=metadata),
            service.stub.ResolveApproval(pb.ResolveApprovalRequest(), metadata=metadata),
        ]
        for call in calls:
            code, message, details = await refusal(call)
            assert code is grpc.StatusCode.UNAUTHENTICATED
            assert TOKEN not in message
            assert details["ErrorInfo"].reason == "UNAUTHENTICATED"
        unknown = service.channel.unary_unary("/fleet.orchestrator.v1.OrchestratorService/Nothing")
        assert (await refusal(unknown(b"", metadata=metadata)))[0] is grpc.StatusCode.UNAUTHENTICATED
        check = health_pb2_grpc.HealthStub(service.channel).Check
        assert (await check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        assert service.log.events == []


async def test_with_the_token_everything_is():
    async with Service().running(TOKEN) as service:
        for scheme in ("Bearer", "bearer"):
            metadata = (("authorization", f"{scheme} {TOKEN}"),)
            reply = await service.stub.GetStatus(pb.GetStatusRequest(), metadata=metadata)
            assert reply.status == "healthy"
        call = service.stub.StreamDeliberation(deliberation(), metadata=metadata)
        assert [update async for update in call][-1].final.winner_id == "agent-dev-1"


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


async def test_a_port_that_is_taken_is_said_so(service: Service):
    servicer = OrchestratorServicer(
        executions=service.executions, blobs=service.log, log=service.log, components=service.measure
    )
    with pytest.raises(PreconditionFailed) as refused:
        async with serve_grpc([orchestrator_service(servicer)], service.address, None, service.is_ready):
            pass
    assert service.address in str(refused.value)


async def test_stopping_ends_the_calls_and_not_the_executions():
    service = Service()
    service.fleet.default = ScriptedRun(after=asyncio.Event())
    async with service.running():
        waiting = asyncio.ensure_future(service.stub.Deliberate(deliberation()))
        await service.fleet.started(3)
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await waiting
    assert not any(isinstance(event.body, ExecutionFinished) for event in service.log.events)


async def test_over_a_real_log_a_second_server_goes_on_where_the_first_stopped(tmp_path: Path):
    async with (
        EmbeddedNats(tmp_path) as nats_server,
        JetStream.connect(
            nats_server.address.url, credentials=Credentials(token=nats_server.address.token)
        ) as jetstream,
    ):
        await jetstream.ensure_streams()
        gate = asyncio.Event()
        service = Service(log=jetstream)
        service.fleet.default = ScriptedRun(after=gate, operations=2)
        large = b"x" * 300_000
        service.fleet.runs = {"agent-dev-1": ScriptedRun(after=gate, patch=large)}
        async with service.running():
            submitted = await service.stub.SubmitTask(pb.SubmitTaskRequest(orchestrate=orchestration()))
            request = pb.GetDeliberationResultRequest(task_id="task-1")
            known = await service.stub.GetDeliberationResult(request)
            assert known.metadata["execution_id"] == submitted.execution_id
            listed = await service.stub.ListExecutions(pb.ListExecutionsRequest(task_id="task-1"))
            assert [one.execution_id for one in listed.executions] == [submitted.execution_id]
            await service.fleet.started(3)
        gate.set()
        async with service.running():
            updates = [update async for update in service.stub.StreamOrchestration(orchestration())]
            assert [update.sequence for update in updates] == sorted({update.sequence for update in updates})
            final = updates[-1].final
            assert (final.status, final.execution_id) == (pb.DELIBERATION_STATUS_COMPLETED, submitted.execution_id)
            assert [update.event.type for update in updates].count("execution_claimed") == 2
            references = [one.patch.WhichOneof("content") for one in final.candidates]
            assert sorted(references) == ["artifact", "text", "text"]
            digest = hashlib.sha256(large).hexdigest()
            parts = service.stub.GetArtifact(pb.GetArtifactRequest(execution_id=submitted.execution_id, digest=digest))
            assert b"".join([part.chunk async for part in parts]) == large
            assert await service.stub.Orchestrate(orchestration()) == final
            cancelled = await service.stub.CancelExecution(
                pb.CancelExecutionRequest(execution_id=submitted.execution_id)
            )
            assert cancelled.already_ended
            missing = pb.GetExecutionRequest(execution_id=NOWHERE)
            assert (await refusal(service.stub.GetExecution(missing)))[0] is grpc.StatusCode.NOT_FOUND


async def curl(service: Service, method: str, data: str, *flags: str) -> tuple[int, str, str]:
    """A foreign client, which learns the schema from the server's reflection."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "buf"),
        "curl",
        "--http2-prior-knowledge",
        "--protocol=grpc",
        "--reflect",
        *flags,
        "--data",
        data,
        f"http://{service.address}/{method}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_a_foreign_client_gets_along_with_reflection():
    async with Service().running(TOKEN) as service:
        auth = ("--header", f"authorization: Bearer {TOKEN}", "--reflect-header", f"authorization: Bearer {TOKEN}")
        status, out, err = await curl(service, "grpc.health.v1.Health/Check", "{}", *auth)
        assert (status, json.loads(out or "{}")) == (0, {"status": "SERVING"}), err
        request = json.dumps({"taskId": "task-1", "taskDescription": "Add a greeting", "repo": {"path": "/srv/app"}})
        status, out, err = await curl(service, f"{SERVICE}/Deliberate", request, *auth)
        assert status == 0, err
        assert json.loads(out)["winnerId"] == "agent-dev-1"
        status, out, err = await curl(service, f"{SERVICE}/StreamDeliberation", request, *auth)
        assert status == 0, err
        assert '"final"' in out
        status, _, err = await curl(service, f"{SERVICE}/Deliberate", '{"taskId": "a b"}', *auth)
        assert status != 0
        assert "invalid_argument" in err
        assert "not a valid id" in err
        status, _, err = await curl(service, f"{SERVICE}/GetStatus", "{}", *auth[2:])
        assert status != 0
        assert "unauthenticated" in err.lower()


@pytest.mark.parametrize("names", [("a b",), ("x" * 65,), ("ada", "bob"), ("",)])
async def test_a_caller_has_one_name(service: Service, names: tuple[str, ...]):
    metadata = tuple(("fleet-caller", name) for name in names)
    code, _, details = await refusal(service.stub.Deliberate(deliberation(), metadata=metadata))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert field_named(details) == "fleet-caller"
    assert service.log.events == []
