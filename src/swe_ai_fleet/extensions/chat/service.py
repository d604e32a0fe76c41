"""The RPCs of `fleet.conversation.v1.ConversationService`: convert, call, convert back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from fleet.conversation.v1 import conversation_pb2 as pb
from fleet.conversation.v1.conversation_pb2_grpc import ConversationServiceServicer
from services.auth import principal, tenant
from services.errors import Context
from services.grpc_server import Service, service_of
from services.pages import page_of
from swe_ai_fleet.contract import from_enum, to_message
from swe_ai_fleet.conversations.pages import Channel
from swe_ai_fleet.domain.errors import fields_named
from swe_ai_fleet.domain.text import milliseconds
from swe_ai_fleet.extensions.chat.answering import ChatAnswer
from swe_ai_fleet.extensions.chat.chat import Chat
from swe_ai_fleet.extensions.chat.opening import open_chats
from swe_ai_fleet.extensions.chat.progress import AnswerStep, ProgressKind
from swe_ai_fleet.extensions.chat.session import CHATS_BUCKET, MAX_CARD_CHARS, ChatMessage, ChatState, check_namespaces
from swe_ai_fleet.runtime.execution_tools import ExecutionsView
from swe_ai_fleet.runtime.service_deps import ServiceDeps

CHATS_KEPT_SECONDS = 90 * 86_400.0
"""How long a session is kept after its last message."""
MAX_REPLY_BYTES = 3 * 1024 * 1024


class ConversationServicer(ConversationServiceServicer):
    """Serves chats.

    Args:
        chats: Gives the chats of a tenant.
        admit: Raises ResourceExhausted for a tenant whose models may not work now.
    """

    def __init__(self, chats: Callable[[str], Chat], *, admit: Callable[[str], Awaitable[object]]) -> None:
        self._chats = chats
        self._admit = admit

    @property
    def _chat(self) -> Chat:
        """The chats of the caller's tenant."""
        return self._chats(tenant())

    async def Send(self, request: pb.SendRequest, context: Context) -> AsyncIterator[pb.SendResponse]:
        with fields_named(lambda _: "memory_namespaces"):
            namespaces = check_namespaces(tuple(request.memory_namespaces) or None)
        await self._admit(tenant())
        message = ChatMessage(
            session_id=request.session_id,
            text=request.text,
            channel=from_enum(Channel, pb.Channel, request.channel) or "",
            message_id=request.message_id,
            namespaces=namespaces,
            seen_turn=request.seen_turn if request.HasField("seen_turn") else None,
            by=principal().name,
        )
        async with aclosing(self._chat.stream(message)) as progress:
            async for update in progress:
                if isinstance(update, ChatAnswer):
                    yield pb.SendResponse(answer=_answer(update))
                else:
                    yield _progress(update)

    async def GetConversation(self, request: pb.GetConversationRequest, context: Context) -> pb.GetConversationResponse:
        session = await self._chat.session(request.session_id)
        conversation, room = _conversation(session), MAX_REPLY_BYTES
        turns: list[pb.Turn] = []
        for turn in reversed(session.turns):
            message = to_message(pb.Turn, turn)
            room -= message.ByteSize()
            if room < 0:
                break
            turns.append(message)
        conversation.turns.extend(reversed(turns))
        return pb.GetConversationResponse(conversation=conversation)

    async def ListConversations(
        self, request: pb.ListConversationsRequest, context: Context
    ) -> pb.ListConversationsResponse:
        sessions = await self._chat.sessions()
        shown, following = page_of(
            request, sessions, lambda session: (session.updated_at or session.started_at, session.session_id)
        )
        return pb.ListConversationsResponse(
            conversations=[_conversation(session) for session in shown], next_page_token=following
        )

    async def EndConversation(self, request: pb.EndConversationRequest, context: Context) -> pb.EndConversationResponse:
        return pb.EndConversationResponse(existed=await self._chat.end(request.session_id))


@asynccontextmanager
async def open_service(deps: ServiceDeps) -> AsyncGenerator[Service]:
    """The chats of a fleet as a service, until the context ends. Raises InvalidRequest, Unavailable."""

    def view(tenant: str) -> ExecutionsView:
        return ExecutionsView(deps.executions, tenant=tenant)

    store = await deps.log.bucket(CHATS_BUCKET, ttl_seconds=CHATS_KEPT_SECONDS)
    async with open_chats(
        deps.settings, store=store, executions=deps.executions, fleet=view, starter=view, memories=deps.context
    ) as chats:
        yield service_of(ConversationServicer(chats, admit=deps.executions.check_tokens))


def _progress(progress: AnswerStep) -> pb.SendResponse:
    match progress.kind:
        case ProgressKind.TOOL:
            return pb.SendResponse(tool_called=pb.ToolCalled(tool=progress.tool))
        case ProgressKind.RESULT:
            return pb.SendResponse(tool_ended=pb.ToolEnded(tool=progress.tool, success=progress.success))
        case ProgressKind.TEXT:
            return pb.SendResponse(text_delta=progress.text)


def _answer(answer: ChatAnswer) -> pb.Answer:
    spent = answer.usage
    return to_message(
        pb.Answer,
        answer,
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        model_calls=spent.model_calls,
    )


def _conversation(session: ChatState) -> pb.Conversation:
    return to_message(
        pb.Conversation,
        session,
        updated_at_ms=milliseconds(session.updated_at or session.started_at),
        turns=None,
        last_text=session.turns[-1].text[:MAX_CARD_CHARS] if session.turns else "",
        task_proposed=session.proposal is not None and session.proposal.turn == session.count,
    )
