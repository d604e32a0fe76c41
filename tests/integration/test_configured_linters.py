"""Linters through the real sandbox: which are run, and what an agent and the evidence see of them.

ruff is the fleet's own; the others come from PyPI and npm, where this machine reaches them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from swe_ai_fleet.adapters.git_workspace import GitClone
from swe_ai_fleet.domain.candidate import CheckResult
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.orchestrator.evidence.patch import parse_patch
from swe_ai_fleet.orchestrator.evidence.source_files import CloneFiles
from swe_ai_fleet.orchestrator.evidence.static_checks import LintCheck
from swe_ai_fleet.testing.repositories import make_repository, write_files
from swe_ai_fleet.tools import TestTool
from tests.environments import provider_at

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap (bwrap) on PATH")

RUFF = Path(sys.prefix, "bin/ruff")
RULES = "lint.select = ['F', 'E402']\n"
OLD = "".join(f"import old_{number}\n" for number in range(44))
needs_go = pytest.mark.skipif(not Path("/usr/bin/gofmt").exists(), reason="needs go below /usr")


class Project:
    """A repository with one commit, and clones of it with a change."""

    def __init__(self, root: Path, files: Mapping[str, str], environment: Environment) -> None:
        self.root = make_repository(root / "repo", files)
        self.environment = environment
        self.provider = provider_at(root)

    @asynccontextmanager
    async def clone(self, name: str = "clone", files: Mapping[str, str] | None = None) -> AsyncGenerator[GitClone]:
        """A clean clone, with these files written into it."""
        pinned = await self.provider.pin("t", RepoRef(location=str(self.root)))
        async with self.provider.open("e", name, pinned, self.environment) as clone:
            write_files(clone.root, files or {})
            yield clone

    async def linted(self, files: Mapping[str, str], *paths: str) -> ToolResult:
        """What an agent that has written these files sees."""
        async with self.clone("agent", files) as clone:
            before = (await clone.diff()).patch
            result = await TestTool(clone).lint(list(paths))
            assert (await clone.diff()).patch == before, "a linter has changed the workspace"
        return result

    async def judged(self, files: Mapping[str, str]) -> CheckResult:
        """What the evidence says of a patch that leaves these files."""
        async with self.clone("patch", files) as clone:
            patch = (await clone.diff()).patch
        async with self.clone("check") as clone:
            await clone.apply(patch)
            check = LintCheck(
                patch=parse_patch(patch), files=CloneFiles(clone), base_commit=clone.base_commit, clean_clone=self.clone
            )
            return await check.result()


Make = Callable[..., Project]


@pytest.fixture
def project(tmp_path: Path) -> Make:
    """Makes a project whose commands find ruff, as the fleet brings it, and the programs of other directories."""
    (tmp_path / "tools").mkdir()
    shutil.copy2(RUFF, tmp_path / "tools/ruff")

    def make(files: Mapping[str, str], *directories: Path, programs: str = "bin") -> Project:
        mounts = [Mount(source=str(tmp_path / "tools"), target="/opt/tools")]
        mounts += [Mount(source=str(place), target=str(place)) for place in directories]
        path = (*(f"{place}/{programs}" for place in directories[:1]), "/opt/tools")
        return Project(tmp_path, files, Environment(mounts=tuple(mounts), path=path))

    return make


async def test_an_agent_sees_the_lines_that_it_has_changed(project: Make) -> None:
    """Issue 19, observation 9: 44 old findings were 16,000 characters in each prompt."""
    held = project({"app.py": f"{OLD}\n\ndef f():\n    return 1\n", "other.py": OLD, "ruff.toml": RULES})
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
    assert (await held.judged(changed)).problems == shown
    # What is shown is bounded.
    result = await held.linted({"many.py": "".join(f"import new_{number}\n" for number in range(2_000))})
    assert result.metadata["count"] == 2_000 and len(result.content) < 3_200
    assert "more: name fewer paths to see them]" in result.content
    assert 0 < len(cast("list[object]", result.metadata["findings"])) == result.content.count("F401")


async def test_a_linter_that_is_not_configured_is_neither_run_nor_named(project: Make, tmp_path: Path) -> None:
    held = project({"app.py": OLD, ".flake8": "[flake8]\n"})
    result = await held.linted({"app.py": f"{OLD}import json\n"})
    assert not result.success
    assert result.content == "flake8 is not installed in this workspace's environment."
    check = await held.judged({"app.py": f"{OLD}import json\n"})
    assert check.skipped_reason == "flake8 is not installed in this workspace's environment."
    bare = Project(tmp_path / "bare", {"app.py": OLD, "pyproject.toml": "[tool.black]\n"}, held.environment)
    assert "configures no linter" in (await bare.linted({"app.py": "import json\n"})).error
    check = await bare.judged({"app.py": "import json\n"})
    assert (check.skipped_reason, check.required) == ("no configured linter checks a changed file", False)


async def test_evidence_counts_new_findings_on_changed_lines_alone(project: Make, tmp_path: Path) -> None:
    held = project({"app.py": "import os\nimport sys\n\n\ndef f():\n    return os.name\n", "ruff.toml": RULES})
    # `os` is unused now, but its line was there before; a finding that has only moved is an old one.
    moved = await held.judged({"app.py": "import os\n\n\ndef f():\n    return 1\n\n\nimport sys\n"})
    assert moved.problems == ("app.py:8: E402 Module level import not at top of file",)
    assert (moved.passed, moved.score, moved.required) == (False, 0.5, False)
    clean = await held.judged({"app.py": "import os\nimport sys\n\n\ndef f():\n    return 1\n"})
    assert (clean.passed, dict(clean.details)) == (True, {"linters": "ruff"})
    # Settings stay as they were, those of a linter that the patch brings among them.
    weaker = {"app.py": "import os\nimport sys\nimport json\n", "ruff.toml": "lint.ignore = ['F401']\n", ".flake8": ""}
    strict = await held.judged(weaker)
    assert strict.problems == ("app.py:3: F401 `json` imported but unused",)
    assert strict.details["settings"] == "as they were before the patch, which changes .flake8, ruff.toml"
    assert "not run" not in strict.details
    only = await held.judged({"ruff.toml": "lint.ignore = ['F401']\n"})
    assert only.skipped_reason == "no configured linter checks a changed file"
    # Formatting counts where lines were changed.
    lines = "x  =  1\n\n\n\n\ny = 2\n\nz = 3\n"
    formatted = Project(tmp_path / "f", {"app.py": lines, "ruff.toml": f"{RULES}[format]\n"}, held.environment)
    assert (await formatted.judged({"app.py": lines.replace("3", "4")})).passed
    spoiled = await formatted.judged({"app.py": lines.replace("z = 3", "z  = 4")})
    assert spoiled.problems == ("app.py:8: ruff format not formatted",)


@needs_go
@pytest.mark.slow
async def test_go_vet(project: Make) -> None:
    code = 'package a\n\nimport "fmt"\n\nfunc F() {\n\tfmt.Printf("%d", "x")\n}\n'
    held = project({"go.mod": "module a\n\ngo 1.19\n", "a.go": code})
    changed = {"a.go": f'{code}\nfunc G() {{\n\tfmt.Printf("%d", "y")\n}}\n', "b.go": "package a\n"}
    result = await held.linted(changed)
    shown = 'a.go:10:2: go vet fmt.Printf format %d has arg "y" of wrong type string'
    assert result.content.splitlines()[:3] == ["1 finding (gofmt, go vet)", "", shown]
    assert "1 older finding is not shown" in result.content
    assert (await held.judged(changed)).message == "1 new finding"


@pytest.mark.slow
async def test_clippy_and_rustfmt(project: Make) -> None:
    rustc = shutil.which("rustc")
    if rustc is None or shutil.which("cc") is None:
        pytest.skip("needs a Rust toolchain and a C compiler")
    sysroot = subprocess.run([rustc, "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    if not Path(sysroot, "bin/cargo-clippy").exists():
        pytest.skip("needs clippy")
    manifest = '[package]\nname = "a"\nversion = "0.1.0"\nedition = "2021"\n'
    files = {"Cargo.toml": f'{manifest}[lints.clippy]\nall = "warn"\n', "rustfmt.toml": ""}
    old = "pub fn f() -> i32 {\n    return 1;\n}\n"
    held = project({**files, "src/lib.rs": old}, Path(sysroot))
    changed = {"src/lib.rs": f"{old}\npub fn  g() -> i32 {{\n    return 2;\n}}\n"}
    result = await held.linted(changed)
    assert result.content.splitlines() == [
        "2 findings (rustfmt, clippy)", "", "src/lib.rs:5: rustfmt not formatted",
        "src/lib.rs:6:5: clippy unneeded `return` statement", "",
        "1 older finding is not shown, on lines that have not been changed; name paths to see all.",
    ]  # fmt: skip
    assert (await held.judged(changed)).message == "2 new findings"


# Linters from PyPI and npm


def installed(*argv: str) -> None:
    """Runs an installer; the test is skipped where it can't reach its index."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=170)
    if done.returncode:
        pytest.skip(f"{argv[-1]} cannot be installed here: {done.stderr.strip()[-200:]}")


@pytest.fixture(scope="module")
async def python_tools(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    place = tmp_path_factory.mktemp("python") / "venv"
    installed(sys.executable, "-m", "venv", str(place))
    installed(str(place / "bin/python"), "-m", "pip", "install", "-q", "flake8", "pylint", "mypy")
    yield place


@pytest.mark.slow
async def test_linters_of_python(project: Make, python_tools: Path) -> None:
    code = "def f(x: int) -> int:\n    return x\n"
    files = {
        "setup.cfg": "[flake8]\nextend-ignore = F401\n[mypy]\nfiles = app.py, caller.py\n",
        ".pylintrc": "[MESSAGES CONTROL]\ndisable=all\nenable=W0612\n",
        "app.py": code, "caller.py": "from app import f\n\nf(1)\nbroken: int = 'x'\n",
    }  # fmt: skip
    held = project(files, python_tools, Path(sys.base_prefix))
    changed = {"app.py": "import os\n\n\ndef f(x: str) -> int:\n    unused=1\n    return x or x\n"}
    shown = [
        "app.py:5:5: F841 local variable 'unused' is assigned to but never used",
        "app.py:5:11: E225 missing whitespace around operator",
        "app.py:5: W0612 Unused variable 'unused' (unused-variable)",
        'app.py:6:12: return-value Incompatible return value type (got "str", expected "int")',
    ]
    result = await held.linted(changed)
    elsewhere = "Type errors elsewhere, old or caused by a change, 2: caller.py (2)."
    assert result.content.splitlines() == ["4 findings (flake8, pylint, mypy)", "", *shown, "", elsewhere]
    check = await held.judged(changed)
    assert check.problems == tuple(shown)
    new = 'caller.py:3:3: arg-type Argument 1 to "f" has incompatible type "int"; expected "str"'
    assert check.details == {"linters": "flake8, pylint, mypy", "new elsewhere": new}
    fine = await held.judged({"app.py": f"{code}\n\ndef g() -> int:\n    return f(2)\n"})
    assert (fine.passed, fine.message, dict(fine.details)) == (True, "", {"linters": "flake8, pylint, mypy"})


@pytest.fixture(scope="module")
async def node_tools(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    place = tmp_path_factory.mktemp("node")
    (place / "package.json").write_text("{}")
    if shutil.which("npm") is None or not Path("/usr/bin/node").exists():
        pytest.skip("needs node and npm below /usr")
    packages = ("eslint@9", "prettier@3", "@biomejs/biome@2")
    installed("npm", "--prefix", str(place), "install", "--silent", "--no-audit", "--no-fund", *packages)
    yield place / "node_modules"


@pytest.mark.slow
async def test_linters_of_javascript(project: Make, node_tools: Path) -> None:
    files = {
        "eslint.config.mjs": 'export default [{ ignores: ["dist/"] }, { rules: { "no-undef": "error" } }];\n',
        ".prettierrc": "{}",
        "biome.json": json.dumps({"files": {"includes": ["**", "!dist"]}, "formatter": {"enabled": False}}),
        ".prettierignore": "dist\n",
        "old.js": "const  a = missing;\n\nprint(a)\n",
    }
    held = project(files, node_tools, programs=".bin")
    bad = "const q = missing\nif (q == 1) debugger;\n"
    changed = {"new.js": bad, "dist/x.js": bad, "old.js": f"{files['old.js']}call();\n"}
    shown = [
        "new.js:1:11: no-undef 'missing' is not defined.",
        "old.js:4:1: no-undef 'call' is not defined.",
        "new.js:1: prettier not formatted",
    ]
    result = await held.linted(changed)
    assert result.content.startswith("5 findings (eslint, biome, prettier)\n\n"), result.content
    assert set(shown) < set(result.content.splitlines())
    assert "new.js:2:7: lint/suspicious/noDoubleEquals" in result.content
    assert "new.js:2:13: lint/suspicious/noDebugger" in result.content
    assert "\n4 older findings are not shown" in result.content
    check = await held.judged(changed)
    assert set(check.problems) == {line for line in result.content.splitlines() if ".js:" in line}
