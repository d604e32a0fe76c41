"""`fleet webhooks`: who outside is told what happens to executions."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fleet.notification.v1 import notification_pb2 as pb
from fleet.notification.v1.notification_pb2_grpc import NotificationServiceStub
from fleet.orchestrator.v1 import orchestrator_pb2 as orchestrator
from swe_ai_fleet.cli.calls import Calls
from swe_ai_fleet.cli.edge import carry_out_with
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.messages import document, enum_name, enum_word
from swe_ai_fleet.cli.options import Json, Server, Token
from swe_ai_fleet.cli.place import calls_to
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import print_list
from swe_ai_fleet.watching.events import moment
from swe_ai_fleet.watching.text import one_line

webhooks_app = typer.Typer(
    help="Who outside is told what happens to executions.", no_args_is_help=True, rich_markup_mode=None
)
_Id = Annotated[str, typer.Argument(metavar="ID", help="The webhook's id.")]
_ERROR_CHARS = 120
_SERVICE = calls_to(NotificationServiceStub)


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

    async def work(screen: Screen, calls: Calls) -> Exit:
        # URLs of chats are secrets, and what stands on a command line can be read by others on the machine.
        target = sys.stdin.readline().strip() if url == "-" else url
        statuses = [enum_name(orchestrator.DeliberationStatus, one, field="status") for one in status or ()]
        request = pb.CreateWebhookRequest(
            url=target,
            events=event,
            format=enum_name(pb.WebhookFormat, form, field="format"),
            filter=pb.WebhookFilter(task_id_prefix=task, roles=role, statuses=statuses, include_parts=parts),
            webhook_id=name,
            secret=_secret(secret_variable),
        )
        answer = await calls.one("CreateWebhook", request, pb.CreateWebhookResponse)
        made = answer.webhook
        if screen.json:
            existed = {"secret": answer.secret, "already_existed": answer.already_existed}
            screen.document({**document(made), **existed})
            return Exit.ACCEPTED
        screen.line(f"{made.webhook_id}  {enum_word(pb.WebhookFormat, made.format)}  {', '.join(made.events)}")
        if answer.already_existed:
            screen.note("it was there already; its secret was shown when it was created")
        else:
            screen.line(f"secret: {answer.secret}")
            screen.note("keep it: it is not shown again")
        return Exit.ACCEPTED

    carry_out_with(_SERVICE, work, server=server, token=token, json=json)


@webhooks_app.command("list")
def list_webhooks(*, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Show the webhooks there are."""

    async def work(screen: Screen, calls: Calls) -> Exit:
        found = (await calls.one("ListWebhooks", pb.ListWebhooksRequest(), pb.ListWebhooksResponse)).webhooks
        rows = [
            (one.webhook_id, enum_word(pb.WebhookFormat, one.format), one.url, ", ".join(one.events), _standing(one))
            for one in found
        ]
        told = {"webhooks": [document(one) for one in found]}
        print_list(screen, told, ("webhook", "format", "url", "events", "standing"), rows, nothing="no webhooks")
        return Exit.ACCEPTED

    carry_out_with(_SERVICE, work, server=server, token=token, json=json)


@webhooks_app.command()
def remove(name: _Id, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Forget a webhook; what it was not told yet, it is not told any more."""

    async def work(screen: Screen, calls: Calls) -> Exit:
        request = pb.DeleteWebhookRequest(webhook_id=name)
        if not (await calls.one("DeleteWebhook", request, pb.DeleteWebhookResponse)).existed:
            raise CommandFault(f"there is no webhook {name!r}", exit_code=Exit.USAGE, field="webhook_id")
        screen.result({"webhook_id": name, "existed": True}, f"{name} is forgotten")
        return Exit.ACCEPTED

    carry_out_with(_SERVICE, work, server=server, token=token, json=json)


@webhooks_app.command()
def test(name: _Id, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Send a test message; exit code 1 where it is not taken. A disabled webhook that takes it is told again."""

    async def work(screen: Screen, calls: Calls) -> Exit:
        answer = await calls.one("TestWebhook", pb.TestWebhookRequest(webhook_id=name), pb.TestWebhookResponse)
        screen.result({**document(answer.delivery), "enabled": answer.enabled}, _line(answer.delivery))
        if answer.enabled and not screen.json:
            screen.line("it is told of events again, from now on")
        taken = answer.delivery.status == pb.DELIVERY_STATUS_DELIVERED
        return Exit.ACCEPTED if taken else Exit.NOT_ACCEPTED

    carry_out_with(_SERVICE, work, server=server, token=token, json=json)


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

    async def work(screen: Screen, calls: Calls) -> Exit:
        request = pb.ListDeliveriesRequest(webhook_id=name, limit=limit)
        found = (await calls.one("ListDeliveries", request, pb.ListDeliveriesResponse)).deliveries
        if screen.json:
            screen.document({"deliveries": [document(one) for one in found]})
        elif not found:
            screen.note("nothing was sent lately")
        # In columns each would be a page long in a narrow terminal.
        for one in () if screen.json else found:
            screen.line(_line(one))
        return Exit.ACCEPTED

    carry_out_with(_SERVICE, work, server=server, token=token, json=json)


def _standing(one: pb.Webhook) -> str:
    standing = "active" if one.active else f"disabled: {one.disabled_reason}"
    if one.dead_letters:
        standing += f"; {one.dead_letters} given up, at last: {one_line(one.last_error, _ERROR_CHARS)}"
    return standing


def _line(one: pb.Delivery) -> str:
    parts = (
        moment(one.at_ms)[:19],
        one.type,
        f"attempt {one.attempt}",
        enum_word(pb.DeliveryStatus, one.status),
        f"HTTP {one.http_status}" if one.http_status else "no answer",
        f"{one.duration_ms} ms",
        one_line(one.error, _ERROR_CHARS),
        f"again at {moment(one.next_at_ms)[:19]}" if one.next_at_ms else "",
        one.event_id,
    )
    return "  ".join(filter(None, parts))


def _secret(variable: str) -> str:
    """The value of a variable, where one is named."""
    if not variable:
        return ""
    value = os.environ.get(variable, "")
    if not value:
        raise CommandFault(f"the variable {variable} is empty", exit_code=Exit.USAGE, field="secret_variable")
    return value
