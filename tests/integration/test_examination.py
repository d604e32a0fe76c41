"""Cross-examination with real git, sandbox and test runners: the new tests of each on the sources of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.agents.preparation import MAX_PROBES, read_checklist
from swe_ai_fleet.domain.assignment import ExamineAssignment, Examinee
from swe_ai_fleet.domain.candidate import CheckReport, Verdict
from swe_ai_fleet.domain.checklist import Checklist, Requirement
from swe_ai_fleet.domain.examination import STATEMENT, Examination, Matrix
from tests.evidence import (
    BOTH,
    DURATION_FILES,
    DURATION_TASK,
    EXAMPLE,
    HALF,
    HOUR,
    REFUSED,
    RIGHT,
    SPECIAL,
    World,
    new_tests,
)


class Pool:
    """Candidates of one repository."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.reports: dict[str, CheckReport] = {}
        self.files: dict[str, Mapping[str, str | None]] = {}
        self.own: dict[str, dict[str, tuple[str, ...]]] = {}

    async def check(self, **candidates: Mapping[str, str | None]) -> None:
        for name, files in candidates.items():
            self.files[name] = files
            self.reports[name] = await self.world.check(files, name=name)

            own = {result.name: result.own for result in self.reports[name].results if result.own}
            self.own[name] = own if self.reports[name].accepted else {}

    def add(self, name: str, files: Mapping[str, str | None], *own: str) -> None:
        """One of which is known already which of its tests fail without the change."""
        self.files[name], self.own[name] = files, {"tests": own} if own else {}

    async def examined(self, requirements: tuple[Requirement, ...] = ()) -> Examination:
        repository = await self.world.pinned()
        log = self.world.log
        examinees = [
            Examinee(
                candidate_id=name,
                patch=await log.put("default", self.world.task.execution_id, self.world.patch(files), "text/x-diff"),
                tests=self.own[name],
            )
            for name, files in self.files.items()
        ]
        assignment = ExamineAssignment(
            execution_id=self.world.task.execution_id,
            task=self.world.task,
            repository=repository,
            examinees=tuple(examinees),
            requirements=requirements,
        )
        return await self.world.gatherer.examine(assignment)

    async def judged(self) -> dict[str, CheckReport]:
        matrix = Matrix(await self.examined())
        return {name: matrix.judged(name, report) for name, report in self.reports.items()}


def told(examination: Examination) -> dict[str, dict[str, str]]:
    """By author of tests and by candidate how the tests ended, as `passed/said`."""
    return {one.name: {crossing.candidate_id: crossing.cell for crossing in one.crossings} for one in examination.sets}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, DURATION_FILES)
    world.task = replace(world.task, description=DURATION_TASK)
    return world


@pytest.fixture
def pool(world: World) -> Pool:
    return Pool(world)


JAVASCRIPT = {
    "package.json": '{"name": "x", "version": "1.0.0", "scripts": {"test": "node --test"}}\n',
    "double.js": "exports.double = (x) => x + 1;\n",
    "test/double.test.js": (
        "const { test } = require('node:test');\nconst assert = require('node:assert');\n"
        "const { double } = require('../double');\n\ntest('one', () => assert.equal(double(1), 2));\n"
    ),
}


def js_test(name: str, body: str) -> str:
    head = JAVASCRIPT["test/double.test.js"].partition("\ntest(")[0]
    return head.replace("{ double }", "{ double, halve }") + f"\ntest('{name}', () => {{ {body} }});\n"


@pytest.mark.slow  # quick: probes tell the right change
async def test_a_test_says_nothing_where_it_asks_for_what_only_its_author_has(pool: Pool) -> None:
    own_names = RIGHT.replace("seconds(text)", "seconds(text, strict=True)") + "\n\ndef split(text):\n    return []\n"
    cases = {
        "both": BOTH,
        "keyword": 'assert durations.seconds("1h", strict=True) == 3600',
        "arity": 'assert durations.seconds("1h", True) == 3600',
        "helper": 'assert durations.split("") == []',
    }
    file = "tests/test_right.py"
    pool.add(
        "right", {"durations.py": own_names, file: new_tests(**cases)}, *(f"{file}::test_{name}" for name in cases)
    )
    imported = "from durations import split\n\n\ndef test_it():\n    assert split('') == []\n"
    pool.add(
        "imported", {"durations.py": own_names, "tests/test_imported.py": imported}, "tests/test_imported.py::test_it"
    )
    pool.add("half", {"durations.py": HALF})
    examination = await pool.examined()
    sets = {one.name: one for one in examination.sets}
    crossing = sets["right"].on("half")
    assert crossing is not None
    assert [failure.test for failure in crossing.failed] == ["tests/test_right.py::test_both"]
    assert {test.rpartition("_")[2] for test in crossing.unsaid} == {"keyword", "arity", "helper"}
    unsaid = sets["imported"].on("half")
    assert unsaid is not None and (unsaid.cell, unsaid.unsaid) == ("?", ("tests/test_imported.py::test_it",))


@pytest.mark.slow  # quick: probes tell the right change
async def test_tests_of_one_author_reach_neither_the_results_nor_the_rules_of_another(pool: Pool) -> None:
    hostile = (
        "import os\nimport pathlib\nimport sys\n\nimport durations\n\n\ndef test_mine():\n"
        '    if "rpartition" not in pathlib.Path(durations.__file__).read_text():\n'
        '        pathlib.Path("durations.py").write_text("")\n'
        '        print("PASSED tests/test_half.py::test_hour", flush=True)\n'
        "        os._exit(0)\n"
        '    assert durations.seconds("2m") == 120\n'
    )
    mine = SPECIAL + "\n\n# rpartition\n"
    pool.add("hostile", {"durations.py": mine, "tests/test_hostile.py": hostile}, "tests/test_hostile.py::test_mine")
    ruled = {
        "durations.py": RIGHT,
        "tests/test_ruled.py": new_tests(both=BOTH),
        "tests/conftest.py": "import nothing\n",
    }
    pool.add("ruled", ruled, "tests/test_ruled.py::test_both")
    half = {"durations.py": HALF, "tests/test_half.py": new_tests(hour=HOUR)}
    pool.add("half", half, "tests/test_half.py::test_hour")
    examination = await pool.examined()
    assert told(examination) == {
        "half": {"hostile": "0/1", "ruled": "1/1"},
        "hostile": {"half": "0/1", "ruled": "0/1"},
        "ruled": {"half": "0/1", "hostile": "0/1"},
    }
    # It detects the others' sources, which nobody else's change confirms, and each of theirs fails on its own.
    assert Matrix(examination).value("hostile") < Matrix(examination).value("half") < Matrix(examination).value("ruled")


@pytest.mark.slow
async def test_javascript(tmp_path: Path) -> None:
    pool = Pool(World(tmp_path, JAVASCRIPT))
    fixed = "exports.double = (x) => 2 * x;\n"
    helped = fixed + "exports.halve = (x) => x / 2;\n"
    two = js_test("two", "assert.equal(double(2), 4)")
    halve = "test('halve', () => assert.equal(halve(2), 1));\n"
    pool.add(
        "right",
        {"double.js": helped, "test/right.test.js": two + halve},
        *(f"test/right.test.js::{name}" for name in ("two", "halve")),
    )
    three = js_test("three", "assert.equal(double(3), 6)")
    special = "exports.double = (x) => (x === 3 ? 6 : x + 1);\n"
    pool.add("special", {"double.js": special, "test/special.test.js": three}, "test/special.test.js::three")
    examination = await pool.examined()
    assert told(examination) == {"right": {"special": "0/1"}, "special": {"right": "1/1"}}
    (crossing,) = examination.sets[0].crossings
    assert len(crossing.unsaid) == 1 and "halve" in crossing.unsaid[0]


@pytest.mark.slow  # quick: unit/test_examination_matrix.py, and the test of hostile authors above
async def test_the_tests_of_the_right_one_expose_all_that_look_as_good(pool: Pool) -> None:
    await pool.check(
        right={"durations.py": RIGHT, "tests/test_right.py": new_tests(both=BOTH, refused=REFUSED, hour=HOUR)},
        half={"durations.py": HALF, "tests/test_half.py": new_tests(example=EXAMPLE, hour=HOUR)},
        special={"durations.py": SPECIAL, "tests/test_special.py": new_tests(example=EXAMPLE)},
    )
    # What there was before: all of them verified, nothing to choose by.
    assert {report.verdict for report in pool.reports.values()} == {Verdict.VERIFIED}
    examination = await pool.examined()
    assert told(examination) == {
        "half": {"right": "2/2", "special": "1/2"},
        "right": {"half": "1/2", "special": "0/2"},
        "special": {"half": "1/1", "right": "1/1"},
    }
    judged = await pool.judged()
    assert [name for name, report in judged.items() if report.verdict is Verdict.VERIFIED] == ["right"]
    assert judged["half"].reasons[0] == (
        "1 test of right, whose change passes the tests of 2 other authors, fails: tests/test_right.py::test_both"
    )


# Probes of the statement, on the untouched commit and on candidates


def probe(quote: str, line: str) -> Requirement:
    return Requirement(quote=quote, probe=f'python3 -c "import durations; {line}"')


TOGETHER = probe("1h30m is 5400", "assert durations.seconds('1h30m') == 5400")
LONGER = probe("takes minutes and hours", "assert durations.seconds('2h1m') == 7260")
TWO = probe("2m is 120", "assert durations.seconds('2m') == 120")
HOLDS = probe("takes minutes", "assert durations.seconds('5s') == 5")
INVENTED = probe("1h is 3600", "assert durations.in_seconds('1h') == 3600")
WRONG = probe("1h is 3600", "assert durations.seconds('1h') == 60")
CANDIDATES = {"right": RIGHT, "half": HALF, "special": SPECIAL}


async def examined(
    world: World, requirements: tuple[Requirement, ...], *names: str, **files: Mapping[str, str | None]
) -> Examination:
    """What probes say of the candidates of these names, and of others that leave these files."""
    pool = Pool(world)
    for name, change in ({name: {"durations.py": CANDIDATES[name]} for name in names} | files).items():
        pool.add(name, change)
    return await pool.examined(requirements)


async def test_probes_tell_the_right_change_from_what_looks_as_good(world: World) -> None:
    examination = await examined(world, (TOGETHER, TWO, INVENTED, WRONG), "right", "half")
    (tests,) = examination.sets
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


@pytest.mark.slow  # quick: what is above, and unit/test_examination_matrix.py for what it does to verdicts
async def test_probes_decide_where_the_checks_find_no_difference(world: World) -> None:
    names = ("right", "half", "special")
    examination = await examined(world, (TOGETHER, LONGER), *names)
    alone, matrix = Matrix(await examined(world, (TOGETHER, TWO), *names)), Matrix(examination)
    assert matrix.value("right") > matrix.value("half") == matrix.value("special")
    reports = {name: await world.check({"durations.py": CANDIDATES[name]}, name=name) for name in names}
    assert {report.verdict for report in reports.values()} == {Verdict.UNVERIFIED}
    # One probe alone tells nobody apart.
    assert {alone.judged(name, report).verdict for name, report in reports.items()} == {Verdict.UNVERIFIED}
    judged = {name: matrix.judged(name, report) for name, report in reports.items()}
    assert [name for name, report in judged.items() if report.verdict is Verdict.VERIFIED] == ["right"]
    assert judged["right"].reasons[0] == (
        f"probes of the statement fail without the change and pass with it: {TOGETHER.name}, {LONGER.name}"
    )
    foreign = judged["half"].foreign
    assert foreign is not None and (foreign.asked, foreign.passed, foreign.failing) == (1, 0, {STATEMENT: 2})


async def test_what_the_untouched_commit_does_already_shows_nothing(world: World) -> None:
    made = Checklist(requirements=(TOGETHER, HOLDS, INVENTED))
    tried = made.with_outcomes(await examined(world, made.probed))
    assert [one.met_before for one in tried.requirements] == [False, True, False]
    assert [one.quote for one in tried.telling] == [TOGETHER.quote, INVENTED.quote]
    assert "ValueError" in tried.telling[0].seen


async def test_a_probe_reaches_neither_the_host_nor_a_later_probe(world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host")
    leaves = Requirement(quote="takes minutes", probe="touch durations.left /tmp/left && false")
    looks = Requirement(
        quote="and hours", probe=f"test ! -e durations.left && test ! -e {secret} && python3 durations.py"
    )
    (tests,) = (await examined(world, (leaves, looks), "right")).sets
    assert tests.crossings[0].passed == (looks.name,)


def test_a_checklist_quotes_the_statement_and_is_bounded(world: World) -> None:
    entry = '{"quote": "%s", "probe": "%s"}'
    probes = [entry % ("1h is 3600", f"test {number} = 0") for number in range(MAX_PROBES + 1)]
    others = [
        entry % ("nobody asked for this", "false"),
        entry % ("Anything  else raises\\nValueError", ""),
        entry % ("1h", "true"),
    ]
    found = read_checklist(f'Here: {{"requirements": [{", ".join(others + probes)}]}}', world.task)
    assert [one.quote for one in found] == ["Anything else raises ValueError", *["1h is 3600"] * (MAX_PROBES + 1)]
    assert [bool(one.probe) for one in found] == [False, *[True] * MAX_PROBES, False]
    for text, problem in (
        ("none", "not a JSON object"),
        ('{"requirements": "x"}', "another form"),
        ('{"requirements": [{"quote": "nobody asked for this"}]}', "nothing in it is a quotation"),
    ):
        with pytest.raises(ValueError, match=problem):
            read_checklist(text, world.task)
