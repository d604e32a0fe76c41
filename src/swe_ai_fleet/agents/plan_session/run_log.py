"""The runs of plan sessions in the log: claimed by generation, read again where an earlier process left them."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import cast

from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.plan_session.session import PlanSession
from swe_ai_fleet.agents.recorded_run import RecordedRun, close_interrupted, read_run, recorded_run
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import AlreadyExists, Fenced, FleetError, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.event import (
    CONTROL_SUBJECT,
    EXECUTION_SUBJECT,
    ApprovalAwaited,
    ApprovalResolved,
    CancelRequested,
    EventBody,
    ExecutionClaimed,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    MessageAdded,
    ModelReplied,
    ToolFinished,
    Writer,
)
from swe_ai_fleet.domain.execution import ExecutionState, fold
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.moment import now
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.task import (
    DEFAULT_TENANT,
    ApprovalPolicy,
    MemoryOptions,
    PinnedRepository,
    RepoRef,
    Task,
    TaskKind,
)
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.ports import EventLog
from swe_ai_fleet.tools.builtin.dialogue import ASK, PROPOSE


class GoalCancelled(PreconditionFailed):
    """Somebody has cancelled the execution that a goal is."""


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """Where goals are executions: each request of a goal is a run in it, a proposal is an approval that it waits for.

    Attributes:
        log: The log; one in memory ends with its process.
        tenant: Whose sessions they are.
        me: This process, by a name that none has had before.
        alive: The processes that may be at work, this one included (empty while that cannot be known); None: no other.
        audit_key: Keys the digests of full arguments.
    """

    log: EventLog = field(default_factory=MemoryLog)
    tenant: str = DEFAULT_TENANT
    me: str = field(default_factory=lambda: f"process-{secrets.token_hex(4)}")
    alive: Callable[[], Collection[str]] | None = None
    audit_key: bytes = b""

    def elsewhere(self, session: PlanSession) -> bool:
        """Whether another process may be at work on a session."""
        if not session.status.working or session.owner == self.me or self.alive is None:
            return False
        alive = self.alive()
        return session.owner in alive or self.me not in alive

    @asynccontextmanager
    async def recorded(
        self, session: PlanSession, *, claim: bool = True
    ) -> AsyncGenerator[tuple[RecordedRun, RunState]]:
        """The run of a session's present request, claimed, and what an earlier process did of it.

        Calls that had begun there and of which nothing more is known are closed as interrupted. With `claim` the goal
        is this process's too, and begins with its first request.

        Raises:
            GoalCancelled: There is nothing to go on with.
            Unavailable: The log does not answer, or another process has claimed the run by now.
        """
        if claim:
            await self._claim(session)
        writer = self._writer(session)
        earlier = await self._read(writer)
        writer, resumes = replace(writer, generation=earlier.generation + 1), earlier.generation > 0
        try:
            async with recorded_run(
                self.log, writer, host=self.me, audit_key=self.audit_key, resumes=resumes
            ) as record:
                await record.journal.flush()
                if resumes:
                    # Whoever had it can write no more, so this is all that there is.
                    earlier = await self._read(writer)
                    record.trail.entries.extend(earlier.entries)
                    record.trail.revision = earlier.entries[-1].workspace_revision if earlier.entries else 0
                for entry in earlier.dangling.values():
                    close_interrupted(entry, record.trail, record.journal)
                if earlier.dangling:
                    await record.journal.flush()
                    earlier = await self._read(writer)
                yield record, earlier
        except (Fenced, BaseExceptionGroup) as fault:
            error = _fleet_error(fault)
            if error is None:
                raise
            if isinstance(error, Fenced):
                raise _taken_over() from None
            raise error from None

    async def check(self, session: PlanSession) -> None:
        """Whether a session's goal can go on. Raises GoalCancelled, Unavailable."""
        if (state := await self._state(session)) is not None:
            _check(state)

    async def awaited(self, session: PlanSession) -> None:
        """Say that a session's proposal, or its model's question, waits for a person."""
        waiting = History(session.messages).unanswered()
        asked = bool(session.question)
        fields = json.dumps(
            {"question": session.question} if asked else {"approach": session.approach, "reasoning": session.reasoning}
        )
        name = _approval(session)
        request = ApprovalRequest(
            approval_id=name,
            agent_id=self._writer(session).agent_id,
            policy=ApprovalPolicy.PLAN,
            goal=session.goal,
            approach=session.question or session.approach,
            call=waiting[0]
            if waiting
            else ToolCall(call_id=name, model_call_id="", name=ASK if asked else PROPOSE, arguments=fields),
            step=len(session.steps),
            requested_at=now(),
            reasons=(session.reasoning,) if session.reasoning and not asked else (),
        )
        await self._tell(session, ApprovalAwaited(request=request))

    async def decided(self, session: PlanSession, decision: ApprovalDecision, text: str, by: str) -> None:
        """Say what a person decided about a session's proposal."""
        await self._tell(
            session,
            ApprovalResolved(
                resolution=ApprovalResolution(
                    approval_id=_approval(session), decision=decision, text=text, caller=by, at=now()
                )
            ),
        )

    async def end(self, session: PlanSession, status: ExecutionStatus, error: str = "") -> None:
        """End a session's goal; one that has ended, or was none in the log, stays as it is. Raises Unavailable."""
        while (state := await self._state(session)) is not None and not state.status.terminal:
            age = datetime.now(UTC) - datetime.fromisoformat(state.started_at)
            ended = ExecutionFinished(
                status=status,
                error=error,
                usage=sum((agent.usage for agent in state.agents.values()), Usage()),
                duration_ms=max(0, round(age.total_seconds() * 1000)),
            )
            # Somebody ends it for another reason: a caller who cancels it.
            with suppress(Fenced):
                await self._append(session, state, ended)

    async def cancelled(self, session: PlanSession) -> str:
        """Wait until somebody cancels a session's goal; their reason. Raises Unavailable."""
        writer = self._writer(session)
        events = self.log.read(writer.tenant, writer.execution_id, agent_id=CONTROL_SUBJECT, follow=True)
        async with aclosing(events) as stored_events:
            async for stored in stored_events:
                if isinstance(stored.event.body, CancelRequested):
                    return stored.event.body.reason
        raise Unavailable("the log is no longer followed")

    async def _claim(self, session: PlanSession) -> None:
        """Make a session's goal this process's, and an execution with its first request."""
        task, state = self._task(session), await self._state(session)
        if state is None:
            started = ExecutionStarted(
                task=task,
                repository=PinnedRepository(tenant=self.tenant, location=session.repository, commit=""),
                fingerprint=task.fingerprint(),
            )
            writer = replace(self._writer(session), agent_id=EXECUTION_SUBJECT, generation=0)
            try:
                async with self.log.journal(writer, fresh=True) as journal:
                    await journal.append(started)
            except AlreadyExists:
                raise _taken_over() from None
        else:
            _check(state)
            if state.status.terminal:
                # The process ended before it could say so in the session.
                return
        try:
            await self._append(session, state)
        except Fenced:
            raise _taken_over() from None

    async def _append(self, session: PlanSession, state: ExecutionState | None, *bodies: EventBody) -> None:
        """Claim a goal's execution, and say something as it. Raises Fenced where somebody else has it by now."""
        generation = (state.generation if state is not None else 0) + 1
        writer = replace(self._writer(session), agent_id=EXECUTION_SUBJECT, generation=generation)
        async with self.log.journal(writer) as journal:
            for body in (ExecutionClaimed(generation=generation, owner=self.me), *bodies):
                journal.post(body)

    async def _tell(self, session: PlanSession, body: EventBody) -> None:
        """Say something to a goal's execution; nothing where it is none in the log."""
        if await self._state(session) is not None:
            await self.log.tell(replace(self._writer(session), agent_id=CONTROL_SUBJECT, generation=0), body)

    async def _state(self, session: PlanSession) -> ExecutionState | None:
        """A goal's execution as its events tell it; None where there is none."""
        writer = self._writer(session)
        async with aclosing(self.log.read(writer.tenant, writer.execution_id)) as events:
            return fold([stored async for stored in events])

    def _task(self, session: PlanSession) -> Task:
        return Task(
            task_id=session.session_id,
            kind=TaskKind.PLAN,
            description=session.goal,
            repo=RepoRef(location=session.repository, ref=session.ref),
            tenant=self.tenant,
            num_agents=1,
            attempt=session.attempt,
            caller=session.started_by,
            memory=MemoryOptions(read=True, entities=session.selected_entities),
        )

    async def tool_results(self, session: PlanSession) -> Mapping[str, ToolResult]:
        """By operation, what tools gave the run of a session's present request before its model was told anything."""
        results: dict[str, ToolResult] = {}
        writer = self._writer(session)
        events = self.log.read(writer.tenant, writer.execution_id, agent_id=writer.agent_id)
        async with aclosing(events) as stored:
            async for stored_event in stored:
                match stored_event.event.body:
                    case MessageAdded() | ModelReplied():
                        break
                    case ToolFinished(entry=entry, result=result) if entry.outcome is not Outcome.CANCELLED:
                        results.setdefault(entry.operation, result)
                    case _:
                        pass
        return results

    def _writer(self, session: PlanSession) -> Writer:
        return Writer(
            tenant=self.tenant,
            execution_id=self._task(session).execution_id,
            task_id=session.session_id,
            agent_id=f"planner-{session.requests}",
        )

    async def _read(self, writer: Writer) -> RunState:
        return await read_run(self.log, writer.tenant, writer.execution_id, writer.agent_id)


def _approval(session: PlanSession) -> str:
    """The name of what a session waits for."""
    return f"question-{session.requests}" if session.question else f"proposal-{session.proposals}"


def _check(state: ExecutionState) -> None:
    if state.cancel_requested or state.status is ExecutionStatus.CANCELLED:
        raise goal_cancelled(state.cancel_reason)


def goal_cancelled(reason: str) -> GoalCancelled:
    """What is said of a goal that was cancelled, for a reason or without one."""
    return GoalCancelled(f"the goal was cancelled{f': {reason}' if reason else ''}", hint="set it again to continue")


def _taken_over() -> Unavailable:
    return Unavailable("another process took the session over; look at its result there")


def _fleet_error(fault: BaseException) -> FleetError | None:
    """The first FleetError of a group of nothing else: calls of one reply run side by side."""
    if isinstance(fault, BaseExceptionGroup):
        errors = [_fleet_error(exception) for exception in cast("BaseExceptionGroup[BaseException]", fault).exceptions]
        return errors[0] if all(errors) else None
    return fault if isinstance(fault, FleetError) else None
