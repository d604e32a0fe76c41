"""The knowledge graph of a tenant's projects: a fold over the changes of a `ChangeLog` and nothing else.

Changes of one story come in the order of their versions, records of work once for each execution; between stories the
order does not matter. So a replica may apply its own change before it has received earlier ones of other replicas, and
ends with the same graph. A follower keeps the graphs of all tenants up to date. A file is a node of one repository.
"""

from __future__ import annotations

import asyncio
import re
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from swe_ai_fleet.context.story import StoryState, advance
from swe_ai_fleet.domain.context import (
    NO_STORY,
    Decision,
    DecisionAdded,
    KnowledgeErased,
    StoredChange,
    StoryCreated,
    StoryTask,
    TaskCreated,
    WorkRecord,
    WorkRecorded,
)
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound, Unavailable
from swe_ai_fleet.following import Follower
from swe_ai_fleet.ports import ChangeLog

_PARTS = 2
_PORT = re.compile(r":[0-9]{1,5}(?=/)")
_TIMEOUT_SECONDS = 5.0


def file_node(repository: str, path: str) -> str:
    """The node of a file: `file:<repository>/<path>`, without a repository `file:<path>`."""
    name = repository_name(repository)
    return f"file:{name}/{path}" if name else f"file:{path}"


def repository_name(location: str) -> str:
    """The name of a repository: the last two parts of its location, as in `acme/app`; empty for none.

    It is the same for clones over HTTPS and SSH, and for a mirror of that name.
    """
    place = _PORT.sub("", location.partition("://")[2] or location).rstrip("/").removesuffix(".git")
    parts = [part for part in re.split(r"[/:\\]", place) if part.strip(". ")]
    return "/".join(parts[-_PARTS:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A record of work with its sequence number in the log."""

    sequence: int
    record: WorkRecord


class ContextGraph:
    """The knowledge of one tenant. The same changes make equal graphs. Made by `fold`, changed by `apply`."""

    def __init__(self) -> None:
        self._stories: dict[str, StoryState] = {}
        self._work: dict[str, Work] = {}
        self._cases: dict[str, list[tuple[str, str]]] = {}
        self._holders: dict[str, set[str]] = {}
        self._work_of: dict[str, list[tuple[int, str]]] = {}
        self._erased_at = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContextGraph):
            return NotImplemented
        return self._stories == other._stories and self._work == other._work

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it goes on changing

    @property
    def stories(self) -> Mapping[str, StoryState]:
        """All stories by id; `NO_STORY` stands for items that belong to no story."""
        return self._stories

    def version(self, story_id: str) -> int:
        """How many changes a story has had; 0 where there is none."""
        state = self._stories.get(story_id)
        return state.version if state else 0

    def story(self, story_id: str, *, field: str = "story_id") -> StoryState:
        """A story that was created. Raises NotFound with `field`."""
        state = self._stories.get(story_id)
        if state is None or state.story is None:
            raise NotFound(f"there is no story {story_id[:64]!r}", field=field, hint="create it with CreateStory")
        return state

    def common(self) -> StoryState:
        """The decisions for the whole project."""
        return self._stories.get(NO_STORY) or StoryState(story_id=NO_STORY)

    def task(self, task_id: str, story_id: str = "", *, field: str = "task_id") -> StoryTask:
        """A story's task; the story need not be named where one alone has such a task.

        Raises NotFound, InvalidRequest (several stories have it), both with `field`.
        """
        tasks = self.tasks(task_id, story_id)
        if len(tasks) > 1:
            raise InvalidRequest(f"several stories have a task {task_id[:64]!r}", field=field, hint="set story_id")
        if not tasks:
            where = f"story {story_id[:64]!r} has" if story_id else "there is"
            raise NotFound(f"{where} no task {task_id[:64]!r}", field=field, hint="create it with CreateTask")
        return tasks[0]

    def tasks(self, task_id: str, story_id: str = "") -> tuple[StoryTask, ...]:
        """The tasks of that id, in the order of their stories' ids; none where nobody knows it."""
        stories = [story_id] if story_id else sorted(self._holders.get(f"task:{task_id}", ()))
        tasks = [self._stories[story].tasks.get(task_id) for story in stories if story in self._stories]
        return tuple(task for task in tasks if task is not None)

    def decisions(self, decision_id: str, story_id: str = "") -> tuple[Decision, ...]:
        """The decisions of that id, in the order of their stories' ids; none where nobody knows it."""
        stories = [story_id] if story_id else sorted(self._holders.get(f"decision:{decision_id}", ()))
        decisions = [self._stories[story].decisions.get(decision_id) for story in stories if story in self._stories]
        return tuple(decision for decision in decisions if decision is not None)

    def case(self, case_id: str, *, limit: int = 0) -> tuple[StoryState, ...]:
        """The stories of a case, in the order of their creation; none where nobody knows it.

        Of more than `limit` those created last; 0: all of them.
        """
        return tuple(self._stories[story_id] for _, story_id in self._cases.get(case_id, ())[-limit:])

    def work(self, node: str, *, limit: int = 0) -> tuple[Work, ...]:
        """What executions did for a story, a task or a case, to a file, with a commit, or as parts of an execution.

        The newest first; `limit` 0: all of it.

        Args:
            node: `story:<id>`, `task:<id>`, `case:<id>`, `file:<repository>/<path>`, `commit:<id>`, or `execution:<id>`
                (its parts).
            limit: The most that is returned.
        """
        entries = self._work_of.get(node, ())
        return tuple(self._work[execution_id] for _, execution_id in reversed(entries[-limit:]))

    def execution(self, execution_id: str) -> Work | None:
        """What one execution did, None where it is not recorded."""
        return self._work.get(execution_id)

    def excerpt(self, stories: Iterable[StoryState], *, task_id: str = "", neighbours: int, work: int) -> ContextGraph:
        """The part of the graph that concerns these stories, as a graph of its own that does not change.

        Args:
            stories: Some of this graph's.
            task_id: A task whose work is wanted too.
            neighbours: How many other stories of their cases come with them, those created last.
            work: How many records of each story and of the task, the newest.
        """
        part = ContextGraph()
        part._stories[NO_STORY] = self.common()
        for state in stories:
            part._stories[state.story_id] = state
            case_id = state.story.case_id if state.story else ""
            if case_id and case_id not in part._cases:
                part._cases[case_id] = self._cases.get(case_id, [])[-neighbours - 1 :]
                part._stories.update((state.story_id, state) for state in self.case(case_id, limit=neighbours + 1))
            part._work_of[f"story:{state.story_id}"] = self._work_of.get(f"story:{state.story_id}", [])[-work:]
        if task_id:
            part._work_of[f"task:{task_id}"] = self._work_of.get(f"task:{task_id}", [])[-work:]
        for entries in part._work_of.values():
            part._work.update((execution_id, self._work[execution_id]) for _, execution_id in entries)
        return part

    def apply(self, stored: StoredChange) -> bool:
        """Apply a change; False where it was applied before."""
        change = stored.change
        if isinstance(change.body, WorkRecorded):
            return self._record(change.body.record, stored.sequence)
        if isinstance(change.body, KnowledgeErased):
            return self._erase(change.body.execution_id, stored.sequence)
        state = self._stories.get(change.story_id) or StoryState(story_id=change.story_id)
        if change.version <= state.version:
            return False
        changed = advance(state, stored)
        self._stories[change.story_id] = changed
        match change.body:
            case StoryCreated(story=story) if story.case_id:
                insort(self._cases.setdefault(story.case_id, []), (story.created_at, story.story_id))
            case TaskCreated(task=task):
                self._holders.setdefault(f"task:{task.task_id}", set()).add(change.story_id)
            case DecisionAdded(decision=decision):
                self._holders.setdefault(f"decision:{decision.decision_id}", set()).add(change.story_id)
            case _:
                pass
        return True

    def _erase(self, execution_id: str, sequence: int) -> bool:
        if execution_id:
            work = self._work.pop(execution_id, None)
            if work is None:
                return False
            for node in dict.fromkeys(_worked_on(work.record)):
                self._work_of[node].remove((work.sequence, execution_id))
            return True
        if sequence <= self._erased_at:
            return False
        self._erased_at = sequence
        for known in (self._stories, self._work, self._cases, self._holders, self._work_of):
            known.clear()
        return True

    def _record(self, record: WorkRecord, sequence: int) -> bool:
        if record.execution_id in self._work:
            return False
        self._work[record.execution_id] = Work(sequence=sequence, record=record)
        for node in dict.fromkeys(_worked_on(record)):
            insort(self._work_of.setdefault(node, []), (sequence, record.execution_id))
        return True


def fold(changes: Iterable[StoredChange]) -> Mapping[str, ContextGraph]:
    """The graphs of all tenants that these changes, oldest first, lead to."""
    graphs: dict[str, ContextGraph] = {}
    for stored in changes:
        graphs.setdefault(stored.change.tenant, ContextGraph()).apply(stored)
    return graphs


def _worked_on(record: WorkRecord) -> Iterator[str]:
    """The nodes under which a record is found."""
    if record.story_id != NO_STORY:
        yield f"story:{record.story_id}"
    if record.task_id:
        yield f"task:{record.task_id}"
    if record.case_id:
        yield f"case:{record.case_id}"
    if record.parent_execution_id:
        yield f"execution:{record.parent_execution_id}"
    for path in record.files_changed:
        yield file_node(record.repository, path)
    for commit in record.commits:
        yield f"commit:{commit}"


class GraphFollower:
    """Follows a log of changes. After a restart it reads the whole log again, since it has no other state.

    Args:
        log: What to follow.
    """

    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        self._graphs: dict[str, ContextGraph] = {}
        self._following = Follower(
            "the log of changes",
            lambda position: log.read(from_sequence=position, follow=True),
            self._take,
            hint="restart the context service",
        )

    async def start(self) -> None:
        """Read what is stored, then follow in the background. Raises NotFound (no such stream), Unavailable."""
        await self._following.start()

    async def stop(self) -> None:
        """Follow no longer."""
        await self._following.stop()

    def graph(self, tenant: str) -> ContextGraph:
        """The graph of a tenant. Raises Unavailable where it would become stale unnoticed."""
        self._following.check()
        return self._graphs.get(tenant) or ContextGraph()

    def apply(self, stored: StoredChange) -> None:
        """Apply a change at once, before it arrives through the log."""
        self._graphs.setdefault(stored.change.tenant, ContextGraph()).apply(stored)

    async def catch_up(self) -> None:
        """Apply everything that is in the log now, of all replicas. Raises Unavailable."""
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                # Changes come in order here as well, so none is applied before those that it builds on.
                async with aclosing(self._log.read(from_sequence=self._following.position + 1)) as changes:
                    async for stored in changes:
                        if stored is not None:
                            self.apply(stored)
        except TimeoutError:
            raise Unavailable("the log of changes does not answer", hint="is NATS running and reachable?") from None

    def _take(self, stored: StoredChange) -> int:
        self.apply(stored)
        return stored.sequence
