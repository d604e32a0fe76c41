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
from swe_ai_fleet.domain.examination import STATEMENT, Examination, Matrix
from swe_ai_fleet.domain.task import RepoRef, Task, TaskKind
from tests.evidence import (
    DURATION_FILES,
    DURATION_TASK,
    HALF,
    RIGHT,
    World,
)


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
