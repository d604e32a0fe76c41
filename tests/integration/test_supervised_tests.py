"""Test runs that always report: what hangs, crashes or cannot be collected is named, and the rest still runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.sandbox import LocalWorkspace, open_workspace
from swe_ai_fleet.testing.repositories import make_repository, write_files
from swe_ai_fleet.tools.tests import Selection, SuitePlanner, TestLimits, run_tests

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap (bwrap) on PATH")

PYTEST = (f"{sys.prefix}/bin/python", "-m", "pytest", "-q")
UNITTEST = (f"{sys.prefix}/bin/python", "-m", "unittest", "discover")
ENVIRONMENT = Environment(
    mounts=tuple(Mount(source=prefix, target=prefix) for prefix in sorted({sys.prefix, sys.base_prefix})),
    variables={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
)
QUICK = TestLimits(whole=60, test=1, start=20)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "clone")


@pytest.fixture
async def workspace(root: Path) -> AsyncIterator[LocalWorkspace]:
    async with open_workspace(root, environment=ENVIRONMENT) as opened:
        yield opened


async def run(
    workspace: LocalWorkspace, files: Mapping[str, str], argv: tuple[str, ...] = PYTEST, **options: Any
) -> TestRun:
    """With files written: `limits`, where they are others than QUICK, and a `selection`."""
    limits = options.get("limits", QUICK)
    write_files(workspace.root, files)
    planner = SuitePlanner(workspace=workspace, known_seconds=limits.known)
    plan = await planner.plan(argv, options.get("selection", Selection()))
    return await run_tests(workspace, plan, limits)


def outcomes(found: TestRun) -> dict[str, str]:
    return {name: str(result.outcome) for name, result in found.results.items()}


OK = "def test_ok():\n    pass\n"


async def test_every_kind_of_end(workspace: LocalWorkspace) -> None:
    text = """
import pytest, unittest

def test_ok(): pass
def test_wrong(): assert 1 == 2, "one is not two"
@pytest.fixture
def broken(): raise RuntimeError("no fixture")
def test_set_up(broken): pass
@pytest.fixture
def untidy():
    yield
    raise RuntimeError("not tidied up")
def test_tear_down(untidy): pass
@pytest.mark.skip(reason="later")
def test_skipped(): pass
@pytest.mark.xfail
def test_expected(): assert False
@pytest.mark.xfail(strict=True)
def test_unexpected(): pass
@pytest.mark.parametrize("n", [1, 2])
def test_each(n): assert n == 1
class TestCase(unittest.TestCase):
    def test_sub(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertNotEqual(n, 1)
"""
    found = await run(workspace, {"test_all.py": text})
    assert outcomes(found) == {
        "test_all.py::test_ok": "passed", "test_all.py::test_wrong": "failed", "test_all.py::test_set_up": "error",
        "test_all.py::test_tear_down": "error", "test_all.py::test_skipped": "skipped",
        "test_all.py::test_expected": "skipped", "test_all.py::test_unexpected": "failed",
        "test_all.py::test_each[1]": "passed", "test_all.py::test_each[2]": "failed",
        "test_all.py::TestCase::test_sub": "failed",
    }  # fmt: skip
    assert found.results["test_all.py::test_wrong"].message == "AssertionError: one is not two\nassert 1 == 2"
    assert found.exit_code == 1


@pytest.mark.slow  # quick: what is wanted first
async def test_tests_that_hang_or_crash_are_named_and_the_rest_still_runs(workspace: LocalWorkspace) -> None:
    around = "import os, signal, time\n\ndef test_a(): pass\n\n{}\n\ndef test_z(): pass\n"
    deaf = "def test_deaf():\n    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGTERM])\n"
    files = {
        "test_spin.py": around.format("def test_spins():\n    while True:\n        time.sleep(0.01)"),
        "test_deaf.py": around.format(f"{deaf}    time.sleep(600)"),
        "test_crash.py": around.format("def test_dies():\n    os.kill(os.getpid(), signal.SIGSEGV)"),
        "test_leave.py": "import os\n\ndef test_leaves():\n    os._exit(0)\n",
        "test_x.py": OK,
    }
    found = await run(workspace, files)
    ends = {"spin.py::test_spins": "failed", "deaf.py::test_deaf": "error", "crash.py::test_dies": "error"}
    passed = [f"test_{name}.py::test_{one}" for name in ("spin", "deaf", "crash") for one in "az"]
    assert outcomes(found) == {
        **{f"test_{name}": outcome for name, outcome in ends.items()},
        **dict.fromkeys(passed, "passed"),
        "test_leave.py::test_leaves": "error",
        "test_x.py::test_ok": "passed",
    }
    assert "not finished within " in found.results["test_spin.py::test_spins"].message
    assert "time.sleep(0.01)" in found.results["test_spin.py::test_spins"].traceback
    assert found.hung == ("test_deaf.py::test_deaf",)
    assert set(found.crashed) == {"test_crash.py::test_dies", "test_leave.py::test_leaves"}
    assert found.results["test_crash.py::test_dies"].message == "the test run died here: SIGSEGV"
    assert not found.stopped


async def test_what_is_wanted_first_runs_first_and_known_slow_ones_get_their_time(workspace: LocalWorkspace) -> None:
    files = {f"test_{name}.py": OK for name in "abcd"} | {
        "test_a.py": "import time\n\ndef test_ok(): time.sleep(1.1)\n"
    }
    selection = Selection(first=(("test_c.py::test_ok",), ("test_d.py",)), deselect=("test_b.py::test_ok",))
    limits = replace(QUICK, known={"test_a.py::test_ok": 10.0})
    found = await run(workspace, files, selection=selection, limits=limits)
    assert list(found.results) == ["test_c.py::test_ok", "test_d.py::test_ok", "test_a.py::test_ok"]
    assert found.green


async def test_options_of_the_repository_that_are_not_taken_over(workspace: LocalWorkspace) -> None:
    files = {
        "pytest.ini": "[pytest]\naddopts = -x --cov=src -n 4\n",
        "test_a.py": "def test_no():\n    assert 0\n",
        "test_b.py": OK,
    }
    both = {"test_a.py::test_no": "failed", "test_b.py::test_ok": "passed"}
    found = await run(workspace, files)
    assert (outcomes(found), "addopts" in found.notes[0]) == (both, True)


async def test_runs_that_end_early_say_why_and_keep_what_was_read(workspace: LocalWorkspace, root: Path) -> None:
    suite = """import os, unittest
class T(unittest.TestCase):
    def test_a(self): pass
    def test_b_dies(self): os._exit(7)
    def test_c_erases(self): open(os.environ["FLEET_TEST_EVENTS"], "w").write("x" * 1_000_000)
    def test_d(self): pass
"""
    found = await run(workspace, {"test_a.py": suite}, UNITTEST)
    assert outcomes(found) == {"test_a.T.test_a": "passed", "test_a.T.test_b_dies": "error"}
    assert "a test wrote over the report of the run" in found.stopped
    assert found.exit_code
    found = await run(workspace, {"conftest.py": "import os\nos._exit(3)\n", "test_a.py": OK})
    assert (found.reported, found.green) == (False, False)
    assert found.stopped == "the test runner ended early (exit code 3)"
