"""The store of what projects know: its rules, and that it is a fold over the log whoever wrote to that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain import candidate
from swe_ai_fleet.domain.context import (
    NO_STORY,
    Decision,
    DecisionState,
    Phase,
    StoredChange,
    Story,
    StoryTask,
    StoryUpdated,
    TaskState,
    WorkRecord,
    WorkRecorded,
)
from swe_ai_fleet.domain.errors import AlreadyExists, FleetError, InvalidRequest, NotFound, PreconditionFailed
from swe_ai_fleet.extensions.knowledge.graph import ContextGraph, file_node, fold
from swe_ai_fleet.extensions.knowledge.store import ContextStore
from swe_ai_fleet.testing.memory_stores import MemoryChanges
from swe_ai_fleet.tools.secrets import Secrets

TENANT = "acme"
SECRET = "hunter2-hunter2"


@dataclass
class Clock:
    """A time that goes on with every look at it."""

    ticks: int = 0

    def __call__(self) -> str:
        self.ticks += 1
        return f"2026-11-22T12:{self.ticks // 60 % 60:02}:{self.ticks % 60:02}.000+00:00"


@asynccontextmanager
async def opened(log: MemoryChanges | None = None) -> AsyncGenerator[ContextStore]:
    mask = Secrets([SECRET])
    async with ContextStore(log or MemoryChanges(), mask=mask, now=Clock()) as store:
        yield store


@pytest.fixture
async def store() -> AsyncIterator[ContextStore]:
    async with opened() as store:
        await store.create_story(TENANT, Story(story_id="S-1", title="Greet", case_id="C-1"))
        for task_id, needs in (("T-1", ()), ("T-2", ("T-1",)), ("T-3", ("T-1", "T-2"))):
            await store.create_task(
                TENANT, StoryTask(task_id=task_id, story_id="S-1", title=f"do {task_id}", depends_on=needs)
            )
        yield store


async def changes(log: MemoryChanges) -> list[StoredChange]:
    return [one async for one in log.read() if one is not None]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


def record(execution_id: str = "e-1", **fields: object) -> WorkRecord:
    return replace(
        WorkRecord(
            execution_id=execution_id,
            task_id="T-1",
            story_id="S-1",
            status="completed",
            commits=("c" * 40,),
            files_changed=("src/app.py",),
        ),
        **fields,
    )


ACCEPT = StoryUpdated(decision_id="D-1", decision_state=DecisionState.ACCEPTED)
NEEDS = StoryUpdated(task_id="T-1")
REFUSED: list[tuple[str, Story | StoryTask | StoryUpdated, type[FleetError], str]] = [
    ("", Story(story_id="_", title="t"), InvalidRequest, "story_id"),
    ("", Story(story_id="S", title="t", case_id="a b"), InvalidRequest, "case_id"),
    ("", Story(story_id="S", title="t", description="d" * 20_001), InvalidRequest, "description"),
    ("", Story(story_id="S", title="t", acceptance_criteria=("a", "")), InvalidRequest, "acceptance_criteria[1]"),
    ("", Story(story_id="S", title="t", notes={"a b": "x"}), InvalidRequest, "notes"),
    ("", StoryTask(task_id="T-9", story_id="S-1", title="t", depends_on=("T-8",)), NotFound, "depends_on"),
    ("", StoryTask(task_id="T-9", story_id="S-1", title="t", depends_on=("T-9",)), InvalidRequest, "depends_on"),
    ("", StoryTask(task_id="T-1", story_id="S-1", title="another"), AlreadyExists, "task_id"),
    ("S-1", StoryUpdated(task_id="T-9", title="x"), NotFound, "task_id"),
    ("S-1", StoryUpdated(state=TaskState.DONE), InvalidRequest, "state"),
    ("S-1", StoryUpdated(notes={f"n{n}": "x" for n in range(51)}), InvalidRequest, "notes"),
    ("S-1", replace(NEEDS, depends_on=("T-9",)), NotFound, "depends_on"),
    ("S-1", replace(NEEDS, depends_on=("T-1",)), InvalidRequest, "depends_on"),
    ("S-1", replace(NEEDS, depends_on=("T-3",)), InvalidRequest, "depends_on"),
    ("S-1", replace(NEEDS, decision_state=DecisionState.ACCEPTED), InvalidRequest, "decision_state"),
    ("S-1", StoryUpdated(decision_id="D-1"), InvalidRequest, "update"),
    ("S-1", ACCEPT, NotFound, "decision_id"),
    ("", StoryUpdated(title="x"), NotFound, "story_id"),
]


async def test_what_cannot_be_is_refused_and_changes_nothing(store: ContextStore) -> None:
    await store.create_story(TENANT, Story(story_id="S-2", title="Another"))
    for story_id, wrong, fault, field in REFUSED:
        with pytest.raises(fault) as refusal:
            match wrong:
                case Story():
                    await store.create_story(TENANT, wrong)
                case StoryTask():
                    await store.create_task(TENANT, wrong)
                case _:
                    await store.update(TENANT, story_id, wrong)
        assert refusal.value.field == field, wrong
    # Control characters are no text: nothing is left of these, and a note without text is none.
    same = await store.update(TENANT, "S-1", StoryUpdated(notes={f"n{n}": "\x01" * 2000 for n in range(50)}))
    assert (same.version, list(store.graph(TENANT).stories)) == (4, ["S-1", "S-2"])


async def test_phases_go_on_one_by_one_and_back_with_a_reason(store: ContextStore) -> None:
    for phase in (Phase.DESIGN, Phase.BUILD):
        await store.change_phase(TENANT, "S-1", phase, by="ana")
    version = store.graph(TENANT).version("S-1")
    assert (await store.change_phase(TENANT, "S-1", Phase.BUILD)).version == version
    for phase, reason, field in ((Phase.REVIEW, "hurry", "phase"), (Phase.PLAN, " ", "reason")):
        with pytest.raises(PreconditionFailed) as refusal:
            await store.change_phase(TENANT, "S-1", phase, reason=reason)
        assert refusal.value.field == field
        assert refusal.value.hint
    state = await store.change_phase(TENANT, "S-1", Phase.PLAN, reason="wrong problem", by="bo")
    assert [(one.phase, one.reason, one.by) for one in state.phases] == [
        (Phase.PLAN, "", ""),
        (Phase.DESIGN, "", "ana"),
        (Phase.BUILD, "", "ana"),
        (Phase.PLAN, "wrong problem", "bo"),
    ]
    with pytest.raises(NotFound):
        await store.change_phase(TENANT, "S-9", Phase.DESIGN)


async def test_a_decision_is_superseded_once(store: ContextStore) -> None:
    await store.add_decision(TENANT, Decision(decision_id="D-1", story_id="S-1", title="REST", task_ids=("T-1",)))
    state = await store.add_decision(
        TENANT, Decision(decision_id="D-2", story_id="S-1", title="gRPC", supersedes="D-1")
    )
    assert [(name, one.state) for name, one in state.decisions.items()] == [
        ("D-1", DecisionState.SUPERSEDED),
        ("D-2", DecisionState.ACCEPTED),
    ]
    third = Decision(decision_id="D-3", story_id="S-1", title="none")
    for changes_, fault, field in (
        ({"supersedes": "D-1"}, PreconditionFailed, "supersedes"),
        ({"supersedes": "D-9"}, NotFound, "supersedes"),
        ({"supersedes": "D-3"}, NotFound, "supersedes"),
        ({"task_ids": ("T-9",)}, NotFound, "task_ids"),
        ({"state": DecisionState.SUPERSEDED}, InvalidRequest, "state"),
        ({"decision_id": "D-2"}, AlreadyExists, "decision_id"),
    ):
        with pytest.raises(fault) as refusal:
            await store.add_decision(TENANT, replace(third, **changes_))
        assert refusal.value.field == field
    # Said again, also once it is superseded, a decision is what it was.
    again = await store.add_decision(
        TENANT, Decision(decision_id="D-1", story_id="S-1", title="REST", task_ids=("T-1",))
    )
    assert again == state


async def test_a_proposed_decision_holds_once_it_is_accepted(store: ContextStore) -> None:
    first, second = (DecisionState.ACCEPTED, DecisionState.PROPOSED)
    await store.add_decision(TENANT, Decision(decision_id="D-1", story_id="S-1", title="REST"))
    for name in ("D-2", "D-3"):
        rival = Decision(decision_id=name, story_id="S-1", title=name, state=second, supersedes="D-1")
        state = await store.add_decision(TENANT, rival)
    # What is only proposed takes nobody's place.
    assert [one.state for one in state.decisions.values()] == [first, second, second]
    accept = StoryUpdated(decision_id="D-2", decision_state=first)
    state = await store.update(TENANT, "S-1", accept, expected_version=state.version)
    assert [one.state for one in state.decisions.values()] == [DecisionState.SUPERSEDED, first, second]
    assert await store.update(TENANT, "S-1", accept) == state
    for decision_id, wanted, field in (
        ("D-3", first, "supersedes"),
        ("D-1", first, "decision_state"),
        ("D-2", second, "decision_state"),
        ("D-2", DecisionState.SUPERSEDED, "decision_state"),
    ):
        with pytest.raises(PreconditionFailed) as refusal:
            await store.update(TENANT, "S-1", StoryUpdated(decision_id=decision_id, decision_state=wanted))
        assert refusal.value.field == field
    await store.add_decision(TENANT, Decision(decision_id="P-1", story_id="", title="Python", state=second))
    common = await store.update(TENANT, "", StoryUpdated(decision_id="P-1", decision_state=first))
    assert (common.story_id, common.decisions["P-1"].state) == (NO_STORY, first)


async def test_secrets_and_control_characters_are_never_kept() -> None:
    log = MemoryChanges()
    told = f"the key is {SECRET}\x1b[2J"
    both = {"title": told, "description": told}
    async with opened(log) as store:
        story = Story(story_id="S", acceptance_criteria=(told,), notes={"n": told}, **both)
        await store.create_story(TENANT, story)
        await store.create_task(TENANT, StoryTask(task_id="T", story_id="S", **both))
        decision = Decision(decision_id="D", story_id="S", title=told, rationale=told, alternatives=(told,))
        await store.add_decision(TENANT, replace(decision, decided_by=told))
        await store.change_phase(TENANT, "S", Phase.DESIGN, reason=told, by=told)
        await store.update(TENANT, "S", StoryUpdated(notes={"m": told}, **both))
        texts = dict.fromkeys(("instruction", "branch", "repository"), told) | {"summary": told * 1000}
        work = record("e", files_changed=(told,), operations={told: 1}, checks={told: told}, **texts)
        await store.record_work(TENANT, replace(work, tests=candidate.TestSummary(failing=(told,))))
    stored = await changes(log)
    assert (len(stored), SECRET in repr(stored), "\\x1b" in repr(stored)) == (6, False, False)
    assert repr(stored).count("[masked]") > 20


def test_a_file_is_named_by_its_repositorys_owner_and_name() -> None:
    for location, name in (
        ("https://git.example/acme/app.git", "acme/app"),
        ("https://git.example:8443/acme/app/", "acme/app"),
        ("git@git.example:acme/app.git", "acme/app"),
        ("ssh://git@git.example:22/acme/app", "acme/app"),
        ("/srv/work/app", "work/app"),
        ("app", "app"),
        ("https://git.example/app", "git.example/app"),
        ("file:///app", "app"),
        ("", ""),
        ("///..", ""),
    ):
        assert file_node(location, "src/a.py") == (f"file:{name}/src/a.py" if name else "file:src/a.py"), location


Action = Callable[[ContextStore], Awaitable[object]]
STORIES, TASKS, DECISIONS = (st.sampled_from([f"{kind}-{n}" for n in (1, 2, 3)]) for kind in "STD")
VERSIONS = st.none() | st.integers(0, 8)


def _act(method: str, *given: object, **options: object) -> Action:
    return lambda store: getattr(store, method)(TENANT, *given, **options)


@st.composite
def actions(draw: st.DrawFn) -> Action:
    story_id, version = draw(STORIES), {"expected_version": draw(VERSIONS)}
    title, task_id = draw(st.sampled_from(["one", "two"])), draw(TASKS)
    match draw(st.sampled_from(["story", "task", "decision", "phase", "update", "record"])):
        case "story":
            return _act("create_story", Story(story_id=story_id, title=title, case_id="C"))
        case "task":
            needs = tuple(draw(st.lists(TASKS, max_size=2)))
            task = StoryTask(task_id=task_id, story_id=story_id, title="t", depends_on=needs)
            return _act("create_task", task, **version)
        case "decision":
            of, supersedes = draw(st.sampled_from([story_id, ""])), draw(st.just("") | DECISIONS)
            decision = Decision(decision_id=draw(DECISIONS), story_id=of, title="d", supersedes=supersedes)
            return _act("add_decision", decision, **version)
        case "phase":
            phase, reason = draw(st.sampled_from(list(Phase))), draw(st.sampled_from(["", "why"]))
            return _act("change_phase", story_id, phase, reason=reason, **version)
        case "update":
            update = StoryUpdated(title=title)
            if draw(st.booleans()):
                update = replace(update, task_id=task_id, state=TaskState.DONE)
            return _act("update", story_id, update, **version)
        case _:
            return _act("record_work", record(f"e-{draw(st.integers(0, 3))}", story_id=story_id))


BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 1), actions()), min_size=1, max_size=4), max_size=12)


@settings(max_examples=25)
@given(BATCHES)
async def test_the_live_graph_is_the_fold_of_the_log_whoever_wrote_to_it(
    batches: list[list[tuple[int, Action]]],
) -> None:
    log = MemoryChanges()
    async with opened(log) as one, opened(log) as other:
        stores = (one, other)

        async def tried(number: int, action: Action) -> None:
            store = stores[number]
            try:
                done = await action(store)
            except FleetError:
                return
            if not isinstance(done, bool):
                # What a replica wrote it knows at once.
                assert store.graph(TENANT).version(done.story_id) >= done.version

        await one.create_story(TENANT, Story(story_id="S-1", title="one", case_id="C"))
        for batch in batches:
            await asyncio.gather(*(tried(number, action) for number, action in batch))
        stored = await changes(log)
        folded = fold(stored)[TENANT]
        await until(lambda: all(_known(store.graph(TENANT)) == _known(folded) for store in stores))
        assert one.graph(TENANT) == folded == other.graph(TENANT)
        async with opened(log) as restarted:
            assert restarted.graph(TENANT) == folded
    for story_id in folded.stories:
        versions = [
            entry.change.version
            for entry in stored
            if entry.change.story_id == story_id and not isinstance(entry.change.body, WorkRecorded)
        ]
        assert versions == list(range(1, len(versions) + 1))
    bodies = [entry.change.body for entry in stored]
    recorded = [body.record.execution_id for body in bodies if isinstance(body, WorkRecorded)]
    assert len(recorded) == len(set(recorded))
    for state in folded.stories.values():
        assert all(set(task.depends_on) <= set(state.tasks) for task in state.tasks.values())
        superseded = [one.supersedes for one in state.decisions.values() if one.supersedes]
        assert len(superseded) == len(set(superseded))
        for name, decision in state.decisions.items():
            assert (decision.state is DecisionState.SUPERSEDED) == (name in superseded)


def _known(graph: ContextGraph) -> tuple[int, int]:
    """How many changes and records a graph has taken in."""
    recorded = sum(graph.execution(f"e-{number}") is not None for number in range(4))
    return sum(state.version for state in graph.stories.values()), recorded
