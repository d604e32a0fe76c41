"""What every execution leaves behind when it ends: a record of its work, its outcome, its lessons.

One durable consumer, shared by all replicas, hears what executions say; the end of one is recorded before its message
is acknowledged. A message may come again (a process is killed, an acknowledgement lost): each part is kept once all the
same, under the id of the execution or that of the words.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace

import structlog

from swe_ai_fleet.adapters.jetstream import JetStream, PermanentError, Work, WorkQueue
from swe_ai_fleet.adapters.jetstream.messages import event_of
from swe_ai_fleet.context.drafts import OPEN
from swe_ai_fleet.context.store import ContextStore
from swe_ai_fleet.context.work import work_record
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
from swe_ai_fleet.domain.execution import ExecutionState, advance
from swe_ai_fleet.domain.task import TaskKind
from swe_ai_fleet.following import in_background
from swe_ai_fleet.learning.outcomes import outcome_of
from swe_ai_fleet.learning.tracker import LearningTracker
from swe_ai_fleet.memory.lessons import lessons
from swe_ai_fleet.ports import Memories

RECORDER = WorkQueue(
    stream="AGENT_EVENTS",
    subjects=(f"agent.events.*.*.{EXECUTION_SUBJECT}",),
    consumer="context-recorder",
    ack_wait_seconds=5.0,
    # Each holds the events of one execution in memory.
    concurrency=4,
)
_END = b'"execution_finished"'
_ELSEWHERE = b'"body_ref"'
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """Records ended executions.

    Attributes:
        log: Has their events.
        store: Gets what they did.
        outcomes: Gets how that went.
        memories: Gets what is to be learned from it, where the task asked for that.
    """

    log: JetStream
    store: ContextStore
    outcomes: LearningTracker
    memories: Memories

    async def handle(self, work: Work) -> None:
        """Take one message of the log; nearly all of them are let go unread.

        Raises PermanentError for an end that can never be read, another FleetError for what is to be tried again.
        """
        if _END not in work.data and _ELSEWHERE not in work.data:
            return
        try:
            event = await event_of(work.data, self.log)
        except (ValueError, NotFound) as fault:
            raise PermanentError(f"the event cannot be read: {str(fault)[:300]}") from fault
        if isinstance(event.body, ExecutionFinished):
            await self._record(event, first=work.deliveries == 1)

    async def _record(self, ended: Event, *, first: bool) -> None:
        tenant, execution_id = ended.tenant, ended.execution_id
        if first and self.store.graph(tenant).execution(execution_id) is not None:
            # The consumer was made anew and tells everything again; what was forgotten since is to stay forgotten.
            return
        try:
            state, events = await self._read(tenant, execution_id)
        except (PreconditionFailed, NotFound) as fault:
            raise PermanentError(f"the events of {execution_id} cannot be read: {fault.message}") from fault
        if state is None or not state.status.terminal:
            raise PermanentError(f"the beginning of {execution_id} is not in the log any more")
        if state.task.kind in (TaskKind.JUDGE, TaskKind.PLAN):
            # Nobody worked, and there is nothing to remember; or whoever carried the plan out has told its outcome.
            return
        refused: list[str] = []
        postponed: list[FleetError] = []
        # The work last: whoever sees it finds the rest. Where memories cannot be kept now, it is known all the same.
        for part in (self._keep_lessons, self._keep_outcome, self._close_task, self._keep_work):
            try:
                await part(state, events)
            except InvalidRequest as fault:
                refused.append(f"{fault.field}: {fault}")
            except FleetError as fault:
                # Whatever is wrong with one of them, the others are kept.
                postponed.append(fault)
        if postponed:
            raise postponed[0]
        if refused:
            raise PermanentError(f"not all of {execution_id} was taken: {'; '.join(refused)}")
        _log.debug("recorder.recorded", execution=execution_id, status=str(state.status))

    async def _keep_lessons(self, state: ExecutionState, events: Sequence[StoredEvent]) -> None:
        if state.task.memory.write:
            for memory in lessons(state, events):
                await self.memories.remember(memory)

    async def _keep_outcome(self, state: ExecutionState, events: Sequence[StoredEvent]) -> None:
        await self.outcomes.record(outcome_of(state, events))

    async def _close_task(self, state: ExecutionState, events: Sequence[StoredEvent]) -> None:
        """The task of a story that an orchestration was about is done with it."""
        del events
        task = state.task
        if task.kind is not TaskKind.ORCHESTRATE or state.status is not ExecutionStatus.COMPLETED:
            return
        story = self.store.graph(task.tenant).stories.get(task.story_id)
        known = story.tasks.get(task.task_id) if story is not None else None
        if known is None or known.state not in OPEN:
            return
        await self.store.update(task.tenant, task.story_id, StoryUpdated(task_id=task.task_id, state=TaskState.DONE))

    async def _keep_work(self, state: ExecutionState, events: Sequence[StoredEvent]) -> None:
        await self.store.record_work(state.task.tenant, work_record(state, events))

    async def _read(self, tenant: str, execution_id: str) -> tuple[ExecutionState | None, list[StoredEvent]]:
        """The state of an execution and its events, those of its agents too, as far as they say what was done."""
        state: ExecutionState | None = None
        kept: list[StoredEvent] = []
        async with aclosing(self.log.read(tenant, execution_id)) as events:
            async for stored in events:
                state = advance(state, stored)
                if (slim := _without_prompts(stored)) is not None:
                    kept.append(slim)
        return state, kept


def _without_prompts(stored: StoredEvent) -> StoredEvent | None:
    """An event without what models were told, by far the most of the log; None where nothing else is in it."""
    match stored.event.body:
        case MessageAdded() | HistoryCondensed():
            return None
        case RunStarted() as body:
            return replace(stored, event=replace(stored.event, body=replace(body, messages=())))
        case _:
            return stored


@asynccontextmanager
async def open_recorder(recorder: Recorder, *, queue: WorkQueue = RECORDER) -> AsyncGenerator[asyncio.Task[None]]:
    """Record until the context ends; what is under way then goes to the other replicas.

    Yields the task that does it. One that is done before has met a fault, which is logged.
    """
    consuming = recorder.log.consume(queue, recorder.handle)
    fault = "no more executions are recorded"
    async with in_background(consuming, name="recorder", fault=fault, consumer=queue.consumer) as (consumer,):
        yield consumer
