"""What a replica knows of all executions: which ones it finds, and what it keeps of them in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from swe_ai_fleet import snapshots
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.approval import ApprovalRequest
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.errors import NotFound, Unavailable
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator import projection as projection_module
from swe_ai_fleet.orchestrator.projection import Projection
from tests.sampling import sample

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


async def test_what_is_over_is_found_and_counted_with_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def done(one: ev.Event, took: int, status: str = "COMPLETED", *, told: bool = True) -> list[ev.Event]:
        bodies = (replace(ENDED, status=ev.ExecutionStatus[status], duration_ms=took), ev.ResultPublished())
        return [one, *(replace(one, body=body) for body in bodies[: 1 + told])]

    log = Heads(
        *done(begun("a-over", at="10:00"), 1),
        *done(begun("b-on", at="11:00", role=Role.QA), 20, told=False),
        *done(begun("b-over", at="12:00", role=Role.QA), 300, "FAILED"),
        *(begun("a-on", at="13:00", kind=TaskKind.ORCHESTRATE), event("a-on", CLAIMED)),
        event("a-on", ev.ApprovalAwaited(request=sample(ApprovalRequest))),
        *done(begun("c-over", at="14:00", role=Role.QA, task_id="other", kind=TaskKind.ORCHESTRATE), 4000, "CANCELLED"),
        *(*done(begun("x-over", tenant="umbrella"), 7), begun("y-on", tenant="third")),
    )
    async with following(log) as known:
        assert names(known.select("acme")) == ["c-over", "a-on", "b-over", "b-on", "a-over"]
        assert names(known.select("acme", task_id="t", role=Role.QA)) == ["b-over", "b-on"]
        ends = frozenset({ev.ExecutionStatus.COMPLETED, ev.ExecutionStatus.FAILED, ev.ExecutionStatus.CANCELLED})
        assert names(known.select("acme", statuses=ends)) == ["c-over", "b-over", "b-on", "a-over"]
        assert known.total("acme") == (5, 4, 4321)
        assert known.total("acme", role=Role.QA) == (3, 3, 4320)
        assert known.total("acme", kind=TaskKind.ORCHESTRATE) == (2, 1, 4000)
        assert (known.starting_with("acme", "b"), known.starting_with("acme", "x")) == ({"b-over", "b-on"}, set())
        assert known.over_ids() == {"a-over", "b-over", "c-over", "x-over"}
        assert (known.tenants(), known.awaiting_approval()) == ({"acme", "umbrella", "third"}, {"a-on"})
        # Of what is over, which may be very much, only that is read which the narrowest condition finds.
        read = list[bytes]()
        monkeypatch.setattr(snapshots, "from_json", lambda kind, data: (read.append(data), from_json(kind, data))[1])
        for asked, few in (
            ({}, 3),
            ({"role": Role.QA}, 2),
            ({"role": Role.QA, "statuses": frozenset({ev.ExecutionStatus.FAILED})}, 1),
            ({"role": Role.QA, "task_id": "other"}, 1),
            ({"created_after": "2026-01-01T13:30"}, 1),
            ({"created_before": "2026-01-01T11:30"}, 1),
        ):
            read.clear()
            assert len(names(known.select("acme", **asked))) >= len(read) == few, asked


async def test_of_what_is_erased_only_that_is_known_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection_module, "_MAX_ERASED", 3)
    log = MemoryLog()

    def own(name: str, tenant: str = "acme") -> ev.Writer:
        return ev.Writer(tenant=tenant, execution_id=name, task_id="t", generation=1)

    for name in ("a", "b"):
        await log.tell(own(name), begun(name).body)
    async with following(log) as known, asyncio.timeout(5):
        waiting = asyncio.create_task(known.finished("acme", "b"))
        await asyncio.sleep(0)
        for writer in (own("a"), own("x", "umbrella"), own("c"), own("b")):
            await log.tell(writer, sample(ev.ExecutionErased))
        with pytest.raises(NotFound):
            await waiting
        with pytest.raises(NotFound):
            await known.finished("acme", "b")
        assert (known.unfinished(), known.erased("acme"), known.erased("umbrella")) == ([], ["c", "b"], ["x"])


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
    log = (begun("a"), event("a", ENDED), begun("b"), event("b", ENDED), event("b", ENDED), event("?", ENDED))
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
    told = {
        "goes on": (node, gathered, output),
        "ended": (gathered, output, ENDED),
        "bare": (output, ENDED),
        "told": (gathered, ENDED),
    }
    log = [one for name, bodies in told.items() for one in (begun(name), *(event(name, body) for body in bodies))]
    async with following(Heads(*log)) as known:
        on, ended, bare, short = (known.get("acme", name) for name in told)
    assert on is not None and ended is not None and bare is not None and short is not None
    assert on.nodes == {"n": replace(node, inputs="", output="")}
    assert (on.context, on.output) == (gathered.context, output)
    assert (ended.context, ended.output) == (GatheredContext(tokens=3, version="v"), None)
    assert (bare.context, bare.output, short.context) == (None, None, ended.context)


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
