"""GetTaskContext over real gRPC: what the role is told, from a project that is known."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from services.grpc_server import serve_grpc, service_of
from services.orchestrator.task_context import TaskContexts
from swe_ai_fleet.context.gathering import ContextGatherer
from swe_ai_fleet.context.store import ContextStore
from swe_ai_fleet.domain.context import Decision, Story, StoryTask, WorkRecord
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.testing.memory_stores import MemoryChanges
from swe_ai_fleet.tools.secrets import Secrets
from tests.orchestrator_service import servicer_of
from tests.scripted_deps import execution_deps

SECONDS = 20
SECRET = "sk-quite-a-secret-wxyz"
MASK = Secrets([SECRET])


@dataclass(frozen=True, kw_only=True)
class Service:
    stub: Any
    store: ContextStore
    executions: Executions

    async def get(self, **fields: object) -> pb.GetTaskContextResponse:
        return await self.stub.GetTaskContext(pb.GetTaskContextRequest(**fields))


async def ready() -> bool:
    return True


@asynccontextmanager
async def serving() -> AsyncIterator[Service]:
    log = MemoryLog()
    async with asyncio.timeout(SECONDS), ContextStore(MemoryChanges(), mask=Secrets()) as store:
        source = ContextGatherer(store, None, mask=Secrets())
        async with Executions(execution_deps(log, context=source)) as executions:
            contexts = TaskContexts(source=source, executions=executions, mask=MASK)
            service = [service_of(servicer_of(executions, log, contexts=contexts))]
            async with (
                serve_grpc(service, "127.0.0.1:0", None, ready, grace_seconds=0.1) as address,
                grpc.aio.insecure_channel(address) as channel,
            ):
                yield Service(stub=OrchestratorServiceStub(channel), store=store, executions=executions)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with serving() as running:
        store = running.store
        await store.create_story("default", Story(story_id="S-1", title="Log in with a passkey", case_id="C-1"))
        await store.create_task("default", StoryTask(task_id="T-1", story_id="S-1", title="The endpoint"))
        await store.add_decision(
            "default", Decision(decision_id="D-1", story_id="S-1", title="WebAuthn level 2", roles=(Role.DEV,))
        )
        record = WorkRecord(execution_id="x-1", task_id="T-1", story_id="S-1", status="failed", summary="No luck yet.")
        await store.record_work("default", record)
        yield running


async def test_the_context_of_a_role_is_what_the_project_knows_and_the_tools_it_gets(service: Service):
    told = await service.get(task_id="T-1", story_id="S-1", role="dev")
    assert "You are a software developer" in told.blocks.system
    assert "/workspace" in told.blocks.system
    for words in ("Log in with a passkey", "The endpoint", "WebAuthn level 2"):
        assert words in told.blocks.context
    assert "No luck yet." in told.blocks.history
    assert "No luck yet." not in told.blocks.context
    assert "- files_read_file: " in told.blocks.tools
    assert "docker_build" not in told.blocks.tools
    assert told.context_text.startswith(told.blocks.system)
    for block in (told.blocks.context, told.blocks.tools, told.blocks.history):
        assert block in told.context_text
    assert told.version_hash == hashlib.sha256(told.context_text.encode()).hexdigest()
    assert 0 < told.token_count < len(told.context_text)
    assert await service.get(task_id="T-1", story_id="S-1", role="dev") == told
    devops = await service.get(task_id="T-1", story_id="S-1", role="DEVOPS")
    assert "docker_build" in devops.blocks.tools
    assert "WebAuthn level 2" not in devops.blocks.context
    assert devops.version_hash != told.version_hash
    without = await service.get(
        story_id="S-1", role="dev", options=pb.GetContextOptions(include_history=False, include_decisions=False)
    )
    assert "WebAuthn" not in without.context_text
    assert not without.blocks.history


async def test_what_the_caller_asked_for_is_shown_and_secrets_are_not(service: Service):
    order = pb.OrchestrateRequest(
        task_id="T-1",
        task_description=f"Add the endpoint. The key is {SECRET}.",
        role="DEV",
        repo=pb.RepoRef(path="/srv/app"),
        story_id="S-1",
        context="It lives in app/login.py.",
        constraints=pb.TaskConstraints(requirements=["no new dependency"], rubric="small", allowed_paths=["app/"]),
    )
    accepted = await service.stub.Orchestrate(order)
    told = await service.get(task_id="T-1")
    task = (await service.executions.latest("default", "T-1")).task
    assert task.task_id == "T-1", accepted
    for words in ("# Requirements", "- no new dependency", "small", "app/", "It lives in app/login.py.", "[masked]"):
        assert words in told.blocks.context
    assert SECRET not in told.context_text
    assert told.blocks.context.index("# Task") < told.blocks.context.index("# What is known from before")


async def test_what_is_unknown_or_not_there_is_refused(service: Service):
    for fields, code in (
        ({"story_id": "nowhere"}, "NOT_FOUND"),
        ({"task_id": "nowhere"}, "NOT_FOUND"),
        ({"story_id": "S-1", "token_budget": 10**9}, "INVALID_ARGUMENT"),
        *(
            ({"story_id": "S-1", "options": pb.GetContextOptions(**options)}, "UNIMPLEMENTED")
            for options in ({"include_repository_map": True}, {"include_instructions": True}, {"model_profile": "x"})
        ),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service.get(**fields)
        assert refused.value.code().name == code, fields
