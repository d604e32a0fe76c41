"""The RPCs of `fleet.notification.v1.NotificationService`: convert, call, convert back."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime

from fleet.notification.v1 import notification_pb2 as pb
from fleet.notification.v1.notification_pb2_grpc import NotificationServiceServicer
from fleet.orchestrator.v1 import orchestrator_pb2 as orchestrator
from services.auth import tenant
from services.errors import Context
from services.grpc_server import Service, service_of
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.contract import from_message, to_message
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.extensions.webhooks.notifier import WebhookNotifier, open_listeners
from swe_ai_fleet.extensions.webhooks.sender import Schedule, WebhookRules
from swe_ai_fleet.extensions.webhooks.store import (
    DELIVERIES_BUCKET,
    DELIVERIES_KEPT_SECONDS,
    MAX_ATTEMPTS_KEPT,
    WEBHOOKS_BUCKET,
    DeliveryStore,
    WebhookStore,
)
from swe_ai_fleet.extensions.webhooks.webhook import USUAL, Webhook, check_webhook, default_id, new_secret, parse_event
from swe_ai_fleet.runtime.service_deps import ServiceDeps
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings, listed
from swe_ai_fleet.tools.builtin.fetching import Network
from swe_ai_fleet.tools.http_transport import public_authorities


class NotificationServicer(NotificationServiceServicer):
    """Serves webhooks."""

    def __init__(self, notifier: WebhookNotifier) -> None:
        self._notifier = notifier

    async def CreateWebhook(self, request: pb.CreateWebhookRequest, context: Context) -> pb.CreateWebhookResponse:
        webhook = _webhook(request)
        check_webhook(webhook)
        await self._notifier.rules.check(webhook.url)
        # Events that happen during the creation are included.
        start = await self._notifier.log.last_sequence() + 1
        stored, existed = await self._notifier.webhooks.add(
            webhook, start_sequence=start, same_secret=bool(request.secret)
        )
        return pb.CreateWebhookResponse(
            webhook=_message(stored), secret="" if existed else stored.secret, already_existed=existed
        )

    async def ListWebhooks(self, request: pb.ListWebhooksRequest, context: Context) -> pb.ListWebhooksResponse:
        return pb.ListWebhooksResponse(webhooks=map(_message, await self._notifier.webhooks.list(tenant())))

    async def DeleteWebhook(self, request: pb.DeleteWebhookRequest, context: Context) -> pb.DeleteWebhookResponse:
        webhook = await self._notifier.webhooks.remove(request.webhook_id, tenant())
        if webhook is not None:
            # The process that listens for it removes its consumer.
            await self._notifier.deliveries.forget(webhook)
        return pb.DeleteWebhookResponse(existed=webhook is not None)

    async def TestWebhook(self, request: pb.TestWebhookRequest, context: Context) -> pb.TestWebhookResponse:
        delivery, enabled = await self._notifier.test(await self._notifier.webhooks.get(request.webhook_id, tenant()))
        return pb.TestWebhookResponse(delivery=to_message(pb.Delivery, delivery), enabled=enabled)

    async def ListDeliveries(self, request: pb.ListDeliveriesRequest, context: Context) -> pb.ListDeliveriesResponse:
        webhook = await self._notifier.webhooks.get(request.webhook_id, tenant())
        attempts = await self._notifier.deliveries.last(webhook)
        shown = attempts[: request.limit or MAX_ATTEMPTS_KEPT]
        return pb.ListDeliveriesResponse(deliveries=[to_message(pb.Delivery, attempt) for attempt in shown])


def open_service(deps: ServiceDeps) -> AbstractAsyncContextManager[Service]:
    """The notification service of the orchestrator."""
    return open_notifications(deps.log, deps.settings)


@asynccontextmanager
async def open_notifications(
    log: JetStream,
    settings: Settings,
    *,
    schedule: Schedule | None = None,
    network: Network | None = None,
    tls: ssl.SSLContext | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> AsyncGenerator[Service]:
    """Notify webhooks until the context ends; yields the service that manages them.

    Args:
        settings: `webhook_private_hosts` and the secrets to mask.
        schedule: When failed deliveries are retried; None: for about a day.
        network: The network for connections; None: the real one.
        tls: The trusted authorities of receivers; None: the usual public ones.

    Raises:
        InvalidRequest: A setting is malformed.
        Unavailable: NATS does not answer.
    """
    rules = WebhookRules(private_hosts=listed(settings.webhook_private_hosts), network=network or Network())
    webhooks = await log.bucket(WEBHOOKS_BUCKET)
    deliveries = await log.bucket(DELIVERIES_BUCKET, ttl_seconds=DELIVERIES_KEPT_SECONDS)
    changed = asyncio.Event()
    async with WebhookStore(webhooks, changed=changed.set, now=now) as store:
        notifier = WebhookNotifier(
            log=log,
            webhooks=store,
            deliveries=DeliveryStore(deliveries),
            rules=rules,
            mask=secret_mask(settings),
            schedule=schedule or Schedule(),
            now=now,
            tls=tls or await asyncio.to_thread(public_authorities),
        )
        async with open_listeners(notifier, changed):
            yield service_of(NotificationServicer(notifier))


def _webhook(request: pb.CreateWebhookRequest) -> Webhook:
    """The requested webhook, not stored yet. Raises InvalidRequest."""
    named = [parse_event(text, field=f"events[{number}]") for number, text in enumerate(request.events)]
    events = tuple(dict.fromkeys(named)) or USUAL
    for number, status in enumerate(request.filter.statuses):
        if status == orchestrator.DELIBERATION_STATUS_UNKNOWN:
            raise InvalidRequest("no status given", field=f"filter.statuses[{number}]")
    return from_message(
        Webhook,
        request,
        webhook_id=request.webhook_id or default_id(tenant(), request.url, events),
        tenant=tenant(),
        secret=request.secret or new_secret(),
        events=events,
    )


def _message(webhook: Webhook) -> pb.Webhook:
    return to_message(pb.Webhook, webhook, url=webhook.shown_url)
