"""The store of project knowledge: use cases that change it, and a graph that follows the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakValueDictionary

from swe_ai_fleet.domain.context import (
    NO_STORY,
    Change,
    ChangeBody,
    Decision,
    DecisionAdded,
    Phase,
    PhaseChanged,
    Story,
    StoryCreated,
    StoryTask,
    StoryUpdated,
    TaskCreated,
    WorkRecord,
    WorkRecorded,
)
from swe_ai_fleet.domain.errors import AlreadyExists, Fenced, NotFound, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.extensions.knowledge.graph import ContextGraph, GraphFollower
from swe_ai_fleet.extensions.knowledge.rules import (
    check_decision,
    check_decision_texts,
    check_phase,
    check_reason,
    check_record,
    check_size,
    check_story,
    check_task,
    check_task_texts,
    check_update,
    check_update_texts,
)
from swe_ai_fleet.extensions.knowledge.story import Cleaner, StoryState, unchanged
from swe_ai_fleet.ports import ChangeLog, SecretMask
from swe_ai_fleet.snapshots import Snapshots

_TRIES = 20


class ContextStore(GraphFollower):
    """Stories, tasks, decisions, phases and records of work of all tenants. In its async context it follows the log.

    A replica sees its own changes at once, those of others as soon as they arrive through the log. Two concurrent
    changes of a story both succeed, one after the other, unless the later one names the version that it expects.

    Every use case that writes checks the change, masks its texts, and raises InvalidRequest (with `field`), NotFound
    (with `field`), PreconditionFailed (`field="expected_version"`: the story has another version by now, which the
    message names), AlreadyExists (the id is taken by something else), ResourceExhausted, Unavailable. Creating
    the same thing again changes nothing.

    Args:
        log: Stores the changes.
        snapshots: Stores the graphs; None: after a restart, the whole log is read again.
        mask: Hides secrets in every text before it is stored.
        now: Returns the present time, UTC, ISO 8601.
    """

    def __init__(
        self,
        log: ChangeLog,
        *,
        mask: SecretMask,
        now: Callable[[], str] = now,
        snapshots: Snapshots | None = None,
    ) -> None:
        super().__init__(log, snapshots)
        self._clean = Cleaner(mask)
        self._now = now
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def create_story(self, tenant: str, story: Story) -> StoryState:
        """Create a story, in its given phase. Its times are set here. Raises as the class says."""
        check_story(self.graph(tenant), story)
        now = self._now()
        story = replace(self._clean.story(story), created_at=now, updated_at=now)

        def decide(graph: ContextGraph, state: StoryState) -> ChangeBody | None:
            if state.story is None:
                return StoryCreated(story=story)
            existing = replace(state.story, phase=story.phase, created_at=now, updated_at=now)
            return _same(existing, story, "story_id", f"story {story.story_id}")

        return await self._write(tenant, story.story_id, None, decide)

    async def create_task(self, tenant: str, task: StoryTask, *, expected_version: int | None = None) -> StoryState:
        """Add a task to a story; `depends_on` are tasks of the same story. Raises as the class says."""
        check_task_texts(task)
        now = self._now()
        task = replace(self._clean.task(task), created_at=now, updated_at=now)

        def decide(graph: ContextGraph, state: StoryState) -> ChangeBody | None:
            graph.story(task.story_id)
            existing = state.tasks.get(task.task_id)
            if existing is not None:
                existing = replace(existing, state=task.state, created_at=now, updated_at=now)
                return _same(existing, task, "task_id", f"task {task.task_id}")
            check_task(graph, state, task)
            return TaskCreated(task=task)

        return await self._write(tenant, task.story_id, expected_version, decide)

    async def add_decision(self, tenant: str, decision: Decision, *, expected_version: int | None = None) -> StoryState:
        """Add a decision to a story, or (without `story_id`) to the whole project.

        `supersedes` is a decision of the same story that is not superseded yet. Raises as the class says.
        """
        check_decision_texts(decision)
        now = self._now()
        story_id = decision.story_id or NO_STORY
        decision = replace(self._clean.decision(decision), story_id=story_id, created_at=now)

        def decide(graph: ContextGraph, state: StoryState) -> ChangeBody | None:
            if story_id != NO_STORY:
                graph.story(story_id)
            existing = state.decisions.get(decision.decision_id)
            if existing is not None:
                existing = replace(existing, state=decision.state, created_at=now)
                return _same(existing, decision, "decision_id", f"decision {decision.decision_id}")
            check_decision(graph, state, decision)
            return DecisionAdded(decision=decision)

        return await self._write(tenant, story_id, expected_version, decide)

    async def change_phase(
        self,
        tenant: str,
        story_id: str,
        phase: Phase,
        *,
        reason: str = "",
        by: str = "",
        expected_version: int | None = None,
    ) -> StoryState:
        """Move a story one phase on, or (with a reason) back to an earlier one.

        Any other move raises PreconditionFailed with `field="phase"`; a move to the current phase changes nothing.
        """
        check_reason(reason, by)
        body = PhaseChanged(phase=phase, reason=self._clean.text(reason), by=self._clean.text(by))

        def decide(graph: ContextGraph, state: StoryState) -> ChangeBody | None:
            story = graph.story(story_id).story
            assert story is not None
            check_phase(story.phase, phase, body.reason)
            return None if story.phase is phase else body

        return await self._write(tenant, story_id, expected_version, decide)

    async def update(
        self, tenant: str, story_id: str, update: StoryUpdated, *, expected_version: int | None = None
    ) -> StoryState:
        """Change fields of a story, or (with `update.task_id`) of one of its tasks, or accept a proposed decision.

        A decision of the whole project has no story. An update without effect makes no new version. Raises as the
        class says.
        """
        check_update_texts(update)
        cleaned = self._clean.update(update)
        common = bool(update.decision_id) and not story_id

        def decide(graph: ContextGraph, state: StoryState) -> ChangeBody | None:
            if not common:
                graph.story(story_id)
            check_update(state, cleaned)
            return None if unchanged(state, cleaned) else cleaned

        return await self._write(tenant, NO_STORY if common else story_id, expected_version, decide)

    async def record_work(self, tenant: str, record: WorkRecord) -> bool:
        """Store the record of an execution; False if there is one already, which is not changed.

        The story and task that it names need not exist. Long texts are cut. Raises InvalidRequest, ResourceExhausted,
        Unavailable.
        """
        check_record(record)
        if self.graph(tenant).execution(record.execution_id) is not None:
            return False
        # Masking secrets in many paths and names takes a while.
        cleaned = await asyncio.to_thread(self._clean.record, record)
        record = replace(cleaned, story_id=record.story_id or NO_STORY)
        body = WorkRecorded(record=record)
        check_size(body)
        change = Change(tenant=tenant, story_id=record.story_id, version=0, at=self._now(), body=body)
        try:
            stored = await self._log.append(change)
        except AlreadyExists:
            await self.catch_up()
            return False
        self.apply(stored)
        return True

    async def _write(
        self,
        tenant: str,
        story_id: str,
        expected: int | None,
        decide: Callable[[ContextGraph, StoryState], ChangeBody | None],
    ) -> StoryState:
        """Decide on the current state and write the change (None: nothing); retried if another replica was faster."""
        turn = self._turns.setdefault((tenant, story_id), asyncio.Lock())
        may_be_behind = True
        async with turn:
            for _ in range(_TRIES):
                state = self.graph(tenant).stories.get(story_id) or StoryState(story_id=story_id)
                try:
                    _check_version(state, expected)
                    body = decide(self.graph(tenant), state)
                except (NotFound, PreconditionFailed, AlreadyExists):
                    if not may_be_behind:
                        raise
                    # The cause may be a change of another replica that has not arrived yet.
                    await self.catch_up()
                    may_be_behind = False
                    continue
                if body is None:
                    return state
                check_size(body)
                change = Change(tenant=tenant, story_id=story_id, version=state.version + 1, at=self._now(), body=body)
                try:
                    stored = await self._log.append(change)
                except Fenced:
                    await self.catch_up()
                    continue
                self.apply(stored)
                return self.graph(tenant).stories[story_id]
        raise Unavailable(f"story {story_id} is being changed too often", hint="try again")


def _check_version(state: StoryState, expected: int | None) -> None:
    """Check that a story has the version that the caller expects. Raises PreconditionFailed."""
    if expected is not None and state.version != expected:
        raise PreconditionFailed(
            f"version {expected} was expected; the story is at version {state.version}",
            field="expected_version",
            hint=f"reload the story, and send the change with version {state.version}",
        )


def _same(existing: object, new: object, field: str, name: str) -> None:
    """None if the existing item equals the new one. Raises AlreadyExists."""
    if existing != new:
        raise AlreadyExists(
            f"{name} exists with different content", field=field, hint="update it, or choose another id"
        )
