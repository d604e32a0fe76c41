"""`fleet webhooks`: receivers of notifications about executions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from fleet.notification.v1 import notification_pb2 as pb
from swe_ai_fleet.cli.command import TableRow, table
from swe_ai_fleet.cli.messages import document, enum_word, local_time
from swe_ai_fleet.cli.options import argument, option
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.watching.text import one_line

_SERVICE = "fleet.notification.v1.NotificationService"
_WEBHOOK = argument("The webhook's id.", "webhook_id", metavar="ID")
_ERROR_CHARS = 120


def secret_url(text: str) -> str:
    """The URL; `-` reads it from standard input: chat URLs are secrets, and other users can read command lines."""
    return sys.stdin.readline().strip() if text == "-" else text


def secret_of(variable: str) -> str:
    """The value of an environment variable; empty without a name. Raises CommandFault."""
    value = os.environ.get(variable, "") if variable else ""
    if variable and not value:
        raise CommandFault(f"the variable {variable} is empty", field="secret_variable")
    return value


def webhook_document(answer: pb.CreateWebhookResponse) -> dict[str, object]:
    return {**document(answer.webhook), "secret": answer.secret, "already_existed": answer.already_existed}


def show_new_webhook(screen: Screen, answer: pb.CreateWebhookResponse, _: Any) -> None:
    webhook = answer.webhook
    form = enum_word(pb.WebhookFormat, webhook.format)
    screen.line(f"{webhook.webhook_id}  {form}  {', '.join(webhook.events)}")
    if answer.already_existed:
        screen.note("it already existed; its secret was shown when it was created")
    else:
        screen.line(f"secret: {answer.secret}")
        screen.note("store it: it is not shown again")


def _status(webhook: pb.Webhook) -> str:
    status = "active" if webhook.active else f"disabled: {webhook.disabled_reason}"
    if webhook.dead_letters:
        status += f"; {webhook.dead_letters} given up; last error: {one_line(webhook.last_error, _ERROR_CHARS)}"
    return status


WEBHOOK_COLUMNS: Mapping[str, str | Callable[[Any], str]] = {
    "webhook": "webhook_id",
    "format": "format",
    "url": "url",
    "events": lambda webhook: ", ".join(webhook.events),
    "standing": _status,
}


def webhook_existed(answer: pb.DeleteWebhookResponse, request: Any) -> Exit:
    if not answer.existed:
        fault = f"there is no webhook {request.webhook_id!r}"
        raise CommandFault(fault, field="webhook_id")
    return Exit.ACCEPTED


def message_taken(answer: pb.TestWebhookResponse, _: Any) -> Exit:
    taken = answer.delivery.status == pb.DELIVERY_STATUS_DELIVERED
    return Exit.ACCEPTED if taken else Exit.NOT_ACCEPTED


def show_test(screen: Screen, answer: pb.TestWebhookResponse, _: Any) -> None:
    screen.line(_delivery(answer.delivery))
    if answer.enabled:
        screen.line("it receives events again from now on")


def show_deliveries(screen: Screen, answer: pb.ListDeliveriesResponse, _: Any) -> None:
    # In columns each delivery would fill a page of a narrow terminal.
    screen.lines([_delivery(delivery) for delivery in answer.deliveries], nothing="no recent deliveries")


def _delivery(delivery: pb.Delivery) -> str:
    parts = (
        local_time(delivery.at_ms),
        delivery.type,
        f"attempt {delivery.attempt}",
        enum_word(pb.DeliveryStatus, delivery.status),
        f"HTTP {delivery.http_status}" if delivery.http_status else "no answer",
        f"{delivery.duration_ms} ms",
        one_line(delivery.error, _ERROR_CHARS),
        f"again at {local_time(delivery.next_at_ms)}" if delivery.next_at_ms else "",
        delivery.event_id,
    )
    return "  ".join(filter(None, parts))


ROWS: Mapping[str, TableRow] = {
    "webhooks add": TableRow(
        rpc=f"{_SERVICE}.CreateWebhook",
        takes={
            "url": argument("The receiver: https://…; - reads it from standard input.", metavar="URL", turn=secret_url),
            "event": option(
                "execution.started, execution.finished, approval.requested or approval.resolved. "
                "Default: all but the first.",
                "events",
                metavar="EVENT",
            ),
            "form": option("json, slack, discord or telegram.", "format", words="--format", default="json"),
            "task": option("Only tasks with this prefix of their ids.", "filter.task_id_prefix", metavar="PREFIX"),
            "role": option("Only executions of this role.", "filter.roles"),
            "status": option(
                "Only executions with this final status: completed, failed, no_winner, …", "filter.statuses"
            ),
            "parts": option("Also subtasks and nodes of workflows.", "filter.include_parts"),
            "name": option("The webhook's id. Default: from URL and events.", "webhook_id", words="--id", metavar="ID"),
            "secret_variable": option(
                "An environment variable with the secret, whsec_…. Default: a random secret.",
                "secret",
                metavar="NAME",
                turn=secret_of,
            ),
        },
        json=webhook_document,
        view=show_new_webhook,
    ),
    "webhooks list": TableRow(
        rpc=f"{_SERVICE}.ListWebhooks",
        view=table("webhooks", WEBHOOK_COLUMNS, "no webhooks"),
    ),
    "webhooks remove": TableRow(
        rpc=f"{_SERVICE}.DeleteWebhook",
        takes={"name": _WEBHOOK},
        ends=webhook_existed,
        json="webhook_id existed",
        line="{webhook_id} removed",
    ),
    "webhooks test": TableRow(
        rpc=f"{_SERVICE}.TestWebhook",
        takes={"name": _WEBHOOK},
        ends=message_taken,
        json=lambda answer: {**document(answer.delivery), "enabled": answer.enabled},
        view=show_test,
    ),
    "webhooks deliveries": TableRow(
        rpc=f"{_SERVICE}.ListDeliveries",
        takes={"name": _WEBHOOK, "limit": option("Most deliveries to show.", min=1, max=50, default=20)},
        view=show_deliveries,
    ),
}
