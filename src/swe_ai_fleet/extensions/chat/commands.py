"""`fleet chat`: a conversation with the fleet in a terminal, or one message of it for a script."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated

from fleet.conversation.v1 import conversation_pb2 as pb
from swe_ai_fleet.cli.client import Calls, FleetClient
from swe_ai_fleet.cli.messages import document, enum_name
from swe_ai_fleet.cli.options import option
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen, line_of_terminal, next_line
from swe_ai_fleet.watching.text import clean, one_line

SEND_SECONDS = 600.0
"""More than any limit on a message, so the server ends it first."""
_LISTED = 50
_HELP = (
    "/new begins a new conversation, /list shows the last ones, /quit (or Ctrl-D) leaves; anything else is a message"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOrder:
    """The options of `fleet chat`."""

    session_id: Annotated[
        str, option("A conversation to go on with. Default: a new one.", "session_id", words="--session", metavar="ID")
    ] = ""
    namespaces: Annotated[
        tuple[str, ...],
        option(
            "Where it remembers beyond itself: fleet, agent:ID or repository:NAME.",
            "memory_namespaces",
            words="--namespace -n",
            metavar="NAME",
        ),
    ] = ()
    channel: Annotated[str, option("How answers are shown: plain, markdown or telegram.", "channel")] = "plain"
    once: Annotated[str, option("Send one message, show the answer, leave.", "text", metavar="TEXT")] = ""
    list_all: Annotated[bool, option("Show the conversations there are, and leave.", words="--list")] = False
    end: Annotated[bool, option("Forget the conversation of --session, and leave.")] = False


async def chat(screen: Screen, client: FleetClient, order: ChatOrder) -> Exit:
    return await converse(screen, client.calls, order)


async def converse(screen: Screen, calls: Calls, order: ChatOrder, read: Callable[[], str] | None = None) -> Exit:
    """Run a command; `read` gives the person's next line and raises EOFError after the last."""
    if order.list_all:
        return await _list(screen, calls)
    if order.end:
        return await _end(screen, calls, order.session_id)
    channel = enum_name(pb.Channel, order.channel, field="channel")
    begin = pb.SendRequest(
        session_id=order.session_id or _made_up_id(), channel=channel, memory_namespaces=order.namespaces
    )
    if order.once:
        answer = await _say(screen, calls, begin, order.once)
        return Exit.ACCEPTED if answer.success else Exit.NOT_ACCEPTED
    if screen.json:
        raise CommandFault("--json shows one message: give it with --once", field="once")
    return await _talk(screen, calls, begin, read or line_of_terminal)


async def _talk(screen: Screen, calls: Calls, request: pb.SendRequest, read: Callable[[], str]) -> Exit:
    screen.note(f"conversation {request.session_id}; {_HELP}")
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
                request.session_id = _made_up_id()
                request.ClearField("seen_turn")
                screen.note(f"conversation {request.session_id}")
            case "/list":
                await _list(screen, calls)
            case _:
                try:
                    request.seen_turn = (await _say(screen, calls, request, text)).turn
                except CommandFault as fault:
                    # The conversation continues after a typing error or a restart of the server.
                    screen.fault(fault)
                    if fault.exit_code is Exit.UNAVAILABLE:
                        screen.note("send it again once the fleet is back")


async def _say(screen: Screen, calls: Calls, request: pb.SendRequest, text: str) -> pb.Answer:
    """Send a message and show the answer; `request` has the other fields, such as the turn that was shown last."""
    request.text, request.message_id = text, uuid.uuid4().hex
    answer: pb.Answer | None = None
    async with aclosing(calls.stream("Send", request, pb.SendResponse, seconds=SEND_SECONDS)) as updates:
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
        cleaned = {"text": clean(answer.text), "pages": [clean(page) for page in answer.pages]}
        screen.document({**document(answer), **cleaned})
    else:
        for page in answer.pages:
            screen.line(page)
            screen.line("")
    return answer


async def _list(screen: Screen, calls: Calls) -> Exit:
    request = pb.ListConversationsRequest(page_size=_LISTED)
    conversations = (await calls.unary("ListConversations", request, pb.ListConversationsResponse)).conversations
    if screen.json:
        screen.document({"conversations": [document(conversation) for conversation in conversations]})
    else:
        rows = [
            (conversation.session_id, str(conversation.turn_count), one_line(conversation.last_text, 80))
            for conversation in conversations
        ]
        screen.table(("conversation", "turns", "said last"), rows, "no conversations yet")
    return Exit.ACCEPTED


async def _end(screen: Screen, calls: Calls, session_id: str) -> Exit:
    if not session_id:
        raise CommandFault("--end needs --session", field="session")
    if not await end_conversation(calls, session_id):
        raise CommandFault(f"no conversation is called {session_id!r}", field="session")
    screen.result({"session_id": session_id, "ended": True}, f"{session_id} is forgotten")
    return Exit.ACCEPTED


async def end_conversation(calls: Calls, session_id: str) -> bool:
    """Delete a session; returns whether it existed."""
    request = pb.EndConversationRequest(session_id=session_id)
    return (await calls.unary("EndConversation", request, pb.EndConversationResponse)).existed


def _made_up_id() -> str:
    return f"cli-{uuid.uuid4().hex[:12]}"
