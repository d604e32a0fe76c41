"""Webhooks of two tenants on one fleet."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from fleet.notification.v1 import notification_pb2 as notification
from tests.extensions.webhooks.webhook_receiver import WebhookReceiver
from tests.integration.test_tenants import a_name
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
