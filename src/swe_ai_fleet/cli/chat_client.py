"""The fleet's chats as a command sees them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fleet.conversation.v1 import conversation_pb2 as pb
from fleet.conversation.v1.conversation_pb2_grpc import ConversationServiceStub
from swe_ai_fleet.cli.calls import Calls, fleet_calls
from swe_ai_fleet.settings import Settings

_CALL_SECONDS = 30.0
SEND_SECONDS = 600.0
"""More than any limit on a message; the server ends it before."""


class ChatClient:
    """Calls to the chats of one fleet. Raises CommandFault where it answers with a fault."""

    def __init__(self, calls: Calls) -> None:
        self.address = calls.address
        self._calls = calls

    def send(self, request: pb.SendRequest) -> AsyncGenerator[pb.SendResponse, None]:
        """What happens on the way to the answer, and the answer last."""
        return self._calls.stream("Send", request, pb.SendResponse, seconds=SEND_SECONDS)

    async def conversation(self, session_id: str) -> pb.Conversation:
        """One session with its turns."""
        request = pb.GetConversationRequest(session_id=session_id)
        return (
            await self._calls.one("GetConversation", request, pb.GetConversationResponse, seconds=_CALL_SECONDS)
        ).conversation

    async def conversations(self, *, page_size: int, page_token: str = "") -> pb.ListConversationsResponse:
        """A page of sessions, the one that was spoken to last first."""
        request = pb.ListConversationsRequest(page_size=page_size, page_token=page_token)
        return await self._calls.one("ListConversations", request, pb.ListConversationsResponse, seconds=_CALL_SECONDS)

    async def end(self, session_id: str) -> bool:
        """Forget a session; whether there was one."""
        request = pb.EndConversationRequest(session_id=session_id)
        return (
            await self._calls.one("EndConversation", request, pb.EndConversationResponse, seconds=_CALL_SECONDS)
        ).existed


@asynccontextmanager
async def chat_client(settings: Settings, *, server: str, token: str) -> AsyncGenerator[ChatClient, None]:
    """A client of the chats of a running fleet. Raises CommandFault where there is none."""
    async with fleet_calls(ConversationServiceStub, settings, server=server, token=token) as calls:
        yield ChatClient(calls)
