"""Records of ended executions: their work, outcome and lessons.

One durable consumer, shared by all replicas, reads the events of executions; the end of one is recorded before its
message is acknowledged. After a redelivery (a process is killed, an acknowledgement lost) each part is still stored
only once, under the id of the execution or that of the text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace

import structlog
from structlog.contextvars import bound_contextvars

from swe_ai_fleet.adapters.jetstream import JetStream, PermanentError, WorkMessage, WorkQueue
from swe_ai_fleet.adapters.jetstream.protocol import event_of
from swe_ai_fleet.domain.context import StoryUpdated, TaskState
from swe_ai_fleet.domain.errors import (
    FleetError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
)
from swe_ai_fleet.domain.event import (
    EXECUTION_SUBJECT,
    Event,
    ExecutionFinished,
    ExecutionStatus,
    HistoryCondensed,
    MessageAdded,
    RunStarted,
    StoredEvent,
)
from swe_ai_fleet.domain.execution import ExecutionState, Fold
from swe_ai_fleet.domain.task import TaskKind
from swe_ai_fleet.extensions.knowledge.drafts import OPEN
from swe_ai_fleet.extensions.knowledge.endings import lessons, outcome_of, work_record
from swe_ai_fleet.extensions.knowledge.store import ContextStore
from swe_ai_fleet.extensions.knowledge.tracker import LearningTracker
from swe_ai_fleet.following import in_background
from swe_ai_fleet.orchestrator.execution_context import IN_PROCESS
from swe_ai_fleet.ports import Memories

RECORDER = WorkQueue(
    stream="AGENT_EVENTS",
    subjects=(f"agent.events.*.*.{EXECUTION_SUBJECT}",),
    consumer="context-recorder",
    ack_wait_seconds=5.0,
    # Each handler holds the events of one execution in memory.
    concurrency=4,
    marks=(b'"execution_finished"', b'"body_ref"'),
)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """Records ended executions.

    Attributes:
        log: The events of executions.
        store: Receives the records of work.
        outcomes: Receives the outcomes.
        memories: Receives the lessons, if the task writes memory.
    """

    log: JetStream
    store: ContextStore
    outcomes: LearningTracker
    memories: Memories

    async def handle(self, work: WorkMessage) -> None:
        """Handle one message of the log.

        Raises PermanentError for an end that can never be read, another FleetError for a retry.
        """
        try:
            event = await event_of(work.data, self.log)
        except (ValueError, NotFound) as fault:
            raise PermanentError(f"the event cannot be read: {str(fault)[:300]}") from fault
        if isinstance(event.body, ExecutionFinished):
            with bound_contextvars(tenant=event.tenant, execution_id=event.execution_id):
                await self._record(event, first=work.deliveries == 1)

    async def _record(self, ended: Event, *, first: bool) -> None:
        tenant, execution_id = ended.tenant, ended.execution_id
        if first and self.store.graph(tenant).execution(execution_id) is not None:
            # The consumer was recreated and repeats everything; records deleted since must stay deleted.
            return
        try:
            state, events = await self._read(tenant, execution_id)
        except (PreconditionFailed, NotFound) as fault:
            raise PermanentError(f"the events of {execution_id} cannot be read: {fault.message}") from fault
        if state is None or not state.status.terminal:
            raise PermanentError(f"the beginning of {execution_id} is no longer in the log")
        if state.task.kind is TaskKind.JUDGE or state.task.kind in IN_PROCESS:
            # A judgement and a chat did no work; the outcome of a plan was recorded when it ran.
            return
        refused: list[str] = []
        postponed: list[FleetError] = []
        # The work is last: a reader that finds it finds the rest. It is recorded even if memories cannot be stored now.
        for part in (self._store_lessons, self._store_outcome, self._close_task, self._store_work):
            try:
                await part(state, events)
            except InvalidRequest as fault:
                refused.append(f"{fault.field}: {fault}")
            except FleetError as fault:
                # A fault of one part does not stop the others.
                postponed.append(fault)
        if postponed:
            raise postponed[0]
        if refused:
            raise PermanentError(f"not all of {execution_id} was taken: {'; '.join(refused)}")
        _log.debug("recorder.recorded", status=str(state.status))

    async def _store_lessons(self, state: ExecutionState, events: Sequence[StoredEvent]) -> None:
        if state.task.memory.write:
            for memory in lessons(state, events):
                await self.memories.remember(memory)

    async def _store_outcome(self, state: ExecutionState, events: Sequence[StoredEvent]) -> None:
        await self.outcomes.record(outcome_of(state, events))

    async def _close_task(self, state: ExecutionState, events: Sequence[StoredEvent]) -> None:
        """A completed orchestration completes its task of the story."""
        del events
        task = state.task
        if task.kind is not TaskKind.ORCHESTRATE or state.status is not ExecutionStatus.COMPLETED:
            return
        story = self.store.graph(task.tenant).stories.get(task.story_id)
        open_task = story.tasks.get(task.task_id) if story is not None else None
        if open_task is None or open_task.state not in OPEN:
            return
        await self.store.update(task.tenant, task.story_id, StoryUpdated(task_id=task.task_id, state=TaskState.DONE))

    async def _store_work(self, state: ExecutionState, events: Sequence[StoredEvent]) -> None:
        await self.store.record_work(state.task.tenant, work_record(state, events))

    async def _read(self, tenant: str, execution_id: str) -> tuple[ExecutionState | None, list[StoredEvent]]:
        """The state of an execution and its events, those of its agents included, without prompts."""
        folding = Fold()
        slim_events: list[StoredEvent] = []
        async with aclosing(self.log.read(tenant, execution_id)) as events:
            async for stored in events:
                folding.take(stored)
                if (slim := _without_prompts(stored)) is not None:
                    slim_events.append(slim)
        return folding.state, slim_events


def _without_prompts(stored: StoredEvent) -> StoredEvent | None:
    """An event without prompts, which are most of the log; None if it is only a prompt."""
    match stored.event.body:
        case MessageAdded() | HistoryCondensed():
            return None
        case RunStarted() as body:
            return replace(stored, event=replace(stored.event, body=replace(body, messages=())))
        case _:
            return stored


@asynccontextmanager
async def open_recorder(recorder: Recorder, *, queue: WorkQueue = RECORDER) -> AsyncGenerator[asyncio.Task[None]]:
    """Record until the context ends; other replicas then get the unfinished messages.

    Yields the recording task; if it ends early, it has failed, and the fault is logged.
    """
    consuming = recorder.log.consume(queue, recorder.handle)
    fault = "no more executions are recorded"
    async with in_background(consuming, name="recorder", fault=fault, consumer=queue.consumer) as (consumer,):
        yield consumer
