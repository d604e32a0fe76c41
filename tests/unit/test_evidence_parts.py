"""The parts of evidence that need no clone: comparing test runs, verdicts, sharing runs, keeping outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.candidate import TestSummary as Summary
from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.domain.task import RepoRef, Task, TaskKind
from swe_ai_fleet.domain.test_run import TestOutcome, TestResult, TestRun
from swe_ai_fleet.orchestrator.evidence import WHOLE_RUN, Comparison, TaskNames, TestRuns, Touched, compare
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.tables import table


def task(description: str) -> Task:
    return Task(task_id="t", kind=TaskKind.DELIBERATE, description=description, repo=RepoRef(location="/r"))


def run(
    failing: dict[str, str] | None = None, passing: Iterable[str] = (), *, unnamed: int = 0, **more: object
) -> TestRun:
    results = {name: TestResult(outcome=TestOutcome.PASSED) for name in passing}
    results |= {
        name: TestResult(outcome=TestOutcome.FAILED, message=message) for name, message in (failing or {}).items()
    }
    bad = bool(failing or unnamed)
    return TestRun(results=results, framework="pytest", exit_code=int(bad), unnamed=Summary(failed=unnamed), **more)


def compared(
    after: TestRun,
    before: TestRun,
    *touched: str,
    own: TestRun | None = None,
    text: str = "Do it.",
    strict: bool = False,
) -> Comparison:
    return compare(after, before, own, Touched(touched), TaskNames(task(text)), strict=strict)


# Comparing


def test_each_failure_is_one_thing() -> None:
    before = run(
        {"t.py::test_old": "at 0x7f12: 3 != 4", "t.py::test_other": "no attribute", "t.py::test_fixed": "x"},
        ["t.py::test_good", "t.py::test_gone"],
    )
    after = run(
        {
            "t.py::test_old": "at 0x9c00: 5 != 6",
            "t.py::test_other": "'Hi' != 'Hello'",
            "t.py::test_good": "x",
            "new_test.py::test_new": "x",
        },
        ["t.py::test_fixed"],
    )
    assert compared(after, before, "new_test.py") == Comparison(
        shown=("t.py::test_fixed",),
        broken=("t.py::test_good",),
        own_failing=("new_test.py::test_new",),
        otherwise=("t.py::test_other",),
        old=("t.py::test_old",),
        vanished=("t.py::test_gone",),
        own=("new_test.py::test_new",),
    )


def test_own_tests_show_something_where_they_fail_on_the_untouched_source() -> None:
    before = run({}, ["tests/test_a.py::test_old"])
    own = run({"tests/test_a.py::test_old": "now asserts more", "tests/test_b.py": "ImportError: no name div"})
    after = run({}, ["tests/test_a.py::test_old", "tests/test_b.py::test_one", "tests/test_b.py::test_two"])
    found = compared(after, before, "tests/test_a.py", "tests/test_b.py", own=own)
    # A file that cannot be collected there stands for all of its tests.
    assert found.shown == ("tests/test_a.py::test_old", "tests/test_b.py::test_one", "tests/test_b.py::test_two")
    assert found.own_shown == found.shown
    idle = compared(after, before, "tests/test_a.py", "tests/test_b.py", own=run({}, list(after.results)))
    assert idle.shown == ()
    assert idle.own == ("tests/test_b.py::test_one", "tests/test_b.py::test_two")


@table(
    "message",
    [
        "ModuleNotFoundError: No module named 'psycopg'",
        "Error: connect ECONNREFUSED 127.0.0.1:6379",
    ],
)
def test_own_tests_that_lack_their_surroundings_show_nothing(message: str) -> None:
    alike = run({"test_n.py::test_far": message})
    assert compared(alike, run({}, ["t.py::a"]), "test_n.py", own=alike).unable == ("test_n.py::test_far",)
    wrong = run({"test_n.py::test_far": "AssertionError: 3 != 4"})
    assert compared(wrong, run({}, ["t.py::a"]), "test_n.py", own=wrong).own_failing == ("test_n.py::test_far",)


OLD = run({}, ["t.py::a", "t.py::b", "t.py::c"])
CUT = run({}, ["t.py::a"], stopped="the time limit")
MANY = {f"t.py::test_{number}": "x" for number in range(3)}


@table(
    ("after", "before", "expected"),
    [
        # A file that cannot be collected any more is one thing.
        (run({"t.py": "ImportError"}), OLD, {"broken": ("t.py",), "vanished": (), "against": ("t.py",)}),
        # What was cut off is not missed.
        (CUT, OLD, {"against": ()}),
        (run({}, ["t.py::a"]), OLD, {"vanished": ("t.py::b", "t.py::c")}),
        # A run that fails as a whole counts, and so do failures that nobody named, by their number.
        (replace(OLD, exit_code=1), OLD, {"broken": (WHOLE_RUN,)}),
        (run(MANY, unnamed=5), run(MANY), {"broken": ("5 tests that are only counted",)}),
    ],
)
def test_what_a_run_comes_to_beside_an_earlier_one(
    after: TestRun, before: TestRun, expected: dict[str, tuple[str, ...]]
) -> None:
    found = compared(after, before)
    assert {name: getattr(found, name) for name in expected} == expected


@table(
    ("test", "text", "counts"),
    [
        ("tests/test_a.py::test_one[1]", "The tests in tests/test_a.py say what must hold.", True),
        ("tests/test_a.py::K::test_one", "Make test_one pass", True),
        ("tests/test_a.py::test_one", "Make test_ones pass; a.py is wrong, tests too", False),
        ("tests/test_a.py", "tests/test_a.py cannot be imported", True),
        ("src/lib.rs::tests::adds", "It adds numbers", False),
        ("example.org/app::TestAdd", "TestAdd fails in app", True),
    ],
)
def test_what_the_task_names_counts(test: str, text: str, counts: bool) -> None:
    same = run({test: "x"})
    found = compared(same, same, text=text)
    assert found.named == ((test,) if counts else ())
    assert found.old == (() if counts else (test,))
    assert compared(same, same, strict=True).named == (test,)


@table(
    ("test", "path", "inside"),
    [
        ("tests/test_a.py::test_one", "tests/test_a.py", True),
        ("tests/test_a.py::test_one", "tests/test_b.py", False),
        ("tests.test_a.K.test_one", "tests/test_a.py", True),
        ("example.org/app/sub::TestAdd", "sub/add_test.go", True),
        ("example.org/app::TestAdd", "sub/add_test.go", False),
        ("adds numbers", "test/add.test.js", True),
        # Tests may stand in a source file.
        ("src/lib.rs::a::b::tests::adds", "src/a/b.rs", True),
        ("src/lib.rs::a::tests::adds", "src/a/b.rs", False),
    ],
)
def test_which_tests_a_changed_file_holds(test: str, path: str, inside: bool) -> None:
    assert Touched([path], [path] if path.endswith(".rs") else ()).has(test) is inside


_ids = st.sampled_from([f"t.py::test_{letter}" for letter in "abcdef"])
_failing = st.dictionaries(_ids, st.sampled_from(["one 1", "one 2", "two"]), max_size=6)


@given(_failing, _failing)
def test_every_failure_is_one_thing_and_new_ones_always_count(now: dict[str, str], then: dict[str, str]) -> None:
    everything = {*now, *then}
    after, before = run(now, everything - now.keys()), run(then, everything - then.keys())
    found = compared(after, before)
    listed = (*found.broken, *found.own_failing, *found.named, *found.otherwise, *found.old, *found.unable)
    assert sorted(listed) == sorted(now)
    assert set(found.broken) == now.keys() - then.keys()
    assert set(found.shown) == then.keys() - now.keys()
    assert not compared(after, after).against


# Sharing


class Waiting:
    """A run of tests that ends when it is told to."""

    def __init__(self) -> None:
        self.started = self.ended = 0
        self.running, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> TestRun:
        self.started += 1
        self.running.set()
        try:
            await self.go.wait()
            return run({}, ["t"])
        finally:
            self.ended += 1


async def test_candidates_share_one_run_which_ends_with_the_last_who_waits_for_it() -> None:
    runs, tests = TestRuns(), Waiting()
    first, second = (asyncio.create_task(runs.of("e", "k", tests)) for _ in range(2))
    await tests.running.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert (first.cancelled(), tests.started, tests.ended) == (True, 1, 0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert (tests.started, tests.ended) == (1, 1)
    tests.go.set()
    known = await runs.of("e", "k", tests)
    assert known.green and (await runs.of("other", "k", tests)) is known
    assert tests.started == 2
    await runs.of("e", "other", tests)
    assert tests.started == 3


async def test_faults_are_not_kept_and_processes_share_runs_by_a_store_that_may_fail() -> None:
    async def broken() -> TestRun:
        raise Unavailable("no clone")

    store, tests = MemoryKeyValue(), Waiting()
    tests.go.set()
    with pytest.raises(Unavailable):
        await TestRuns(store).of("e", "k", broken)
    made = await TestRuns(store).of("e", "k", tests)
    assert await TestRuns(store).of("other", "k", tests) == made
    assert tests.started == 1
    await store.put("broken", b"no run")
    assert await TestRuns(store).find("broken") is None
    await TestRuns(store).of("e", "broken", tests)
    assert tests.started == 2
