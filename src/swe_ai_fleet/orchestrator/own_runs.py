"""Runs of models in the orchestrator's own process: recorded, resumed and signed as agents' runs are."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.recorded_run import RecordedRun, continued_run, read_run, run_finished
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
        audit_key: Keys the digests of full arguments.
        signing: Signs where a run's audit chain stands at its end; None: nobody does.
    """

    deps: ExecutionDeps
    task: Task
    audit_key: bytes
    signing: HeadSigning | None = None

    @asynccontextmanager
    async def recorded(self, agent_id: str) -> AsyncGenerator[tuple[RecordedRun, RunState]]:
        """A run, claimed, and what earlier processes did of it. Raises as `continued_run` does."""
        task = self.task
        writer = Writer(tenant=task.tenant, execution_id=task.execution_id, task_id=task.task_id, agent_id=agent_id)
        async with continued_run(self.deps.log, writer, host=self.deps.owner, audit_key=self.audit_key) as run:
            yield run
        if self.signing is not None:
            await self.signing.sign(agent_id)

    async def abandoned(self, agent_id: str, reason: str) -> RunState:
        """A run that nobody continues, as it stands; its end says so where it had none. Raises Fenced, Unavailable."""
        run = await read_run(self.deps.log, self.task.tenant, self.task.execution_id, agent_id)
        if run.finished is not None and not run.dangling:
            return run
        async with self.recorded(agent_id) as (record, run):
            if run.started is not None and run.finished is None:
                await record.journal.append(run_finished(record.trail, StopReason.CANCELLED, run.usage, error=reason))
        return run


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
