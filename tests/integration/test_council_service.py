"""Councils over real gRPC and the command line."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from swe_ai_fleet.domain.council import Council, CouncilMember, EndpointRules
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.orchestrator.council_store import CouncilStore
from swe_ai_fleet.orchestrator.councils import CouncilRules
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from swe_ai_fleet.testing.repositories import make_repository
from tests.conftest import FleetUnderTest
from tests.fleet_command import Shell
from tests.orchestrator_service import Service, field_named, refusal
from tests.scripts import FAILING, HELLO_FILES

RULES = CouncilRules(profiles=("small",), endpoints=EndpointRules(patterns=("127.0.0.1:7000",)))
DEFAULT = Council(council_id="council-qa", role=Role.QA, members=(CouncilMember(agent_id="tess"),))


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """The orchestrator's RPCs over councils and agents that follow a script."""
    store = CouncilStore(MemoryKeyValue(), defaults=(DEFAULT,), rules=RULES)
    async with Service(councils=store, models={"": "main-model", "small": "mini"}).running() as running:
        yield running


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    """The code, and the field that the details name."""
    code, _, details = await refusal(call)
    return code, field_named(details)


async def test_a_council_from_its_creation_to_its_end(service: Service) -> None:
    stub = service.stub
    config = pb.CouncilConfig(deliberation_rounds=2, enable_peer_review=True, model_profile="small")
    made = await stub.CreateCouncil(pb.CreateCouncilRequest(role="developer", num_agents=2, config=config))
    assert (made.council_id, made.agents_created) == ("council-dev", 2)
    assert list(made.agent_ids) == ["agent-dev-1", "agent-dev-2"]
    can = pb.AgentCapabilities(supported_tasks=["implement"], max_concurrent_tasks=3, languages=["python"])
    outsider = {"agent_id": "outsider", "endpoint": "127.0.0.1:7000", "metadata": {"owner": "us"}}
    joined = await stub.RegisterAgent(pb.RegisterAgentRequest(role="DEV", capabilities=can, **outsider))
    assert joined.success and joined.council_id == "council-dev" and "3 in the council" in joined.message
    listed = (await stub.ListCouncils(pb.ListCouncilsRequest(include_agents=True))).councils
    assert [(one.council_id, one.role, one.num_agents, one.status, one.model) for one in listed] == [
        ("council-dev", "DEV", 3, "active", "mini"),
        ("council-qa", "QA", 1, "active", "main-model"),
    ]
    last = listed[0].agents[2]
    assert (last.endpoint, dict(last.metadata), last.running_tasks) == ("127.0.0.1:7000", {"owner": "us"}, 0)
    assert (last.capabilities.max_concurrent_tasks, list(last.capabilities.languages)) == (3, ["python"])
    assert last.registered_at_ms > 1_700_000_000_000
    leaving = pb.UnregisterAgentRequest(agent_id="outsider", role="DEV")
    assert (await stub.UnregisterAgent(leaving)).success
    assert not (await stub.UnregisterAgent(leaving)).success
    second = stub.CreateCouncil(pb.CreateCouncilRequest(role="DEV"))
    assert await refused(second) == (grpc.StatusCode.ALREADY_EXISTS, "role")
    external = pb.CreateCouncilRequest(role="DATA", num_agents=2, config={"agent_type": "external"})
    assert await refused(stub.CreateCouncil(external)) == (grpc.StatusCode.INVALID_ARGUMENT, "num_agents")
    deleted = await stub.DeleteCouncil(pb.DeleteCouncilRequest(role="DEV"))
    assert (deleted.success, deleted.agents_removed) == (True, 2)
    assert not (await stub.DeleteCouncil(pb.DeleteCouncilRequest(role="DEV"))).success


@pytest.mark.slow
async def test_the_whole_fleet_from_the_command_line(fleet: FleetUnderTest, shell: Shell, tmp_path: Path) -> None:
    # Requests at random may have made one before.
    await shell.fleet("councils", "delete", "DATA")
    made = await shell.fleet("councils", "create", "DATA", "--agents", "1", "--rounds", "0", "--json")
    assert made.document == {"council_id": "council-data", "agent_ids": ["agent-data-1"]}
    ada = ("register", "DATA", "ada", "--language", "python", "--metadata")
    for words, code, said in (
        (("register", "DATA", "outsider", "--endpoint", "127.0.0.1:7000"), 2, "FLEET_AGENT_ENDPOINTS"),
        ((*ada, "a=b"), 0, "2 in the council"),
        ((*ada, "a"), 2, "K=V"),
    ):
        ended = await shell.fleet("councils", *words)
        assert (ended.code, said in ended.out + ended.err) == (code, True), ended
    listed = await shell.fleet("councils", "list", "--role", "DATA")
    rows = [line.split() for line in listed.out.splitlines()]
    assert listed.code == 0 and ["council-data", "DATA", "2", "active", "scripted"] in rows
    assert ["ada", "DATA", "the", "fleet", "0", "python"] in rows

    async with grpc.aio.insecure_channel(fleet.running.address) as channel:
        stub: Any = OrchestratorServiceStub(channel)
        request = pb.DeliberateRequest(
            task_id=f"t-{uuid.uuid4().hex[:8]}",
            task_description=FAILING,
            role="DATA",
            repo=pb.RepoRef(path=str(make_repository(tmp_path / "repository", HELLO_FILES))),
            constraints=pb.TaskConstraints(checks=[pb.CheckSpec(name="none", command="false")]),
        )
        reply = await stub.Deliberate(request, metadata=(("authorization", f"Bearer {fleet.running.token}"),))
    assert {name for one in reply.results for name in (one.candidate_id, *one.duplicates)} == {"agent-data-1", "ada"}
    for words, code, said in (
        (("unregister", "DATA", "ada"), 0, "has left"),
        (("unregister", "DATA", "ada", "--json"), 2, '"field": "agent_id"'),
        (("delete", "DATA"), 0, "deleted"),
        (("delete", "DATA"), 2, ""),
    ):
        ended = await shell.fleet("councils", *words)
        assert (ended.code, said in (ended.out + ended.err).replace('":"', '": "')) == (code, True), ended
