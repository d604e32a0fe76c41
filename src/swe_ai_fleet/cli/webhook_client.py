"""The fleet's webhooks as a command sees them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fleet.notification.v1 import notification_pb2 as pb
from fleet.notification.v1.notification_pb2_grpc import NotificationServiceStub
from swe_ai_fleet.cli.calls import Calls, fleet_calls
from swe_ai_fleet.settings import Settings

_CALL_SECONDS = 30.0


class WebhookClient:
    """Calls about the webhooks of one fleet. Raises CommandFault where it answers with a fault."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def create(self, request: pb.CreateWebhookRequest) -> pb.CreateWebhookResponse:
        """Keep a webhook."""
        return await self._calls.one("CreateWebhook", request, pb.CreateWebhookResponse, seconds=_CALL_SECONDS)

    async def all(self) -> pb.ListWebhooksResponse:
        """The webhooks there are."""
        return await self._calls.one(
            "ListWebhooks", pb.ListWebhooksRequest(), pb.ListWebhooksResponse, seconds=_CALL_SECONDS
        )

    async def remove(self, webhook_id: str) -> bool:
        """Forget a webhook; whether there was one."""
        request = pb.DeleteWebhookRequest(webhook_id=webhook_id)
        return (
            await self._calls.one("DeleteWebhook", request, pb.DeleteWebhookResponse, seconds=_CALL_SECONDS)
        ).existed

    async def test(self, webhook_id: str) -> pb.TestWebhookResponse:
        """Send a test message."""
        return await self._calls.one(
            "TestWebhook", pb.TestWebhookRequest(webhook_id=webhook_id), pb.TestWebhookResponse, seconds=_CALL_SECONDS
        )

    async def deliveries(self, webhook_id: str, *, limit: int) -> pb.ListDeliveriesResponse:
        """The last attempts."""
        request = pb.ListDeliveriesRequest(webhook_id=webhook_id, limit=limit)
        return await self._calls.one("ListDeliveries", request, pb.ListDeliveriesResponse, seconds=_CALL_SECONDS)


@asynccontextmanager
async def webhook_client(settings: Settings, *, server: str, token: str) -> AsyncGenerator[WebhookClient, None]:
    """A client for the webhooks of a running fleet. Raises CommandFault where there is none."""
    async with fleet_calls(NotificationServiceStub, settings, server=server, token=token) as calls:
        yield WebhookClient(calls)
