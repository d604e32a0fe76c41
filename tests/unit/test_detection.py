"""Detection reads files and executes nothing."""

from __future__ import annotations

import json

import pytest

from swe_ai_fleet.adapters.git_workspace.detection import Detected, detect
from swe_ai_fleet.adapters.git_workspace.listing import Listing

PLAIN_TEST = "def test_a():\n    assert True\n"
UNITTEST_TEST = "import unittest\n\nclass A(unittest.TestCase):\n    def test_a(self): pass\n"


def listing(files: dict[str, str]) -> Listing:
    return Listing(tree="0" * 40, files=dict.fromkeys(files, "1" * 40), texts=files)


def found(files: dict[str, str]) -> Detected:
    return detect(listing(files))


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"test_a.py": PLAIN_TEST}, "python3 -m pytest -q"),
        ({"tests/a_test.py": "import pytest\n" + UNITTEST_TEST}, "python3 -m pytest -q"),
        ({"a.py": "", "tests/conftest.py": ""}, "python3 -m pytest -q"),
        ({"pytest.ini": "[pytest]\n"}, "python3 -m pytest -q"),
        ({"pyproject.toml": "[tool.pytest.ini_options]\n"}, "python3 -m pytest -q"),
        ({"setup.cfg": "[tool:pytest]\n"}, "python3 -m pytest -q"),
        ({"test_a.py": UNITTEST_TEST}, "python3 -m unittest discover"),
        ({"tests/test_a.py": UNITTEST_TEST}, "python3 -m unittest discover -s tests"),
        ({"tests/test_a.py": UNITTEST_TEST, "tests/__init__.py": ""}, "python3 -m unittest discover"),
        ({"py/tests/test_a.py": UNITTEST_TEST}, "python3 -m unittest discover -s py/tests"),
        ({"py/tests/test_a.py": UNITTEST_TEST, "py/tests/__init__.py": ""}, "python3 -m unittest discover -s py"),
        ({"tests/a_test.py": UNITTEST_TEST}, "python3 -m unittest discover -s tests -p *_test.py"),
        ({"package.json": json.dumps({"scripts": {"test": "node --test"}})}, "npm test --silent"),
        ({"package.json": json.dumps({"scripts": {"test": 'echo "Error: no test specified" && exit 1'}})}, ""),
        ({"go.mod": "module a\n"}, "go test ./..."),
        ({"Cargo.toml": "[package]\n"}, "cargo test"),
        ({"Makefile": "all:\n\ttrue\ntest: all\n\ttrue\n"}, "make test"),
        ({"Makefile": "test := 1\ntesting:\n\ttrue\n"}, ""),
        ({"README.md": "hello"}, ""),
        ({}, ""),
    ],
)
def test_the_test_command(files: dict[str, str], command: str) -> None:
    assert " ".join(found(files).test_command) == command


def test_a_linter_is_offered_where_there_is_python() -> None:
    assert found({"a.py": ""}).lint_command == ("ruff", "check")
    assert found({"main.go": ""}).lint_command == ()


def test_python_without_dependencies_needs_no_build() -> None:
    assert not found({"a.py": "", "test_a.py": PLAIN_TEST}).needs_build
    assert not found({"a.py": "", "pyproject.toml": "[tool.ruff]\nline-length = 100\n"}).needs_build
    assert not found({"pyproject.toml": '[project]\nname = "a"\nversion = "1"\n'}).needs_build


def test_requirements_that_fit_together_are_taken() -> None:
    names = [
        "requirements.txt",
        "requirements-dev.txt",
        "requirements/test.txt",
        "requirements-docs.txt",
        "x/requirements.txt",
    ]
    assert found(dict.fromkeys(names, "a\n")).requirements == (
        "requirements-dev.txt",
        "requirements.txt",
        "requirements/test.txt",
    )


def test_a_project_with_a_build_system_is_installed_with_its_test_extras() -> None:
    text = """
[build-system]
requires = ["hatchling"]
[project]
name = "a"
dependencies = ["b"]
[project.optional-dependencies]
docs = ["sphinx"]
test = ["pytest"]
[dependency-groups]
dev = ["mypy", {include-group = "test"}]
"""
    detected = found({"pyproject.toml": text, "a/__init__.py": ""})
    assert (detected.project, detected.extras, detected.dependencies) == (True, ("test",), ("mypy",))


def test_a_project_without_a_build_system_is_its_dependencies() -> None:
    text = '[project]\nname = "a"\ndependencies = ["b>=1", "-r /etc/passwd", "c\\n--index-url=evil", 7]\n'
    detected = found({"pyproject.toml": text})
    assert (detected.project, detected.dependencies) == (False, ("b>=1",))
    assert detected.needs_build


def test_setup_py_makes_a_project() -> None:
    assert found({"setup.py": "raise SystemExit(1)"}).project


@pytest.mark.parametrize("locked", [True, False])
def test_node_dependencies(locked: bool) -> None:
    files = {"package.json": json.dumps({"devDependencies": {"a": "1"}})}
    detected = found(files | ({"package-lock.json": "{}"} if locked else {}))
    assert (detected.node, detected.node_locked) == (True, locked)
    assert not found({"package.json": "{}"}).node


@pytest.mark.parametrize(
    "files",
    [
        {"package.json": "{" * 100_000},
        {"package.json": "[1]", "pyproject.toml": "project = 3\n[tool]\npytest = 1\n"},
        {"pyproject.toml": "a = " + "[" * 5000},
        {"pyproject.toml": "not toml ="},
        {"package.json": '{"scripts": [], "dependencies": "x"}'},
    ],
)
def test_broken_manifests_break_nothing(files: dict[str, str]) -> None:
    assert not found(files).needs_build


def test_what_is_not_fetched_is_said() -> None:
    detected = found({".gitmodules": "", ".gitattributes": "*.bin filter=lfs diff=lfs\n"})
    assert any("Submodules" in note for note in detected.notes)
    assert any("LFS" in note for note in detected.notes)
    assert found({".gitattributes": "# filter=lfs\n*.sh text\n"}).notes == ()


def test_the_digest_tells_contents_and_absence_apart() -> None:
    one = Listing(tree="", files={"a": "1", "b": "2"})
    assert one.digest(["a", "b"]) == one.digest(["b", "a"])
    assert one.digest(["a"]) != one.digest(["b"])
    assert one.digest(["a", "c"]) != Listing(tree="", files={"a": "1", "c": "2"}).digest(["a", "c"])
