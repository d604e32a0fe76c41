"""Cross-examination with real git, sandbox and test runners: the new tests of each on the sources of the others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.domain.candidate import CheckReport
from swe_ai_fleet.domain.errand import ExamineAssignment, Examinee
from swe_ai_fleet.domain.examination import Examination, Matrix
from swe_ai_fleet.domain.verdict import Verdict
from tests.evidence import World

TASK = "seconds() takes minutes and hours: 2m is 120, 1h is 3600, 1h30m is 5400. Anything else raises ValueError."
DURATIONS = 'def seconds(text):\n    return int(text.rstrip("s"))\n'
FILES = {
    "durations.py": DURATIONS,
    "tests/test_durations.py": 'import durations\n\n\ndef test_seconds():\n    assert durations.seconds("5s") == 5\n',
}
RIGHT = """\
import re

_UNITS = {"h": 3600, "m": 60, "s": 1}


def seconds(text):
    parts = re.findall(r"([0-9]+)([hms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(text)
    return sum(int(number) * _UNITS[unit] for number, unit in parts)
"""
HALF = """\
def seconds(text):
    return int(text[:-1]) * {"h": 3600, "m": 60, "s": 1}[text[-1]]
"""
SPECIAL = DURATIONS.replace("    return", '    if text == "2m":\n        return 120\n    return')
LAST_UNIT = RIGHT.replace("return sum(int", "return max(int")


def test_file(**cases: str) -> str:
    """A test file with one test for each case."""
    head = "import pytest\n\nimport durations\n"
    return head + "".join(f"\n\ndef test_{name}():\n    {body}\n" for name, body in cases.items())


EXAMPLE = 'assert durations.seconds("2m") == 120'
HOUR = 'assert durations.seconds("1h") == 3600'
BOTH = 'assert durations.seconds("1h30m") == 5400'
REFUSED = 'with pytest.raises(ValueError):\n        durations.seconds("1h x")'


class Pool:
    """Candidates of one repository."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.reports: dict[str, CheckReport] = {}
        self.files: dict[str, Mapping[str, str | None]] = {}

    async def check(self, **candidates: Mapping[str, str | None]) -> None:
        for name, files in candidates.items():
            self.files[name] = files
            self.reports[name] = await self.world.check(files, name=name)

    async def examined(self) -> Examination:
        repository = await self.world.pinned()
        log = self.world.log
        examinees = [
            Examinee(
                candidate_id=name,
                patch=await log.put("default", self.world.task.execution_id, self.world.patch(files), "text/x-diff"),
                tests={result.name: result.own for result in self.reports[name].results if result.own},
            )
            for name, files in self.files.items()
            if self.reports[name].accepted
        ]
        assignment = ExamineAssignment(
            execution_id=self.world.task.execution_id,
            task=self.world.task,
            repository=repository,
            examinees=tuple(examinees),
        )
        return await self.world.gatherer.examine(assignment)

    async def judged(self) -> dict[str, CheckReport]:
        matrix = Matrix(await self.examined())
        return {name: matrix.judged(name, report) for name, report in self.reports.items()}


def told(examination: Examination) -> dict[str, dict[str, str]]:
    """By author of tests and by candidate how the tests ended, as `passed/said`."""
    return {one.name: {crossing.candidate_id: crossing.cell for crossing in one.crossings} for one in examination.sets}


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncGenerator[Pool]:
    world = World(tmp_path, FILES)
    world.task = replace(world.task, description=TASK)
    yield Pool(world)


async def test_the_tests_of_the_right_one_expose_all_that_look_as_good(pool: Pool) -> None:
    await pool.check(
        right={"durations.py": RIGHT, "tests/test_right.py": test_file(both=BOTH, refused=REFUSED, hour=HOUR)},
        half={"durations.py": HALF, "tests/test_half.py": test_file(example=EXAMPLE, hour=HOUR)},
        special={"durations.py": SPECIAL, "tests/test_special.py": test_file(example=EXAMPLE)},
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
    assert {name: report.verdict for name, report in judged.items()} == {
        "right": Verdict.VERIFIED,
        "half": Verdict.UNVERIFIED,
        "special": Verdict.UNVERIFIED,
    }
    assert judged["half"].reasons[0] == (
        "1 test of right, whose change passes the tests of 2 other authors, fails: tests/test_right.py::test_both"
    )
