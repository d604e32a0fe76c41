"""Webhooks of two tenants on one fleet."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from fleet.notification.v1 import notification_pb2 as notification
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.extensions.webhooks import InvalidSignature, verify
from swe_ai_fleet.testing import ScriptedModelServer
from tests.documented import blocks
from tests.extensions.webhooks.webhook_receiver import WebhookReceiver
from tests.fleet_client import connected, serving, to_orchestrate
from tests.fleet_command import Shell
from tests.integration.test_tenants import a_name
from tests.scripts import PROPOSING
from tests.tenants import NORTH, SOUTH, Caller, World, refused, tenants


@pytest.mark.timeout(120)
async def test_a_webhook_hears_of_its_own_tenant_only(tmp_path: Path) -> None:
    async with WebhookReceiver() as receiver, tenants(tmp_path, webhook_host=receiver.address) as world:
        await _hears_of_its_own_tenant_only(world, receiver)


async def _hears_of_its_own_tenant_only(world: World, receiver: WebhookReceiver) -> None:
    zoe, other, name, only_north = world.by(NORTH, "zoe"), world.by(SOUTH, "zoe"), a_name(), a_name()

    async def made(caller: Caller, webhook_id: str, path: str, **fields: Any) -> Any:
        url = f"http://{receiver.address}/{path}"
        request = notification.CreateWebhookRequest(webhook_id=webhook_id, url=url, **fields)
        return await caller.call("CreateWebhook", request)

    for caller, path in ((zoe, "north"), (other, "south")):
        assert not (await made(caller, name, path, events=["execution.finished"])).already_existed
        listed = (await caller.call("ListWebhooks", notification.ListWebhooksRequest())).webhooks
        assert [one.webhook_id for one in listed] == [name]
    await made(zoe, only_north, "more")
    for method, kind in (
        ("TestWebhook", notification.TestWebhookRequest),
        ("ListDeliveries", notification.ListDeliveriesRequest),
    ):
        code, words = await refused(other.call(method, kind(webhook_id=only_north)))
        assert (code, f"no webhook {only_north}" in words) == (grpc.StatusCode.NOT_FOUND, True)
    gone = await other.call("DeleteWebhook", notification.DeleteWebhookRequest(webhook_id=only_north))
    assert not gone.existed
    task = a_name()
    ids = {tenant: await world.by(tenant, "ann").submit(task) for tenant in (NORTH, SOUTH)}
    for caller, tenant in ((zoe, NORTH), (other, SOUTH)):
        request = notification.ListDeliveriesRequest(webhook_id=name)
        while not (deliveries := (await caller.call("ListDeliveries", request)).deliveries):
            await asyncio.sleep(0.02)
        assert {one.execution_id for one in deliveries} == {ids[tenant]}
        bodies = json.dumps([json.loads(one.body) for one in receiver.received if one.path == f"/{tenant}"])
        assert {other for other in ids if ids[other] in bodies} == {tenant}
    for caller, one in ((zoe, name), (zoe, only_north), (other, name)):
        assert (await caller.call("DeleteWebhook", notification.DeleteWebhookRequest(webhook_id=one))).existed


# --- what receivers of webhooks check, and the example that shows it ---


# The vector that the specification's own libraries are tested with.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another key of 24 bytes!").decode()
MESSAGE_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
TIMESTAMP = 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def headers(**changed: str) -> dict[str, str]:
    plain = {"Webhook-Id": MESSAGE_ID, "Webhook-Timestamp": str(TIMESTAMP), "Webhook-Signature": SIGNATURE}
    return plain | {f"Webhook-{name.title()}": value for name, value in changed.items()}


@pytest.mark.parametrize(
    ("changed", "now", "genuine"),
    [
        ({}, TIMESTAMP + 299, True),
        ({}, TIMESTAMP + 301, False),
        ({}, TIMESTAMP - 301, False),
        ({"id": "msg_other"}, TIMESTAMP, False),
        ({"id": ""}, TIMESTAMP, False),
        ({"timestamp": str(TIMESTAMP + 1)}, TIMESTAMP, False),
        ({"timestamp": "9" * 5_000}, TIMESTAMP, False),
        ({"signature": SIGNATURE.replace("v1,", "v2,")}, TIMESTAMP, False),
        ({"signature": "v1,"}, TIMESTAMP, False),
        ({"signature": "\udcff"}, TIMESTAMP, False),
        # One of several is enough, while secrets change; but not one of any number.
        ({"signature": f"v1a,abc v1,AAAA {SIGNATURE}"}, TIMESTAMP, True),
        ({"signature": " ".join(["v1,x"] * 40) + f" {SIGNATURE}"}, TIMESTAMP, False),
    ],
)
def test_what_is_genuine(changed: dict[str, str], now: float, genuine: bool) -> None:
    if genuine:
        assert verify(SECRET, headers(**changed), BODY, now=now) == MESSAGE_ID
    for secret in (OTHER, *(() if genuine else (SECRET,))):
        with pytest.raises(InvalidSignature):
            verify(secret, headers(**changed), BODY, now=now)


def test_the_example_for_receivers_runs() -> None:
    """With what a web framework hands a receiver."""
    at = str(int(time.time()))
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{MESSAGE_ID}.{at}.".encode() + BODY, "sha256")
    signed = headers(timestamp=at, signature=f"v1,{base64.b64encode(digest).decode()}")
    names: dict[str, Any] = {"secret": SECRET, "body": BODY, "request": SimpleNamespace(headers=signed)}
    exec(blocks("docs/notifications.md")[1][1], names)
    assert "event_id" in names


# --- webhooks of the real fleet, kept from the command line and over HTTP, told by a process that is killed in between


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver() as server:
        monkeypatch.setenv("FLEET_WEBHOOK_PRIVATE_HOSTS", server.address)
        yield server


@pytest.mark.slow
async def test_approval_and_end_are_told_across_a_kill(
    model_server: ScriptedModelServer, receiver: WebhookReceiver, repository: Path, tmp_path: Path
) -> None:
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
        plan = {"task_id": task_id, "approval": pb.APPROVAL_POLICY_PLAN}
        execution_id = await client.submit(to_orchestrate(f"{PROPOSING} {task_id}", repository, **plan))
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
        await client.resolve(execution_id, "APPROVED", approval_id=approval_id, approver="ada")
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
