"""Chats over the fleet: messages become executions in the log; the answer is returned when its execution has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import cache

from swe_ai_fleet.agents.function_calling.setup import AgentTask, Narration
from swe_ai_fleet.conversations.pages import Channel
from swe_ai_fleet.domain.errors import AlreadyExists, NotFound, PreconditionFailed
from swe_ai_fleet.domain.event import ExecutionFinished
from swe_ai_fleet.domain.task import Task, TaskKind
from swe_ai_fleet.extensions.chat.answering import ChatAnswer
from swe_ai_fleet.extensions.chat.drive import ChatDriver, TenantChats, busy
from swe_ai_fleet.extensions.chat.progress import AnswerStep, Listener, LiveAnswers, ProgressNotifier
from swe_ai_fleet.extensions.chat.reply_run import ROLE
from swe_ai_fleet.extensions.chat.session import ChatMessage, ChatState, check_session_id
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.orchestrator.own_runs import enqueue_next


@asynccontextmanager
async def answering_chats(
    executions: Executions, chats: Callable[[str], TenantChats]
) -> AsyncGenerator[Callable[[str], Chat]]:
    """Answer the messages of chats until the context ends; yields the chats of each tenant, who sees no other's."""
    live, chats = LiveAnswers(), cache(chats)
    async with executions.driving(TaskKind.CHAT, ChatDriver(chats, live)):
        yield lambda tenant: Chat(executions, chats(tenant), live)


class Chat:
    """The chat sessions of a tenant, whichever replica answers them.

    A message outlives its caller: the session keeps the answer, and a repeated message waits for the same answer.
    """

    def __init__(self, executions: Executions, chats: TenantChats, live: LiveAnswers) -> None:
        self._executions = executions
        self._chats = chats
        self._live = live
        self._tenant = chats.tenant

    async def stream(self, message: ChatMessage) -> AsyncGenerator[AnswerStep | ChatAnswer, None]:
        """The progress of the answer, and the answer as the last item.

        Closing the stream early cancels nothing: the message is answered, its session keeps the answer, and a message
        with the same id gets it again. Text arrives as the model writes it if this process drives the answer.

        Raises:
            InvalidRequest: Naming the field.
            PreconditionFailed: Another message of the session is being answered, or the session was ended meanwhile.
            ResourceExhausted: The queue is full.
            Unavailable: Log or store do not answer.
        """
        message, channel = message.checked(), Channel(message.channel or Channel.PLAIN)
        kept = await self._chats.store.get(self._tenant, message.session_id)
        session = kept.session if kept is not None else None
        if session is not None and (before := session.turn_of(message.message_id)) is not None:
            yield replace(ChatAnswer.to(session, before, channel), repeated=True)
            return
        if message.namespaces is None:
            message = replace(message, namespaces=session.namespaces if session is not None else ())
        task = await self._accepted(message, session.count if session is not None else 0)
        execution_id = task.execution_id
        with self._live.listening(execution_id) as listener:
            following = asyncio.create_task(self._follow(execution_id, listener), name=f"chat {message.session_id}")
            try:
                while (step := await listener.progress.get()) is not None:
                    yield step
                await following
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        yield await self._answer(task, channel)

    async def session(self, session_id: str) -> ChatState:
        """The state of a session. Raises NotFound, InvalidRequest, Unavailable."""
        kept = await self._chats.store.get(self._tenant, check_session_id(session_id))
        if kept is None:
            raise NotFound(f"there is no session {session_id!r}", field="session_id")
        return kept.session

    async def sessions(self) -> tuple[ChatState, ...]:
        """The cards of all sessions, the most recently used first. Raises Unavailable."""
        return await self._chats.store.listed(self._tenant)

    async def end(self, session_id: str) -> bool:
        """Delete a session, and cancel its unanswered message; returns whether the session existed.

        Long-term memory stays. Raises InvalidRequest, Unavailable.
        """
        kept = await self._chats.store.get(self._tenant, check_session_id(session_id))
        try:
            state = await self._executions.latest(self._tenant, session_id, TaskKind.CHAT)
            await self._executions.cancel(self._tenant, state.execution_id, "the session was ended")
        except NotFound:
            # An earlier version started it, or the log no longer has it.
            pass
        await self._chats.store.delete(self._tenant, session_id)
        return kept is not None

    async def _accepted(self, message: ChatMessage, count: int) -> Task:
        """The task of a message that follows `count` turns, in the log.

        Raises PreconditionFailed, ResourceExhausted, Unavailable.
        """
        try:
            state = await self._executions.latest(self._tenant, message.session_id, TaskKind.CHAT)
        except NotFound:
            state = None
        last = state.task.attempt if state is not None else 0
        if state is not None and last > count and not state.status.terminal:
            if message.message_id and ChatMessage.of(state.task).message_id == message.message_id:
                return state.task
            raise busy()
        message = replace(message, number=max(last, count) + 1)
        try:
            return await enqueue_next(self._executions, message.task(self._tenant, self._chats.answering.rules.limits))
        except AlreadyExists:
            raise busy() from None

    async def _follow(self, execution_id: str, listener: Listener) -> None:
        """Report the progress of an answer that another process drives, from the log, until its execution has ended."""
        notifier = ProgressNotifier(self._chats.answering.secrets, listener.progress.put_nowait)
        narration = Narration(AgentTask(id=execution_id, description=""), notifier.notify)
        try:
            async with aclosing(self._executions.watch(self._tenant, execution_id)) as events:
                async for stored in events:
                    if isinstance(stored.event.body, ExecutionFinished):
                        return
                    if not listener.live and stored.event.agent_id == ROLE:
                        narration.post(stored.event.body)
        finally:
            listener.progress.put_nowait(None)

    async def _answer(self, task: Task, channel: Channel) -> ChatAnswer:
        message = ChatMessage.of(task)
        kept = await self._chats.store.get(self._tenant, message.session_id)
        turn = kept.session.answered(message) if kept is not None else None
        if kept is None or turn is None:
            raise PreconditionFailed(
                "the session was ended, or changed by another message, before this one was answered",
                field="session_id",
                hint="send it again",
            )
        usage = (await self._executions.get(self._tenant, task.execution_id)).usage
        return replace(ChatAnswer.to(kept.session, turn, channel), usage=usage)
