"""What a fleet at work tells of a role's context, from a project that is known and a clone, and of its councils."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest

from fleet.context.v1 import context_pb2 as cpb
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.fleet_client import Client, to_deliberate, to_orchestrate
from tests.fleet_command import Shell
from tests.scripts import FAILING, HELLO, HELLO_FILES

FILES = HELLO_FILES | {"AGENTS.md": "Use tabs.\n", "lib.py": "def helper_of_all():\n    return 2\n"}


@dataclass(frozen=True, kw_only=True)
class Service:
    client: Client
    story: str

    async def get(self, **fields: object) -> pb.GetTaskContextResponse:
        return await self.client.stub.GetTaskContext(pb.GetTaskContextRequest(**fields), **self.client.call)


@pytest.fixture
async def service(client: Client) -> AsyncIterator[Service]:
    story = f"story-{uuid.uuid4().hex[:8]}"
    decision = {"decision_id": f"D-{story}", "story_id": story, "title": "WebAuthn level 2", "roles": ["ROLE_DEV"]}
    work = {"execution_id": f"x-{story}", "story_id": story, "task_id": f"T-{story}", "status": "failed"}
    for request in (
        cpb.CreateStoryRequest(story={"story_id": story, "title": "Log in with a passkey"}),
        cpb.CreateTaskRequest(task={"task_id": f"T-{story}", "story_id": story, "title": "The endpoint"}),
        cpb.AddProjectDecisionRequest(decision=decision),
        cpb.RecordOperationsRequest(record=work | {"summary": "No luck yet."}),
    ):
        await getattr(client.context, type(request).__name__.removesuffix("Request"))(request, **client.call)
    yield Service(client=client, story=story)


async def test_the_context_of_a_role_is_what_the_project_knows_and_the_tools_it_gets(service: Service):
    story, task_id = service.story, f"T-{service.story}"
    told = await service.get(task_id=task_id, story_id=story, role="dev")
    assert "You are a software developer" in told.blocks.system
    for words in ("Log in with a passkey", "The endpoint", "WebAuthn level 2"):
        assert words in told.blocks.context
    assert "No luck yet." in told.blocks.history
    assert "No luck yet." not in told.blocks.context
    assert "- files_read_file: " in told.blocks.tools
    assert "db_sqlite_query" not in told.blocks.tools
    for block in (told.blocks.system, told.blocks.context, told.blocks.tools, told.blocks.history):
        assert block in told.context_text
    assert told.version_hash == hashlib.sha256(told.context_text.encode()).hexdigest()
    assert await service.get(task_id=task_id, story_id=story, role="dev") == told
    architect = await service.get(task_id=task_id, story_id=story, role="ARCHITECT")
    assert "- shell_run_command" not in architect.blocks.tools
    assert "WebAuthn level 2" not in architect.blocks.context


async def test_it_is_what_the_agent_gets_of_its_repository_too(
    service: Service, model_server: ScriptedModelServer, tmp_path: Path
):
    task_id = f"context-{uuid.uuid4().hex[:8]}"
    order = to_orchestrate(
        f"{HELLO} Use `helper_of_all`.",
        make_repository(tmp_path / "r", FILES),
        task_id=task_id,
        role="DEV",
        story_id=service.story,
        context=f"It lives in {task_id}.py.",
        constraints=pb.TaskConstraints(requirements=["no new dependency"], rubric="small"),
        context_options=pb.ContextOptions(include_instructions=False, include_history=False),
        options=pb.OrchestratorOptions(num_agents=1, custom_params={"instructions": "Be brief.", "temperature": "0.5"}),
    )
    execution_id = await service.client.submit(order)
    await service.client.until(execution_id, "model_replied")
    await service.client.cancel(execution_id)
    body = next(body for body in model_server.bodies if f"It lives in {task_id}.py." in str(body["messages"]))
    system, first = (message["content"] for message in body["messages"][:2])
    told = await service.get(task_id=task_id)
    assert told.blocks.system == system
    assert first.startswith(told.blocks.context.split("Tests on the untouched commit: ")[0].rstrip())
    assert (body["temperature"], "Be brief." in first) == (0.5, True)
    for words in ("- no new dependency", "small", "def helper_of_all", "Log in with a passkey", "WebAuthn level 2"):
        assert words in told.blocks.context
    assert "Use tabs." not in first + told.context_text
    # What is asked for here goes before what the task has.
    other = pb.GetContextOptions(include_repository_map=False, include_instructions=True)
    for told in (
        await service.get(task_id=task_id, options=other),
        await service.get(role="DEV", repo=order.repo, options=other),
    ):
        assert "Use tabs." in told.blocks.context and "def helper_of_all" not in told.blocks.context


async def test_what_is_unknown_or_not_there_is_refused(service: Service):
    for fields, code in (
        ({"story_id": "nowhere"}, "NOT_FOUND"),
        ({"repo": pb.RepoRef(path="/nowhere/at/all")}, "NOT_FOUND"),
        ({"story_id": service.story, "token_budget": 10**9}, "INVALID_ARGUMENT"),
        ({"options": pb.GetContextOptions(include_repository_map=True)}, "INVALID_ARGUMENT"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service.get(**fields)
        assert refused.value.code().name == code, fields


# --- councils over the command line, and a task that one of them solves ---


@pytest.mark.slow
async def test_the_whole_fleet_from_the_command_line(client: Client, shell: Shell, repository: Path) -> None:
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

    none = pb.TaskConstraints(checks=[pb.CheckSpec(name="none", command="false")])
    task = to_deliberate(FAILING, repository, role="DATA", constraints=none, num_agents=0, enable_peer_review=None)
    reply = await client.stub.Deliberate(task, **client.call)
    assert {name for one in reply.results for name in (one.candidate_id, *one.duplicates)} == {"agent-data-1", "ada"}
    for words, code, said in (
        (("unregister", "DATA", "ada"), 0, "has left"),
        (("unregister", "DATA", "ada", "--json"), 2, '"field": "agent_id"'),
        (("delete", "DATA"), 0, "deleted"),
        (("delete", "DATA"), 2, ""),
    ):
        ended = await shell.fleet("councils", *words)
        assert (ended.code, said in (ended.out + ended.err).replace('":"', '": "')) == (code, True), ended
