"""A run in the log: its subject claimed, its audit chain begun, its end recorded when it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from swe_ai_fleet.agents.equipment import Equipment
from swe_ai_fleet.agents.run_journal import RunJournal
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts
from swe_ai_fleet.domain.errand import RecordedErrand
from swe_ai_fleet.domain.event import RunClaimed, RunFinished, Writer
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import BlobStore, EventLog
from swe_ai_fleet.tools.audit import AuditTrail

_LAST_WORDS_SECONDS = 5.0


def writer_of(assignment: RecordedErrand[object]) -> Writer:
    """Who writes what the run of an assignment does."""
    return Writer(
        tenant=assignment.task.tenant,
        execution_id=assignment.execution_id,
        task_id=assignment.task.task_id,
        agent_id=assignment.agent_id,
        generation=assignment.generation,
    )


@dataclass(frozen=True, kw_only=True)
class RunServices:
    """What runs of one process share beside their models.

    Attributes:
        equipment: Models, access, prices.
        log: Where runs are recorded.
        blobs: Has patches, takes what is too long for an event.
        audit_key: Keys the digests of full arguments.
        host: Names the process in the log.
    """

    equipment: Equipment
    log: EventLog
    blobs: BlobStore
    audit_key: bytes = b""
    host: str = ""

    def recorded(
        self, assignment: RecordedErrand[object], *, resumes: bool = False
    ) -> AbstractAsyncContextManager[RecordedRun]:
        """A run of this process in the log; see `recorded_run`."""
        return recorded_run(self.log, writer_of(assignment), host=self.host, audit_key=self.audit_key, resumes=resumes)


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """What a run writes to."""

    journal: RunJournal
    trail: AuditTrail


@asynccontextmanager
async def recorded_run(
    log: EventLog, writer: Writer, *, host: str = "", audit_key: bytes = b"", resumes: bool = False
) -> AsyncGenerator[RecordedRun]:
    """Claim a run's subject and yield its journal and trail; a cancellation is recorded before it passes on.

    Args:
        log: Where it is written.
        writer: Whose subject it is; the generation must be higher than any before.
        host: Names this process.
        audit_key: Keys the digests of full arguments.
        resumes: Whether conversation and audit chain go on, or begin anew.

    Raises:
        Fenced: Somebody else has the subject by now.
        Unavailable: The log does not answer.
    """
    async with log.journal(writer) as opened:
        journal = RunJournal(opened)
        journal.post(RunClaimed(generation=writer.generation, host=host, resumes=resumes))
        trail = AuditTrail(execution_id=writer.execution_id, agent_id=writer.agent_id, journal=journal, key=audit_key)
        try:
            yield RecordedRun(journal=journal, trail=trail)
        except asyncio.CancelledError:
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await journal.append(_cancelled(trail, resumes))
            raise


def _cancelled(trail: AuditTrail, resumes: bool) -> RunFinished:
    # A chain that was not taken up yet has a head that is not known here.
    known = bool(trail.entries) or not resumes
    return RunFinished(
        stop_reason=StopReason.CANCELLED,
        artifacts=Artifacts(),
        usage=Usage(),
        audit_head=trail.head if known else "",
        error="the run was cancelled",
    )
