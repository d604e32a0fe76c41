"""The parts of evidence that need no clone: comparing test runs, sharing baselines, keeping outputs."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.candidate import CheckKind, CheckResult
from swe_ai_fleet.domain.candidate import TestSummary as Summary
from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.domain.task import Constraints, RepoRef, Task, TaskKind
from swe_ai_fleet.orchestrator.evidence.baselines import Baselines
from swe_ai_fleet.orchestrator.evidence.dry_run import compare
from swe_ai_fleet.orchestrator.evidence.outputs import OUTPUT_CHARS, kept
from swe_ai_fleet.orchestrator.evidence.suite_run import SuiteRun
from swe_ai_fleet.testing.memory_log import MemoryLog
from swe_ai_fleet.tools.secrets import Secrets


def task(description: str = "Do it.", requirements: tuple[str, ...] = ()) -> Task:
    return Task(
        task_id="t",
        kind=TaskKind.DELIBERATE,
        description=description,
        repo=RepoRef(location="/r"),
        constraints=Constraints(requirements=requirements),
    )


def run(failing: dict[str, str], *, passed: int = 1, unnamed: int = 0) -> SuiteRun:
    summary = Summary(passed=passed, failed=len(failing) + unnamed, failing=tuple(failing))
    return SuiteRun(success=not summary.failed, summary=summary, failing=failing, exit_code=int(bool(summary.failed)))


# Comparing


def test_new_old_and_fixed_failures() -> None:
    before = run({"t.py::test_a": "at 0x7f12: 3 != 4", "t.py::test_b": "no attribute", "t.py::test_c": "x"})
    after = run({"t.py::test_a": "at 0x9c00: 5 != 6", "t.py::test_b": "'Hi' != 'Hello'", "t.py::test_d": "x"}, passed=2)
    compared = compare(after, before, task())
    assert compared.old == ("t.py::test_a",)
    assert compared.open == ("t.py::test_b",)
    assert compared.broken == ("t.py::test_d",)
    assert compared.fixed == ("t.py::test_c",)
    assert compared.counting == ("t.py::test_d", "t.py::test_b")


@pytest.mark.parametrize(
    ("then", "now", "same"),
    [
        ("AssertionError: assert 3 == 4", "AssertionError: assert 5 == 4", True),
        ("AssertionError: {'a', 'b'} != {'c'}", "AssertionError: {'b', 'a'} != {'c'}", True),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/tmpab12_x/data.json'",
            "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/tmpq9_zz/data.json'",
            True,
        ),
        ("", "", True),
        ("AttributeError: module 'utils' has no attribute 'hello'", "AssertionError: assert 'Hi' == 'Hello'", False),
        ("AssertionError: no such user", "AssertionError: the list is empty", False),
        ("AssertionError", "", False),
    ],
)
def test_what_is_the_same_failure(then: str, now: str, same: bool) -> None:
    compared = compare(run({"t": now}), run({"t": then}), task())
    assert (compared.old, compared.open) == ((("t",), ()) if same else ((), ("t",)))


@pytest.mark.parametrize(
    ("test", "text", "counts"),
    [
        ("tests/test_a.py::test_one[1]", "The tests in tests/test_a.py say what must hold.", True),
        ("tests/test_a.py::test_one[1]", "See `test_a.py`: it fails.", True),
        ("tests/test_a.py::K::test_one", "Make test_one pass", True),
        ("tests/test_a.py::test_one", "Make test_one() pass.", True),
        ("tests/test_a.py::test_one", "Make test_ones pass; a.py is wrong, tests too", False),
        ("tests/test_a.py", "tests/test_a.py cannot be imported", True),
        ("tests.test_a.K.test_one", "tests/test_a.py fails", True),
        ("tests.test_a.K.test_one", "test_one fails", True),
        ("tests.test_a.K.test_one", "the tests of K fail", False),
        ("src/lib.rs::tests::adds", "It adds numbers", False),
        ("example.org/app::TestAdd", "TestAdd fails in app", True),
        ("example.org/app::TestAdd", "the app is slow", False),
    ],
)
def test_what_the_task_names_counts(test: str, text: str, counts: bool) -> None:
    same = run({test: "x"})
    for asked in (task(text), task(requirements=(text,))):
        compared = compare(same, same, asked)
        assert compared.open == ((test,) if counts else ())
        assert compared.old == (() if counts else (test,))


def test_failures_that_nobody_named_count_by_their_number() -> None:
    many = {f"t.py::test_{number}": "x" for number in range(3)}
    assert compare(run(many, unnamed=5), run(many, unnamed=5), task()).broken == ()
    assert compare(run(many, unnamed=5), run(many), task()).broken == ("5 more tests",)


_ids = st.sampled_from([f"t.py::test_{letter}" for letter in "abcdef"])
_failing = st.dictionaries(_ids, st.sampled_from(["one 1", "one 2", "two"]), max_size=6)


@given(_failing, _failing)
def test_every_failure_is_one_thing_and_new_ones_always_count(now: dict[str, str], then: dict[str, str]) -> None:
    compared = compare(run(now), run(then), task())
    assert sorted((*compared.broken, *compared.open, *compared.old)) == sorted(now)
    assert set(compared.broken) == now.keys() - then.keys()
    assert set(compared.fixed) == (then.keys() - now.keys() if len(now) >= len(then) else set())
    assert not compare(run(now), run(now), task()).counting


# Sharing


class Suite:
    """A run of tests that ends when it is told to."""

    def __init__(self) -> None:
        self.started = 0
        self.ended = 0
        self.running = asyncio.Event()
        self.go = asyncio.Event()
        self.fault: Exception | None = None

    async def __call__(self) -> SuiteRun:
        self.started += 1
        self.running.set()
        try:
            await self.go.wait()
            if self.fault:
                raise self.fault
            return run({})
        finally:
            self.ended += 1


async def test_candidates_share_one_run_even_if_the_first_is_cancelled() -> None:
    baselines, suite = Baselines(), Suite()
    first, second = (asyncio.create_task(baselines.of("e", ("k",), suite)) for _ in range(2))
    await suite.running.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (suite.started, suite.ended) == (1, 0)
    suite.go.set()
    assert (await second).summary == run({}).summary
    assert (await baselines.of("other", ("k",), suite)) is second.result()
    assert suite.started == 1
    await baselines.of("e", ("other",), suite)
    assert suite.started == 2


async def test_a_run_ends_with_the_last_who_waits_for_it() -> None:
    baselines, suite = Baselines(), Suite()
    waiting = [asyncio.create_task(baselines.of("e", ("k",), suite)) for _ in range(3)]
    await suite.running.wait()
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert (suite.started, suite.ended) == (1, 1)
    suite.go.set()
    assert (await baselines.of("e", ("k",), suite)).success
    assert suite.started == 2


async def test_executions_do_not_wait_for_each_other_and_faults_are_not_kept() -> None:
    baselines, suite, broken = Baselines(), Suite(), Suite()
    broken.fault = Unavailable("no clone")
    broken.go.set()
    one = asyncio.create_task(baselines.of("one", ("k",), suite))
    await suite.running.wait()
    with pytest.raises(Unavailable):
        await baselines.of("two", ("k",), broken)
    suite.go.set()
    await one
    assert (await baselines.of("two", ("k",), broken)).success
    assert broken.started == 1


# Keeping


async def test_outputs_are_masked_cut_and_kept_whole() -> None:
    log, mask = MemoryLog(), Secrets(["entrusted-value-1"])

    def stored(data: bytes):
        return log.put("default", "e", data, "text/plain")

    long = "first\n" + "entrusted-value-1 \ud800\n" * 2_000 + "last"
    result = CheckResult(
        kind=CheckKind.COMMAND,
        name="build",
        passed=False,
        output=long,
        message="entrusted-value-1",
        problems=("entrusted-value-1" * 100,),
        details={"more": "entrusted-value-1"},
    )
    short = await kept(result, "", mask=mask, store=stored)
    assert "entrusted" not in repr(short)
    assert len(short.output) < OUTPUT_CHARS + 200
    assert short.output.startswith("first")
    assert short.output.endswith("last")
    assert len(short.problems[0]) < 700
    whole = await log.get(await stored(mask(long.replace("\ud800", "\ufffd")).encode()))
    assert short.details["output_artifact"] == (await stored(whole)).digest
    plain = await kept(
        CheckResult(kind=CheckKind.LINT, name="lint", passed=True, output="x"), "", mask=mask, store=stored
    )
    assert plain == CheckResult(kind=CheckKind.LINT, name="lint", passed=True, output="x")


async def test_a_check_stands_though_its_output_cannot_be_kept() -> None:
    async def full(data: bytes):
        raise Unavailable("the store is away")

    result = CheckResult(kind=CheckKind.COMMAND, name="build", passed=True, output="x" * 20_000)
    told = await kept(result, "", mask=Secrets(), store=full)
    assert told.passed
    assert dict(told.details) == {}
