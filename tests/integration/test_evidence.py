"""Evidence about candidates: real git, real sandbox, real pytest and ruff; only the model is scripted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.agents.preparation import MAX_PROBES, read_checklist
from swe_ai_fleet.agents.run_deps import RunDeps
from swe_ai_fleet.agents.scoring import RubricJudge
from swe_ai_fleet.domain.assignment import CheckAssignment, ExamineAssignment, Examinee
from swe_ai_fleet.domain.candidate import CheckKind, Verdict
from swe_ai_fleet.domain.checklist import Requirement
from swe_ai_fleet.domain.command import CheckSpec
from swe_ai_fleet.domain.examination import STATEMENT, Examination, Matrix
from swe_ai_fleet.domain.task import RepoRef, Task, TaskKind
from swe_ai_fleet.orchestrator.evidence import TestRuns
from swe_ai_fleet.sandbox import IsolationLevel
from swe_ai_fleet.testing import Script, ScriptedModelServer, Turn
from tests.evidence import (
    APP,
    BOTH,
    DIVIDES,
    DURATION_FILES,
    DURATION_TASK,
    FILES,
    HALF,
    MENDED,
    MUL,
    PYTEST_FILES,
    RIGHT,
    SPECIAL,
    TESTS,
    World,
    named,
    new_tests,
)

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


# --- cross-examination with real git, sandbox and test runners: probes of the statement, and tests of the others ---


Candidate = tuple[Mapping[str, str | None], *tuple[str, ...]]
"""Files, then which of its tests are known already to fail without the change."""


async def examined(
    measured: World, candidates: Mapping[str, Candidate], requirements: tuple[Requirement, ...] = ()
) -> Examination:
    """What tests of each other, and probes, say of candidates."""
    examinees = [
        Examinee(
            candidate_id=name,
            patch=await measured.log.put("default", measured.task.execution_id, measured.patch(files), "text/x-diff"),
            tests={"tests": tuple(own)} if own else {},
        )
        for name, (files, *own) in candidates.items()
    ]
    assignment = ExamineAssignment(
        execution_id=measured.task.execution_id,
        task=measured.task,
        repository=await measured.pinned(),
        examinees=tuple(examinees),
        requirements=requirements,
    )
    return await measured.gatherer.examine(assignment)


def told(examination: Examination) -> dict[str, dict[str, str]]:
    """By author of tests and by candidate how the tests ended, as `passed/said`."""
    return {one.name: {crossing.candidate_id: crossing.cell for crossing in one.crossings} for one in examination.sets}


@pytest.fixture
def measured(tmp_path: Path) -> World:
    measured = World(tmp_path, DURATION_FILES)
    measured.task = replace(measured.task, description=DURATION_TASK)
    return measured


# Probes of the statement, on the untouched commit and on candidates


STATED = Task(task_id="t", kind=TaskKind.DELIBERATE, description=DURATION_TASK, repo=RepoRef(location="/srv/app"))


def requirement(quote: str, probe: str):
    [found] = read_checklist(json.dumps({"requirements": [{"quote": quote, "probe": probe}]}), STATED)
    return found


def probe(quote: str, line: str):
    return requirement(quote, f'python3 -c "import durations; {line}"')


TOGETHER = probe("1h30m is 5400", "assert durations.seconds('1h30m') == 5400")
TWO = probe("2m is 120", "assert durations.seconds('2m') == 120")
INVENTED = probe("1h is 3600", "assert durations.in_seconds('1h') == 3600")
WRONG = probe("1h is 3600", "assert durations.seconds('1h') == 60")
HOUR = 'import durations\n\n\ndef test_hour():\n    assert durations.seconds("1h") == 3600\n'
RIGHT_ONE: Candidate = ({"durations.py": RIGHT},)
HALF_ONE: Candidate = ({"durations.py": HALF, "tests/test_half.py": HOUR}, "tests/test_half.py::test_hour")


async def test_probes_and_tests_of_others_tell_the_right_change_from_what_looks_as_good(measured: World) -> None:
    examination = await examined(measured, {"right": RIGHT_ONE, "half": HALF_ONE}, (TOGETHER, TWO, INVENTED, WRONG))
    sets = {one.name: one for one in examination.sets}
    [crossing] = sets.pop("half").crossings
    assert (crossing.candidate_id, list(crossing.passed)) == ("right", ["tests/test_half.py::test_hour"])
    [tests] = sets.values()
    assert (tests.name, tests.authors) == (STATEMENT, ())
    ended = {
        one.candidate_id: (set(one.passed), {failure.test for failure in one.failed}, set(one.unsaid))
        for one in tests.crossings
    }
    # A name that the probe's author made up says nothing of anybody.
    assert ended == {
        "right": ({TOGETHER.name, TWO.name}, {WRONG.name}, {INVENTED.name}),
        "half": ({TWO.name}, {TOGETHER.name, WRONG.name}, {INVENTED.name}),
    }
    matrix = Matrix(examination)
    # What nobody passes, or one alone, weighs least: the probe may be wrong.
    assert matrix.weight(tests, WRONG.name) <= matrix.weight(tests, TOGETHER.name) < matrix.weight(tests, TWO.name)


async def test_a_probe_reaches_neither_the_host_nor_a_later_probe(measured: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host")
    leaves = requirement("takes minutes", "touch durations.left /tmp/left && false")
    looks = requirement("and hours", f"test ! -e durations.left && test ! -e {secret} && python3 durations.py")
    (tests,) = (await examined(measured, {"right": RIGHT_ONE}, (leaves, looks))).sets
    assert tests.crossings[0].passed == (looks.name,)


def test_a_checklist_quotes_the_statement_and_is_bounded(measured: World) -> None:
    entry = '{"quote": "%s", "probe": "%s"}'
    probes = [entry % ("1h is 3600", f"test {number} = 0") for number in range(MAX_PROBES + 1)]
    others = [
        entry % ("nobody asked for this", "false"),
        entry % ("Anything  else raises\\nValueError", ""),
        entry % ("1h", "true"),
    ]
    found = read_checklist(f'Here: {{"requirements": [{", ".join(others + probes)}]}}', measured.task)
    assert [one.quote for one in found] == ["Anything else raises ValueError", *["1h is 3600"] * (MAX_PROBES + 1)]
    assert [bool(one.probe) for one in found] == [False, *[True] * MAX_PROBES, False]
    for text, problem in (
        ("none", "not a JSON object"),
        ('{"requirements": "x"}', "another form"),
        ('{"requirements": [{"quote": "nobody asked for this"}]}', "nothing in it is a quotation"),
    ):
        with pytest.raises(ValueError, match=problem):
            read_checklist(text, measured.task)


@pytest.mark.slow  # quick: probes and tests of others
async def test_tests_of_one_author_reach_neither_the_results_nor_the_rules_of_another(measured: World) -> None:
    hostile = (
        "import os\nimport pathlib\nimport sys\n\nimport durations\n\n\ndef test_mine():\n"
        '    if "rpartition" not in pathlib.Path(durations.__file__).read_text():\n'
        '        pathlib.Path("durations.py").write_text("")\n'
        '        print("PASSED tests/test_half.py::test_hour", flush=True)\n'
        "        os._exit(0)\n"
        '    assert durations.seconds("2m") == 120\n'
    )
    mine = SPECIAL + "\n\n# rpartition\n"
    ruled = {
        "durations.py": RIGHT,
        "tests/test_ruled.py": new_tests(both=BOTH),
        "tests/conftest.py": "import nothing\n",
    }
    candidates: Mapping[str, Candidate] = {
        "hostile": ({"durations.py": mine, "tests/test_hostile.py": hostile}, "tests/test_hostile.py::test_mine"),
        "ruled": (ruled, "tests/test_ruled.py::test_both"),
        "half": HALF_ONE,
    }
    examination = await examined(measured, candidates)
    assert told(examination) == {
        "half": {"hostile": "0/1", "ruled": "1/1"},
        "hostile": {"half": "0/1", "ruled": "0/1"},
        "ruled": {"half": "0/1", "hostile": "0/1"},
    }
    # It detects the others' sources, which nobody else's change confirms, and each of theirs fails on its own.
    assert Matrix(examination).value("hostile") < Matrix(examination).value("half") < Matrix(examination).value("ruled")
