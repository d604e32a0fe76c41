"""Every test runner and linter through the real sandbox: what they report, and what hostile suites try.

Runners that this machine lacks are skipped by name.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.domain.tool import Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.sandbox import LocalWorkspace, open_workspace
from swe_ai_fleet.testing.repositories import git, make_repository, write_files
from swe_ai_fleet.tools import TestTool
from swe_ai_fleet.tools.tests import Selection, SuitePlanner, TestLimits, run_tests
from tests.confinement import needs_bwrap
from tests.environments import WITH_PYTEST, provider_at
from tests.tool_doubles import failed, ok

pytestmark = needs_bwrap

BARE = Environment(mounts=WITH_PYTEST.mounts)
needs_node = pytest.mark.skipif(not Path("/usr/bin/npm").exists(), reason="needs node and npm below /usr")

Files = Mapping[str, str]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "clone")


@pytest.fixture
def put(root: Path) -> Callable[[Files], None]:
    return partial(write_files, root)


@pytest.fixture
async def bare(root: Path) -> AsyncIterator[LocalWorkspace]:
    async with open_workspace(root, environment=BARE) as opened:
        yield opened


def numbers(result: ToolResult) -> tuple[int, int, int, int]:
    """(passed, failed, errors, skipped)"""
    tests = cast("dict[str, int]", result.metadata["tests"])
    return tests["passed"], tests["failed"], tests["errors"], tests["skipped"]


def failing(result: ToolResult) -> dict[str, str]:
    tests = cast("dict[str, list[dict[str, str]]]", result.metadata["tests"])
    return {test["id"]: test["message"] for test in tests["failing"]}


def new_files(root: Path) -> set[str]:
    """What would show up in the diff."""
    shown = git(root, "-c", "safe.directory=*", "ls-files", "--others", "--exclude-standard", "-z", "--modified")
    return set(shown.split("\0")) - {""}


NODE = {
    "package.json": json.dumps({"scripts": {"test": "node --test test/"}}),
    "test/a.test.js": """
const {test, describe, it} = require('node:test'); const assert = require('node:assert');
test('adds', () => {}); test('wrong', () => assert.strictEqual(1, 2));
describe('group', () => { it('inner', () => { throw new Error('boom') }); it.skip('later', () => {}) });
""",
    "test/b.test.js": "const {test} = require('node:test'\n",
}


@needs_node
class TestNpm:
    async def test_nodes_own_runner(self, bare: LocalWorkspace, put: Callable[[Files], None], root: Path) -> None:
        put(NODE)
        tool = TestTool(bare)
        result = await failed(tool.run(), "Ran `npm test`", "FAILED test/a.test.js::group > inner", "boom")
        assert numbers(result) == (1, 2, 1, 1)
        assert failing(result)["test/b.test.js"] == "test/b.test.js:1: SyntaxError: missing ) after argument list"
        assert result.metadata["framework"] == "node"
        some = await ok(tool.npm_test(["test/a.test.js"], keyword="add"))
        assert numbers(some)[:3] == (1, 0, 0)
        assert new_files(root) == set(NODE)


UNITTEST = {
    "src/app.py": "answer = 42\n",
    "tests/helper.py": "x = 1\n",
    "tests/test_app.py": """
import unittest
import helper

class T(unittest.TestCase):
    def test_right(self): pass
    def test_wrong(self): self.assertEqual(1, 2)
    def test_boom(self): raise ValueError("boom")
    @unittest.skip("later")
    def test_later(self): pass
    @unittest.expectedFailure
    def test_expected(self): self.fail()
    def test_parts(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(number, 1)
""",
    "tests/test_bad.py": "import unittest\nimport nosuch\n",
}


class TestUnittest:
    async def test_a_suite_and_some_of_it(self, bare: LocalWorkspace, put: Callable[[Files], None], root: Path) -> None:
        put(UNITTEST)
        tool = TestTool(bare)
        result = await failed(tool.run(), "Ran `python3 -m unittest discover -s tests`", "FAILED test_app.T.test_wrong")
        assert numbers(result) == (1, 2, 2, 2)
        assert failing(result) == {
            "test_bad": "tests/test_bad.py:2: ModuleNotFoundError: No module named 'nosuch'",
            "test_app.T.test_wrong": "AssertionError: 1 != 2", "test_app.T.test_boom": "ValueError: boom",
            "test_app.T.test_parts (number=1)": "AssertionError: 1 == 1",
        }  # fmt: skip
        assert new_files(root) == set(UNITTEST)
        assert numbers(await ok(tool.unittest(["tests/test_app.py::T::test_right"]))) == (1, 0, 0, 0)
        assert numbers(await failed(tool.run(["tests/test_app.py"], keyword="wrong"))) == (0, 1, 0, 0)
        await failed(tool.unittest(["absent.py"]), "there is no 'absent.py'")


class TestSelection:
    async def test_options_and_paths_outside_are_refused_everywhere(
        self, bare: LocalWorkspace, put: Callable[[Files], None], root: Path
    ) -> None:
        tool = TestTool(bare)
        put(NODE | UNITTEST | {"go.mod": "module a\n", "Cargo.toml": "[package]\n", "options": "x"})
        (root / "way-out").symlink_to("/usr/lib")
        (root.parent / "sibling").mkdir()
        calls = (tool.go_test, tool.npm_test, tool.cargo_test, tool.unittest, tool.run)

        async def refused(call: Awaitable[ToolResult]) -> None:
            result = await failed(call, "looks like an option")
            entry = tool.pipeline.trail.entries[-1]
            assert (result.outcome, entry.decision) == (Outcome.REFUSED, PolicyDecision.REFUSED)

        for call in calls:
            for path in ("-exec=touch pwned", "--manifest-path=/x", "@options", "--"):
                await refused(call([path]))
        for call in calls[:-1]:
            for keyword in ("--config=build.rustc='x'", "@options"):
                await refused(call([], keyword=keyword))
            await failed(call([], keyword=" "), "selects nothing")
        await refused(tool.lint(["--fix"]))
        for target in ("--eval=$(shell touch pwned)", "-fevil.mk", "@evil.mk"):
            assert (await tool.make_test(target=target)).outcome is Outcome.REFUSED, target
        for call in (*calls, tool.lint):
            for path in ("../sibling", "/etc", "way-out", "/usr/lib/python3"):
                await failed(call([path]), "outside the workspace")
        assert not list(root.rglob("*pwned*"))


PASSED = '{"e": "end", "id": "fine", "o": "passed"}\\n{"e": "finish", "code": 0}\\n'
FORGED = {
    "good news": f"""open(file, "w").write('{PASSED}')""",
    "too large": """open(file, "w").write("x" * 20_000_000)""",
    "a link": """(os.remove(file), os.symlink("/etc/passwd", file))""",
}


class TestHostileSuites:
    @pytest.mark.parametrize("forged", FORGED)
    async def test_a_forged_report_does_not_pass(self, bare: LocalWorkspace, put: Callable[[Files], None], forged: str):
        """A suite can find where its report goes: what it puts there has no seal and is passed over.

        What it erases there counts only as far as it was read before, and what it prints does not count.
        """
        place = "import atexit, os\nfile = os.environ['FLEET_TEST_EVENTS']\n"
        forge = f"{place}atexit.register(lambda: ({FORGED[forged]}))\n"
        put(UNITTEST | {"tests/test_app.py": forge + UNITTEST["tests/test_app.py"]})
        tool = TestTool(bare)
        result = await failed(tool.run())
        entry = tool.pipeline.trail.entries[-1]
        assert (result.exit_code, entry.exit_code, entry.outcome) == (1, 1, Outcome.ERROR)
        assert "root:x:0" not in result.observation()
        stopped = any(why in result.observation() for why in ("a test wrote over the report", "ended early"))
        assert stopped or "tests" not in result.metadata or numbers(result) == (1, 2, 2, 2)

    @pytest.mark.parametrize("forged", FORGED)
    async def test_tests_that_pass_without_a_report_did_not_pass(
        self, bare: LocalWorkspace, put: Callable[[Files], None], forged: str
    ):
        forge = (
            f"import atexit, os\nfile = os.environ['FLEET_TEST_EVENTS']\natexit.register(lambda: ({FORGED[forged]}))\n"
        )
        tests = "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): pass\n"
        put({"tests/test_app.py": forge + tests})
        await failed(TestTool(bare).run(), "Ran 1 test in")


# --- linters through the real sandbox: which are run, and what an agent sees of them ---


RUFF = Path(sys.prefix, "bin/ruff")
RULES = "lint.select = ['F', 'E402']\n"
OLD = "".join(f"import old_{number}\n" for number in range(44))


class Project:
    """A repository with one commit, whose commands find ruff as the fleet brings it."""

    def __init__(self, root: Path, files: Mapping[str, str]) -> None:
        (root / "tools").mkdir()
        shutil.copy2(RUFF, root / "tools/ruff")
        self.root = make_repository(root / "repo", files)
        mount = Mount(source=str(root / "tools"), target="/opt/tools")
        self.environment = Environment(mounts=(mount,), path=("/opt/tools",))
        self.provider = provider_at(root)

    async def linted(self, files: Mapping[str, str], *paths: str) -> ToolResult:
        """What an agent that has written these files sees."""
        pinned = await self.provider.pin("t", RepoRef(location=str(self.root)))
        async with self.provider.open("e", "agent", pinned, self.environment) as clone:
            write_files(clone.root, files)
            before = (await clone.diff()).patch
            result = await TestTool(clone).lint(list(paths))
            assert (await clone.diff()).patch == before, "a linter has changed the workspace"
        return result


async def test_an_agent_sees_the_lines_that_it_has_changed(tmp_path: Path) -> None:
    held = Project(tmp_path, {"app.py": f"{OLD}\n\ndef f():\n    return 1\n", "other.py": OLD, "ruff.toml": RULES})
    changed = {"app.py": f"{OLD}\n\ndef f():\n    return missing\n", "new.py": "import json\n", "README": "x"}
    shown = "app.py:48: F821 Undefined name `missing`", "new.py:1: F401 `json` imported but unused"
    result = await held.linted(changed)
    assert result.success
    assert result.content.splitlines() == [
        "2 findings (ruff)", "", *shown, "",
        "44 older findings are not shown, on lines that have not been changed; name paths to see all.",
    ]  # fmt: skip
    assert result.metadata["count"] == 2 and result.metadata["older"] == 44
    assert (await held.linted(changed, "app.py")).metadata["count"] == 45
    assert (await held.linted(changed, ".")).metadata["count"] == 90
    assert "ruff check none of the changed files" in (await held.linted({"README": "y"})).error
    # What is shown is bounded.
    result = await held.linted({"many.py": "".join(f"import new_{number}\n" for number in range(2_000))})
    assert result.metadata["count"] == 2_000 and len(result.content) < 3_200
    assert "more: name fewer paths to see them]" in result.content


# --- test runs that always report: what hangs, crashes or cannot be collected is named, and the rest still runs ---


BY_PYTEST = (f"{sys.prefix}/bin/python", "-m", "pytest", "-q")
BY_UNITTEST = (f"{sys.prefix}/bin/python", "-m", "unittest", "discover")
QUICK = TestLimits(whole=60, test=1, start=20)


@pytest.fixture
async def workspace(root: Path) -> AsyncIterator[LocalWorkspace]:
    async with open_workspace(root, environment=WITH_PYTEST) as opened:
        yield opened


async def suite_run(
    workspace: LocalWorkspace, files: Mapping[str, str], argv: tuple[str, ...] = BY_PYTEST, **options: Any
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
    found = await suite_run(workspace, {"test_all.py": text})
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
    found = await suite_run(workspace, files)
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
    found = await suite_run(workspace, files, selection=selection, limits=limits)
    assert list(found.results) == ["test_c.py::test_ok", "test_d.py::test_ok", "test_a.py::test_ok"]
    assert found.green


async def test_options_of_the_repository_that_are_not_taken_over(workspace: LocalWorkspace) -> None:
    files = {
        "pytest.ini": "[pytest]\naddopts = -x --cov=src -n 4\n",
        "test_a.py": "def test_no():\n    assert 0\n",
        "test_b.py": OK,
    }
    both = {"test_a.py::test_no": "failed", "test_b.py::test_ok": "passed"}
    found = await suite_run(workspace, files)
    assert (outcomes(found), "addopts" in found.notes[0]) == (both, True)


async def test_runs_that_end_early_say_why_and_keep_what_was_read(workspace: LocalWorkspace, root: Path) -> None:
    suite = """import os, unittest
class T(unittest.TestCase):
    def test_a(self): pass
    def test_b_dies(self): os._exit(7)
    def test_c_erases(self): open(os.environ["FLEET_TEST_EVENTS"], "w").write("x" * 1_000_000)
    def test_d(self): pass
"""
    found = await suite_run(workspace, {"test_a.py": suite}, BY_UNITTEST)
    assert outcomes(found) == {"test_a.T.test_a": "passed", "test_a.T.test_b_dies": "error"}
    assert "a test wrote over the report of the run" in found.stopped
    assert found.exit_code
    found = await suite_run(workspace, {"conftest.py": "import os\nos._exit(3)\n", "test_a.py": OK})
    assert (found.reported, found.green) == (False, False)
    assert found.stopped == "the test runner ended early (exit code 3)"
