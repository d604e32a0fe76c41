"""Which linters a repository configures, and what each of them prints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from swe_ai_fleet.tools.tests import (
    changed_runs,
    configured_linters,
    parse_format,
    parse_lines,
)
from tests.tables import table

SAMPLES = Path(__file__).parent / "linter_output"
HOOKS = (SAMPLES / "hooks.yaml").read_text()
LINES = (SAMPLES / "lines.txt").read_text()
"""As ruff, flake8, pylint, mypy, pyright, go vet and clippy print them."""
GIT, GOFMT, RUSTFMT = ((SAMPLES / f"{name}.diff").read_text() for name in ("git", "gofmt", "rustfmt"))


def names(files: Mapping[str, str]) -> list[str]:
    return [linter.name for linter in configured_linters(files, lambda path: files.get(path, ""))]


@table(
    ("files", "linters"),
    [
        ({}, []),
        ({"setup.py": "", "pyproject.toml": "[project]\n[tool.black]\n[tool.pytest.ini_options]\n"}, []),
        ({"pyproject.toml": "[tool.ruff.lint]\nselect = ['F']\n"}, ["ruff"]),
        ({".ruff.toml": "[format]\nquote-style = 'single'\n"}, ["ruff", "ruff format"]),
        ({"setup.cfg": "[metadata]\n[flake8]\nmax-line-length = 88\n[mypy-tests.*]\n"}, ["flake8", "mypy"]),
        ({"tox.ini": "[testenv:x]\ndeps =\n  flake8\n  mypy\ncommands = pytest\n"}, []),
        ({"pyproject.toml": "[[tool.mypy.overrides]]\n[tool.pyright]\n"}, ["mypy", "pyright"]),
        ({"noxfile.py": "session.install('mypy')\nsession.run('flake8', 'src', *session.posargs)\n"}, ["flake8"]),
        ({"Makefile": "lint:\n\t@$(VENV)/bin/python -m flake8 a.py && uv pip install mypy\n"}, ["flake8"]),
        ({"Makefile": "lint: ruff\n\techo ruff\n\tpip install ruff\n\tmake -C docs ruff\n"}, []),
        ({".pre-commit-config.yaml": HOOKS}, ["ruff format", "pylint", "mypy"]),
        ({"tests/fixtures/x/ruff.toml": "", "vendor/y/.flake8": ""}, []),
    ],
)
def test_linters_of_a_python_repository(files: dict[str, str], linters: list[str]) -> None:
    assert names({"a.py": "", **files}) == linters


def test_hostile_settings_cost_little() -> None:
    started_at = time.process_time()
    nested = {".pre-commit-config.yaml": "repos: " + "[" * 10_000, "package.json": "[" * 10_000}
    grown = (f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 40))
    merged = "a0: &a0 {id: ruff}\n" + "".join(grown) + "repos:\n- hooks: [{id: mypy}]\n"
    made = "x:\n\tflake8 " + "a*" * 10_000 + "\n\t" + "ruff x;" * 5_000
    long = {"Makefile": made, "tox.ini": "commands =" + " " * 50_000}
    assert names({"a.py": "", **nested}) == []
    assert names({"a.py": "", ".pre-commit-config.yaml": merged}) == ["mypy"]
    assert names({**{f"d{n}/a.py": "" for n in range(1_500)}, **long}) == ["ruff", "flake8"]
    assert time.process_time() - started_at < 30


def test_findings_in_lines() -> None:
    assert [str(finding) for finding in parse_lines(LINES * 2, "/workspace", "sub") or ()] == [
        "sub/a.py:1: F401 `os` imported but unused", "b.py:2: invalid-syntax Expected an expression",
        "sub/a.py:3:1: E302 expected 2 blank lines, found 0",
        "sub/a.py:4: W0613 Unused argument 'x' (unused-argument)",
        'sub/a.py:5:12: return-value Incompatible return value type (got "str", expected "int")',
        'sub/c.py:6:7: reportUndefinedVariable "x" is not defined', "sub/d.go:7:28: undeclared name: thing",
        "sub/e.go:8: self-assignment", "sub/src/lib.rs:9:5: unneeded `return` statement",
    ]  # fmt: skip


def test_runs_of_changed_lines() -> None:
    assert list(changed_runs(GIT)) == [
        ("b/a.py", range(4, 4), range(4, 6)), ("b/a.py", range(9, 11), range(12, 12)),
        ("b/a.py", range(20, 21), range(20, 21)), ("b/b.py", range(1, 1), range(1, 4)),
    ]  # fmt: skip
    gofmt, rustfmt = parse_format(GOFMT, "/workspace", "go") or (), parse_format(RUSTFMT, "/workspace") or ()
    assert [(each.path, each.line, each.last) for each in gofmt] == [("go/a.go", 2, 1), ("go/a.go", 3, 4)]
    assert [(each.path, each.line) for each in rustfmt] == [("src/lib.rs", 2), ("src/m.rs", 7)]
    assert list(changed_runs("")) == []
