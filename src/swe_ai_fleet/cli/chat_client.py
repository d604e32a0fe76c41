"""The fleet's chats as a command sees them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from fleet.conversation.v1 import conversation_pb2 as pb
from fleet.conversation.v1.conversation_pb2_grpc import ConversationServiceStub
from swe_ai_fleet.cli.client import START_HINT, fault_of_call
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.runtime.place import find_place
from swe_ai_fleet.settings import Settings

R = TypeVar("R", bound=Message)

_CALL_SECONDS = 30.0
SEND_SECONDS = 600.0
"""More than any limit on a message; the server ends it before."""
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024


class ChatClient:
    """Calls to the chats of one fleet. Raises CommandFault where it answers with a fault."""

    def __init__(self, channel: grpc.aio.Channel, *, address: str, token: str) -> None:
        self.address = address
        self._stub = cast("Any", ConversationServiceStub)(channel)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    async def send(self, request: pb.SendRequest) -> AsyncGenerator[pb.SendResponse, None]:
        """What happens on the way to the answer, and the answer last."""
        call = self._stub.Send(request, metadata=self._metadata, timeout=SEND_SECONDS)
        try:
            async for update in cast("AsyncIterator[pb.SendResponse]", call):
                yield update
        except grpc.aio.AioRpcError as error:
            raise fault_of_call(error, self.address) from error
        finally:
            call.cancel()

    async def conversation(self, session_id: str) -> pb.Conversation:
        """One session with its turns."""
        request = pb.GetConversationRequest(session_id=session_id)
        return (await self._call("GetConversation", request, pb.GetConversationResponse)).conversation

    async def conversations(self, *, page_size: int, page_token: str = "") -> pb.ListConversationsResponse:
        """A page of sessions, the one that was spoken to last first."""
        request = pb.ListConversationsRequest(page_size=page_size, page_token=page_token)
        return await self._call("ListConversations", request, pb.ListConversationsResponse)

    async def end(self, session_id: str) -> bool:
        """Forget a session; whether there was one."""
        request = pb.EndConversationRequest(session_id=session_id)
        return (await self._call("EndConversation", request, pb.EndConversationResponse)).existed

    async def _call(self, method: str, request: Message, kind: type[R]) -> R:
        call = getattr(self._stub, method)(request, metadata=self._metadata, timeout=_CALL_SECONDS)
        try:
            answer = await cast("Awaitable[object]", call)
        except grpc.aio.AioRpcError as error:
            raise fault_of_call(error, self.address) from error
        assert isinstance(answer, kind)
        return answer


@asynccontextmanager
async def chat_client(settings: Settings, *, server: str, token: str) -> AsyncGenerator[ChatClient, None]:
    """A client of the chats of a running fleet. Raises CommandFault where there is none."""
    place = find_place(settings, server=server, token=token)
    if place is None:
        raise CommandFault(f"no fleet runs on {settings.home}", exit_code=Exit.UNAVAILABLE, hint=START_HINT)
    options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(place.address, options=options) as channel:
        yield ChatClient(channel, address=place.address, token=place.token)
