"""The graph of what a project knows: how it is asked, and what it answers where there is nothing or too much."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from swe_ai_fleet.domain.context import (
    NO_STORY,
    Change,
    ChangeBody,
    Decision,
    DecisionAdded,
    KnowledgeErased,
    StoredChange,
    Story,
    StoryCreated,
    StoryTask,
    TaskCreated,
    WorkRecord,
    WorkRecorded,
)
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound, Unavailable
from swe_ai_fleet.extensions.knowledge.graph import ContextGraph, GraphFollower, fold
from swe_ai_fleet.snapshots import Snapshots
from swe_ai_fleet.testing.memory_stores import MemoryChanges, MemoryKeyValue
from tests.simulation.virtual_loop import on_virtual_time

LONG = "x" * 70


def stored(*bodies: tuple[str, ChangeBody]) -> list[StoredChange]:
    """The changes, each the next version of its story."""
    versions = Counter[str]()
    made: list[StoredChange] = []
    for sequence, (story_id, body) in enumerate(bodies, start=1):
        versions[story_id] += 1
        at = f"2026-01-01T00:00:{sequence:02}+00:00"
        change = Change(tenant="acme", story_id=story_id, version=versions[story_id], at=at, body=body)
        made.append(StoredChange(sequence=sequence, change=change))
    return made


def story(name: str, case_id: str = "") -> tuple[str, ChangeBody]:
    return name, StoryCreated(story=Story(story_id=name, title=name, case_id=case_id, created_at=name))


def task(name: str, story_id: str) -> tuple[str, ChangeBody]:
    return story_id, TaskCreated(task=StoryTask(task_id=name, story_id=story_id, title=name))


def decided(name: str, story_id: str) -> tuple[str, ChangeBody]:
    return story_id, DecisionAdded(decision=Decision(decision_id=name, story_id=story_id, title=name))


def worked(execution_id: str, *, task_id: str = "", story_id: str = NO_STORY, **fields: str) -> tuple[str, ChangeBody]:
    record = WorkRecord(execution_id=execution_id, task_id=task_id, story_id=story_id, repository="r")
    return NO_STORY, WorkRecorded(record=replace(record, **fields))


def erased(execution_id: str = "") -> tuple[str, ChangeBody]:
    return NO_STORY, KnowledgeErased(execution_id=execution_id)


def graph(*bodies: tuple[str, ChangeBody]) -> ContextGraph:
    return fold(stored(*bodies)).get("acme", ContextGraph())


def test_tasks_and_decisions_are_found_in_one_story_or_in_all() -> None:
    known = graph(
        *(story("S-1"), story("S-2"), task("T-1", "S-1"), task("T-2", "S-1"), task("T-2", "S-2")),
        *(decided("D-1", "S-2"), decided("D-1", "S-1")),
    )
    assert known.task("T-1").story_id == "S-1"
    assert [one.story_id for one in known.tasks("T-2")] == ["S-1", "S-2"]
    assert known.tasks("T-9") == ()
    assert [one.story_id for one in known.decisions("D-1")] == ["S-1", "S-2"]
    assert known.decisions("D-9") == ()


def test_what_is_not_there_or_there_twice_is_told_with_its_field() -> None:
    known = graph(story("S-1"), story("S-2"), task("T-2", "S-1"), task("T-2", "S-2"), decided("D-1", "S-3"))
    with pytest.raises(InvalidRequest, match="several stories have a task 'T-2'") as several:
        known.task("T-2")
    assert (several.value.field, several.value.hint) == ("task_id", "set story_id")
    with pytest.raises(NotFound, match=f"^there is no task '{'x' * 64}'") as nowhere:
        known.task(LONG)
    assert nowhere.value.field == "task_id"
    # A story that is spoken of is none before it is created.
    for name in ("S-9", "S-3"):
        with pytest.raises(NotFound, match=f"there is no story '{name}'") as absent:
            known.story(name)
        assert absent.value.field == "story_id"
    assert (known.version("S-9"), known.version("S-3"), known.version("S-1")) == (0, 1, 2)


def test_work_is_found_where_it_was_done_and_nowhere_else() -> None:
    known = graph(
        worked("e1", task_id="T"), worked("e2", task_id="T", case_id="C"), worked("e3", parent_execution_id="e1")
    )
    assert [work.record.execution_id for work in known.work("task:T")] == ["e2", "e1"]
    assert [work.record.execution_id for work in known.work("task:T", limit=1)] == ["e2"]
    assert [work.record.execution_id for work in known.work("case:C")] == ["e2"]
    assert [work.record.execution_id for work in known.work("execution:e1")] == ["e3"]
    for nothing in ("case:", f"story:{NO_STORY}", "task:"):
        assert known.work(nothing) == ()


def test_a_change_is_taken_in_once() -> None:
    known = ContextGraph()
    changes = stored(story("S-1"), worked("e1"), task("T", "S-1"))
    assert [known.apply(change) for change in changes] == [True, True, True]
    assert [known.apply(change) for change in changes] == [False, False, False]
    # Graphs are equal where stories and work are.
    assert known == fold(changes)["acme"]
    of_other_work = graph(story("S-1"), worked("e2"), task("T", "S-1"))
    assert known not in (of_other_work, graph(story("S-1"), worked("e1")), "a graph")


def test_an_excerpt_has_a_storys_newest_neighbours_and_work() -> None:
    known = graph(
        *(story(f"S-{number}", "C") for number in range(1, 6)),
        story("S-6"),
        story("S-7"),
        *(worked(f"e{number}", story_id="S-1") for number in range(1, 4)),
        worked("e4", task_id="T"),
        worked("e5", task_id="other"),
    )
    part = known.excerpt([known.story("S-1"), known.story("S-6")], neighbours=2)
    # The story itself, and those of its case that were created last: the two wanted, and one in case it is among them.
    assert set(part.stories) == {NO_STORY, "S-1", "S-3", "S-4", "S-5", "S-6"}
    assert [one.story_id for one in part.case("C")] == ["S-3", "S-4", "S-5"]
    assert [work.record.execution_id for work in part.work("story:S-1", limit=2)] == ["e3", "e2"]
    assert [work.record.execution_id for work in part.work("task:T")] == ["e4"]
    assert part.case("") == ()
    # It stands still while the graph goes on.
    for change in stored(*(story(f"S-{number}", "C") for number in range(8, 10))):
        known.apply(change)
    assert [one.story_id for one in part.case("C")] == ["S-3", "S-4", "S-5"]


def test_what_is_erased_is_gone_and_no_older_erasure_takes_what_came_since() -> None:
    changes = stored(
        *(erased(), story("S-1", "C"), task("T", "S-1"), decided("D", "S-1"), worked("e1"), worked("e2")),
        *(erased("e1"), erased(), story("S-2")),
    )
    known = ContextGraph()
    assert {known.apply(change) for change in changes[:7]} == {True}
    work = known.execution("e2")
    assert (known.execution("e1"), work and work.record.execution_id) == (None, "e2")
    assert known.apply(changes[7]) is True
    assert (known, known.case("C"), known.tasks("T"), known.decisions("D")) == (ContextGraph(), (), (), ())
    known.apply(changes[8])
    assert [known.apply(changes[number]) for number in (0, 6, 7)] == [False, False, False]
    assert set(known.stories) == {"S-2"}


class NotedChanges(MemoryChanges):
    """A log that notes from where it is read; one that is `silent` gives no answer."""

    starts: tuple[int, ...] = ()
    silent = False

    async def read(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncGenerator[StoredChange | None, None]:
        self.starts += (from_sequence,)
        if self.silent:
            await asyncio.Event().wait()
        async for change in super().read(from_sequence=from_sequence, follow=follow):
            yield change


async def test_a_follower_begins_with_what_was_saved_and_reads_on_behind_it() -> None:
    log, bucket = NotedChanges(), MemoryKeyValue()
    snapshots = Snapshots(bucket=bucket, origin="o", pause=0.001, least=1)
    stories = (story("S-2", "C"), story("S-1", "C"), story("S-3"))
    changes = stored(*stories, task("T", "S-1"), decided("D", NO_STORY), worked("e1"))
    for change in changes:
        await log.append(change.change)
        await log.append(replace(change.change, tenant="umbrella"))
    async with GraphFollower(log, snapshots), asyncio.timeout(10):
        while not any(b'"position":12' in entry.value for entry in await bucket.entries()):
            await asyncio.sleep(0.001)
    logged = fold([change async for change in log.read() if change is not None])
    log.starts = ()
    async with GraphFollower(log, snapshots) as restored:
        for tenant in ("acme", "umbrella"):
            known = restored.graph(tenant)
            assert known == logged[tenant]
            assert [one.story_id for one in known.case("C")] == ["S-1", "S-2"] and known.case("") == ()
            assert (len(known.tasks("T")), len(known.decisions("D"))) == (1, 1)
        await log.append(replace(changes[0].change, story_id="S-9"))
        await restored.catch_up()
        assert (restored.graph("acme").version("S-9"), log.starts) == (1, (13, 13))
    log.silent = True
    with pytest.raises(Unavailable, match="does not answer"):
        await asyncio.to_thread(on_virtual_time, GraphFollower(log).catch_up())
