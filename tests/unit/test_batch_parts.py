"""The parts of `fleet batch`: what a line means, what it becomes, what is kept of it."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from swe_ai_fleet.cli.batch.evaluation import commands, without_files_of
from swe_ai_fleet.cli.batch.plan import Plan
from swe_ai_fleet.cli.batch.records import Hidden, read_records, task_id
from swe_ai_fleet.cli.batch.results import ERROR, Row, histogram, open_results, write_predictions
from swe_ai_fleet.cli.batch.run import batch, planned
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.cli.place import fleet_client
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.task import check_identifier
from swe_ai_fleet.settings import Settings

COMMIT = "a" * 40
SWE_BENCH = {
    "repo": "acme/widgets",
    "instance_id": "acme__widgets-42",
    "base_commit": COMMIT,
    "problem_statement": "Widgets turn the wrong way.",
    "hints_text": "Look at turn().",
    "patch": "THE SOLUTION",
    "test_patch": "diff --git a/tests/test_turn.py b/tests/test_turn.py\nTHE TESTS\n",
    "FAIL_TO_PASS": '["tests/test_turn.py::test_left"]',
    "PASS_TO_PASS": ["tests/test_turn.py::test_right[a b]"],
    "version": "1.0",
    "environment_setup_commit": "b" * 40,
}


def lines(path: Path, *values: object) -> Path:
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in values))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "clones/acme__widgets").mkdir(parents=True)
    return tmp_path


def a_plan(root: Path, **changes: object) -> Plan:
    settings = {
        "file": root / "set.jsonl",
        "name": "set",
        "order": Order(description="", deliberate_only=True),
        "results": root / "set.results.jsonl",
        "predictions": root / "set.preds.json",
        "repo_root": root / "clones",
    }
    return Plan(**{**settings, **changes})


# --- records ---


def test_a_swe_bench_record_shows_agents_the_problem_and_nothing_of_its_solution(root: Path) -> None:
    records, bad = read_records(lines(root / "set.jsonl", SWE_BENCH))
    assert not bad
    assert records[0].hidden == Hidden(
        fail_to_pass=("tests/test_turn.py::test_left",),
        pass_to_pass=("tests/test_turn.py::test_right[a b]",),
        test_patch=SWE_BENCH["test_patch"],
    )
    request = a_plan(root).request(records[0]).deliberate
    assert (request.task_id, request.task_description) == (
        "batch-set-acme__widgets-42",
        "Widgets turn the wrong way.",
    )
    assert (request.repo.path, request.repo.commit) == (str(root / "clones/acme__widgets"), COMMIT)
    sent = str(request)
    assert not any(secret in sent for secret in ("THE SOLUTION", "THE TESTS", "test_left", "test_right", "Look at"))
    assert "Look at turn()." in a_plan(root, hints=True).request(records[0]).deliberate.context


def test_a_task_in_our_own_words_goes_before_what_holds_for_all(root: Path) -> None:
    own = {
        "task_id": "greet",
        "task": "Greet people",
        "repo": "./clones/acme__widgets",
        "ref": "main",
        "role": "qa",
        "test_cmd": "make test",
        "checks": ["make lint"],
        "setup": "make deps",
        "env": {"A": "2"},
        "context": "Politely.",
        "agents": 5,
        "rounds": 0,
        "timeout_seconds": 7,
        "evaluation": "make secret",
    }
    records, _ = read_records(lines(root / "set.jsonl", own))
    order = Order(description="", agents=1, rounds=2, checks=("true",), variables=("A=1", "B=1"))
    request = a_plan(root, order=order).request(records[0], attempt=3).orchestrate
    assert [check.command for check in request.constraints.checks] == ["make lint", "make test"]
    assert list(request.environment.setup_commands) == ["make deps"]
    assert dict(request.environment.variables) == {"A": "2", "B": "1"}
    assert (request.role, request.options.num_agents, request.options.enable_peer_review) == ("QA", 5, False)
    assert (request.repo.ref, request.constraints.timeout_seconds, request.attempt) == ("main", 7, 3)
    assert request.context == "Politely."
    assert "secret" not in str(request)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no JSON"),
        ("[1]", "no JSON object"),
        ("[" * 100_000, "no JSON"),
        ({"problem_statement": "x"}, "instance_id"),
        ({"instance_id": "a\nb", "task": "x"}, "instance_id"),
        ({"instance_id": 5, "task": "x"}, "instance_id"),
        ({"instance_id": "a"}, "problem_statement"),
        ({"instance_id": "a", "task": "x", "FAIL_TO_PASS": "[1"}, "FAIL_TO_PASS is no list"),
        ({"instance_id": "a", "task": "x", "checks": [""]}, "checks"),
        ({"instance_id": "a", "task": "x", "checks": {}}, "checks is no list"),
        ({"instance_id": "a", "task": "x", "agents": -1}, "agents"),
        ({"instance_id": "a", "task": "x", "rounds": True}, "rounds"),
        ({"instance_id": "a", "task": "x", "env": {"A": 1}}, "env"),
        ({"instance_id": "a", "task": "half \ud800"}, "surrogate"),
        ({"instance_id": "a", "task": "nul \0"}, "NUL"),
        ({"instance_id": "good", "task": "x"}, "stands in line 1 already"),
    ],
)
def test_a_bad_line_is_named_and_holds_nobody_up(tmp_path: Path, line: object, reason: str) -> None:
    good = {"instance_id": "good", "task": "x"}
    records, bad = read_records(lines(tmp_path / "f", good, "", line, {"instance_id": "last", "task": "y"}))
    assert [record.instance_id for record in records] == ["good", "last"]
    assert [one.line for one in bad] == [3]
    assert reason in bad[0].reason


def test_a_line_without_end_is_passed_over(tmp_path: Path) -> None:
    file = lines(tmp_path / "f", "x" * 1000, {"instance_id": "a", "task": "y"}, "z" * 150)
    records, bad = read_records(file, max_line_bytes=100)
    assert [record.instance_id for record in records] == ["a"]
    assert [(one.line, "more than 100 bytes" in one.reason) for one in bad] == [(1, True), (3, True)]


@given(name=st.text(min_size=1, max_size=60), one=st.text(min_size=1, max_size=200), two=st.text(min_size=1))
def test_every_record_has_a_valid_task_id_of_its_own(name: str, one: str, two: str) -> None:
    assert check_identifier(task_id(name, one), field="task_id") == task_id(name, one)
    assert (task_id(name, one) == task_id(name, two)) == (one == two)


# --- where repositories are ---


@pytest.mark.parametrize(
    ("repo", "changes", "expected"),
    [
        ("https://git.example/a.git", {}, "url"),
        ("git@git.example:a/b", {}, "url"),
        ("acme/widgets", {"repo_root": None, "repo_template": "https://git.example/{repo}.git"}, "url"),
        ("acme/widgets", {}, "path"),
        ("clones/acme__widgets", {"repo_root": None}, "path"),
        ("", {"repo": "./clones/acme__widgets"}, "path"),
    ],
)
def test_a_repository_is_found(root: Path, repo: str, changes: dict[str, object], expected: str) -> None:
    records, _ = read_records(lines(root / "set.jsonl", {"instance_id": "a", "task": "x", "repo": repo}))
    found = a_plan(root, **changes).request(records[0]).deliberate.repo
    assert found.WhichOneof("location") == expected
    assert found.path in ("", str(root / "clones/acme__widgets"))
    assert found.url in ("", repo, "https://git.example/acme/widgets.git")


@pytest.mark.parametrize("repo", ["", "acme/unknown", "acme/../../etc", "./nowhere"])
def test_a_repository_that_is_not_there_is_told(root: Path, repo: str) -> None:
    file = lines(root / "set.jsonl", {"instance_id": "a", "task": "x", "repo": repo})
    records, _ = read_records(file)
    plan = a_plan(root)
    with pytest.raises(CommandFault) as fault:
        plan.request(records[0])
    assert fault.value.exit_code is Exit.USAGE and fault.value.hint
    with open_results(plan.results) as results:
        works, refused = planned(plan, records, results)
    assert not works and refused[0].line == 1


# --- results ---


def test_results_survive_and_the_newest_counts(root: Path) -> None:
    path = root / "set.results.jsonl"
    with open_results(path) as results:
        results.add(Row(instance_id="a", task_id="t", status=ERROR, error="no room"))
        results.add(Row(instance_id="b", task_id="u", status="no_winner"))
    path.write_bytes(path.read_bytes() + b'{"instance_id": "c", "ta')
    with open_results(path) as results:
        assert sorted(results.rows) == ["a", "b"]
        results.add(Row(instance_id="a", task_id="t", status="completed", model_patch="p", tokens=3))
    with open_results(path) as results:
        assert results.rows["a"] == Row(instance_id="a", task_id="t", status="completed", model_patch="p", tokens=3)
        assert results.rows["a"].accepted and not results.rows["b"].accepted
        with pytest.raises(CommandFault, match="another batch"), open_results(path):
            pass


def test_predictions_are_what_swe_bench_reads(root: Path) -> None:
    rows = [
        Row(instance_id="a", task_id="t", status="completed", model_patch="diff\n"),
        Row(instance_id="b", task_id="u", status="no_winner"),
        Row(instance_id="c", task_id="v", status=ERROR),
    ]
    write_predictions(root / "p.json", rows, model="mine")
    assert json.loads((root / "p.json").read_text()) == [
        {"instance_id": "a", "model_name_or_path": "mine", "model_patch": "diff\n"},
        {"instance_id": "b", "model_name_or_path": "mine", "model_patch": ""},
    ]
    assert histogram(rows, bad_lines=2, left=0) == {"completed": 1, "no_winner": 1, "error": 1, "bad line": 2}


@pytest.mark.parametrize(
    ("status", "resolved", "options", "expected"),
    [
        ("completed", None, {}, None),
        ("no_winner", None, {}, None),
        (ERROR, None, {}, 1),
        ("no_winner", None, {"retry": True}, 2),
        ("completed", None, {"retry": True}, None),
        ("completed", None, {"evaluate": True}, 1),
        ("completed", False, {"evaluate": True}, None),
    ],
)
def test_what_is_done_is_passed_over(
    root: Path, status: str, resolved: bool | None, options: dict[str, object], expected: int | None
) -> None:
    records, _ = read_records(lines(root / "set.jsonl", SWE_BENCH))
    plan = a_plan(root, **options)
    with open_results(plan.results) as results:
        results.add(Row(instance_id="acme__widgets-42", task_id="t", status=status, resolved=resolved))
        works, _ = planned(plan, records, results)
    assert [work.attempt for work in works] == ([] if expected is None else [expected])
    if works:
        assert (works[0].ended is not None) == bool(plan.evaluate)


# --- hidden tests ---


def test_what_a_patch_did_to_the_hidden_tests_does_not_count() -> None:
    mine = "diff --git a/app.py b/app.py\n+x\n"
    tests = "diff --git a/tests/t.py b/tests/t.py\n+assert True\n"
    later = "diff --git a/z.py b/z.py\n+\x0cdiff --git a/tests/t.py b/tests/t.py\n"
    assert without_files_of(tests, mine + tests + later) == mine + later
    assert without_files_of(tests, mine + tests) == mine
    assert without_files_of(tests, tests) == ""
    assert without_files_of("", mine + tests) == mine + tests


def test_hidden_tests_are_run_by_name_as_the_repository_runs_its_own() -> None:
    hidden = Hidden(fail_to_pass=("t.py::a[x y]",), pass_to_pass=("-p.py::b",), commands=("make check",))
    environment = Environment(test_command=("python3", "-m", "pytest", "-x", "tests"))
    assert list(commands(hidden, environment)) == [
        ("sh", "-c", "make check"),
        ("python3", "-m", "pytest", "-q", "--", "t.py::a[x y]", "-p.py::b"),
    ]
    many = Hidden(pass_to_pass=tuple(f"t.py::n{number}" for number in range(1_200)))
    assert sum(len(argv) - 5 for argv in commands(many, Environment())) == 1_200


# --- the command, without a fleet ---


def a_screen() -> Screen:
    return Screen(json=False, out=Console(file=StringIO(), width=160), err=Console(file=StringIO(), width=160))


async def carried_out(root: Path, **changes: object) -> CommandFault:
    with pytest.raises(CommandFault) as fault:
        settings = Settings(home=root / "home")
        await batch(a_screen(), fleet_client(settings, server="", token=""), a_plan(root, **changes))
    return fault.value


async def test_without_a_fleet_nothing_is_lost(root: Path) -> None:
    lines(root / "set.jsonl", SWE_BENCH)
    fault = await carried_out(root)
    assert (fault.exit_code, "no fleet runs" in fault.message) == (Exit.UNAVAILABLE, True)
    assert json.loads((root / "set.preds.json").read_text()) == []


async def test_what_is_no_batch_is_bad_usage(root: Path) -> None:
    assert (await carried_out(root)).exit_code is Exit.USAGE
    lines(root / "set.jsonl", SWE_BENCH, "no record")
    strict = await carried_out(root, strict=True)
    assert (strict.exit_code, "line 2" in strict.message) == (Exit.USAGE, True)
    lines(root / "set.jsonl", "no record")
    assert "holds no task" in (await carried_out(root)).message
    assert (await carried_out(root, results=root / "nowhere/r")).exit_code is Exit.USAGE
