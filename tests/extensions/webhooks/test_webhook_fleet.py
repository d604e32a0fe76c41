"""Webhooks of the real fleet, kept from the command line and over HTTP, told by a process that is killed in between."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.e2e.test_approvals import connected
from tests.e2e.test_restart import serving
from tests.extensions.webhooks.webhook_receiver import WebhookReceiver
from tests.fleet_command import Shell
from tests.scripts import HELLO_FILES, PROPOSING


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver() as server:
        monkeypatch.setenv("FLEET_WEBHOOK_PRIVATE_HOSTS", server.address)
        yield server


@pytest.mark.slow
async def test_approval_and_end_are_told_across_a_kill(
    model_server: ScriptedModelServer, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repository", HELLO_FILES)
    home = tmp_path / "home"
    home.mkdir()
    shell = Shell(home=home, model_url=model_server.url)
    task_id = f"hooked-{uuid.uuid4().hex[:8]}"
    async with serving(home, model_server.url) as (process, card), connected(card) as client:
        added = await shell.fleet("webhooks", "add", receiver.url("/events"), "--id", "mine", "--json")
        secret = added.document["secret"]
        chat = ("webhooks", "add", receiver.url("/chat"), "--format", "slack", "--event", "approval.requested")
        chatty = (await shell.fleet(*chat, "--json")).document["webhook_id"]
        refused = await shell.fleet("webhooks", "add", "https://169.254.169.254/", "--json")
        assert (refused.code, refused.document["error"]["field"]) == (2, "url")
        tested = await shell.fleet("webhooks", "test", "mine")
        assert (tested.code, "webhook.test" in tested.out) == (0, True)
        task = pb.OrchestrateRequest(
            task_id=task_id, task_description=f"{PROPOSING} {task_id}", repo=pb.RepoRef(path=str(repository)),
            approval=pb.APPROVAL_POLICY_PLAN, options=pb.OrchestratorOptions(num_agents=1, enable_peer_review=False),
        )  # fmt: skip
        submitted = await client.stub.SubmitTask(pb.SubmitTaskRequest(orchestrate=task), **client.call)
        _, approval = await receiver.until("/events", 2)
        (words,) = await receiver.until("/chat", 1)
        assert "Append hello_world to utils.py" in json.loads(words.body)["text"]
        # Killed before it is known that a message arrived, it would be sent again.
        for name in ("mine", chatty):
            while approval.event_id not in (await shell.fleet("webhooks", "deliveries", name)).out:
                continue
        process.kill()
        await process.wait()
    (home / "fleet.json").unlink()
    async with serving(home, model_server.url) as (_, card), connected(card) as client:
        approval_id = json.loads(approval.body)["data"]["approval"]["approval_id"]
        await client.resolve(submitted.execution_id, "APPROVED", approval_id=approval_id, approver="ada")
        messages = await receiver.until("/events", 4)
        told = {json.loads(message.body)["type"]: json.loads(message.body)["data"] for message in messages}
        assert set(told) == {"webhook.test", "approval.requested", "approval.resolved", "execution.finished"}
        end = told["execution.finished"]
        assert (end["status"], end["task_id"]) == ("completed", task_id) and end["branch"] and end["commit_sha"]
        assert len({message.checked(secret) for message in messages}) == 4
        # It asked again after the kill, which is no news to anybody.
        assert len(receiver.on("/chat")) == 1
        left = (await shell.fleet("webhooks", "list", "--json")).document["webhooks"]
        assert "slack" in {one["format"] for one in left}
        assert all(receiver.address in one["url"] and "/chat" not in one["url"] for one in left)
