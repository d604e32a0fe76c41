"""What the orchestrator's RPCs refuse, with the field and the way out named, and how faults of ours are told."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
import structlog

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.orchestrator.servicer import OrchestratorServicer
from swe_ai_fleet.domain.errors import PreconditionFailed, ResourceExhausted, Unavailable
from tests.orchestrator_service import (
    NOWHERE,
    Service,
    deliberation,
    field_named,
    orchestration,
    refusal,
)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with Service().running() as running:
        yield running


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
