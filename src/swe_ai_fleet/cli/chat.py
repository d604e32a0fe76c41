"""`fleet chat`: a conversation with the fleet in a terminal, or one message of it for a script."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Annotated

import typer

from fleet.conversation.v1 import conversation_pb2 as pb
from swe_ai_fleet.cli.chat_client import ChatClient, chat_client
from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.lines import line_of_terminal, next_line
from swe_ai_fleet.cli.options import Json, Server, Token
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.watching.text import clean, one_line

_CHANNELS = {"plain": pb.CHANNEL_PLAIN, "markdown": pb.CHANNEL_MARKDOWN, "telegram": pb.CHANNEL_TELEGRAM}
_LISTED = 50
_HELP = (
    "/new begins a new conversation, /list shows the last ones, /quit (or Ctrl-D) leaves; anything else is a message"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOrder:
    """What a command asks for."""

    session_id: str
    channel: str
    namespaces: tuple[str, ...]
    once: str = ""
    list_all: bool = False
    end: bool = False


def chat(
    *,
    session: Annotated[str, typer.Option(metavar="ID", help="A conversation to go on with. Default: a new one.")] = "",
    memory: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMESPACE", help="Where it remembers beyond itself: fleet, agent:ID or repository:NAME."),
    ] = None,
    channel: Annotated[str, typer.Option(help="How answers are shown: plain, markdown or telegram.")] = "plain",
    once: Annotated[str, typer.Option(metavar="TEXT", help="Send one message, show the answer, leave.")] = "",
    list_all: Annotated[bool, typer.Option("--list", help="Show the conversations there are, and leave.")] = False,
    end: Annotated[bool, typer.Option("--end", help="Forget the conversation of --session, and leave.")] = False,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Talk with the fleet: ask about executions, files and pages, have tasks proposed, started after your yes."""
    order = ChatOrder(
        session_id=session or f"cli-{uuid.uuid4().hex[:12]}",
        channel=channel,
        namespaces=tuple(memory or ()),
        once=once,
        list_all=list_all,
        end=end,
    )
    if end and not session:
        fault = CommandFault("--end needs --session", exit_code=Exit.USAGE, field="session")
        carry_out(lambda screen, settings: _fails(fault), json=json)
    carry_out(
        lambda screen, settings: converse(screen, chat_client(settings, server=server, token=token), order), json=json
    )


async def converse(
    screen: Screen,
    fleet: AbstractAsyncContextManager[ChatClient],
    order: ChatOrder,
    read: Callable[[], str] | None = None,
) -> Exit:
    """Carry a command out; `read` gives the person's next line and raises EOFError behind the last."""
    if order.channel not in _CHANNELS:
        raise CommandFault(
            f"there is no channel {order.channel!r}", exit_code=Exit.USAGE, field="channel", hint=", ".join(_CHANNELS)
        )
    async with fleet as client:
        if order.list_all:
            return await _list(screen, client)
        if order.end:
            return await _end(screen, client, order.session_id)
        if order.once:
            answer = await _say(screen, client, order, order.once, order.session_id)
            return Exit.ACCEPTED if answer.success else Exit.NOT_ACCEPTED
        if screen.json:
            raise CommandFault("--json shows one message: give it with --once", exit_code=Exit.USAGE, field="once")
        return await _talk(screen, client, order, read or line_of_terminal)


async def _talk(screen: Screen, client: ChatClient, order: ChatOrder, read: Callable[[], str]) -> Exit:
    session_id = order.session_id
    seen_turn: int | None = None
    screen.note(f"conversation {session_id}; {_HELP}")
    while True:
        try:
            text = (await next_line(read)).strip()
        except EOFError:
            return Exit.ACCEPTED
        match text:
            case "":
                continue
            case "/quit" | "/exit":
                return Exit.ACCEPTED
            case "/help":
                screen.note(_HELP)
            case "/new":
                session_id, seen_turn = f"cli-{uuid.uuid4().hex[:12]}", None
                screen.note(f"conversation {session_id}")
            case "/list":
                await _list(screen, client)
            case _:
                try:
                    seen_turn = (await _say(screen, client, order, text, session_id, seen_turn)).turn
                except CommandFault as fault:
                    # Whoever mistyped, or met a server that restarts, goes on talking.
                    screen.fault(fault)
                    if fault.exit_code is Exit.UNAVAILABLE:
                        screen.note("send it again once the fleet is back")


async def _say(
    screen: Screen, client: ChatClient, order: ChatOrder, text: str, session_id: str, seen_turn: int | None = None
) -> pb.Answer:
    """Have a message answered and show the answer; `seen_turn` is the last that was shown here."""
    request = pb.SendRequest(
        session_id=session_id,
        text=text,
        channel=_CHANNELS[order.channel],
        message_id=uuid.uuid4().hex,
        memory_namespaces=order.namespaces,
        seen_turn=seen_turn,
    )
    answer: pb.Answer | None = None
    async with aclosing(client.send(request)) as updates:
        async for update in updates:
            match update.WhichOneof("update"):
                case "tool_called":
                    screen.note(f"  {one_line(update.tool_called.tool, 80)} ...")
                case "tool_ended" if not update.tool_ended.success:
                    screen.note(f"  {one_line(update.tool_ended.tool, 80)} failed")
                case "answer":
                    answer = update.answer
                case _:
                    pass
    if answer is None:
        raise CommandFault("the fleet ended the call without an answer", exit_code=Exit.NOT_ACCEPTED)
    if screen.json:
        screen.document(_document(answer))
    else:
        for page in answer.pages:
            screen.line(page)
            screen.line("")
    return answer


async def _list(screen: Screen, client: ChatClient) -> Exit:
    found = (await client.conversations(page_size=_LISTED)).conversations
    if screen.json:
        screen.document({"conversations": [_listed(one) for one in found]})
    elif not found:
        screen.line("no conversations yet")
    for one in () if screen.json else found:
        screen.line(f"{one.session_id}  {one.turn_count} turns  {one_line(one.last_text, 80)}")
    return Exit.ACCEPTED


async def _end(screen: Screen, client: ChatClient, session_id: str) -> Exit:
    existed = await client.end(session_id)
    if not existed:
        raise CommandFault(f"there is no conversation {session_id!r}", exit_code=Exit.USAGE, field="session")
    if screen.json:
        screen.document({"session_id": session_id, "ended": True})
    else:
        screen.line(f"{session_id} is forgotten")
    return Exit.ACCEPTED


def _document(answer: pb.Answer) -> dict[str, object]:
    return {
        "session_id": answer.session_id,
        "turn": answer.turn,
        "text": clean(answer.text),
        "pages": [clean(page) for page in answer.pages],
        "tables": [
            {"title": table.title, "columns": list(table.columns), "rows": [list(row.cells) for row in table.rows]}
            for table in answer.tables
        ],
        "success": answer.success,
        "stop_reason": answer.stop_reason,
        "references": [_reference(one) for one in answer.references],
        "tools": list(answer.tools),
        "task_proposed": answer.task_proposed,
        "execution_id": answer.execution_id,
        "model_calls": answer.model_calls,
    }


def _reference(reference: pb.Reference) -> dict[str, object]:
    standing = pb.ReferenceStanding.Name(reference.standing).removeprefix("REFERENCE_STANDING_").lower()
    return {
        "phrase": reference.phrase,
        "standing": standing,
        "things": [{"kind": one.kind, "name": one.name, "position": one.position} for one in reference.things],
    }


def _listed(one: pb.Conversation) -> dict[str, object]:
    return {
        "session_id": one.session_id,
        "turns": one.turn_count,
        "started_at_ms": one.started_at_ms,
        "updated_at_ms": one.updated_at_ms,
        "memory": list(one.memory_namespaces),
        "last_text": one.last_text,
    }


async def _fails(fault: CommandFault) -> Exit:
    raise fault
