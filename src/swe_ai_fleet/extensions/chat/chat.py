"""Chats over the fleet: one message at a time, each answered by the model with its tools."""

from __future__ import annotations

import asyncio
import secrets as random
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from swe_ai_fleet.agents.function_calling.setup import AgentResponse, Setup, Tool, gathered
from swe_ai_fleet.conversations.pages import Channel
from swe_ai_fleet.domain.errors import Fenced, FleetError, NotFound, PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.extensions.chat.answering import Answered, Answering, AnswerStep, ChatAnswer, ProgressNotifier
from swe_ai_fleet.extensions.chat.reply_run import SYSTEM_PROMPT, ChatRules
from swe_ai_fleet.extensions.chat.session import (
    ChatState,
    ChatStore,
    ChatTurn,
    KeyValueChats,
    check_message_id,
    check_namespaces,
    check_session_id,
    check_text,
    shown_again,
)
from swe_ai_fleet.in_process import MemoryKeyValue
from swe_ai_fleet.ports import ChatModel, Memories, ModelSessions
from swe_ai_fleet.runtime.execution_tools import FleetView, TaskStarter
from swe_ai_fleet.sandbox.uninterrupted import ended
from swe_ai_fleet.tools.secrets import Secrets

_SPARE_SECONDS = 30.0
_MAX_HELD = 256
_BUSY = "another message of this session is still being answered"


class Chat:
    """Runs chat sessions.

    Several instances may share a store: one of them at a time works on a session.

    Args:
        model: The model that answers.
        tools: What it can call beside the fleet's own: functions, BaseTools, toolkits, names of registered tools.
        store: Keeps the sessions; without one, they end with the process.
        memories: Long-term memories, for sessions that ask for them; None: there are none.
        fleet: Shows executions; None: they cannot be seen.
        starter: Starts tasks that a person confirmed; None: none can be started.
        rules: How messages are answered.
        setup: How tools are called; its own tools and limits give way to `tools` and `rules`.
        secrets: Masked in everything that is shown or stored.
        system_prompt: The system prompt; `{tools}` in it gives way to the documentation of the tools.
        tenant: The tenant of the sessions.
        clock: The time.

    Raises:
        ValueError: Two tools of one name.
    """

    def __init__(
        self,
        *,
        model: ChatModel,
        tools: Sequence[Tool] = (),
        store: ChatStore | None = None,
        memories: Memories | None = None,
        fleet: FleetView | None = None,
        starter: TaskStarter | None = None,
        rules: ChatRules | None = None,
        setup: Setup | None = None,
        secrets: Secrets | None = None,
        system_prompt: str = SYSTEM_PROMPT,
        tenant: str = DEFAULT_TENANT,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._rules = rules or ChatRules()
        self._store = store or KeyValueChats(MemoryKeyValue())
        self._secrets = secrets or Secrets()
        base = setup or Setup()
        by_name, kits, idle = gathered(tools, one_line_doc=True, tool_timeout=base.tool_timeout)
        self._answering = Answering(
            model=model,
            setup=replace(
                base,
                tools=by_name,
                toolkits=kits,
                idle=idle,
                limits=self._rules.limits,
                retry_waits=self._rules.retry_waits,
                mask=self._secrets,
                stream=True,
            ),
            rules=self._rules,
            fleet=fleet,
            starter=starter,
            memories=memories,
            secrets=self._secrets,
            system_prompt=system_prompt,
        )
        self._tenant = tenant
        self._clock = clock
        self._answered = 0
        self._models: OrderedDict[str, ChatModel] = OrderedDict()

    async def send(
        self,
        session_id: str,
        text: str,
        *,
        channel: Channel = Channel.PLAIN,
        message_id: str = "",
        namespaces: Sequence[str] | None = None,
        seen_turn: int | None = None,
    ) -> ChatAnswer:
        """The answer to a message; `stream` documents the arguments and errors."""
        answers = self.stream(
            session_id, text, channel=channel, message_id=message_id, namespaces=namespaces, seen_turn=seen_turn
        )
        async with aclosing(answers) as updates:
            async for update in updates:
                if isinstance(update, ChatAnswer):
                    return update
        raise AssertionError("a message that is not answered raises")

    async def stream(
        self,
        session_id: str,
        text: str,
        *,
        channel: Channel = Channel.PLAIN,
        message_id: str = "",
        namespaces: Sequence[str] | None = None,
        seen_turn: int | None = None,
    ) -> AsyncGenerator[AnswerStep | ChatAnswer, None]:
        """The progress on the way to the answer, and at last the answer.

        Closing it early ends the work; the message then counts as never sent.

        Args:
            session_id: The session; an unknown one begins with this message.
            text: The message.
            channel: Where the answer is read.
            message_id: The caller's name for the message; the same one again gives the same answer once more.
            namespaces: From now on, where the session remembers and is reminded (`fleet`, `agent:<id>`,
                `repository:<name>`), the first one being where it keeps things; None: as before, at first nowhere.
            seen_turn: The last turn whose answer the person had seen when they wrote: a yes starts what was proposed
                in it, and nothing later. None: the last one.

        Raises:
            InvalidRequest: Naming the field.
            PreconditionFailed: Another message of the session is being answered.
            ResourceExhausted: Too many messages are being answered.
            Unavailable: The store cannot be reached.
        """
        session_id, text, wanted = check_session_id(session_id), check_text(text), check_namespaces(namespaces)
        message_id = check_message_id(message_id)
        if self._answered >= self._rules.at_once:
            raise ResourceExhausted(f"{self._answered} messages are being answered; try again in a moment")
        self._answered += 1
        try:
            async with aclosing(self._conduct(session_id, text, channel, message_id, wanted, seen_turn)) as updates:
                async for update in updates:
                    yield update
        finally:
            self._answered -= 1

    async def session(self, session_id: str) -> ChatState:
        """The state of a session. Raises NotFound, InvalidRequest, Unavailable."""
        stored = await self._store.get(self._tenant, check_session_id(session_id))
        if stored is None:
            raise NotFound(f"there is no session {session_id!r}", field="session_id")
        return stored.session

    async def sessions(self) -> tuple[ChatState, ...]:
        """The cards of every session, the one that was spoken to last first. Raises Unavailable."""
        return await self._store.listed(self._tenant)

    async def end(self, session_id: str) -> bool:
        """Delete a session; whether there was one. Long-term memory stays. Raises InvalidRequest, Unavailable."""
        stored = await self._store.get(self._tenant, check_session_id(session_id))
        await self._store.delete(self._tenant, session_id)
        return stored is not None

    async def _conduct(
        self,
        session_id: str,
        text: str,
        channel: Channel,
        message_id: str,
        namespaces: tuple[str, ...] | None,
        seen_turn: int | None,
    ) -> AsyncGenerator[AnswerStep | ChatAnswer, None]:
        stored = await self._store.get(self._tenant, session_id)
        if stored is not None and (before := stored.session.turn_of(message_id)) is not None:
            yield replace(ChatAnswer.to(stored.session, before, channel), repeated=True)
            return
        now = self._clock()
        session = stored.session if stored else self._new(session_id, now)
        if session.busy_until and datetime.fromisoformat(session.busy_until) > now:
            raise PreconditionFailed(_BUSY, field="session_id", hint="send it again after that answer")
        seconds = self._rules.limits.timeout_seconds + self._rules.final_prompt_seconds + _SPARE_SECONDS
        session = replace(
            session,
            namespaces=session.namespaces if namespaces is None else namespaces,
            busy_until=(now + timedelta(seconds=seconds)).isoformat(),
        )
        if self._answering.starts(session, text, seen_turn):
            session = session.trying()
        revision = await self._put(session, stored.revision if stored else 0)
        queue: asyncio.Queue[AnswerStep | None] = asyncio.Queue()
        notifier = ProgressNotifier(self._secrets, queue.put_nowait)
        work = asyncio.create_task(self._work(session, revision, text, channel, message_id, seen_turn, notifier.hear))
        work.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (progress := await queue.get()) is not None:
                yield progress
            yield await work
        finally:
            await ended(work)

    async def _work(
        self,
        session: ChatState,
        revision: int,
        text: str,
        channel: Channel,
        message_id: str,
        seen_turn: int | None,
        tell: Callable[[AgentResponse], None],
    ) -> ChatAnswer:
        """Answer a message of a claimed session; the claim ends in any case."""
        done = False
        try:
            answered = await self._answering_for(session).answer(
                session, text, self._clock().isoformat(), tell, seen_turn=seen_turn
            )
            turn = self._turn(session, text, channel, message_id, answered)
            after = session.with_turn(turn, answered.things, answered.proposal)
            await self._put(after, revision)
            done = True
        finally:
            if not done:
                with suppress(FleetError):
                    await self._store.put(replace(session, busy_until=""), revision=revision)
        return replace(ChatAnswer.to(after, turn, channel), references=answered.references, usage=answered.usage)

    def _answering_for(self, session: ChatState) -> Answering:
        """With several model servers, the one that has this session's prompts cached."""
        model, key = self._answering.model, session.session_id
        if not isinstance(model, ModelSessions):
            return self._answering
        held = self._models.pop(key, None)
        held = held or model.session(f"chat-{session.tenant}-{key}", tenant=session.tenant)
        self._models[key] = held
        if len(self._models) > _MAX_HELD:
            self._models.popitem(last=False)
        return replace(self._answering, model=held)

    def _turn(self, session: ChatState, text: str, channel: Channel, message_id: str, answered: Answered) -> ChatTurn:
        return ChatTurn(
            number=session.count + 1,
            text=text,
            answer=answered.text,
            at=self._clock().isoformat(),
            channel=channel,
            message_id=message_id,
            stop_reason=answered.stop_reason,
            success=answered.success,
            tools=answered.tools,
            messages=answered.messages,
            tables=answered.tables,
            execution_id=answered.execution_id,
            references=shown_again(answered.references),
        )

    async def _put(self, session: ChatState, revision: int) -> int:
        try:
            return await self._store.put(session, revision=revision)
        except Fenced as fault:
            raise PreconditionFailed(_BUSY, field="session_id", hint="send it again") from fault

    def _new(self, session_id: str, now: datetime) -> ChatState:
        return ChatState(
            session_id=session_id, started_at=now.isoformat(), nonce=random.token_hex(8), tenant=self._tenant
        )
