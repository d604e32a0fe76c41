"""The answers that a bot of Telegram sends: those of the fleet's chats."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from fleet.conversation.v1 import conversation_pb2 as pb
from swe_ai_fleet.cli.client import Calls
from swe_ai_fleet.cli.screen import CommandFault, Exit
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.extensions.chat.commands import SEND_SECONDS, end_conversation


class FleetAnswers:
    """Answers a bot's messages through a fleet's chats."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def answer(self, session_id: str, text: str, *, message_id: str, seen: bool) -> Sequence[str]:
        """The answer in pages of MarkdownV2; the same message_id again gives the same answer.

        `seen` says whether the last answer was sent before the message was written; if not, a yes cannot mean it.
        Raises InvalidRequest, PreconditionFailed (the session is busy), Unavailable, and any other FleetError.
        """
        request = pb.SendRequest(
            session_id=session_id,
            text=text,
            channel=pb.CHANNEL_TELEGRAM,
            message_id=message_id,
            seen_turn=None if seen else 0,
        )
        try:
            async with aclosing(self._calls.stream("Send", request, pb.SendResponse, seconds=SEND_SECONDS)) as updates:
                async for update in updates:
                    if update.WhichOneof("update") == "answer":
                        return tuple(update.answer.pages)
        except CommandFault as fault:
            raise _fault(fault) from fault
        raise Unavailable("the fleet ended the call without an answer")

    async def forget(self, session_id: str) -> None:
        """End a session. Raises FleetError."""
        try:
            await end_conversation(self._calls, session_id)
        except CommandFault as fault:
            raise _fault(fault) from fault


def _fault(fault: CommandFault) -> FleetError:
    if fault.exit_code is Exit.UNAVAILABLE or fault.exit_code is Exit.STOPPED:
        return Unavailable(fault.message, hint=fault.hint)
    if fault.field in ("text", "session_id"):
        kind = InvalidRequest if fault.field == "text" else PreconditionFailed
        return kind(fault.message, field=fault.field)
    return FleetError(fault.message, field=fault.field, hint=fault.hint)
