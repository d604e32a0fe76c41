"""Cross-examination with real git, sandbox and test runners: probes of the statement, and tests of the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.agents.preparation import MAX_PROBES, read_checklist
from swe_ai_fleet.domain.assignment import ExamineAssignment, Examinee
from swe_ai_fleet.domain.candidate import CheckReport
from swe_ai_fleet.domain.checklist import Requirement
from swe_ai_fleet.domain.examination import STATEMENT, Examination, Matrix
from swe_ai_fleet.domain.task import RepoRef, Task, TaskKind
from tests.evidence import (
    BOTH,
    DURATION_FILES,
    DURATION_TASK,
    HALF,
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


def told(examination: Examination) -> dict[str, dict[str, str]]:
    """By author of tests and by candidate how the tests ended, as `passed/said`."""
    return {one.name: {crossing.candidate_id: crossing.cell for crossing in one.crossings} for one in examination.sets}


@pytest.fixture
def pool(world: World) -> Pool:
    return Pool(world)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, DURATION_FILES)
    world.task = replace(world.task, description=DURATION_TASK)
    return world


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
CANDIDATES: Mapping[str, Mapping[str, str]] = {
    "right": {"durations.py": RIGHT},
    "half": {"durations.py": HALF, "tests/test_half.py": HOUR},
}
OWN = {"half": {"tests": ("tests/test_half.py::test_hour",)}}
"""Tests of candidates of which is known already that they fail without the change."""


async def examined(world: World, requirements: tuple[Any, ...], *names: str) -> Examination:
    """What probes say of the candidates of these names."""
    repository = await world.pinned()
    examinees = [
        Examinee(
            candidate_id=name,
            patch=await world.log.put("default", world.task.execution_id, world.patch(CANDIDATES[name]), "text/x-diff"),
            tests=OWN.get(name, {}),
        )
        for name in names
    ]
    assignment = ExamineAssignment(
        execution_id=world.task.execution_id,
        task=world.task,
        repository=repository,
        examinees=tuple(examinees),
        requirements=requirements,
    )
    return await world.gatherer.examine(assignment)


async def test_probes_and_tests_of_others_tell_the_right_change_from_what_looks_as_good(world: World) -> None:
    examination = await examined(world, (TOGETHER, TWO, INVENTED, WRONG), "right", "half")
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


async def test_a_probe_reaches_neither_the_host_nor_a_later_probe(world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host")
    leaves = requirement("takes minutes", "touch durations.left /tmp/left && false")
    looks = requirement("and hours", f"test ! -e durations.left && test ! -e {secret} && python3 durations.py")
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


@pytest.mark.slow  # quick: probes and tests of others
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
    half = {"durations.py": HALF, "tests/test_half.py": HOUR}
    pool.add("half", half, "tests/test_half.py::test_hour")
    examination = await pool.examined()
    assert told(examination) == {
        "half": {"hostile": "0/1", "ruled": "1/1"},
        "hostile": {"half": "0/1", "ruled": "0/1"},
        "ruled": {"half": "0/1", "hostile": "0/1"},
    }
    # It detects the others' sources, which nobody else's change confirms, and each of theirs fails on its own.
    assert Matrix(examination).value("hostile") < Matrix(examination).value("half") < Matrix(examination).value("ruled")
