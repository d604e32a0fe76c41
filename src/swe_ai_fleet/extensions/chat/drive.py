"""Drives the messages of chats: each is an execution with a run of the model, and the session is its checkpoint."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import structlog

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import Fenced, PreconditionFailed
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.extensions.chat.answering import Answered, Answering, confirmed_task
from swe_ai_fleet.extensions.chat.progress import LiveAnswers, ProgressNotifier
from swe_ai_fleet.extensions.chat.reply_run import CANCELLED, NO_ANSWER, ROLE, Recording
from swe_ai_fleet.extensions.chat.session import ChatMessage, ChatState, ChatStore, ChatTurn, KeptSession
from swe_ai_fleet.orchestrator.execution_context import Ending, ExecutionContext, ExecutionDeps
from swe_ai_fleet.orchestrator.own_runs import OwnRuns
from swe_ai_fleet.ports import ModelSessions

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class TenantChats:
    """The model, tools and sessions of a tenant's chats.

    Attributes:
        store: Stores the sessions.
        audit_key: The key of the digests of full arguments.
    """

    answering: Answering
    store: ChatStore
    tenant: str = DEFAULT_TENANT
    audit_key: bytes = b""

    async def opened(self, message: ChatMessage) -> KeptSession:
        """The session of a message, created if it does not exist. Raises Unavailable."""
        kept = await self.store.get(self.tenant, message.session_id)
        if kept is None:
            session = ChatState(
                session_id=message.session_id,
                started_at=now(),
                nonce=secrets.token_hex(8),
                tenant=self.tenant,
            )
            kept = KeptSession(session=session, revision=await self.store.put(session, revision=0))
        return replace(kept, session=replace(kept.session, namespaces=message.namespaces or ()))

    async def keep(self, kept: KeptSession, message: ChatMessage, answered: Answered) -> ChatTurn:
        """Store the turn of a message, and return it.

        Raises Fenced where another driver has stored it, PreconditionFailed where the session was changed or ended
        meanwhile, Unavailable.
        """
        turn = replace(answered.turn, at=now(), channel=message.channel, message_id=message.message_id)
        after = kept.session.with_turn(turn, answered.things, answered.proposal)
        try:
            await self.store.put(after, revision=kept.revision)
        except Fenced as fault:
            current = await self.store.get(self.tenant, message.session_id)
            if current is not None and current.session.answered(message) is not None:
                raise
            raise busy() from fault
        return turn


class ChatDriver:
    """Drives the messages of all tenants; `chats` gives the chats of a tenant."""

    def __init__(self, chats: Callable[[str], TenantChats], live: LiveAnswers) -> None:
        self._chats = chats
        self._live = live

    def drive(self, *, work: ExecutionContext) -> AnswerDrive:
        """Drive the answer to a message; what an earlier driver finished is not repeated."""
        return AnswerDrive(self._chats(work.task.tenant), work, self._live)

    async def ended(self, deps: ExecutionDeps, state: ExecutionState, ending: Ending) -> None:
        """Store that a message was cancelled or failed, unless it has an answer. Raises Fenced, Unavailable."""
        chats, message = self._chats(state.task.tenant), ChatMessage.of(state.task)
        kept = await chats.opened(message)
        if kept.session.count >= message.number:
            return
        reason = chats.answering.secrets(ending.error)
        if ROLE in state.agents:
            await OwnRuns(deps=deps, task=state.task, audit_key=chats.audit_key).abandoned(ROLE, reason)
        template = CANCELLED if ending.status is ExecutionStatus.CANCELLED else NO_ANSWER
        unanswered = _unanswered(kept.session, message, template.format(why=reason), ending.status)
        try:
            await chats.keep(kept, message, unanswered)
        except PreconditionFailed as fault:
            _log.warning("chat.end_not_kept", session=message.session_id, reason=fault.message)


class AnswerDrive:
    """Drives the answer to one message; a `KindDrive`."""

    waits = False

    def __init__(self, chats: TenantChats, work: ExecutionContext, live: LiveAnswers) -> None:
        self._chats = chats
        self._work = work
        self._live = live
        self._runs = OwnRuns(deps=work.deps, task=work.task, audit_key=chats.audit_key, signing=work.runs.signing)

    def steered(self) -> None:
        """Does nothing: an answer has no control events."""

    async def run(self) -> Ending:
        """Answer the message. Raises Fenced, PreconditionFailed (the session was ended), Unavailable."""
        message = ChatMessage.of(self._work.task)
        kept = await self._chats.opened(message)
        turn = kept.session.answered(message)
        if turn is None:
            if kept.session.count >= message.number:
                raise busy()
            since = self._work.known.started_at
            answered = await self._answering(message).answer(kept.session, message, since, self._recording())
            turn = await self._chats.keep(kept, message, answered)
        usage = (await self._work.runs.approvals.refresh()).spent
        if turn.success:
            return Ending(status=ExecutionStatus.COMPLETED, usage=usage)
        return Ending(status=ExecutionStatus.FAILED, error=f"no answer: {turn.stop_reason}", usage=usage)

    def _answering(self, message: ChatMessage) -> Answering:
        """The `Answering` on one model server for the whole session, which has its prompts cached."""
        answering, tenant = self._chats.answering, self._chats.tenant
        if not isinstance(answering.model, ModelSessions):
            return answering
        model = answering.model.session(f"chat-{tenant}-{message.session_id}", tenant=tenant)
        return replace(answering, model=model)

    def _recording(self) -> Recording:
        task = self._work.task
        notifier = ProgressNotifier(self._chats.answering.secrets, partial(self._live.publish, task.execution_id))

        async def keep(data: bytes) -> BlobRef:
            return await self._work.put(data, "text/plain")

        return Recording(recorded=lambda: self._runs.recorded(ROLE), keep=keep, report=notifier.notify)


def busy() -> PreconditionFailed:
    return PreconditionFailed(
        "another message of this session is still being answered",
        field="session_id",
        hint="send it again after that answer, or cancel that message's execution",
    )


def _unanswered(session: ChatState, message: ChatMessage, text: str, status: ExecutionStatus) -> Answered:
    """The turn of a message that ended without an answer; a yes may still have started the proposed task."""
    confirmed = confirmed_task(session, message)
    turn = ChatTurn.without_model(message, text, status, success=False)
    proposal = replace(confirmed, turn=message.number) if confirmed is not None else None
    return Answered(turn=turn, proposal=proposal)
