"""The knowledge graph of a tenant's projects: a fold over the changes of a `ChangeLog` and nothing else.

Changes of one story come in the order of their versions, records of work once for each execution; between stories the
order does not matter. So a replica may apply its own change before it has received earlier ones of other replicas, and
ends with the same graph. A follower keeps the graphs of all tenants up to date. A file is a node of one repository.
"""

from __future__ import annotations

import asyncio
import re
import sys
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain, groupby, takewhile
from operator import itemgetter
from typing import Self

from swe_ai_fleet.codec import from_json, to_json
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
from swe_ai_fleet.extensions.knowledge import story
from swe_ai_fleet.extensions.knowledge.story import StoryState, advance
from swe_ai_fleet.following import Follower
from swe_ai_fleet.ports import ChangeLog
from swe_ai_fleet.snapshots import Archive, Snapshots

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
class LoggedWork:
    """A record of work with its sequence number in the log."""

    sequence: int
    record: WorkRecord


class ContextGraph:
    """The knowledge of one tenant. The same changes make equal graphs. Made by `fold`, changed by `apply`.

    Stories are in memory, records of work in a file of this process.
    """

    def __init__(self, work: Archive[LoggedWork] | None = None) -> None:
        self._stories: dict[str, StoryState] = {}
        self._work = work or Archive(LoggedWork)
        self._cases: dict[str, list[tuple[str, str]]] = {}
        self._holders: dict[str, set[str]] = {}
        self._erased_at = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContextGraph):
            return NotImplemented
        return self._stories == other._stories and sorted(self._work.lines()) == sorted(other._work.lines())

    __hash__: None = None  # mutable

    @property
    def stories(self) -> Mapping[str, StoryState]:
        """All stories by id; `NO_STORY` stands for items that belong to no story."""
        return self._stories

    def version(self, story_id: str) -> int:
        """How many changes a story has had; 0 if it does not exist."""
        state = self._stories.get(story_id)
        return state.version if state else 0

    def story(self, story_id: str) -> StoryState:
        """A story that was created. Raises NotFound."""
        state = self._stories.get(story_id)
        if state is None or state.story is None:
            raise NotFound(f"there is no story {story_id[:64]!r}", field="story_id", hint="create it with CreateStory")
        return state

    def common(self) -> StoryState:
        """The decisions for the whole project."""
        return self._stories.get(NO_STORY) or StoryState(story_id=NO_STORY)

    def task(self, task_id: str) -> StoryTask:
        """The task of that id. Raises NotFound, InvalidRequest (several stories have it)."""
        tasks = self.tasks(task_id)
        if len(tasks) > 1:
            raise InvalidRequest(f"several stories have a task {task_id[:64]!r}", field="task_id", hint="set story_id")
        if not tasks:
            raise NotFound(f"there is no task {task_id[:64]!r}", field="task_id", hint="create it with CreateTask")
        return tasks[0]

    def tasks(self, task_id: str) -> tuple[StoryTask, ...]:
        """The tasks of that id, in the order of their stories' ids."""
        stories = sorted(self._holders.get(f"task:{task_id}", ()))
        tasks = [self._stories[story].tasks.get(task_id) for story in stories if story in self._stories]
        return tuple(task for task in tasks if task is not None)

    def decisions(self, decision_id: str) -> tuple[Decision, ...]:
        """The decisions of that id, in the order of their stories' ids."""
        stories = sorted(self._holders.get(f"decision:{decision_id}", ()))
        decisions = [self._stories[story].decisions.get(decision_id) for story in stories if story in self._stories]
        return tuple(decision for decision in decisions if decision is not None)

    def case(self, case_id: str, *, limit: int = 0) -> tuple[StoryState, ...]:
        """The stories of a case, in the order of their creation; at most the last `limit` (0: all)."""
        return tuple(self._stories[story_id] for _, story_id in self._cases.get(case_id, ())[-limit:])

    def work(self, node: str, *, limit: int = 0) -> tuple[LoggedWork, ...]:
        """The records of work on a node, the newest first.

        Args:
            node: `story:<id>`, `task:<id>`, `case:<id>`, `file:<repository>/<path>`, `commit:<id>`, or `execution:<id>`
                (its parts).
            limit: The most records to return; 0: all.
        """
        return tuple(self._work.newest(node, limit=limit or -1))

    def execution(self, execution_id: str) -> LoggedWork | None:
        """The record of one execution; None if there is none."""
        return self._work.get(execution_id)

    def excerpt(self, stories: Iterable[StoryState], *, neighbours: int) -> ContextGraph:
        """The part of the graph about these stories, for another thread: only records of work may be added meanwhile.

        Args:
            stories: Stories of this graph.
            neighbours: How many other stories of their cases are included, those created last.
        """
        part = ContextGraph(self._work)
        part._stories[NO_STORY] = self.common()
        for state in stories:
            part._stories[state.story_id] = state
            case_id = state.story.case_id if state.story else ""
            if case_id and case_id not in part._cases:
                part._cases[case_id] = self._cases.get(case_id, [])[-neighbours - 1 :]
                part._stories.update((state.story_id, state) for state in self.case(case_id, limit=neighbours + 1))
        return part

    def dump(self) -> Iterator[bytes]:
        """The graph as lines of JSON, which the caller may read in a thread."""
        return chain(map(to_json, list(self._stories.values())), [b""], self._work.lines())

    def load(self, lines: Iterator[bytes]) -> None:
        """Load the `dump` of another graph. Raises ValueError."""
        for line in takewhile(bool, lines):
            state = from_json(StoryState, line)
            self._stories[state.story_id] = state
            if state.story is not None and state.story.case_id:
                insort(self._cases.setdefault(state.story.case_id, []), (state.story.created_at, state.story_id))
            for name in (
                *(f"task:{subject_id}" for subject_id in state.tasks),
                *(f"decision:{subject_id}" for subject_id in state.decisions),
            ):
                self._holders.setdefault(name, set()).add(state.story_id)
        self._work.load(lines)

    def apply(self, stored: StoredChange) -> bool:
        """Apply a change; False if it was applied before."""
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
            return self._work.drop(execution_id)
        if sequence <= self._erased_at:
            return False
        self._erased_at = sequence
        for table in (self._stories, self._work, self._cases, self._holders):
            table.clear()
        return True

    def _record(self, record: WorkRecord, sequence: int) -> bool:
        if self._work.get(record.execution_id) is not None:
            return False
        work = LoggedWork(sequence=sequence, record=record)
        self._work.put(record.execution_id, work, sort=f"{sequence:020}", labels=dict.fromkeys(_worked_on(record)))
        return True


def fold(changes: Iterable[StoredChange]) -> Mapping[str, ContextGraph]:
    """The graphs of all tenants after these changes, oldest first."""
    graphs: dict[str, ContextGraph] = {}
    for stored in changes:
        graphs.setdefault(stored.change.tenant, ContextGraph()).apply(stored)
    return graphs


def _worked_on(record: WorkRecord) -> Iterator[str]:
    """The nodes that a record is about."""
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
    """Follows a log of changes, in its async context.

    Args:
        log: The log to follow.
        snapshots: Stores the graphs; None: after a restart, the whole log is read again.
    """

    def __init__(self, log: ChangeLog, snapshots: Snapshots | None = None) -> None:
        self._log = log
        self._graphs: dict[str, ContextGraph] = {}
        self._following = Follower(
            "the log of changes",
            lambda position: log.read(from_sequence=position, follow=True),
            self._take,
            hint="restart the context service",
            snapshot=None
            if snapshots is None
            else snapshots.of("graph", sys.modules[__name__], story, dump=self._dump, load=self._load),
        )

    async def __aenter__(self) -> Self:
        """Read what is stored, then follow in the background. Raises NotFound (no such stream), Unavailable."""
        await self._following.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._following.stop()

    def graph(self, tenant: str) -> ContextGraph:
        """The graph of a tenant, which changes with the log. Raises Unavailable if following has ended."""
        self._following.check()
        return self._graphs.get(tenant) or ContextGraph()

    def apply(self, stored: StoredChange) -> None:
        """Apply a change at once, before it arrives through the log."""
        self._graphs.setdefault(stored.change.tenant, ContextGraph()).apply(stored)

    async def catch_up(self) -> None:
        """Apply everything that is now in the log, from all replicas. Raises Unavailable."""
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                # In order, so that no change is applied before those that it depends on.
                async with aclosing(self._log.read(from_sequence=self._following.position + 1)) as changes:
                    async for stored in changes:
                        if stored is not None:
                            self.apply(stored)
        except TimeoutError:
            raise Unavailable("the log of changes does not answer", hint="is NATS running and reachable?") from None

    def _take(self, stored: StoredChange) -> int:
        self.apply(stored)
        return stored.sequence

    def _dump(self) -> Iterator[bytes]:
        each = [(tenant.encode(), graph.dump()) for tenant, graph in self._graphs.items()]
        return (tenant + b" " + line for tenant, lines in each for line in lines)

    def _load(self, lines: Iterator[bytes]) -> None:
        self._graphs = {}
        for tenant, group in groupby((line.partition(b" ") for line in lines), key=itemgetter(0)):
            self._graphs[tenant.decode()] = graph = ContextGraph()
            graph.load(rest for _, _, rest in group)
