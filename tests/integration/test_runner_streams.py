"""Real runners of Go, Rust and JavaScript: each test is known as it ends; hangs and crashes do not sink the rest."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import open_workspace
from swe_ai_fleet.tools.tests.planning import Planner
from swe_ai_fleet.tools.tests.runners.plan import Selection
from swe_ai_fleet.tools.tests.running import TestLimits, run_tests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap (bwrap) on PATH"),
]
needs_node = pytest.mark.skipif(not Path("/usr/bin/npm").exists(), reason="needs node and npm below /usr")
needs_go = pytest.mark.skipif(not Path("/usr/bin/go").exists(), reason="needs go below /usr")
QUICK = TestLimits(whole=150, test=1, start=60)
NPM = ("npm", "test")
GO = ("go", "test", "./...")
CARGO = ("cargo", "test")
Files = Mapping[str, str]
Put = Callable[[Files], None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "clone"
    path.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main", str(path)], check=True)
    return path


@pytest.fixture
def put(root: Path) -> Put:
    def write(files: Files) -> None:
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

    return write


@pytest.fixture
async def workspace(root: Path) -> AsyncIterator[Workspace]:
    async with open_workspace(root, environment=Environment()) as opened:
        yield opened


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `node_modules` of the runners that are packages."""
    place = tmp_path_factory.mktemp("node")
    (place / "package.json").write_text("{}")
    argv = ["npm", "--prefix", str(place), "install", "--silent", "--no-audit", "--no-fund"]
    try:
        subprocess.run([*argv, "jest@30", "vitest@3", "mocha@11"], check=True, timeout=300)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("needs npm and its registry")
    return place / "node_modules"


@pytest.fixture
async def with_packages(root: Path, packages: Path) -> AsyncIterator[Workspace]:
    (root / ".gitignore").write_text("node_modules\n")
    shutil.copytree(packages, root / "node_modules", symlinks=True)
    async with open_workspace(root, environment=Environment()) as opened:
        yield opened


async def run(
    workspace: Workspace, argv: tuple[str, ...], selection: Selection | None = None, *, limits: TestLimits = QUICK
) -> TestRun:
    planned = await Planner(workspace=workspace).plan(argv, selection or Selection())
    return await run_tests(workspace, planned.plan, limits, inventory=planned.inventory)


def outcomes(found: TestRun) -> dict[str, str]:
    return {name: str(result.outcome) for name, result in found.results.items()}


def package(script: str, **others: str) -> str:
    return json.dumps({"name": "x", "scripts": {"test": script, **others}})


GO_FILES = {
    "go.mod": "module example.org/a\n\ngo 1.19\n",
    "fine/a_test.go": """package fine

import "testing"

func TestOK(t *testing.T)    {}
func TestWrong(t *testing.T) { t.Errorf("want 1, got %d", 2) }
func TestSkip(t *testing.T)  { t.Skip("later") }
func TestTable(t *testing.T) {
	t.Run("one", func(t *testing.T) {})
	t.Run("two", func(t *testing.T) { t.Fatal("two is wrong") })
}
func TestSideBySide(t *testing.T) { t.Parallel() }
""",
    "hang/h_test.go": """package hang

import "testing"

func TestBefore(t *testing.T) {}
func TestHangs(t *testing.T)  { t.Run("inner", func(t *testing.T) { select {} }) }
func TestAfter(t *testing.T)  {}
""",
    "crash/c_test.go": """package crash

import (
	"os"
	"testing"
)

func TestPanics(t *testing.T) { var m map[string]int; m["x"] = 1 }
func TestExits(t *testing.T)  { os.Exit(3) }
func TestAfter(t *testing.T)  {}
""",
    "broken/b_test.go": 'package broken\n\nimport "testing"\n\nfunc TestX(t *testing.T) { undefinedThing() }\n',
}


@needs_go
async def test_go(workspace: Workspace, put: Put) -> None:
    put(GO_FILES)
    found = await run(workspace, GO)
    assert outcomes(found) == {
        "example.org/a/fine::TestOK": "passed",
        "example.org/a/fine::TestWrong": "failed",
        "example.org/a/fine::TestSkip": "skipped",
        "example.org/a/fine::TestTable/one": "passed",
        "example.org/a/fine::TestTable/two": "failed",
        "example.org/a/fine::TestSideBySide": "passed",
        "example.org/a/hang::TestBefore": "passed",
        "example.org/a/hang::TestHangs/inner": "error",
        "example.org/a/hang::TestAfter": "passed",
        "example.org/a/crash::TestPanics": "failed",
        "example.org/a/crash::TestExits": "error",
        "example.org/a/crash::TestAfter": "passed",
        "example.org/a/broken": "error",
    }
    assert found.hung == ("example.org/a/hang::TestHangs/inner",)
    assert found.crashed == ("example.org/a/crash::TestExits",)
    assert not found.stopped
    assert found.exit_code == 1
    messages = {name.rpartition("/")[2]: result.message for name, result in found.results.items()}
    assert messages["fine::TestWrong"] == "a_test.go:6: want 1, got 2"
    assert messages["crash::TestPanics"].startswith("panic: assignment to entry in nil map")
    assert messages["broken"] == "broken/b_test.go:5:28: undefined: undefinedThing"


async def test_cargo(root: Path, put: Put) -> None:
    rustc = shutil.which("rustc")
    if rustc is None or shutil.which("cc") is None:
        pytest.skip("needs a Rust toolchain and a C compiler")
    asked = subprocess.run([rustc, "--print", "sysroot"], capture_output=True, text=True, check=True)
    environment = Environment(mounts=(Mount(source=asked.stdout.strip(), target="/opt/rust"),), path=("/opt/rust/bin",))
    manifest = '[package]\nname = "{}"\nversion = "0.1.0"\nedition = "2021"\n'
    put(
        {
            "Cargo.toml": '[workspace]\nmembers = ["one", "two"]\nresolver = "2"\n',
            "one/Cargo.toml": manifest.format("one"),
            "one/src/lib.rs": """/// ```
/// assert_eq!(one::add(1, 1), 2);
/// ```
pub fn add(a: i32, b: i32) -> i32 { a + b }
pub mod inner;
#[cfg(test)]
mod tests {
    #[test] fn right() {}
    #[test] fn wrong() { assert_eq!(super::add(1, 1), 3, "sum"); }
    #[test] #[ignore] fn later() {}
    #[test] fn aborts() { std::process::abort() }
}
""",
            "one/src/inner.rs": "#[cfg(test)]\nmod tests {\n    #[test] fn deep() {}\n}\n",
            "one/tests/outer.rs": "#[test]\nfn outer() {}\n#[test]\nfn hangs() { loop { std::thread::park() } }\n",
            "two/Cargo.toml": manifest.format("two"),
            "two/src/lib.rs": "#[test]\nfn right() {}\n",
        }
    )
    async with open_workspace(root, environment=environment) as opened:
        # What is compiled first says nothing of tests for as long as that takes.
        found = await run(opened, CARGO, limits=replace(QUICK, start=0.1))
        expected = {
            "one/src/lib.rs::inner::tests::deep": "passed",
            "one/src/lib.rs::tests::right": "passed",
            "one/src/lib.rs::tests::wrong": "failed",
            "one/src/lib.rs::tests::later": "skipped",
            "one/src/lib.rs::tests::aborts": "error",
            "one/tests/outer.rs::outer": "passed",
            "one/tests/outer.rs::hangs": "error",
            "two/src/lib.rs::right": "passed",
            "one/src/lib.rs::add (documentation)": "passed",
        }
        assert outcomes(found) == expected
        assert found.crashed == ("one/src/lib.rs::tests::aborts",)
        assert found.hung == ("one/tests/outer.rs::hangs",)
        said = found.results["one/src/lib.rs::tests::wrong"].message
        assert said == "one/src/lib.rs:9:26: assertion `left == right` failed: sum left: 2 right: 3"
        left_out = Selection(paths=("one/tests/outer.rs",), deselect=("one/tests/outer.rs::hangs",))
        assert outcomes(await run(opened, CARGO, left_out)) == {"one/tests/outer.rs::outer": "passed"}
        put({"one/tests/outer.rs": "#[test]\nfn outer() { nosuch() }\n"})
        broken = await run(opened, CARGO)
        assert broken.results["one/tests/outer.rs"].message.startswith("one/tests/outer.rs:2:14: error[E0425]")
        assert broken.results["two/src/lib.rs::right"].outcome == "passed"


TITLES = """
it('root', () => {});
describe('group', () => {
  it('fine', () => {});
  it('inner', () => { if (1 !== 2) throw new Error('boom'); });
  it('inner', () => {});
  it.skip('later', () => {});
});
"""


def titles(file: str) -> dict[str, str]:
    """What becomes of `TITLES` in a file."""
    told = {"fine": "passed", "inner": "failed", "inner (2)": "passed", "later": "skipped"}
    return {f"{file}::root": "passed", **{f"{file}::group > {name}": outcome for name, outcome in told.items()}}


HANGS = "describe('c', () => { it('before', () => {}); it('hangs', () => { for (;;); }); it('after', () => {}); });\n"
DIES = "describe('d', () => { it('before', () => {}); it('dies', () => { process.exit(3); }); it('z', () => {}); })\n"
PARTS = "test('parts', async t => { await t.test('one', () => {}); });\n"
WAITS = "test('waits', async () => { setInterval(() => {}, 9); await new Promise(() => {}); });\n"
SET_UP = "describe('set up', () => { before(() => { throw new Error('no'); }); it('x', () => {}); });\n"


@needs_node
async def test_nodes_own_runner(workspace: Workspace, put: Put) -> None:
    head = "const {describe, it, test} = require('node:test');\n"
    put(
        {
            "package.json": package("node --test --test-reporter=dot test/"),
            "test/a.test.js": head + TITLES + PARTS,
            "test/b.test.js": "const {test} = require('node:test'\n",
            "test/c.test.js": head + WAITS,
            "test/d.test.js": f"{head}{DIES}",
            "test/e.test.js": "for (;;);\n",
            "test/z.test.js": f"{head}test('last', () => {{}});\n",
        }
    )
    found = await run(workspace, NPM)
    assert outcomes(found) == {
        **titles("test/a.test.js"),
        "test/a.test.js::parts > one": "passed",
        "test/b.test.js": "error",
        "test/c.test.js::waits": "error",
        "test/d.test.js": "error",
        "test/e.test.js": "error",
        "test/z.test.js::last": "passed",
    }
    assert found.hung == ("test/c.test.js::waits", "test/e.test.js")
    assert found.results["test/b.test.js"].message == "test/b.test.js:1: SyntaxError: missing ) after argument list"
    assert found.results["test/d.test.js"].message == "the process of this file ended with exit code 3"
    assert found.framework == "node"


@needs_node
async def test_mocha(with_packages: Workspace, put: Put) -> None:
    put(
        {
            "package.json": package("eslint . && mocha 'test/**/*.js'"),
            "test/a.js": TITLES + SET_UP,
            "test/b.js": "require('nosuch');\n",
            "test/c.js": HANGS,
            "test/d.js": DIES,
            "test/e.js": "for (;;);\n",
            "test/z.js": "it('last', () => {});\n",
        }
    )
    found = await run(with_packages, NPM, Selection(first=(("test/z.js",),)))
    assert outcomes(found) == {
        "test/b.js": "error",
        "test/e.js": "error",
        "test/z.js::last": "passed",
        **titles("test/a.js"),
        'test/a.js::set up > "before all" hook for "x"': "error",
        "test/c.js::c > before": "passed",
        "test/c.js::c > hangs": "error",
        "test/c.js::c > after": "passed",
        "test/d.js::d > before": "passed",
        "test/d.js::d > dies": "error",
        "test/d.js::d > z": "passed",
    }
    assert found.hung == ("test/e.js", "test/c.js::c > hangs")
    assert found.crashed == ("test/d.js::d > dies",)
    assert found.notes == ("left out, since it tests nothing: eslint .",)
    some = await run(with_packages, NPM, Selection(paths=("test/a.js::group > fine", "test/z.js::last")))
    assert outcomes(some) == {"test/a.js::group > fine": "passed", "test/z.js::last": "passed"}
    left_out = Selection(paths=("test/c.js",), deselect=("test/c.js::c > hangs",))
    assert outcomes(await run(with_packages, NPM, left_out)) == {
        "test/c.js::c > before": "passed",
        "test/c.js::c > after": "passed",
    }


@needs_node
async def test_jest(with_packages: Workspace, put: Put) -> None:
    put(
        {
            "package.json": package("npm run lint && npm run unit", lint="eslint .", unit="npx jest -w 2 --ci"),
            "a.test.js": TITLES,
            "b.test.js": "require('nosuch');\n",
            "c.test.js": HANGS,
            "e.test.js": "for (;;);\n",
            "z.test.js": "it('last', () => {});\n",
        }
    )
    found = await run(with_packages, NPM)
    assert {name: outcome for name, outcome in outcomes(found).items() if not name.startswith("c.")} == {
        **titles("a.test.js"),
        "b.test.js": "error",
        "e.test.js": "error",
        "z.test.js::last": "passed",
    }
    # The last output of a worker that spins may be lost.
    assert found.hung[0] in ("c.test.js::c > hangs", "c.test.js", "e.test.js")
    assert {name.partition("::")[0] for name in found.hung} == {"c.test.js", "e.test.js"}
    assert found.results["a.test.js::group > inner"].message == "Error: boom"
    assert found.results["b.test.js"].message.startswith("Cannot find module 'nosuch'")
    some = await run(with_packages, NPM, Selection(paths=("a.test.js::group > fine",)))
    assert some.passing == ["a.test.js::group > fine"]
    assert set(outcomes(some).values()) == {"passed", "skipped"}


@needs_node
async def test_vitest(with_packages: Workspace, put: Put) -> None:
    head = "import {describe, it} from 'vitest';\n"
    put(
        {
            "package.json": package("vitest"),
            "a.test.js": head + TITLES,
            "b.test.js": "import 'nosuch';\n",
            "c.test.js": head + HANGS,
            "sub/[z].test.js": f"{head}it('last', () => {{}});\n",
        }
    )
    found = await run(with_packages, NPM, Selection(first=(("sub/[z].test.js",),)))
    assert outcomes(found) == {
        "sub/[z].test.js::last": "passed",
        **titles("a.test.js"),
        "b.test.js": "error",
        "c.test.js": "error",
    }
    assert found.hung == ("c.test.js",)
    some = await run(with_packages, NPM, Selection(paths=("a.test.js::group > fine",)))
    assert some.passing == ["a.test.js::group > fine"]
