"""Runs of models in the orchestrator's process, without a workspace: recorded, resumed and signed as runs of agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.recorded_run import RecordedRun, close_interrupted, read_run, recorded_run, run_finished
from swe_ai_fleet.domain.errors import AlreadyExists, NotFound
from swe_ai_fleet.domain.event import Writer
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.execution_context import ExecutionDeps, HeadSigning
from swe_ai_fleet.orchestrator.executions import Executions


@dataclass(frozen=True, kw_only=True)
class OwnRuns:
    """The runs of one execution that an extension drives.

    Attributes:
        task: The execution's task.
        audit_key: The key of the digests of full arguments.
        signing: Signs the head of a run's audit chain when the run ends; None: heads are not signed.
    """

    deps: ExecutionDeps
    task: Task
    audit_key: bytes
    signing: HeadSigning | None = None

    @asynccontextmanager
    async def recorded(self, agent_id: str) -> AsyncGenerator[tuple[RecordedRun, RunState]]:
        """Claim a run as its next generation; yields its journal and trail, and its state after earlier processes.

        Calls that began there and have no result are closed as interrupted. Raises Fenced (maybe in a group) where
        another process has claimed the run by now, Unavailable.
        """
        task, earlier = self.task, await self._read(agent_id)
        writer = Writer(
            tenant=task.tenant,
            execution_id=task.execution_id,
            task_id=task.task_id,
            agent_id=agent_id,
            generation=earlier.generation + 1,
        )
        resumes = earlier.generation > 0
        async with recorded_run(
            self.deps.log, writer, host=self.deps.owner, audit_key=self.audit_key, resumes=resumes
        ) as record:
            await record.journal.flush()
            if resumes:
                # The earlier process can write no more, so this state is final.
                earlier = await self._read(agent_id)
                record.trail.resume(earlier.entries)
            if earlier.dangling:
                for entry in earlier.dangling.values():
                    close_interrupted(entry, record.trail, record.journal)
                await record.journal.flush()
                earlier = await self._read(agent_id)
            yield record, earlier
        if self.signing is not None:
            await self.signing.sign(agent_id)

    async def abandoned(self, agent_id: str, reason: str) -> RunState:
        """The state of a run that nobody resumes; it is ended as cancelled for this `reason`, if it has not ended.

        Raises Fenced, Unavailable.
        """
        run = await self._read(agent_id)
        if run.finished is not None and not run.dangling:
            return run
        async with self.recorded(agent_id) as (record, run):
            if run.started is not None and run.finished is None:
                await record.journal.append(run_finished(record.trail, StopReason.CANCELLED, run.usage, error=reason))
        return run

    async def _read(self, agent_id: str) -> RunState:
        return await read_run(self.deps.log, self.task.tenant, self.task.execution_id, agent_id)


async def enqueue_next(executions: Executions, task: Task) -> Task:
    """Accept the next attempt of a session, which `task` is; a later one where that attempt was erased.

    Raises AlreadyExists for another request with the same attempt, ResourceExhausted, Unavailable.
    """
    step = 1
    while True:
        try:
            await executions.enqueue(task)
            return task
        except AlreadyExists:
            try:
                await executions.get(task.tenant, task.execution_id)
            except NotFound:
                # Many attempts behind this one may be erased too.
                step *= 2
                task = replace(task, attempt=task.attempt + step)
            else:
                raise
