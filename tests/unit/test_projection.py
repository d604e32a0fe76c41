"""What a replica knows of all executions: which ones it finds, and what it keeps of them in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.errors import NotFound, Unavailable
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.projection import Projection

TASK = Task(task_id="t", kind=TaskKind.DELIBERATE, description="x", repo=RepoRef(location="/r"), tenant="acme")
ENDED = ev.ExecutionFinished(status=ev.ExecutionStatus.COMPLETED, winner_id="", usage=Usage(), duration_ms=1)
CLAIMED = ev.ExecutionClaimed(generation=1, owner="o")


class Heads:
    """A log of which only the heads are read, one list of events; it fails where it is told to."""

    def __init__(self, *events: ev.Event, fault: Unavailable | None = None) -> None:
        self._events = events
        self._fault = fault
        self.read = 0

    async def heads(
        self, *, from_sequence: int = 0, follow: bool = False
    ) -> AsyncGenerator[ev.StoredEvent | None, None]:
        if self._fault is not None:
            raise self._fault
        for sequence, event in enumerate(self._events, start=1):
            if sequence >= from_sequence:
                self.read += 1
                yield ev.StoredEvent(sequence=sequence, event=event)
        if follow:
            yield None
            await asyncio.Event().wait()


def event(execution_id: str, body: ev.EventBody, *, at: str = "12:00", tenant: str = "acme") -> ev.Event:
    return ev.Event(
        id=f"{execution_id}/{body.type}",
        tenant=tenant,
        execution_id=execution_id,
        task_id="t",
        agent_id=ev.EXECUTION_SUBJECT,
        at=f"2026-01-01T{at}:00.000+00:00",
        body=body,
    )


def begun(execution_id: str, *, at: str = "12:00", **changes: object) -> ev.Event:
    task = replace(TASK, **changes)
    repository = PinnedRepository(tenant=task.tenant, location="r", commit="c" * 40)
    body = ev.ExecutionStarted(task=task, repository=repository, fingerprint="f")
    return event(execution_id, body, at=at, tenant=task.tenant)


@asynccontextmanager
async def following(log: Heads | MemoryLog) -> AsyncGenerator[Projection]:
    projection = Projection(log)
    await projection.start()
    try:
        yield projection
    finally:
        await projection.stop()


def names(found: Iterable[ExecutionState]) -> list[str]:
    return [state.execution_id for state in found]


async def test_executions_are_selected_by_each_thing_and_the_newest_comes_first() -> None:
    log = Heads(
        begun("a", at="10:00"),
        begun("b", at="11:00", role=Role.QA),
        begun("d", at="12:00", task_id="other"),
        begun("c", at="12:00"),
        begun("x", tenant="umbrella"),
        event("c", CLAIMED),
    )
    async with following(log) as known:
        assert names(known.select("acme")) == ["d", "c", "b", "a"]
        assert names(known.select("acme", task_id="other")) == ["d"]
        assert names(known.select("acme", role=Role.QA)) == ["b"]
        assert names(known.select("acme", statuses=frozenset({ev.ExecutionStatus.IN_PROGRESS}))) == ["c"]
        # From the first moment on, up to before the second.
        after, before = "2026-01-01T11:00:00.000+00:00", "2026-01-01T12:00:00.000+00:00"
        assert names(known.select("acme", created_after=after, created_before=before)) == ["b"]
        assert names(known.select("umbrella")) == ["x"]
        assert names(known.select("acme", behind=("2026-01-01T12:00:00.000+00:00", "d"))) == ["c", "b", "a"]
        assert set(names(known.unfinished())) == {"a", "b", "c", "d", "x"}


async def test_the_latest_of_a_task_is_its_highest_attempt() -> None:
    log = Heads(
        begun("second", attempt=2, at="10:00"),
        begun("first", attempt=1, at="11:00"),
        begun("other", attempt=2, at="12:00", kind=TaskKind.ORCHESTRATE),
        begun("else", attempt=9, task_id="else"),
        begun("foreign", attempt=9, tenant="umbrella"),
    )
    async with following(log) as known:
        found = {kind: known.latest("acme", "t", kind) for kind in (TaskKind.DELIBERATE, TaskKind.ORCHESTRATE, None)}
        assert [state and state.execution_id for state in found.values()] == ["second", "other", "other"]
        assert known.latest("acme", "nobody's", None) is None


async def test_an_accepted_execution_is_known_at_once_and_what_was_heard_of_it_stays() -> None:
    async with following(Heads(begun("a"), event("a", CLAIMED))) as known:
        known.accepted(begun("b"))
        known.accepted(begun("a"))
        known.accepted(event("c", ev.CancelRequested()))
        assert names(known.unfinished()) == ["a", "b"]
        state = known.get("acme", "a")
        assert state is not None and state.owner == "o"
        assert known.get("acme", "b") is not None and known.get("acme", "c") is None


async def test_an_execution_is_over_once_it_ended_and_that_was_told() -> None:
    log = (begun("a"), event("a", ENDED), begun("b"), event("b", ENDED), event("?", ENDED))
    async with following(Heads(*log)) as known:
        assert names(known.unfinished()) == ["a", "b"]
        assert (known.end_sequence("acme", "b"), known.end_sequence("acme", "none")) == (4, 0)
        # Of one that nobody began is told that there is none.
        with pytest.raises(NotFound, match=r"no execution '\?'") as told:
            await known.finished("acme", "?")
        assert told.value.field == "execution_id"
    async with following(Heads(*log, event("a", ev.ResultPublished()))) as known:
        assert names(known.unfinished()) == ["b"]
        assert (await known.finished("acme", "a")).status is ev.ExecutionStatus.COMPLETED


async def test_what_only_drivers_need_is_not_kept() -> None:
    node = ev.NodeUpdated(node_id="n", status=ev.NodeStatus.RUNNING, inputs="long", output="longer", attempt=2)
    gathered = ev.ContextGathered(context=GatheredContext(text="long", tokens=3, version="v"))
    output = ev.WorkflowFinished(output="all of it")
    told = {"goes on": (node, gathered, output), "ended": (gathered, output, ENDED), "bare": (output, ENDED)}
    log = [one for name, bodies in told.items() for one in (begun(name), *(event(name, body) for body in bodies))]
    async with following(Heads(*log)) as known:
        on, ended, bare = (known.get("acme", name) for name in told)
    assert on is not None and ended is not None and bare is not None
    assert on.nodes == {"n": replace(node, inputs="", output="")}
    assert (on.context, on.output) == (gathered.context, output)
    assert (ended.context, ended.output) == (GatheredContext(tokens=3, version="v"), None)
    assert (bare.context, bare.output) == (None, None)


async def test_only_news_is_passed_on() -> None:
    log, heard = MemoryLog(), asyncio.Queue[ev.StoredEvent]()
    own = ev.Writer(tenant="acme", execution_id="a", task_id="t", generation=1)
    await log.tell(own, begun("a").body)
    projection = Projection(log, heard.put_nowait)
    await projection.start()
    try:
        await log.tell(own, CLAIMED)
        async with asyncio.timeout(5):
            assert (await heard.get()).event.body == CLAIMED
    finally:
        await projection.stop()
