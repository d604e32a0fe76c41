"""Probes of a task's statement, run with real git and sandbox on the untouched commit and on candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.agents.probing import MAX_PROBES, read_checklist
from swe_ai_fleet.domain.checklist import Checklist, Requirement
from swe_ai_fleet.domain.errand import ExamineAssignment, Examinee
from swe_ai_fleet.domain.examination import STATEMENT, Examination, Matrix
from swe_ai_fleet.domain.verdict import Verdict
from tests.evidence import DURATION_FILES, DURATION_TASK, HALF, RIGHT, SPECIAL, World


def probe(quote: str, line: str) -> Requirement:
    return Requirement(quote=quote, probe=f'python3 -c "import durations; {line}"')


BOTH = probe("1h30m is 5400", "assert durations.seconds('1h30m') == 5400")
LONGER = probe("takes minutes and hours", "assert durations.seconds('2h1m') == 7260")
EXAMPLE = probe("2m is 120", "assert durations.seconds('2m') == 120")
HOLDS = probe("takes minutes", "assert durations.seconds('5s') == 5")
INVENTED = probe("1h is 3600", "assert durations.in_seconds('1h') == 3600")
WRONG = probe("1h is 3600", "assert durations.seconds('1h') == 60")
CANDIDATES = {"right": RIGHT, "half": HALF, "special": SPECIAL}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, DURATION_FILES)
    world.task = replace(world.task, description=DURATION_TASK)
    return world


async def examined(
    world: World, requirements: tuple[Requirement, ...], *names: str, **files: Mapping[str, str]
) -> Examination:
    """What probes say of the candidates of these names, and of others that leave these files."""
    changes = {name: {"durations.py": CANDIDATES[name]} for name in names} | files
    examinees: list[Examinee] = []
    for name, change in changes.items():
        stored = await world.log.put("default", world.task.execution_id, world.patch(change), "text/x-diff")
        examinees.append(Examinee(candidate_id=name, patch=stored))
    assignment = ExamineAssignment(
        execution_id=world.task.execution_id,
        task=world.task,
        repository=await world.pinned(),
        examinees=tuple(examinees),
        requirements=requirements,
    )
    return await world.gatherer.examine(assignment)


async def test_probes_tell_the_right_change_from_what_looks_as_good(world: World) -> None:
    names = ("right", "half", "special")
    examination = await examined(world, (BOTH, EXAMPLE, INVENTED, WRONG), *names)
    (tests,) = examination.sets
    assert (tests.name, tests.authors) == (STATEMENT, ())
    ended = {
        one.candidate_id: (set(one.passed), {failure.test for failure in one.failed}, set(one.unsaid))
        for one in tests.crossings
    }
    # A name that the probe's author made up says nothing of anybody.
    assert ended == {
        "right": ({BOTH.name, EXAMPLE.name}, {WRONG.name}, {INVENTED.name}),
        "half": ({EXAMPLE.name}, {BOTH.name, WRONG.name}, {INVENTED.name}),
        "special": ({EXAMPLE.name}, {BOTH.name, WRONG.name}, {INVENTED.name}),
    }
    matrix = Matrix(examination)
    # What nobody passes, or one alone, weighs least: the probe may be wrong.
    assert matrix.weight(tests, WRONG.name) <= matrix.weight(tests, BOTH.name) < matrix.weight(tests, EXAMPLE.name)
    examination = await examined(world, (BOTH, LONGER), *names)
    alone, matrix = Matrix(await examined(world, (BOTH, EXAMPLE), *names)), Matrix(examination)
    assert matrix.value("right") > matrix.value("half") == matrix.value("special")
    reports = {name: await world.check({"durations.py": CANDIDATES[name]}, name=name) for name in names}
    assert {report.verdict for report in reports.values()} == {Verdict.UNVERIFIED}
    # One probe alone tells nobody apart.
    assert {alone.judged(name, report).verdict for name, report in reports.items()} == {Verdict.UNVERIFIED}
    judged = {name: matrix.judged(name, report) for name, report in reports.items()}
    assert {name: report.verdict for name, report in judged.items()} == {
        "right": Verdict.VERIFIED,
        "half": Verdict.UNVERIFIED,
        "special": Verdict.UNVERIFIED,
    }
    assert judged["right"].reasons[0] == (
        f"probes of the statement fail without the change and pass with it: {BOTH.name}, {LONGER.name}"
    )
    foreign = judged["half"].foreign
    assert foreign is not None and (foreign.asked, foreign.passed, foreign.failing) == (1, 0, {STATEMENT: 2})


async def test_what_the_untouched_commit_does_already_shows_nothing(world: World) -> None:
    made = Checklist(requirements=(BOTH, HOLDS, INVENTED))
    tried = made.tried(await examined(world, made.probed))
    assert {one.quote: one.met_before for one in tried.requirements} == {
        BOTH.quote: False,
        HOLDS.quote: True,
        INVENTED.quote: False,
    }
    assert [one.quote for one in tried.telling] == [BOTH.quote, INVENTED.quote]
    assert "ValueError" in tried.telling[0].seen


async def test_a_probe_that_passes_on_a_source_that_cannot_run_says_nothing(world: World) -> None:
    gone = Requirement(quote="takes minutes", probe="! grep -q rstrip durations.py")
    there = Requirement(quote="and hours", probe="grep -q 3600 durations.py")
    changed = Requirement(quote="1h is 3600", probe="! git log -1 --format=%s | grep -q 'First commit'")
    told = Requirement(quote="2m is 120", probe="grep -q minutes README.md")
    requirements = (gone, there, changed, told, BOTH)
    (before,) = (await examined(world, requirements)).sets
    assert before.crossings[0].passed == ()
    documented = {"README.md": "It takes minutes.\n"}
    (tests,) = (await examined(world, requirements, "right", documented=documented)).sets
    ended = {one.candidate_id: (set(one.passed), set(one.unsaid)) for one in tests.crossings}
    # What is no source in a programming language has no use but its text.
    assert ended == {
        "right": ({BOTH.name}, {gone.name, there.name, changed.name}),
        "documented": ({told.name}, {changed.name}),
    }


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
        ("none", "no JSON object"),
        ('{"requirements": "x"}', "another form"),
        ('{"requirements": [{"quote": "nobody asked for this"}]}', "nothing in it is a quotation"),
    ):
        with pytest.raises(ValueError, match=problem):
            read_checklist(text, world.task)
