"""The runs of plan sessions in the log: claimed by generation, read again where an earlier process left them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import cast

from swe_ai_fleet.agents.plan_session.session import PlanSession
from swe_ai_fleet.agents.recorded_run import RecordedRun, close_interrupted, read_run, recorded_run
from swe_ai_fleet.domain.errors import Fenced, FleetError, Unavailable
from swe_ai_fleet.domain.event import MessageAdded, ModelReplied, ToolFinished, Writer
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.task import DEFAULT_TENANT, TaskKind, execution_id
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.ports import EventLog
from swe_ai_fleet.testing.memory_log import MemoryLog


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """Where the runs of sessions are recorded: one for each request, all those of a goal in one execution.

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
    async def recorded(self, session: PlanSession) -> AsyncGenerator[tuple[RecordedRun, RunState]]:
        """The run of a session's present request, claimed, and what an earlier process did of it.

        Calls that had begun there and of which nothing more is known are closed as interrupted.

        Raises:
            Unavailable: The log does not answer, or another process has claimed the run by now.
        """
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
            found = _fleet_error(fault)
            if found is None:
                raise
            if isinstance(found, Fenced):
                raise Unavailable("another process took the session over; look at what becomes of it") from None
            raise found from None

    async def found(self, session: PlanSession) -> Mapping[str, ToolResult]:
        """By operation, what tools gave the run of a session's present request before its model was told anything."""
        results: dict[str, ToolResult] = {}
        writer = self._writer(session)
        events = self.log.read(writer.tenant, writer.execution_id, agent_id=writer.agent_id)
        async with aclosing(events) as stored:
            async for one in stored:
                match one.event.body:
                    case MessageAdded() | ModelReplied():
                        break
                    case ToolFinished(entry=entry, result=result) if entry.outcome is not Outcome.CANCELLED:
                        results.setdefault(entry.operation, result)
                    case _:
                        pass
        return results

    def _writer(self, session: PlanSession) -> Writer:
        execution = execution_id(
            tenant=self.tenant, kind=TaskKind.PLAN, task_id=session.session_id, attempt=session.attempt
        )
        return Writer(
            tenant=self.tenant,
            execution_id=execution,
            task_id=session.session_id,
            agent_id=f"planner-{session.requests}",
        )

    async def _read(self, writer: Writer) -> RunState:
        return await read_run(self.log, writer.tenant, writer.execution_id, writer.agent_id)


def _fleet_error(fault: BaseException) -> FleetError | None:
    """The first FleetError of a group of nothing else: calls of one reply run side by side."""
    if isinstance(fault, BaseExceptionGroup):
        found = [_fleet_error(one) for one in cast("BaseExceptionGroup[BaseException]", fault).exceptions]
        return found[0] if all(found) else None
    return fault if isinstance(fault, FleetError) else None
