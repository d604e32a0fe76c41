"""Evidence about candidates: real git, real sandbox, real pytest and ruff; only the model is scripted."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.agents.run_deps import RunDeps
from swe_ai_fleet.agents.scoring import RubricJudge
from swe_ai_fleet.domain.assignment import BaselineAssignment, CheckAssignment
from swe_ai_fleet.domain.candidate import CheckKind, Verdict
from swe_ai_fleet.domain.command import CheckSpec
from swe_ai_fleet.orchestrator.evidence import TestRuns
from swe_ai_fleet.sandbox import IsolationLevel
from swe_ai_fleet.testing import Script, ScriptedModelServer, Turn
from tests.evidence import APP, DIVIDES, FILES, MENDED, MUL, PYTEST_FILES, TESTS, World, named

SKIPPING_TESTS = (CheckSpec(name="nothing", command=":"),)


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("evidence"), FILES)


@pytest.fixture(scope="module")
async def pytest_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("evidence"), PYTEST_FILES)


async def test_what_failed_before_speaks_neither_for_nor_against_and_is_found_out_once(world: World) -> None:
    world.provider.opened.clear()
    gatherer = replace(world.gatherer, runs=TestRuns())
    reports = await asyncio.gather(
        world.check({"app.py": DIVIDES}, name="one", gatherer=gatherer),
        world.check({"app.py": DIVIDES + "\n# more\n"}, name="two", gatherer=gatherer),
    )
    for report in reports:
        tests = named(report, "tests")
        assert report.verdict is Verdict.UNVERIFIED
        assert report.accepted
        assert report.reasons == ("tests: 2 passed, no test fails without the change; 1 failed before and fails now",)
        assert tests.details["failing before"] == MUL
        assert tests.details["baseline"] == "2 passed, 1 failed"
        assert 0.5 < tests.score < 1
        assert tests.tests is not None
        assert (tests.tests.passed, tests.tests.failed) == (2, 1)
        assert [result.name for result in report.results] == ["patch applies", "policy", "lint", "tests"]
    assert len([name for name in world.provider.opened if name.startswith("baseline")]) == 1
    # The same tree again, as a delivered commit has it: nothing is run.
    world.provider.opened.clear()
    again = await world.check({"app.py": DIVIDES}, name="three", gatherer=gatherer)
    assert again.verdict is Verdict.UNVERIFIED
    assert world.provider.opened == ["check-three"]


async def test_a_test_that_fails_without_the_change_and_passes_with_it_verifies(world: World) -> None:
    world.provider.opened.clear()
    report = await world.check({"app.py": MENDED})
    tests = named(report, "tests")
    assert report.verdict is Verdict.VERIFIED
    assert (tests.passed, tests.score, tests.shown) == (True, 1.0, (MUL,))
    assert report.reasons == (f"tests: 1 test fails without the change and passes with it: {MUL}; 3 passed",)
    assert report.tree
    # Seen twice on each side.
    assert {"baseline-candidate", "baseline1-candidate", "candidate-candidate", "candidate1-candidate"} > {
        name for name in world.provider.opened if name.startswith("candidate1")
    }


async def test_new_tests_have_to_fail_without_the_change(world: World) -> None:
    head = "import unittest\n\nimport app\n\n\nclass New(unittest.TestCase):\n    def test_it(self):\n"
    idle = {"tests/test_div.py": f"{head}        assert app.add(6, 3) == 9\n"}
    unverified = await world.check({"app.py": DIVIDES, **idle})
    assert unverified.verdict is Verdict.UNVERIFIED
    assert "its tests pass without the change too (1 new or changed test, 0 fail" in unverified.reasons[0]


async def test_a_broken_test_refutes(world: World) -> None:
    report = await world.check({"app.py": DIVIDES.replace("a - b", "b - a")})
    tests, broken = named(report, "tests"), "tests.test_app.Sums.test_sub"
    assert (report.verdict, report.accepted, tests.problems) == (Verdict.REFUTED, False, (broken,))
    assert tests.message == f"1 test fails with the change and not without: {broken}; 1 failed before and fails now"
    assert tests.score < 0.5


@pytest.mark.slow  # quick: new tests have to fail without the change
async def test_an_own_test_that_lacks_its_surroundings_shows_nothing(pytest_world: World) -> None:
    needs = "import socket\n\n\ndef test_far():\n    socket.create_connection(('198.51.100.7', 80), timeout=1)\n"
    absent = "import package_of_nobody\n\n\ndef test_it():\n    assert package_of_nobody\n"
    report = await pytest_world.check({"app.py": DIVIDES, "tests/test_far.py": needs, "tests/test_absent.py": absent})
    assert report.verdict is Verdict.UNVERIFIED
    tests = named(report, "tests")
    assert set(tests.details["cannot run here"].split("\n")) == {"tests/test_far.py::test_far", "tests/test_absent.py"}


def flaky(marker: Path, passes: str) -> str:
    """A test that leaves a marker on the host and passes where an expression does."""
    return f"""\
import pathlib
import unittest

import app


class Flaky(unittest.TestCase):
    def test_flaky(self):
        marker = pathlib.Path({str(marker)!r})
        passes = {passes}
        if not passes:
            marker.touch()
        self.assertTrue(passes)
"""


async def test_a_flaky_test_is_named_and_does_not_count(tmp_path: Path) -> None:
    # Out of the sandbox a test can see that it has run before.
    world = World(tmp_path, FILES, IsolationLevel.NONE)
    # It fails once, on the untouched source, and passes there when it is tried again.
    test = flaky(tmp_path / "marker", "hasattr(app, 'div') or marker.exists()")
    report = await world.check({"app.py": DIVIDES, "tests/test_flaky.py": test})
    tests = named(report, "tests")
    assert tests.details["flaky"] == "tests.test_flaky.Flaky.test_flaky"
    assert (report.verdict, tests.problems, tests.warnings) == (Verdict.UNVERIFIED, (), 1)


# What happens on repositories that nobody prepared


async def test_a_named_check_that_fails_without_the_change_verifies(world: World) -> None:
    checks = (CheckSpec(name="divides", command="python3 -c 'import app; assert app.div(4, 2) == 2'"),)
    report = await world.check({"app.py": DIVIDES}, checks=checks)
    assert report.verdict is Verdict.VERIFIED
    assert report.reasons[0].startswith("divides: `sh -c ")
    assert "ends with exit code 0, without the change with exit code 1" in report.reasons[0]


async def test_lint_counts_what_is_new_by_the_rules_from_before(world: World) -> None:
    careless = {"app.py": f"import os\n{DIVIDES}"}
    plain = await world.check(careless, checks=SKIPPING_TESTS)
    assert named(plain, "lint").problems == ("app.py:1: F401 `os` imported but unused",)
    switched = await world.check({**careless, "ruff.toml": "lint.select = []\n"}, checks=SKIPPING_TESTS)
    lint = named(switched, "lint")
    assert lint.problems == named(plain, "lint").problems
    assert "ruff.toml" in lint.details["settings"]
    assert named(switched, "policy warnings").problems == (
        "ruff.toml:1: changes the settings, which decides what checks say",
    )


async def test_what_does_not_compile_ends_it(world: World) -> None:
    report = await world.check({"other.py": "def f(:\n    pass\n", "templates/x.py": "{{ this }} is none\n"})
    assert named(report, "build").problems == ("other.py:1: invalid syntax",)
    assert report.verdict is Verdict.REFUTED
    assert "tests" not in [result.name for result in report.results]


async def test_patches_that_do_not_apply_or_change_nothing(world: World) -> None:
    base, messages = await world.pinned(), list[str]()
    assignment = CheckAssignment(
        execution_id=world.task.execution_id, candidate_id="c", task=world.task, repository=base
    )
    for data in (b"", world.patch({"app.py": DIVIDES}).replace(b" def mul", b" def mult"), b"From: me\n\nwords\n"):
        ref = await world.log.put("default", world.task.execution_id, data, "text/x-diff")
        report = await world.gatherer.gather(replace(assignment, patch=ref))
        assert [result.name for result in report.results] == ["patch applies", "policy"]
        assert not report.accepted
        messages.append(report.results[0].message or report.results[1].message)
    assert messages[0] == "the candidate has no changes"
    assert "patch does not apply" in messages[1]
    # A commit is held against the one before.
    made = replace(base, commit=await world.commit({"app.py": DIVIDES}))
    report = await world.gatherer.gather(replace(assignment, repository=made, baseline=base))
    assert report.verdict is Verdict.UNVERIFIED
    assert named(report, "tests").details["failing before"] == MUL


# Other ways to test

CHECKS = "import unittest\n\nimport app\n" + TESTS.partition("import app\n")[2]


@pytest.fixture(scope="module")
async def make_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    makefile = "test:\n\tpython3 -m unittest checks\n"
    return World(tmp_path_factory.mktemp("evidence"), {"app.py": APP, "checks.py": CHECKS, "Makefile": makefile})


async def test_a_test_target_that_runs_nothing_is_no_way_to_pass(make_world: World) -> None:
    report = await make_world.check({"app.py": APP.replace("a - b", "b - a"), "Makefile": "test:\n\t@true\n"})
    assert named(report, "tests").message.startswith("no longer run: ")
    assert report.verdict is Verdict.REFUTED


async def test_a_check_that_is_cancelled_leaves_nothing(make_world: World) -> None:
    gatherer = replace(make_world.gatherer, runs=TestRuns())
    make_world.provider.baseline_opened.clear()
    checking = asyncio.create_task(make_world.check({"Makefile": "test:\n\tsleep 60\n"}, gatherer=gatherer))
    await make_world.provider.baseline_opened.wait()
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking
    assert not list((make_world.root / "home/workspaces").rglob("tree"))


# The rubric


ITEMS = (
    {"item": 1, "verdict": "met", "quote": "def div(a, b):\n    return a // b", "file": "app.py"},
    {"item": "2.", "verdict": "Met", "quote": "raise ZeroDivisionError", "reason": "It raises."},
    {"item": 3, "verdict": "partly", "quote": "+def  sub(a, b):", "file": "app.py"},
    {"item": 4, "verdict": "not", "reason": "No words."},
    {"item": 5, "verdict": "splendid", "quote": "return a // b"},
)


async def test_rubric_items_count_with_quotes_that_stand_there(world: World) -> None:
    script = Script.of(Turn(content=f"Here it is:\n```json\n{json.dumps({'items': ITEMS})}\n```"))
    async with (
        ScriptedModelServer(script) as server,
        OpenAIChatModel(base_url=server.url, model="scripted") as model,
    ):
        judge = RubricJudge(deps=RunDeps(models={"": model}))
        report = await world.check(
            {"app.py": DIVIDES},
            gatherer=replace(world.gatherer, rubric=judge),
            checks=SKIPPING_TESTS,
            requirements=("It divides", "Zero is refused"),
            rubric="Look at:\n- keeps sub\n2. has a docstring\n * is good\n- is forgotten\n- keeps sub",
        )
    rubric = named(report, "rubric")
    assert (rubric.kind, rubric.required, rubric.passed, rubric.score) == (CheckKind.RUBRIC, False, False, 0.25)
    assert rubric.message == "1 of 6 items met"
    assert rubric.problems == (
        "Zero is refused: said to be met, but the quote 'raise ZeroDivisionError' is not there (It raises.)",
        "keeps sub: partly by '+def sub(a, b):'",
        "has a docstring: not met (No words.)",
        "is good: no readable verdict",
        "is forgotten: no verdict",
    )
    assert rubric.usage.prompt_tokens > 0
    assert rubric.details["model"] == "scripted"
    assert report.accepted


@pytest.mark.slow  # quick: a broken test refutes
async def test_a_candidate_is_refuted_by_tests_of_its_own(pytest_world: World) -> None:
    wrong = "import app\n\n\ndef test_div():\n    assert app.div(6, 3) == 3\n"
    added = await pytest_world.check({"app.py": DIVIDES, "tests/test_div.py": wrong})
    reason = (
        "tests: 1 test fails that the change itself brings: tests/test_div.py::test_div; 1 failed before and fails now"
    )
    assert (added.verdict, added.reasons) == (Verdict.REFUTED, (reason,))
    changed = PYTEST_FILES["tests/test_app.py"].replace("app.sub(3, 2) == 1", "app.sub(3, 2) == 2")
    edited = await pytest_world.check({"app.py": DIVIDES, "tests/test_app.py": changed})
    assert (edited.verdict, named(edited, "tests").problems) == (Verdict.REFUTED, ("tests/test_app.py::test_sub",))


@pytest.mark.slow  # quick: unit/test_evidence_policy.py
async def test_one_file_that_cannot_be_collected_does_not_sink_the_suite(tmp_path: Path) -> None:
    absent = "import package_of_nobody\n\n\ndef test_it():\n    assert package_of_nobody\n"
    crash = "import os\n\n\ndef test_crash():\n    os.abort()\n"
    rough_world = World(tmp_path, {**PYTEST_FILES, "tests/test_absent.py": absent, "tests/test_crash.py": crash})
    mended = await rough_world.check({"app.py": MENDED})
    assert mended.verdict is Verdict.VERIFIED
    tests = named(mended, "tests")
    assert tests.details["baseline"] == "2 passed, 1 failed, 2 cannot run"
    assert set(tests.details["failing before"].split("\n")) == {
        "tests/test_absent.py",
        "tests/test_crash.py::test_crash",
    }
    # The baseline says what is wrong in one line.
    baseline = BaselineAssignment(
        execution_id=rough_world.task.execution_id, task=rough_world.task, repository=await rough_world.pinned()
    )
    assert (await rough_world.gatherer.baseline(baseline)).line == (
        "2 pass, 2 fail: tests/test_app.py::test_mul, tests/test_crash.py::test_crash; cannot be collected: "
        "tests/test_absent.py: ModuleNotFoundError: No module named 'package_of_nobody'"
    )
