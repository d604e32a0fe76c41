"""`fleet webhooks`: who outside is told what happens to executions."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Annotated, cast

import typer

from fleet.notification.v1 import notification_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2 as orchestrator
from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.options import Json, Server, Token
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.webhook_client import WebhookClient, webhook_client
from swe_ai_fleet.watching.text import one_line

Fleet = AbstractAsyncContextManager[WebhookClient]

webhooks_app = typer.Typer(
    help="Who outside is told what happens to executions.", no_args_is_help=True, rich_markup_mode=None
)
_Id = Annotated[str, typer.Argument(metavar="ID", help="The webhook's id.")]
_ERROR_CHARS = 120
_STATUSES = orchestrator.DeliberationStatus


@webhooks_app.command()
def add(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Where messages go: https://…; - reads it from standard input.")
    ],
    *,
    event: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EVENT",
            help="execution.started, execution.finished, approval.requested or approval.resolved. "
            "Default: all but the first.",
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="json, slack, discord or telegram.")] = "json",
    task: Annotated[str, typer.Option(metavar="PREFIX", help="Only tasks whose ids begin so.")] = "",
    role: Annotated[list[str] | None, typer.Option(help="Only this role.")] = None,
    status: Annotated[
        list[str] | None, typer.Option(help="Only executions that ended so: completed, failed, no_winner, …")
    ] = None,
    parts: Annotated[bool, typer.Option("--parts", help="Subtasks and nodes of workflows too.")] = False,
    name: Annotated[str, typer.Option("--id", metavar="ID", help="Its id. Default: made of URL and events.")] = "",
    secret_variable: Annotated[
        str, typer.Option(metavar="NAME", help="A variable that has its secret, whsec_…. Default: a random one.")
    ] = "",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Tell a URL what happens from now on. The secret that signs the messages is shown this once."""

    async def work(screen: Screen, fleet: Fleet) -> Exit:
        # URLs of chats are secrets, and what stands on a command line can be read by others on the machine.
        target = sys.stdin.readline().strip() if url == "-" else url
        only = pb.WebhookFilter(
            task_id_prefix=task, roles=role or (), statuses=_statuses(status or []), include_parts=parts
        )
        request = pb.CreateWebhookRequest(
            url=target,
            events=event or (),
            format=_format(form),
            filter=only,
            webhook_id=name,
            secret=_secret(secret_variable),
        )
        return await add_webhook(screen, fleet, request)

    carry_out(lambda screen, settings: work(screen, webhook_client(settings, server=server, token=token)), json=json)


@webhooks_app.command("list")
def list_webhooks(*, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Show the webhooks there are."""
    carry_out(
        lambda screen, settings: show_webhooks(screen, webhook_client(settings, server=server, token=token)), json=json
    )


@webhooks_app.command()
def remove(name: _Id, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Forget a webhook; what it was not told yet, it is not told any more."""
    carry_out(
        lambda screen, settings: remove_webhook(screen, webhook_client(settings, server=server, token=token), name),
        json=json,
    )


@webhooks_app.command()
def test(name: _Id, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Send a test message; exit code 1 where it is not taken. A disabled webhook that takes it is told again."""
    carry_out(
        lambda screen, settings: test_webhook(screen, webhook_client(settings, server=server, token=token), name),
        json=json,
    )


@webhooks_app.command()
def deliveries(
    name: _Id,
    *,
    limit: Annotated[int, typer.Option(min=1, max=50, help="Most of them.")] = 20,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Show the last attempts to tell a webhook, the newest first."""
    carry_out(
        lambda screen, settings: show_deliveries(
            screen, webhook_client(settings, server=server, token=token), name, limit=limit
        ),
        json=json,
    )


async def add_webhook(screen: Screen, fleet: Fleet, request: pb.CreateWebhookRequest) -> Exit:
    """Keep a webhook and show its secret."""
    async with fleet as client:
        answer = await client.create(request)
    made = answer.webhook
    if screen.json:
        existed = {"secret": answer.secret, "already_existed": answer.already_existed}
        screen.document({**_webhook(made), **existed})
        return Exit.ACCEPTED
    screen.line(f"{made.webhook_id}  {_name(made.format)}  {', '.join(made.events)}")
    if answer.already_existed:
        screen.note("it was there already; its secret was shown when it was created")
    else:
        screen.line(f"secret: {answer.secret}")
        screen.note("keep it: it is not shown again")
    return Exit.ACCEPTED


async def show_webhooks(screen: Screen, fleet: Fleet) -> Exit:
    """List webhooks."""
    async with fleet as client:
        found = (await client.all()).webhooks
    if screen.json:
        screen.document({"webhooks": [_webhook(one) for one in found]})
        return Exit.ACCEPTED
    if not found:
        screen.line("no webhooks")
    for one in found:
        standing = "active" if one.active else f"disabled: {one.disabled_reason}"
        if one.dead_letters:
            standing += f"; {one.dead_letters} given up, at last: {one_line(one.last_error, _ERROR_CHARS)}"
        screen.line(f"{one.webhook_id}  {_name(one.format)}  {one.url}  {', '.join(one.events)}  {standing}")
    return Exit.ACCEPTED


async def remove_webhook(screen: Screen, fleet: Fleet, name: str) -> Exit:
    """Forget a webhook."""
    async with fleet as client:
        existed = await client.remove(name)
    if not existed:
        raise CommandFault(f"there is no webhook {name!r}", exit_code=Exit.USAGE, field="webhook_id")
    if screen.json:
        screen.document({"webhook_id": name, "existed": True})
    else:
        screen.line(f"{name} is forgotten")
    return Exit.ACCEPTED


async def test_webhook(screen: Screen, fleet: Fleet, name: str) -> Exit:
    """Send a test message."""
    async with fleet as client:
        answer = await client.test(name)
    if screen.json:
        screen.document({**_delivery(answer.delivery), "enabled": answer.enabled})
    else:
        screen.line(_line(answer.delivery))
        if answer.enabled:
            screen.line("it is told of events again, from now on")
    taken = answer.delivery.status == pb.DELIVERY_STATUS_DELIVERED
    return Exit.ACCEPTED if taken else Exit.NOT_ACCEPTED


async def show_deliveries(screen: Screen, fleet: Fleet, name: str, *, limit: int) -> Exit:
    """List attempts."""
    async with fleet as client:
        found = (await client.deliveries(name, limit=limit)).deliveries
    if screen.json:
        screen.document({"deliveries": [_delivery(one) for one in found]})
        return Exit.ACCEPTED
    if not found:
        screen.line("nothing was sent lately")
    for one in found:
        screen.line(_line(one))
    return Exit.ACCEPTED


def _line(one: pb.Delivery) -> str:
    said = f"HTTP {one.http_status}" if one.http_status else "no answer"
    error = f"  {one_line(one.error, _ERROR_CHARS)}" if one.error else ""
    then = f"  again at {_time(one.next_at_ms)}" if one.next_at_ms else ""
    return (
        f"{_time(one.at_ms)}  {one.type}  attempt {one.attempt}  {_status(one.status)}  {said}  "
        f"{one.duration_ms} ms{error}{then}  {one.event_id}"
    )


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _webhook(one: pb.Webhook) -> dict[str, object]:
    return {
        "webhook_id": one.webhook_id,
        "url": one.url,
        "events": list(one.events),
        "format": _name(one.format),
        "filter": {
            "task_id_prefix": one.filter.task_id_prefix,
            "roles": list(one.filter.roles),
            "statuses": [
                orchestrator.DeliberationStatus.Name(status).removeprefix("DELIBERATION_STATUS_").lower()
                for status in one.filter.statuses
            ],
            "include_parts": one.filter.include_parts,
        },
        "created_at_ms": one.created_at_ms,
        "active": one.active,
        "disabled_reason": one.disabled_reason,
        "dead_letters": one.dead_letters,
        "last_error": one.last_error,
        "consumer": one.consumer,
    }


def _delivery(one: pb.Delivery) -> dict[str, object]:
    return {
        "event_id": one.event_id,
        "type": one.type,
        "execution_id": one.execution_id,
        "attempt": one.attempt,
        "status": _status(one.status),
        "http_status": one.http_status,
        "error": one.error,
        "at_ms": one.at_ms,
        "duration_ms": one.duration_ms,
        "next_at_ms": one.next_at_ms,
    }


def _name(form: pb.WebhookFormat) -> str:
    return pb.WebhookFormat.Name(form).removeprefix("WEBHOOK_FORMAT_").lower()


def _status(status: pb.DeliveryStatus) -> str:
    return pb.DeliveryStatus.Name(status).removeprefix("DELIVERY_STATUS_").lower()


def _format(text: str) -> pb.WebhookFormat:
    known = {
        name.removeprefix("WEBHOOK_FORMAT_").lower(): number for name, number in pb.WebhookFormat.items() if number
    }
    if text.lower() not in known:
        raise CommandFault(f"there is no format {text!r}", exit_code=Exit.USAGE, field="format", hint=", ".join(known))
    return cast("pb.WebhookFormat", known[text.lower()])


def _statuses(texts: list[str]) -> list[orchestrator.DeliberationStatus]:
    known = {name.removeprefix("DELIBERATION_STATUS_").lower(): number for name, number in _STATUSES.items()}
    for text in texts:
        if text.lower() not in known:
            raise CommandFault(f"there is no status {text!r}", exit_code=Exit.USAGE, field="filter.statuses")
    return [cast("orchestrator.DeliberationStatus", known[text.lower()]) for text in texts]


def _secret(variable: str) -> str:
    """The value of a variable, where one is named."""
    if not variable:
        return ""
    value = os.environ.get(variable, "")
    if not value:
        raise CommandFault(f"the variable {variable} is empty", exit_code=Exit.USAGE, field="secret_variable")
    return value
