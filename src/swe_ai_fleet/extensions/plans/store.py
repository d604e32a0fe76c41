"""Plan sessions in storage: their goals as executions in the log, their checkpoints in buckets that replicas share."""

from __future__ import annotations

import asyncio
import json
import secrets
import zlib
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

import structlog

from swe_ai_fleet.agents.history import History
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.approval import ApprovalRequest
from swe_ai_fleet.domain.budget import Limits, RequestLimits
from swe_ai_fleet.domain.errors import Fenced, FleetError, PreconditionFailed, ResourceExhausted, Unavailable
from swe_ai_fleet.domain.event import ExecutionStatus, MessageAdded, ModelReplied, ToolFinished
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.task import ApprovalPolicy, Constraints, MemoryOptions, RepoRef, Task, TaskKind
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.extensions.plans.session import PlanSession, SessionCard, SessionStatus
from swe_ai_fleet.ports import EventLog, KeyValue, KeyValueEntry, SecretMask
from swe_ai_fleet.tools.builtin import ASK, PROPOSE

SESSIONS_BUCKET = "PLAN_SESSIONS"
PARTS_BUCKET = "PLAN_SESSION_PARTS"
PART_BYTES = 512 * 1024
"""The most bytes of one value: by default NATS accepts messages of up to a megabyte."""
MAX_SESSION_BYTES = 32 * 1024 * 1024
"""The most bytes of a session as JSON."""
_READS = 5
_log = structlog.get_logger(__name__)
CONTINUE = "continue"
_ENDED = {ExecutionStatus.COMPLETED: SessionStatus.COMPLETED, ExecutionStatus.REJECTED: SessionStatus.REJECTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The value under a session's key: its card, its revision, and the location of its body.

    The body is JSON, deflated, in `parts` pieces under `<key>.<place>.<number>` of another store; `size` is that of
    the JSON in bytes.
    """

    card: SessionCard
    revision: int
    place: str
    parts: int
    size: int


@dataclass(frozen=True)
class KeyValueSessions:
    """The sessions of a tenant, for all replicas of a service.

    Heads and bodies are in separate stores, so that a list reads only heads. A body is written before the head that
    names it, under keys of its own, so a reader of a head finds its body; both stores must keep values equally long.
    """

    heads: KeyValue
    parts: KeyValue
    tenant: str

    async def get(self, session_id: str) -> PlanSession | None:
        """The last revision of a session; None for an unknown session. Raises PreconditionFailed, Unavailable."""
        key = self._key(session_id)
        for _ in range(_READS):
            entry = await self.heads.get(key)
            if entry is None:
                return None
            head = _head(entry)
            read = [await self.parts.get(name) for name in _names(key, head)]
            parts = [part.value for part in read if part is not None]
            if len(parts) == head.parts:
                return await asyncio.to_thread(_unpacked, parts, head.size)
            # A new revision was stored between the two reads, and the old body deleted.
        raise Unavailable(f"the session {session_id} could not be read completely")

    async def put(self, session: PlanSession) -> None:
        """Store a session. Raises PreconditionFailed unless its revision follows the stored one (0: none is stored),
        ResourceExhausted, Unavailable."""
        key = self._key(session.session_id)
        entry = await self.heads.get(key)
        before = _head(entry) if entry is not None else None
        if session.revision != (before.revision if before is not None else 0) + 1:
            raise _changed_meanwhile()
        size, packed = await asyncio.to_thread(_packed, session)
        head = Head(
            card=session.card, revision=session.revision, place=secrets.token_hex(8), parts=len(packed), size=size
        )
        names = _names(key, head)
        try:
            for name, part in zip(names, packed, strict=True):
                await self.parts.put(name, part, revision=0)
            await self.heads.put(key, to_json(head), revision=entry.revision if entry is not None else 0)
        except Fenced as fault:
            await self._forget(names)
            raise _changed_meanwhile() from fault
        if before is not None:
            await self._forget(_names(key, before))

    async def listed(self) -> tuple[SessionCard, ...]:
        """The cards of all sessions, the most recently updated first. Raises Unavailable."""
        entries = await self.heads.entries(f"{self.tenant}.")
        cards: list[SessionCard] = []
        for entry in entries:
            try:
                cards.append(_head(entry).card)
            except PreconditionFailed:
                # An unreadable session must not hide the others.
                _log.error("plan_session.unreadable", session=entry.key)
        return tuple(sorted(cards, key=lambda card: (card.updated_at, card.session_id), reverse=True))

    def _key(self, session_id: str) -> str:
        return f"{self.tenant}.{session_id}"

    async def _forget(self, names: list[str]) -> None:
        for name in names:
            # A part that cannot be deleted expires.
            with suppress(FleetError):
                await self.parts.delete(name)


def _head(entry: KeyValueEntry) -> Head:
    try:
        return from_json(Head, entry.value)
    except ValueError as fault:
        raise _unreadable() from fault


def _changed_meanwhile() -> PreconditionFailed:
    return PreconditionFailed("the session was changed by another process meanwhile", hint="reload it")


def _unreadable() -> PreconditionFailed:
    return PreconditionFailed(
        "the session cannot be read; a newer version may have written it",
        field="session_id",
        hint="start another session",
    )


def _names(key: str, head: Head) -> list[str]:
    return [f"{key}.{head.place}.{number}" for number in range(head.parts)]


def _packed(session: PlanSession) -> tuple[int, list[bytes]]:
    data = to_json(session)
    if len(data) > MAX_SESSION_BYTES:
        raise ResourceExhausted(
            f"the session is too long to store: {len(data)} bytes",
            field="session_id",
            hint=f"start another session; at most {MAX_SESSION_BYTES} bytes are stored",
        )
    packed = zlib.compress(data, level=3)
    return len(data), [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]


def _unpacked(parts: list[bytes], size: int) -> PlanSession:
    try:
        # Unpack no more than the head says, whatever the bucket holds.
        data = zlib.decompressobj().decompress(b"".join(parts), max(1, min(size, MAX_SESSION_BYTES)))
        return from_json(PlanSession, data)
    except (ValueError, zlib.error) as fault:
        raise _unreadable() from fault


def task_of(session: PlanSession, tenant: str, limits: Limits) -> Task:
    """The current goal of a session as a task; `limits` are those of its first request."""
    return Task(
        task_id=session.session_id,
        kind=TaskKind.PLAN,
        description=session.goal,
        repo=RepoRef(location=session.repository, ref=session.ref),
        tenant=tenant,
        constraints=Constraints(limits=limits),
        num_agents=1,
        attempt=session.attempt,
        caller=session.started_by,
        memory=MemoryOptions(read=True, entities=session.selected_entities),
    )


def current_session(kept: PlanSession | None, state: ExecutionState, mask: SecretMask) -> PlanSession:
    """The current session: as its driver `kept` it last (None: never), with the decisions in the log since then."""
    task, limits = state.task, state.task.constraints.limits
    session = PlanSession(
        session_id=task.task_id,
        goal=task.description,
        selected_entities=task.memory.entities,
        repository=task.repo.location,
        ref=task.repo.ref,
        started_by=task.caller,
        attempt=task.attempt,
        requests=1,
        limits=RequestLimits(
            max_iterations=limits.max_iterations,
            max_tool_calls=limits.max_tool_calls,
            timeout_seconds=limits.timeout_seconds,
            max_tokens=limits.max_tokens,
        ),
    )
    if kept is not None:
        session = kept if kept.attempt == task.attempt else kept.followed_by(session)
    if session.status.waiting and (resolution := state.resolutions.get(approval_id(session))) is not None:
        session = session.decided(replace(resolution, text=mask(resolution.text)))
    if session.status is SessionStatus.APPROVED and continued(state):
        limits_given = state.steering[-1].limits or RequestLimits()
        session = replace(session, status=SessionStatus.EXECUTING, requests=session.requests + 1, limits=limits_given)
    if state.status.terminal and not session.status.over:
        # Its driver could not store the end.
        status = _ENDED.get(state.status, SessionStatus.ERROR)
        session = replace(session, status=status, error=mask(state.error))
    return session


def continued(state: ExecutionState) -> bool:
    return bool(state.steering) and state.steering[-1].action == CONTINUE


def approval_id(session: PlanSession) -> str:
    return f"question-{session.requests}" if session.question else f"proposal-{session.proposals}"


def approval_request(session: PlanSession) -> ApprovalRequest:
    """The request that a session waits with: to decide about its proposal, or to answer its model's question."""
    waiting = History(session.messages).unanswered()
    is_question, name = bool(session.question), approval_id(session)
    fields = json.dumps(
        {"question": session.question}
        if is_question
        else {"approach": session.approach, "reasoning": session.reasoning}
    )
    return ApprovalRequest(
        approval_id=name,
        agent_id=run_name(session),
        policy=ApprovalPolicy.PLAN,
        goal=session.goal,
        approach=session.question or session.approach,
        call=waiting[0]
        if waiting
        else ToolCall(call_id=name, model_call_id="", name=ASK if is_question else PROPOSE, arguments=fields),
        step=len(session.steps),
        requested_at=now(),
        reasons=(session.reasoning,) if session.reasoning and not is_question else (),
    )


def run_name(session: PlanSession) -> str:
    return f"planner-{session.requests}"


async def tool_results(log: EventLog, task: Task, agent_id: str) -> Mapping[str, ToolResult]:
    """By operation, the results of a run's calls from before the first message to its model."""
    results: dict[str, ToolResult] = {}
    async with aclosing(log.read(task.tenant, task.execution_id, agent_id=agent_id)) as events:
        async for stored in events:
            match stored.event.body:
                case MessageAdded() | ModelReplied():
                    break
                case ToolFinished(entry=entry, result=result) if entry.outcome is not Outcome.CANCELLED:
                    results.setdefault(entry.operation, result)
                case _:
                    pass
    return results
