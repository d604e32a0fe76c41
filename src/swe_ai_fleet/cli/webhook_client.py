"""The fleet's webhooks as a command sees them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from fleet.notification.v1 import notification_pb2 as pb
from fleet.notification.v1.notification_pb2_grpc import NotificationServiceStub
from swe_ai_fleet.cli.client import START_HINT, fault_of_call
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.runtime.place import find_place
from swe_ai_fleet.settings import Settings

R = TypeVar("R", bound=Message)

_CALL_SECONDS = 30.0


class WebhookClient:
    """Calls about the webhooks of one fleet. Raises CommandFault where it answers with a fault."""

    def __init__(self, channel: grpc.aio.Channel, *, address: str, token: str) -> None:
        self.address = address
        self._stub = cast("Any", NotificationServiceStub)(channel)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    async def create(self, request: pb.CreateWebhookRequest) -> pb.CreateWebhookResponse:
        """Keep a webhook."""
        return await self._call("CreateWebhook", request, pb.CreateWebhookResponse)

    async def all(self) -> pb.ListWebhooksResponse:
        """The webhooks there are."""
        return await self._call("ListWebhooks", pb.ListWebhooksRequest(), pb.ListWebhooksResponse)

    async def remove(self, webhook_id: str) -> bool:
        """Forget a webhook; whether there was one."""
        request = pb.DeleteWebhookRequest(webhook_id=webhook_id)
        return (await self._call("DeleteWebhook", request, pb.DeleteWebhookResponse)).existed

    async def test(self, webhook_id: str) -> pb.TestWebhookResponse:
        """Send a test message."""
        return await self._call("TestWebhook", pb.TestWebhookRequest(webhook_id=webhook_id), pb.TestWebhookResponse)

    async def deliveries(self, webhook_id: str, *, limit: int) -> pb.ListDeliveriesResponse:
        """The last attempts."""
        request = pb.ListDeliveriesRequest(webhook_id=webhook_id, limit=limit)
        return await self._call("ListDeliveries", request, pb.ListDeliveriesResponse)

    async def _call(self, method: str, request: Message, kind: type[R]) -> R:
        call = getattr(self._stub, method)(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        try:
            answer = await cast("Awaitable[object]", call)
        except grpc.aio.AioRpcError as error:
            raise fault_of_call(error, self.address) from error
        assert isinstance(answer, kind)
        return answer


@asynccontextmanager
async def webhook_client(settings: Settings, *, server: str, token: str) -> AsyncGenerator[WebhookClient, None]:
    """A client for the webhooks of a running fleet. Raises CommandFault where there is none."""
    place = find_place(settings, server=server, token=token)
    if place is None:
        raise CommandFault(f"no fleet runs on {settings.home}", exit_code=Exit.UNAVAILABLE, hint=START_HINT)
    async with grpc.aio.insecure_channel(place.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        yield WebhookClient(channel, address=place.address, token=place.token)
