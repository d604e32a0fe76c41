"""How `fleet batch` tries a patch with the hidden tests of a record."""

from __future__ import annotations

from swe_ai_fleet.cli.batch.evaluation import commands, without_files_of
from swe_ai_fleet.cli.batch.records import Hidden
from swe_ai_fleet.domain.environment import Environment


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
