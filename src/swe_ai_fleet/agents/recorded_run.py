"""A run in the log: claiming its subject, starting its audit chain, recording a cancellation, resuming.

The journal has every message to the model, none twice. A run is resumed in another process from its log (conversation,
budget, audit chain) and a blob (workspace).
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
    """A `Journal` that drops the message with a tool's result if the `ToolFinished` of that call has the same text."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.record = ToolRecord()
        self._observations: dict[str, tuple[str, Event]] = {}

    def post(self, body: EventBody) -> Event:
        if isinstance(body, MessageAdded) and isinstance(body.message, ToolMessage):
            text, event = self._observations.pop(body.message.call_id, ("", None))
            if event is not None and text == body.message.content:
                return event
        if isinstance(body, ModelReplied):
            # All results of earlier calls have been sent by now.
            self._observations.clear()
        event = self._journal.post(body)
        self.record.add(event)
        if isinstance(body, ToolFinished) and body.entry.call_id:
            self._observations[body.entry.call_id] = (body.result.observation(), event)
        return event

    async def append(self, body: EventBody) -> Event:
        """Write an event and everything posted before it. Raises as the journal does."""
        event = self.post(body)
        await self._journal.flush()
        return event

    async def flush(self) -> None:
        await self._journal.flush()


async def read_run(log: EventLog, tenant: str, execution_id: str, agent_id: str) -> RunState:
    """The state of a run, from its log. Claim its subject first: until then the previous owner may still write."""
    stored_events: list[StoredEvent] = []
    for writer in (agent_id, CONTROL_SUBJECT):
        async with aclosing(log.read(tenant, execution_id, agent_id=writer)) as events:
            stored_events.extend([event async for event in events])
    return fold_run(
        (stored.event for stored in sorted(stored_events, key=lambda stored: stored.sequence)),
        agent_id,
    )


def concluded(earlier: RunState, kind: type[T]) -> T | None:
    """The result of a run that ended in an earlier process; None if it did not end, or was cancelled."""
    trajectory = earlier.trajectory
    if trajectory is None:
        return None
    try:
        return from_json(kind, trajectory.answer)
    except ValueError:
        return None


@dataclass(kw_only=True)
class WorkspaceKeeper:
    """Stores checkpoints of one clone: only the last one is kept, of at most `max_bytes`.

    `last_bundle` is the last checkpoint, maybe from an earlier process of the run.
    """

    clone: Clone
    journal: Journal
    blobs: BlobStore
    owner: Owner
    trail: AuditTrail
    max_bytes: int | None = None
    last_bundle: BlobRef | None = None
    _token: str = field(default_factory=lambda: secrets.token_hex(8))
    _count: int = 0
    _refused: bool = False

    async def keep(self, step: int) -> int:
        """Store the clone as it is, and delete the checkpoint before. It is durable when this returns its bytes.

        Raises FleetError; a workspace too large to store is recorded in the log, once.
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
                # A new place: the last checkpoint is valid until the log names this one.
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
        """Delete the last checkpoint, which `bundle` replaces; None: the run will not be resumed."""
        superseded, self.last_bundle = self.last_bundle, bundle
        # Earlier versions named checkpoints by their content, so another run may refer to the same blob.
        if superseded is None or superseded.name.endswith(f"/{superseded.digest}"):
            return
        try:
            await self.blobs.discard(superseded)
        except FleetError as error:
            _log.warning("a checkpoint could not be discarded", name=superseded.name, reason=str(error))


async def resume(earlier: RunState, keeper: WorkspaceKeeper, *, lasting: bool = True) -> RunState:
    """Restore the clone and the audit trail of a run; returns its state, with messages about what was lost.

    Interrupted calls get a result, and the model gets a message about lost changes; both are recorded. A workspace that
    is not `lasting` is set up anew by each process of the run, and never stored. Raises FleetError if the workspace
    cannot be restored.
    """
    clone, journal, trail = keeper.clone, keeper.journal, keeper.trail
    trail.resume(earlier.entries)
    checkpoint = earlier.checkpoint
    if checkpoint is not None:
        keeper.last_bundle = checkpoint.bundle
        bundle = await keeper.blobs.get(checkpoint.bundle) if checkpoint.bundle is not None else b""
        await clone.restore(
            Checkpoint(commit=checkpoint.commit, head=checkpoint.head, branch=checkpoint.branch, bundle=bundle)
        )
    messages: list[Message] = list(earlier.messages)
    steps = list(earlier.steps)

    def observe(call_id: str, result: ToolResult) -> None:
        messages.append(ToolMessage(call_id=call_id, content=result.observation()))
        observation = Observation(call_id=call_id, result=result)
        steps[-1] = replace(steps[-1], observations=(*steps[-1].observations, observation))

    for call_id, entry in earlier.dangling.items():
        observe(call_id, close_interrupted(entry, trail, journal))
    if earlier.lost:
        # The next restart begins here, so that it does not report these losses again.
        if checkpoint is not None:
            journal.post(checkpoint)
        elif lasting:
            await keeper.keep(len(steps))
        # Calls that the model made knowing the lost files are not run without them.
        answered = {observation.call_id for step in steps[-1:] for observation in step.observations}
        for call in [call for step in steps[-1:] for call in step.reply.tool_calls if call.call_id not in answered]:
            result = ToolResult(success=False, operation=call.name, error=_NOT_BEGUN, outcome=Outcome.INTERRUPTED)
            observe(call.call_id, result)
            journal.post(MessageAdded(step=len(steps), message=messages[-1]))
        notice = UserMessage(content=_loss(earlier))
        messages.append(notice)
        journal.post(MessageAdded(step=len(steps), message=notice))
    return replace(earlier, messages=tuple(messages), steps=tuple(steps), dangling={}, lost=())


def close_interrupted(entry: AuditEntry, trail: AuditTrail, journal: Journal) -> ToolResult:
    """Record a call that began but never ended as interrupted; its result."""
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

    The writer's generation must be higher than any before; unless it `resumes`, conversation and audit chain start
    over. Raises Fenced if another process has claimed the subject since, Unavailable.
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
                # Before `resume` has read the audit chain, its head is not known here.
                await journal.append(ended if trail.entries or not resumes else replace(ended, audit_head=""))
            raise


def run_finished(
    trail: AuditTrail,
    stop_reason: StopReason,
    usage: Usage,
    *,
    artifacts: Artifacts | None = None,
    answer: str = "",
    error: str = "",
) -> RunFinished:
    """The last event of every run: how it ended, with the head of its audit chain."""
    return RunFinished(
        stop_reason=stop_reason,
        artifacts=artifacts or Artifacts(),
        usage=usage,
        audit_head=trail.head,
        answer=answer,
        error=error,
    )
