"""A run in the log: its subject claimed, its audit chain begun, its end recorded when it is cancelled.

The journal holds everything that the model was told, and nothing twice. A run goes on in another process:
conversation, budget and audit chain come from the log, the workspace from a blob.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import structlog

from swe_ai_fleet.agents.results import ToolRecord
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.assignment import RecordedAssignment
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts
from swe_ai_fleet.domain.command import Owner
from swe_ai_fleet.domain.errors import FleetError, ResourceExhausted
from swe_ai_fleet.domain.event import (
    CONTROL_SUBJECT,
    Event,
    EventBody,
    MessageAdded,
    ModelReplied,
    RunClaimed,
    RunFinished,
    StoredEvent,
    ToolFinished,
    WorkspaceCheckpointed,
    WorkspaceNotKept,
    Writer,
)
from swe_ai_fleet.domain.message import Message, ToolMessage, UserMessage
from swe_ai_fleet.domain.run import RunState, fold_run, interrupted
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import Observation, StopReason
from swe_ai_fleet.ports import BlobStore, Checkpoint, Clone, EventLog, Journal
from swe_ai_fleet.tools.audit import AuditTrail

_log = structlog.get_logger()
T = TypeVar("T")
BUNDLE_MEDIA_TYPE = "application/x-git-bundle"
_MOST_LISTED = 20
_CALL_CHARS = 300
_NOT_BEGUN = "not carried out: the machine that you worked on was lost before this call began."
_LOST = (
    "The machine that you worked on was lost. You go on in a new workspace, with your files as they were {when}. "
    "Ignored files (caches, build output) and whatever ran are gone. What these calls changed after that is gone too:\n"
    "{calls}\nLook at the state of the repository, and do again what is still needed."
)
_RECORD_END_SECONDS = 5.0


class RunJournal:
    """A `Journal` to which observations can be posted as messages; one that its tool call's end tells is left out."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.record = ToolRecord()
        self._told: dict[str, tuple[str, Event]] = {}

    def post(self, body: EventBody) -> Event:
        if isinstance(body, MessageAdded) and isinstance(body.message, ToolMessage):
            text, event = self._told.pop(body.message.call_id, ("", None))
            if event is not None and text == body.message.content:
                return event
        if isinstance(body, ModelReplied):
            # By then the model has been told of every call before.
            self._told.clear()
        event = self._journal.post(body)
        self.record.hear(event)
        if isinstance(body, ToolFinished) and body.entry.call_id:
            self._told[body.entry.call_id] = (body.result.observation(), event)
        return event

    async def append(self, body: EventBody) -> Event:
        """Write an event and everything posted before it. Raises as the journal does."""
        event = self.post(body)
        await self._journal.flush()
        return event

    async def flush(self) -> None:
        await self._journal.flush()


async def read_run(log: EventLog, tenant: str, execution_id: str, agent_id: str) -> RunState:
    """A run as the log tells it now. Claim its subject first: until then its last owner may still write."""
    stored_events: list[StoredEvent] = []
    for writer in (agent_id, CONTROL_SUBJECT):
        async with aclosing(log.read(tenant, execution_id, agent_id=writer)) as stored:
            stored_events.extend([event async for event in stored])
    return fold_run(
        (stored_event.event for stored_event in sorted(stored_events, key=lambda stored_event: stored_event.sequence)),
        agent_id,
    )


def concluded(earlier: RunState, kind: type[T]) -> T | None:
    """What a run that hands in a value came to in an earlier process; None where it did not come to its end."""
    if earlier.finished is None or earlier.finished.stop_reason is StopReason.CANCELLED:
        return None
    try:
        return from_json(kind, earlier.finished.answer)
    except ValueError:
        return None


@dataclass(kw_only=True)
class WorkspaceKeeper:
    """Keeps one clone beyond the life of its directory: its last state, nothing before it, in at most `max_bytes`.

    `kept` is what was stored last, by an earlier process of the run too.
    """

    clone: Clone
    journal: Journal
    blobs: BlobStore
    owner: Owner
    trail: AuditTrail
    max_bytes: int | None = None
    kept: BlobRef | None = None
    _token: str = field(default_factory=lambda: secrets.token_hex(8))
    _count: int = 0
    _refused: bool = False

    async def keep(self, step: int) -> int:
        """Store the clone as it stands; durable when this returns, and what was stored before is gone.

        How many bytes that took. Raises FleetError; a workspace that is too large to store is said in the log, once.
        """
        try:
            checkpoint = await self.clone.checkpoint()
            if self.max_bytes is not None and len(checkpoint.bundle) > self.max_bytes:
                raise ResourceExhausted(
                    f"the workspace makes a checkpoint of {len(checkpoint.bundle)} bytes, and the tenant has room for "
                    f"{self.max_bytes}",
                    field="quota.storage_bytes",
                    hint="let .gitignore name generated files",
                )
            bundle = None
            if checkpoint.bundle:
                # Beside the last one, which counts until the log names another.
                self._count += 1
                place = f"checkpoints/{self.trail.agent_id}/{self._token}-{self._count % 2}"
                tenant, execution_id = self.owner.tenant, self.owner.execution_id
                bundle = await self.blobs.put(tenant, execution_id, checkpoint.bundle, BUNDLE_MEDIA_TYPE, place=place)
        except ResourceExhausted as error:
            if not self._refused:
                self._refused = True
                await self.journal.append(WorkspaceNotKept(step=step, reason=str(error)))
            raise
        self._refused = False
        await self.journal.append(
            WorkspaceCheckpointed(
                step=step,
                revision=self.trail.revision,
                commit=checkpoint.commit,
                head=checkpoint.head,
                branch=checkpoint.branch,
                bundle=bundle,
            )
        )
        await self.supersede(bundle)
        return len(checkpoint.bundle)

    async def supersede(self, bundle: BlobRef | None) -> None:
        """Give back the room of what was kept; None: nothing goes on from there any more."""
        superseded, self.kept = self.kept, bundle
        # Earlier versions named checkpoints by their content: somebody else may have stored the same.
        if superseded is None or superseded.name.endswith(f"/{superseded.digest}"):
            return
        try:
            await self.blobs.discard(superseded)
        except FleetError as error:
            _log.warning("a checkpoint could not be discarded", name=superseded.name, reason=str(error))


async def resume(earlier: RunState, keeper: WorkspaceKeeper, *, lasting: bool = True) -> RunState:
    """Put a clean clone and an empty trail where the run left off; the run as the model is to see it.

    What was interrupted gets its observation, and where changes are lost the model is told; both stand in the log.
    Unless the workspace is `lasting`, it is as each process of the run finds it at first, and nothing of it is stored.
    Raises FleetError where the workspace cannot be had again.
    """
    clone, journal, trail = keeper.clone, keeper.journal, keeper.trail
    trail.entries.extend(earlier.entries)
    trail.revision = earlier.entries[-1].workspace_revision if earlier.entries else 0
    checkpoint = earlier.checkpoint
    if checkpoint is not None:
        keeper.kept = checkpoint.bundle
        bundle = await keeper.blobs.get(checkpoint.bundle) if checkpoint.bundle is not None else b""
        await clone.restore(
            Checkpoint(commit=checkpoint.commit, head=checkpoint.head, branch=checkpoint.branch, bundle=bundle)
        )
    messages: list[Message] = list(earlier.messages)
    steps = list(earlier.steps)

    def observe(call_id: str, result: ToolResult) -> None:
        messages.append(ToolMessage(call_id=call_id, content=result.observation()))
        seen = Observation(call_id=call_id, result=result)
        steps[-1] = replace(steps[-1], observations=(*steps[-1].observations, seen))

    for call_id, entry in earlier.dangling.items():
        observe(call_id, close_interrupted(entry, trail, journal))
    if earlier.lost:
        # Where the next restart would begin, so that what is told here is not told then.
        if checkpoint is not None:
            journal.post(checkpoint)
        elif lasting:
            await keeper.keep(len(steps))
        # Calls that were made with the lost files in mind are not carried out without them.
        seen = {observation.call_id for step in steps[-1:] for observation in step.observations}
        for call in [call for step in steps[-1:] for call in step.reply.tool_calls if call.call_id not in seen]:
            result = ToolResult(success=False, operation=call.name, error=_NOT_BEGUN, outcome=Outcome.INTERRUPTED)
            observe(call.call_id, result)
            journal.post(MessageAdded(step=len(steps), message=messages[-1]))
        notice = UserMessage(content=_loss(earlier))
        messages.append(notice)
        journal.post(MessageAdded(step=len(steps), message=notice))
    return replace(earlier, messages=tuple(messages), steps=tuple(steps), dangling={}, lost=())


def close_interrupted(entry: AuditEntry, trail: AuditTrail, journal: Journal) -> ToolResult:
    """The result of a call that began and of which nothing more is known, audited."""
    result = interrupted(entry.name)
    closed = replace(
        entry,
        seq=len(trail.entries) + 1,
        at=now(),
        outcome=Outcome.INTERRUPTED,
        reason="the process that ran it ended",
    )
    journal.post(ToolFinished(entry=trail.seal(closed), result=result))
    return result


def _loss(earlier: RunState) -> str:
    when = "when the task began" if earlier.checkpoint is None else f"after step {earlier.checkpoint.step}"
    calls = [f"- {entry.name} {dict(entry.arguments)}"[:_CALL_CHARS] for entry in earlier.lost]
    listed = [
        *calls[:_MOST_LISTED],
        *([f"- and {len(calls) - _MOST_LISTED} more"] if len(calls) > _MOST_LISTED else []),
    ]
    return _LOST.format(when=when, calls="\n".join(listed))


def writer_of(assignment: RecordedAssignment[object]) -> Writer:
    return Writer(
        tenant=assignment.task.tenant,
        execution_id=assignment.execution_id,
        task_id=assignment.task.task_id,
        agent_id=assignment.agent_id,
        generation=assignment.generation,
    )


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    journal: RunJournal
    trail: AuditTrail


@asynccontextmanager
async def recorded_run(
    log: EventLog, writer: Writer, *, host: str = "", audit_key: bytes = b"", resumes: bool = False
) -> AsyncGenerator[RecordedRun]:
    """Claim a run's subject and yield its journal and trail; a cancellation is recorded before it passes on.

    The writer's generation must be higher than any before; unless it `resumes`, conversation and audit chain begin
    anew. Raises Fenced where somebody else has the subject by now, Unavailable.
    """
    async with log.journal(writer) as opened:
        journal = RunJournal(opened)
        journal.post(RunClaimed(generation=writer.generation, host=host, resumes=resumes))
        trail = AuditTrail(execution_id=writer.execution_id, agent_id=writer.agent_id, journal=journal, key=audit_key)
        try:
            yield RecordedRun(journal=journal, trail=trail)
        except asyncio.CancelledError:
            async with asyncio.timeout(_RECORD_END_SECONDS):
                ended = run_finished(trail, StopReason.CANCELLED, Usage(), error="the run was cancelled")
                # A chain that was not taken up yet has a head that is not known here.
                await journal.append(ended if trail.entries or not resumes else replace(ended, audit_head=""))
            raise


@asynccontextmanager
async def continued_run(
    log: EventLog, writer: Writer, *, host: str = "", audit_key: bytes = b""
) -> AsyncGenerator[tuple[RecordedRun, RunState]]:
    """Claim a run as its next generation and yield what earlier processes did of it, too, for one without a workspace.

    Calls that had begun there and of which nothing more is known are closed as interrupted. Raises Fenced (maybe in a
    group) where another process has claimed the run by now, Unavailable.
    """

    async def read() -> RunState:
        return await read_run(log, writer.tenant, writer.execution_id, writer.agent_id)

    earlier = await read()
    writer, resumes = replace(writer, generation=earlier.generation + 1), earlier.generation > 0
    async with recorded_run(log, writer, host=host, audit_key=audit_key, resumes=resumes) as record:
        await record.journal.flush()
        if resumes:
            # Whoever had it can write no more, so this is all that there is.
            earlier = await read()
            record.trail.entries.extend(earlier.entries)
            record.trail.revision = earlier.entries[-1].workspace_revision if earlier.entries else 0
        for entry in earlier.dangling.values():
            close_interrupted(entry, record.trail, record.journal)
        if earlier.dangling:
            await record.journal.flush()
            earlier = await read()
        yield record, earlier


def run_finished(
    trail: AuditTrail,
    stop_reason: StopReason,
    usage: Usage,
    *,
    artifacts: Artifacts | None = None,
    answer: str = "",
    error: str = "",
) -> RunFinished:
    """How a run ended, with the head of its audit chain: every run of the fleet ends with one of these."""
    return RunFinished(
        stop_reason=stop_reason,
        artifacts=artifacts or Artifacts(),
        usage=usage,
        audit_head=trail.head,
        answer=answer,
        error=error,
    )
