"""The goals of plan sessions as executions: their tasks, their runs, and where people have brought them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.plan_session.session import PlanSession, SessionStatus
from swe_ai_fleet.agents.recorded_run import RecordedRun, close_interrupted, read_run, recorded_run
from swe_ai_fleet.domain.approval import ApprovalRequest
from swe_ai_fleet.domain.budget import Limits, RequestLimits
from swe_ai_fleet.domain.event import ExecutionStatus, MessageAdded, ModelReplied, ToolFinished, Writer
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.task import (
    ApprovalPolicy,
    Constraints,
    MemoryOptions,
    RepoRef,
    Task,
    TaskKind,
)
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.ports import EventLog, SecretMask
from swe_ai_fleet.tools.builtin.dialogue import ASK, PROPOSE

CONTINUE = "continue"
_ENDED = {ExecutionStatus.COMPLETED: SessionStatus.COMPLETED, ExecutionStatus.REJECTED: SessionStatus.REJECTED}


def task_of(session: PlanSession, tenant: str, limits: Limits) -> Task:
    """The present goal of a session as a task; `limits` are those of its first request."""
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


def standing(kept: PlanSession | None, state: ExecutionState, mask: SecretMask) -> PlanSession:
    """A session as the log has it: as it was kept last, with what people have said since.

    Args:
        kept: What its driver kept; None before its first goal has one.
        state: Its latest goal.
        mask: Replaces secrets in what people said.
    """
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
    if session.status.waiting and (said := state.resolutions.get(approval_id(session))) is not None:
        session = session.decided(replace(said, text=mask(said.text)))
    if session.status is SessionStatus.APPROVED and continued(state):
        limits_given = state.steering[-1].limits or RequestLimits()
        session = replace(session, status=SessionStatus.EXECUTING, requests=session.requests + 1, limits=limits_given)
    if state.status.terminal and not session.status.over:
        # Its driver could not keep it.
        status = _ENDED.get(state.status, SessionStatus.ERROR)
        session = replace(session, status=status, error=mask(state.error))
    return session


def continued(state: ExecutionState) -> bool:
    """Whether somebody wants the approved approach of a goal carried out now."""
    return bool(state.steering) and state.steering[-1].action == CONTINUE


def approval_id(session: PlanSession) -> str:
    """The name of what a session waits for."""
    return f"question-{session.requests}" if session.question else f"proposal-{session.proposals}"


def approval_request(session: PlanSession) -> ApprovalRequest:
    """What a session waits for: a decision about its proposal, or the answer to its model's question."""
    waiting = History(session.messages).unanswered()
    asked, name = bool(session.question), approval_id(session)
    fields = json.dumps(
        {"question": session.question} if asked else {"approach": session.approach, "reasoning": session.reasoning}
    )
    return ApprovalRequest(
        approval_id=name,
        agent_id=run_name(session),
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


def run_name(session: PlanSession) -> str:
    """The agent of a session's present request."""
    return f"planner-{session.requests}"


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """Where the requests of goals are runs.

    Attributes:
        log: The log.
        tenant: Whose sessions they are.
        me: This process, by a name that none has had before.
        audit_key: Keys the digests of full arguments.
    """

    log: EventLog
    tenant: str
    me: str
    audit_key: bytes

    @asynccontextmanager
    async def recorded(self, session: PlanSession) -> AsyncGenerator[tuple[RecordedRun, RunState]]:
        """The run of a session's present request, claimed, and what an earlier process did of it.

        Calls that had begun there and of which nothing more is known are closed as interrupted. Raises Fenced (maybe
        in a group) where another process has claimed the run by now, Unavailable.
        """
        writer = self._writer(session)
        earlier = await self._read(writer)
        writer, resumes = replace(writer, generation=earlier.generation + 1), earlier.generation > 0
        async with recorded_run(self.log, writer, host=self.me, audit_key=self.audit_key, resumes=resumes) as record:
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
            execution_id=task_of(session, self.tenant, Limits()).execution_id,
            task_id=session.session_id,
            agent_id=run_name(session),
        )

    async def _read(self, writer: Writer) -> RunState:
        return await read_run(self.log, writer.tenant, writer.execution_id, writer.agent_id)
