"""A task carried out in parts over gRPC, all parts of the fleet real: split, solved, merged, checked, delivered."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.conftest import FleetUnderTest
from tests.parts_script import PARTS

FILES = {"utils.py": '"""Small things."""\n\n\ndef one():\n    return 1\n'}


@pytest.fixture
async def client(fleet: FleetUnderTest) -> AsyncIterator[pb_grpc.OrchestratorServiceStub]:
    async with grpc.aio.insecure_channel(fleet.running.address) as channel:
        yield pb_grpc.OrchestratorServiceStub(channel)


@pytest.fixture
def token(fleet: FleetUnderTest) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {fleet.running.token}"),)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository", FILES)


@pytest.mark.slow  # quick: test_a_plan_is_split_without_being_carried_out, integration/test_integration_branch.py
async def test_a_task_in_parts_ends_as_one_branch(client, token, repository: Path) -> None:
    task_id = f"parts-{uuid.uuid4().hex[:8]}"
    reply = await client.Orchestrate(
        pb.OrchestrateRequest(
            task_id=task_id,
            task_description=PARTS,
            repo=pb.RepoRef(path=str(repository)),
            constraints=pb.TaskConstraints(checks=[pb.CheckSpec(name="both", command="python3 -m pytest -q")]),
            options=pb.OrchestratorOptions(derive_subtasks=True, num_agents=1),
        ),
        metadata=token,
        timeout=180,
    )
    assert (reply.status, reply.metadata.get("error", "")) == (pb.DELIBERATION_STATUS_COMPLETED, "")
    told = {one.task.task_id.rpartition("--")[2]: one for one in reply.subtasks}
    assert list(told) == ["hello", "bye", "tests"]
    assert {one.status for one in reply.subtasks} == {pb.DELIBERATION_STATUS_COMPLETED}
    assert told["tests"].commit_sha == reply.commit_sha == git(repository, "rev-parse", f"fleet/{task_id}")
    subjects = git(repository, "log", "--format=%s", f"main..fleet/{task_id}").splitlines()
    assert len(subjects) == 3
    code = git(repository, "show", f"fleet/{task_id}:utils.py")
    assert ("def hello()" in code, "def bye()" in code, "<<<<" in code) == (True, True, False)
    assert git(repository, "status", "--porcelain") == ""

    child = await client.GetExecution(
        pb.GetExecutionRequest(execution_id=told["tests"].execution_id), metadata=token, timeout=30
    )
    assert (child.execution.parent_execution_id, child.execution.role) == (reply.execution_id, pb.ROLE_QA)
    whole = await client.GetExecution(
        pb.GetExecutionRequest(execution_id=reply.execution_id), metadata=token, timeout=30
    )
    assert [one.task.task_id for one in whole.execution.subtasks] == [one.task.task_id for one in reply.subtasks]
    runs = {agent.agent_id for agent in whole.execution.agents}
    assert {"planner"} < runs
    assert any(name.startswith("merge-") for name in runs)

    request = pb.GetArtifactRequest(execution_id=reply.execution_id, digest=reply.metadata["bundle"])
    parts = [part.chunk async for part in client.GetArtifact(request, metadata=token)]
    bundle = repository.parent / "branch.bundle"
    bundle.write_bytes(b"".join(parts))
    assert git(repository, "bundle", "list-heads", str(bundle)) == f"{reply.commit_sha} refs/heads/fleet/{task_id}"


async def test_a_plan_is_split_without_being_carried_out(client, token, repository: Path) -> None:
    request = pb.DeriveSubtasksRequest(
        plan_id=f"plan-{uuid.uuid4().hex[:8]}", task_description=PARTS, repo=pb.RepoRef(path=str(repository))
    )
    first = await client.DeriveSubtasks(request, metadata=token, timeout=120)
    again = await client.DeriveSubtasks(request, metadata=token, timeout=30)
    assert first == again
    hello, bye, tests = first.tasks
    assert (hello.role, tests.role, first.total_tasks) == ("DEV", "QA", 3)
    assert list(tests.dependencies) == [hello.task_id, bye.task_id]
    assert all(one.task_id.startswith(f"{first.derivation_id}.") for one in first.tasks)

    request.roles.append("WIZARD")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.DeriveSubtasks(request, metadata=token, timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
