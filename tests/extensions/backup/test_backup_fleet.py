"""A fleet that is saved while agents are at work, and goes on in another home from what was saved."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from fleet.context.v1 import context_pb2 as context
from fleet.context.v1.context_pb2_grpc import ContextServiceStub
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.e2e.test_restart import serving
from tests.fleet_command import Shell
from tests.scripts import GREETINGS, HELLO_FILES, SLOW

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class Caller:
    """Calls to a fleet in a process of its own."""

    def __init__(self, fleet: grpc.aio.Channel, knowledge: grpc.aio.Channel, token: str) -> None:
        self.stub = pb_grpc.OrchestratorServiceStub(fleet)
        self.context = ContextServiceStub(knowledge)
        self.call = {"metadata": (("authorization", f"Bearer {token}"),), "timeout": 90}

    async def events(self, execution_id: str) -> list[pb.ExecutionEvent]:
        request = pb.StreamExecutionRequest(execution_id=execution_id)
        return [event async for event in self.stub.StreamExecution(request, **self.call)]

    async def execution(self, execution_id: str) -> pb.Execution:
        request = pb.GetExecutionRequest(execution_id=execution_id)
        return (await self.stub.GetExecution(request, **self.call)).execution

    async def councils(self) -> list[pb.CouncilInfo]:
        return list((await self.stub.ListCouncils(pb.ListCouncilsRequest(), **self.call)).councils)

    async def recalled(self) -> list[str]:
        request = context.RecallRequest(query="tabs or spaces", namespaces=["fleet"])
        found = await self.context.Recall(request, **self.call)
        return [one.memory.text for one in found.recollections]


@asynccontextmanager
async def calling(card: dict[str, str]) -> AsyncIterator[Caller]:
    async with (
        grpc.aio.insecure_channel(card["address"]) as fleet,
        grpc.aio.insecure_channel(card["context"]) as knowledge,
    ):
        yield Caller(fleet, knowledge, card["token"])


async def test_a_fleet_goes_on_from_its_backup(model_server: ScriptedModelServer, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", HELLO_FILES)
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        home.mkdir()

    def asked(task_id: str, text: str) -> pb.OrchestrateRequest:
        options = pb.OrchestratorOptions(num_agents=1, enable_peer_review=False)
        repo = pb.RepoRef(path=str(repository))
        return pb.OrchestrateRequest(task_id=task_id, task_description=text, repo=repo, options=options)

    going_on = asked("going-on", SLOW)
    shells = [Shell(home=home, model_url=model_server.url) for home in homes]
    directory = tmp_path / "backup"

    async with serving(homes[0], model_server.url) as (process, card), calling(card) as first:
        saved = await first.stub.Orchestrate(asked("saved", GREETINGS), **first.call)
        await first.stub.CreateCouncil(pb.CreateCouncilRequest(role="QA", num_agents=2), **first.call)
        await first.context.AddFact(context.AddFactRequest(namespace="fleet", text="Tabs, no spaces."), **first.call)
        accepted = await first.stub.SubmitTask(pb.SubmitTaskRequest(orchestrate=going_on), **first.call)
        watched = pb.StreamExecutionRequest(execution_id=accepted.execution_id)
        async for event in first.stub.StreamExecution(watched, **first.call):
            if event.type == "tool_finished":
                break
        made = await shells[0].fleet("backup", str(directory), "--json")
        assert made.code == 0, made.out + made.err
        before = (await first.events(saved.execution_id), await first.execution(saved.execution_id))
        councils, recalled = await first.councils(), await first.recalled()
        assert (len(councils), recalled) == (1, ["Tabs, no spaces."])
        refused = await shells[0].fleet("restore", str(directory))
        assert (refused.code, "a fleet is running in" in refused.err) == (2, True)
        process.kill()
        await process.wait()

    restored = await shells[1].fleet("restore", str(directory), "--json")
    assert restored.code == 0, restored.out + restored.err
    told = json.loads(restored.out)
    assert (told["faults"], told["executions"]) == ([], 2)
    again = await shells[1].fleet("restore", str(directory))
    assert (again.code, "is not empty" in again.err) == (2, True)

    async with serving(homes[1], model_server.url) as (_, card), calling(card) as second:
        assert (await second.events(saved.execution_id), await second.execution(saved.execution_id)) == before
        assert await second.councils() == councils
        async with asyncio.timeout(20):
            while await second.recalled() != recalled:  # the index is made anew from what was saved
                await asyncio.sleep(0.1)
        reply = await second.stub.Orchestrate(going_on, **second.call)
        assert (reply.execution_id, reply.status) == (accepted.execution_id, pb.DELIBERATION_STATUS_COMPLETED)
        assert git(repository, "rev-parse", "fleet/going-on") == reply.commit_sha
        events = await second.events(accepted.execution_id)
        assert [json.loads(one.payload_json)["generation"] for one in events if one.type == "execution_claimed"] == [
            1, 2,
        ]  # fmt: skip
        verified = await shells[1].fleet("audit", "verify", accepted.execution_id)
        assert verified.code == 0, verified.out + verified.err
