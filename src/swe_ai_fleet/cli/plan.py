"""`fleet plan`: set a goal, decide about the approach that is proposed, have it carried out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fleet.planning.v1 import planning_pb2 as pb
from fleet.planning.v1.planning_pb2_grpc import PlanningServiceStub
from swe_ai_fleet.cli.calls import Calls
from swe_ai_fleet.cli.edge import carry_out_with
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.lines import line_of_terminal, next_line
from swe_ai_fleet.cli.messages import document
from swe_ai_fleet.cli.options import Json, Server, Token
from swe_ai_fleet.cli.order import repo_ref
from swe_ai_fleet.cli.place import calls_to
from swe_ai_fleet.cli.plan_view import card_row, how_to_decide, show_proposal, show_result, show_session
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import print_list
from swe_ai_fleet.domain.task import UncommittedChanges
from swe_ai_fleet.watching.text import one_line

_FIRST = "goal"
_SERVICE = calls_to(PlanningServiceStub)
WORK_SECONDS = 900.0
"""More than any limit on a request; the server ends it before."""
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

    async def work(screen: Screen, calls: Calls) -> Exit:
        return await pursue(screen, calls, request)

    carry_out_with(_SERVICE, work, server=server, token=token, json=json)


@plan_app.command()
def approve(name: SessionName, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Approve the approach that waits; `fleet plan continue` carries it out."""
    carry_out_with(
        _SERVICE, lambda screen, calls: decide(screen, calls, name, "approved"), server=server, token=token, json=json
    )


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
    carry_out_with(
        _SERVICE,
        lambda screen, calls: decide(screen, calls, name, "rejected", text),
        server=server,
        token=token,
        json=json,
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
    carry_out_with(
        _SERVICE,
        lambda screen, calls: decide(screen, calls, name, "adjusted", text),
        server=server,
        token=token,
        json=json,
    )


@plan_app.command("continue")
def go_on(name: SessionName, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Carry out what was approved. Again shows the same result."""
    carry_out_with(_SERVICE, lambda screen, calls: carry_on(screen, calls, name), server=server, token=token, json=json)


@plan_app.command()
def show(name: SessionName, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Show a session as it stands."""

    async def work(screen: Screen, calls: Calls) -> Exit:
        request = pb.GetPlanSessionRequest(session_id=name)
        session = (await calls.one("GetPlanSession", request, pb.GetPlanSessionResponse)).session
        if screen.json:
            screen.document(document(session))
        else:
            show_session(screen, session)
            if session.status == "awaiting_approval":
                screen.note(f"answer with: {how_to_decide(name)}")
        return Exit.ACCEPTED

    carry_out_with(_SERVICE, work, server=server, token=token, json=json)


@plan_app.command("list")
def list_all(
    *,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many.")] = 20,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """List the sessions that were worked on last."""

    async def work(screen: Screen, calls: Calls) -> Exit:
        request = pb.ListPlanSessionsRequest(page_size=limit)
        found = (await calls.one("ListPlanSessions", request, pb.ListPlanSessionsResponse)).sessions
        told = {"sessions": [document(one) for one in found]}
        rows = [card_row(one) for one in found]
        print_list(screen, told, ("session", "status", "goal"), rows, nothing="no plan sessions yet")
        return Exit.ACCEPTED

    carry_out_with(_SERVICE, work, server=server, token=token, json=json)


async def pursue(
    screen: Screen,
    calls: Calls,
    request: pb.ExecutePlanRequest,
    read: Callable[[], str] | None = None,
) -> Exit:
    """Have an approach proposed and, where somebody is there, ask them; `read` gives their next line."""
    proposal: pb.ExecutePlanResponse | pb.ApproveApproachResponse = await calls.one(
        "ExecutePlan", request, pb.ExecutePlanResponse, seconds=WORK_SECONDS
    )
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
                await _decided(calls, proposal.session_id, "approved", proposal=proposal.proposal)
                return await carry_on(screen, calls, proposal.session_id)
            case "reject" | "rejected" | "no" | "n":
                ended = await _decided(calls, proposal.session_id, "rejected", proposal=proposal.proposal)
                screen.line(one_line(ended.message))
                return Exit.REJECTED
            case _:
                proposal = await _decided(calls, proposal.session_id, "adjusted", answer, proposal=proposal.proposal)
    raise _nothing_proposed(proposal)


async def decide(screen: Screen, calls: Calls, session_id: str, decision: str, text: str = "") -> Exit:
    """Answer what a session waits for."""
    answer = await _decided(calls, session_id, decision, text)
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


async def carry_on(screen: Screen, calls: Calls, session_id: str) -> Exit:
    """Have what was approved carried out."""
    request = pb.ContinuePlanRequest(session_id=session_id)
    result = await calls.one("ContinuePlan", request, pb.ContinuePlanResponse, seconds=WORK_SECONDS)
    if screen.json:
        screen.document(document(result))
    else:
        show_result(screen, result)
    return Exit.ACCEPTED if result.status == "completed" else Exit.NOT_ACCEPTED


async def _decided(
    calls: Calls, session_id: str, decision: str, adjustment: str = "", *, proposal: int = 0
) -> pb.ApproveApproachResponse:
    """What comes of a decision: approved, rejected or adjusted. `proposal` 0: about whichever waits."""
    request = pb.ApproveApproachRequest(
        session_id=session_id, decision=decision, adjustment=adjustment, proposal=proposal
    )
    return await calls.one("ApproveApproach", request, pb.ApproveApproachResponse, seconds=WORK_SECONDS)


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
