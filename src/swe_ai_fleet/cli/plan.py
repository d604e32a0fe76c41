"""`fleet plan`: set a goal, decide about the approach that is proposed, have it carried out."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fleet.planning.v1 import planning_pb2 as pb
from swe_ai_fleet.cli.context_client import document
from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.lines import line_of_terminal, next_line
from swe_ai_fleet.cli.options import Json, Server, Token
from swe_ai_fleet.cli.order import repo_ref
from swe_ai_fleet.cli.plan_client import PlanClient, plan_client
from swe_ai_fleet.cli.plan_view import how_to_decide, show_card, show_proposal, show_result, show_session
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.domain.task import UncommittedChanges
from swe_ai_fleet.watching.text import one_line

_FIRST = "goal"
_QUESTION = "approve, reject, or say what is to be different; an empty line leaves it waiting"


class GoalFirst(TyperGroup):
    """A group whose first word is a goal where it is none of its commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [_FIRST, *args]
        return super().parse_args(ctx, args)


plan_app = typer.Typer(
    cls=GoalFirst,
    help='Plan with a person: `fleet plan "GOAL"` proposes an approach; nothing is done before it is approved.',
    no_args_is_help=True,
    rich_markup_mode=None,
)

SessionName = Annotated[str, typer.Argument(metavar="ID", help="A plan session.")]


@plan_app.command(_FIRST)
def goal(
    text: Annotated[str, typer.Argument(metavar="GOAL", help="What is to be reached, in your own words.")],
    *,
    entity: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What it is about; what memory does not know of it is researched."),
    ] = None,
    session: Annotated[str, typer.Option(metavar="ID", help="A session to go on in. Default: a new one.")] = "",
    repo: Annotated[str, typer.Option(metavar="PATH|URL", help="A repository to look into.")] = "",
    ref: Annotated[str, typer.Option(help="Branch, tag or commit of it. Default: what is checked out.")] = "",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Have an approach proposed; at a terminal, decide about it and have it carried out. `goal` may be left out."""

    place = repo_ref(repo, ref=ref, uncommitted=UncommittedChanges.IGNORE) if repo else None
    request = pb.ExecutePlanRequest(
        goal=text,
        selected_entities=entity or (),
        session_id=session,
        repository=(place.path or place.url) if place is not None else "",
        ref=ref,
    )

    async def work(screen: Screen, client: PlanClient) -> Exit:
        return await pursue(screen, client, request)

    _with_client(work, server=server, token=token, json=json)


@plan_app.command()
def approve(name: SessionName, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Approve the approach that waits; `fleet plan continue` carries it out."""
    _with_client(lambda screen, client: decide(screen, client, name, "approved"), server=server, token=token, json=json)


@plan_app.command()
def reject(
    name: SessionName,
    *,
    text: Annotated[str, typer.Option("--text", help="Why.")] = "",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Reject the approach that waits; the session ends."""
    _with_client(
        lambda screen, client: decide(screen, client, name, "rejected", text), server=server, token=token, json=json
    )


@plan_app.command()
def adjust(
    name: SessionName,
    *,
    text: Annotated[str, typer.Option("--text", help="What is to be different.")],
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Have another approach proposed."""
    _with_client(
        lambda screen, client: decide(screen, client, name, "adjusted", text), server=server, token=token, json=json
    )


@plan_app.command("continue")
def go_on(name: SessionName, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Carry out what was approved. Again shows the same result."""
    _with_client(lambda screen, client: carry_on(screen, client, name), server=server, token=token, json=json)


@plan_app.command()
def show(name: SessionName, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Show a session as it stands."""

    async def work(screen: Screen, client: PlanClient) -> Exit:
        session = await client.session(name)
        if screen.json:
            screen.document(document(session))
        else:
            show_session(screen, session)
            if session.status == "awaiting_approval":
                screen.note(f"answer with: {how_to_decide(name)}")
        return Exit.ACCEPTED

    _with_client(work, server=server, token=token, json=json)


@plan_app.command("list")
def list_all(
    *,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many.")] = 20,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """List the sessions that were worked on last."""

    async def work(screen: Screen, client: PlanClient) -> Exit:
        found = await client.sessions(page_size=limit)
        if screen.json:
            screen.document({"sessions": [document(one) for one in found]})
        elif not found:
            screen.line("no plan sessions yet")
        for one in () if screen.json else found:
            show_card(screen, one)
        return Exit.ACCEPTED

    _with_client(work, server=server, token=token, json=json)


async def pursue(
    screen: Screen,
    client: PlanClient,
    request: pb.ExecutePlanRequest,
    read: Callable[[], str] | None = None,
) -> Exit:
    """Have an approach proposed and, where somebody is there, ask them; `read` gives their next line."""
    proposal: pb.ExecutePlanResponse | pb.ApproveApproachResponse = await client.execute(request)
    if screen.json:
        screen.document(document(proposal))
        return _exit_of(proposal.status)
    asks = read is not None or sys.stdin.isatty()
    while proposal.status == "awaiting_approval":
        show_proposal(screen, proposal)
        answer = await _answer(screen, read or line_of_terminal) if asks else ""
        match answer.lower():
            case "":
                screen.note(f"answer with: {how_to_decide(proposal.session_id)}")
                return Exit.ACCEPTED
            case "approve" | "approved" | "yes" | "y":
                await client.decide(proposal.session_id, "approved", proposal=proposal.proposal)
                return await carry_on(screen, client, proposal.session_id)
            case "reject" | "rejected" | "no" | "n":
                ended = await client.decide(proposal.session_id, "rejected", proposal=proposal.proposal)
                screen.line(one_line(ended.message))
                return Exit.REJECTED
            case _:
                proposal = await client.decide(proposal.session_id, "adjusted", answer, proposal=proposal.proposal)
    raise _nothing_proposed(proposal)


async def decide(screen: Screen, client: PlanClient, session_id: str, decision: str, text: str = "") -> Exit:
    """Answer what a session waits for."""
    answer = await client.decide(session_id, decision, text)
    if screen.json:
        screen.document(document(answer))
        return _exit_of(answer.status)
    match answer.status:
        case "awaiting_approval":
            show_proposal(screen, answer)
            screen.note(f"answer with: {how_to_decide(session_id)}")
        case "error":
            raise _nothing_proposed(answer)
        case _:
            screen.line(one_line(answer.message))
            if answer.status == "approved":
                screen.note(f"carry it out with: fleet plan continue {session_id}")
    return Exit.ACCEPTED


async def carry_on(screen: Screen, client: PlanClient, session_id: str) -> Exit:
    """Have what was approved carried out."""
    result = await client.go_on(session_id)
    if screen.json:
        screen.document(document(result))
    else:
        show_result(screen, result)
    return Exit.ACCEPTED if result.status == "completed" else Exit.NOT_ACCEPTED


async def _answer(screen: Screen, read: Callable[[], str]) -> str:
    screen.note(_QUESTION)
    try:
        return (await next_line(read)).strip()
    except EOFError:
        return ""


def _nothing_proposed(answer: pb.ExecutePlanResponse | pb.ApproveApproachResponse) -> CommandFault:
    return CommandFault(
        f"nothing was proposed: {answer.error}",
        exit_code=Exit.NOT_ACCEPTED,
        hint=f"set the goal again with --session {answer.session_id}",
    )


def _exit_of(status: str) -> Exit:
    return Exit.NOT_ACCEPTED if status == "error" else Exit.ACCEPTED


def _with_client(work: Callable[[Screen, PlanClient], Awaitable[Exit]], *, server: str, token: str, json: bool) -> None:
    async def connected(screen: Screen, fleet: AbstractAsyncContextManager[PlanClient]) -> Exit:
        async with fleet as client:
            return await work(screen, client)

    carry_out(lambda screen, settings: connected(screen, plan_client(settings, server=server, token=token)), json=json)
