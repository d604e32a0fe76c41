"""The repository's files at the time of a call, and the test command of a directory, derived from them.

For a path, the nearest manifest counts, since monorepos hold many suites. Nothing is executed.
"""

from __future__ import annotations

import asyncio
import configparser
import posixpath
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from swe_ai_fleet.domain.json_values import json_object, mapping, parsed, string
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree, quoted
from swe_ai_fleet.tools.files.search import SearchScope, find_files

# The TOML parser's time grows with the number of parts of a table's name, for each line below it; the INI parser's with
# the square of a line's length, and of the number of errors.
_MOST_TOML_DOTS = 200
_MOST_INI_CHARS = 128 * 1024
_MOST_INI_LINES = 5_000
_LONGEST_INI_LINE = 2_000


def toml(text: str) -> Mapping[str, object]:
    """A TOML document; empty if it cannot be parsed."""
    return parsed_toml(text) or {}


def parsed_toml(text: str) -> Mapping[str, object] | None:
    """A TOML document; None if it cannot be parsed or has names of hundreds of parts."""
    if any(line.partition("=")[0].count(".") > _MOST_TOML_DOTS for line in text.split("\n")):
        return None
    try:
        return parsed(tomllib.loads, text)
    except ValueError:
        return None


def parsed_ini(text: str) -> configparser.RawConfigParser | None:
    """An INI document without interpolation; None if it cannot be parsed or is too long."""
    lines = text.split("\n")
    if len(text) > _MOST_INI_CHARS or len(lines) > _MOST_INI_LINES or max(map(len, lines)) > _LONGEST_INI_LINE:
        return None
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return None
    return parser


PYTEST = ("python3", "-m", "pytest", "-q")
MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
_PYTEST_MARK = re.compile(r"^[ \t]*(?:import pytest\b|from pytest\b)|^(?:async )?def test_", re.M)
_UNITTEST_MARK = re.compile(r"^[ \t]*(?:import unittest\b|from unittest\b|from django\.test\b)", re.M)
_MAKE_TEST = re.compile(r"^(?:\.PHONY\s*:.*\n)?test\s*::?(?!=)", re.M)


def is_test(path: str) -> bool:
    """Whether a path has a name that Python test runners expect."""
    name = PurePosixPath(path).name
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py") or name == "tests.py")


def test_command(files: Collection[str], texts: Mapping[str, str]) -> tuple[str, ...]:
    """The argv that runs the tests among some files; empty if there are none.

    Args:
        files: All paths, relative to their top directory.
        texts: The contents of manifests in the top directory, and of some tests.
    """
    tests = sorted(path for path in files if is_test(path))
    if uses_pytest(files, texts):
        return PYTEST
    if any(_UNITTEST_MARK.search(texts.get(path, "")) for path in tests):
        return _unittest(files, tests)
    if test_script(texts.get("package.json", "")):
        return ("npm", "test", "--silent")
    if "go.mod" in files:
        return ("go", "test", "./...")
    if "Cargo.toml" in files:
        return ("cargo", "test")
    if any(_MAKE_TEST.search(texts.get(name, "")) for name in MAKEFILES):
        return ("make", "test")
    return ()


test_command.__test__ = False  # type: ignore[attr-defined]


def uses_pytest(files: Collection[str], texts: Mapping[str, str]) -> bool:
    """Whether the tests are for pytest: it is configured, or tests look like pytest's."""
    configured = (
        "pytest.ini" in files
        or any(PurePosixPath(path).name == "conftest.py" for path in files)
        or "pytest" in mapping(toml(texts.get("pyproject.toml", "")), "tool")
        or "[tool:pytest]" in texts.get("setup.cfg", "")
        or "[pytest]" in texts.get("tox.ini", "")
    )
    return configured or any(_PYTEST_MARK.search(text) for path, text in texts.items() if is_test(path))


def test_script(package: str) -> str:
    """The test script in the text of a package.json; empty if there is none, or only npm's placeholder."""
    script = string(mapping(json_object(package), "scripts").get("test"))
    return script if "no test specified" not in script else ""


test_script.__test__ = False  # type: ignore[attr-defined]


def _unittest(files: Collection[str], tests: list[str]) -> tuple[str, ...]:
    """The argv for unittest, which finds tests below the top only in packages: another directory must be named."""
    pattern = () if any(PurePosixPath(path).name.startswith("test") for path in tests) else ("-p", "*_test.py")
    top = posixpath.commonpath([f"/{PurePosixPath(path).parent}" for path in tests]).lstrip("/.")
    while f"{top}/__init__.py" in files:
        top = str(PurePosixPath(top).parent).lstrip(".")
    return ("python3", "-m", "unittest", "discover", *(("-s", top) if top else ()), *pattern)


MAX_FILES = 50_000
_MAX_TESTS_READ = 40
_MAX_MANIFEST_BYTES = 1024 * 1024
_READ = ("package.json", "pyproject.toml", "setup.cfg", "tox.ini", *MAKEFILES)
_MAX_NAMED = 10

MANIFESTS = {"go": "go.mod", "cargo": "Cargo.toml", "npm": "package.json"}
"""The manifest that marks a directory of a framework's tests, by framework."""

FRAMEWORKS = {
    ".go": "go",
    ".rs": "cargo",
    **dict.fromkeys((".js", ".cjs", ".mjs", ".jsx", ".ts", ".cts", ".mts", ".tsx", ".vue", ".svelte"), "npm"),
}
"""The framework of a file, by suffix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteDirectory:
    """A directory relative to the workspace, and the argv that runs the tests in it."""

    directory: str
    argv: tuple[str, ...]


class Inventory:
    """The files of a workspace at one moment, without ignored ones."""

    def __init__(self, tree: Tree, files: Iterable[str]) -> None:
        self._tree = tree
        self.files = frozenset(files)

    @classmethod
    async def take(cls, workspace: Workspace) -> Inventory:
        """List the files. Raises ToolFailure if that takes too long."""
        files, _ = await find_files(workspace, SearchScope(), limit=MAX_FILES)
        return cls(Tree(workspace.root, workspace.mount), files)

    def text(self, path: str) -> str:
        """A manifest's text; empty if it cannot be read."""
        if path not in self.files:
            return ""
        try:
            return self._tree.read(path, limit=_MAX_MANIFEST_BYTES).data.decode("utf-8", "replace")
        except ToolFailure:
            return ""

    def real(self, path: str) -> str:
        """The real path of an existing file or directory, relative to the workspace. Raises ToolFailure."""
        return self._tree.find(path)

    def has(self, path: str) -> bool:
        """Whether a path exists inside the workspace."""
        try:
            self._tree.find(path)
        except ToolFailure:
            return False
        return True

    def is_directory(self, path: str) -> bool:
        """Whether a path exists inside the workspace and is not a listed file."""
        return self.has(path) and self.real(path) not in self.files

    def root_for(self, framework: str, paths: Iterable[str]) -> str:
        """The one directory whose manifest is nearest to all paths; without paths, the only one with a manifest.

        Raises ToolFailure if there is none, or more than one.
        """
        manifest = MANIFESTS[framework]
        roots = {self._nearest(manifest, path) for path in paths}
        if None in roots:
            raise ToolFailure(f"there is no {manifest} beside or above these paths; {self._where(manifest)}")
        if len(roots) > 1:
            named = ", ".join(sorted(quoted(root) for root in roots if root is not None)[:_MAX_NAMED])
            raise ToolFailure(f"these paths belong to several projects ({named}): run each in a call of its own")
        if roots:
            return roots.pop() or "."
        if manifest in self.files:
            return "."
        below = self._holding(manifest)
        if len(below) == 1:
            return below[0]
        raise ToolFailure(f"there is no {manifest} at the top of the workspace; {self._where(manifest)}")

    async def suite(self, directory: str = ".") -> SuiteDirectory | None:
        """The test suite of a directory, by its own files; None if there is none."""
        return await asyncio.to_thread(self._suite, directory)

    async def only_suite(self) -> SuiteDirectory:
        """The suite of the top directory, else the only one below. Raises ToolFailure, which lists the suites."""
        if top := await self.suite():
            return top
        suites = [suite for directory in self._projects() if (suite := await self.suite(directory)) is not None]
        if len(suites) == 1:
            return suites[0]
        if suites:
            named = "; ".join(f"{suite.directory}: {' '.join(suite.argv)}" for suite in suites[:_MAX_NAMED])
            raise ToolFailure(f"there are several test suites, name one in paths ({named})")
        raise ToolFailure("no tests were found in this repository; use tests_pytest or shell_run_command")

    def _suite(self, directory: str) -> SuiteDirectory | None:
        prefix = "" if directory == "." else f"{directory}/"
        files = [path.removeprefix(prefix) for path in self.files if path.startswith(prefix)]
        tests = sorted(filter(is_test, files))[:_MAX_TESTS_READ]
        texts = {name: self.text(prefix + name) for name in (*_READ, *tests) if prefix + name in self.files}
        argv = test_command(files, texts)
        return SuiteDirectory(directory=directory, argv=argv) if argv else None

    def _projects(self) -> list[str]:
        """Directories with a manifest, the outermost only, by depth."""
        names = {*MANIFESTS.values(), "pyproject.toml", "setup.py", *MAKEFILES}
        holding = {str(PurePosixPath(path).parent) for path in self.files if PurePosixPath(path).name in names}
        directories: list[str] = []
        for directory in sorted(holding, key=lambda name: (name.count("/"), name)):
            if not any(directory.startswith(f"{outer}/") for outer in directories):
                directories.append(directory)
        return directories[:100]

    def _nearest(self, manifest: str, path: str) -> str | None:
        for directory in (PurePosixPath(path), *PurePosixPath(path).parents):
            name = str(directory / manifest)
            if name in self.files and (manifest != "package.json" or test_script(self.text(name))):
                return str(directory)
        return None

    def _holding(self, manifest: str) -> list[str]:
        manifests = [PurePosixPath(path) for path in self.files if PurePosixPath(path).name == manifest]
        if manifest == "package.json":
            manifests = [path for path in manifests if test_script(self.text(str(path)))]
        return sorted(str(path.parent) for path in manifests)

    def _where(self, manifest: str) -> str:
        directories = self._holding(manifest)
        if not directories:
            return "nor anywhere below" if manifest != "package.json" else "none below has a test script"
        return f"there is one in {', '.join(quoted(name) for name in directories[:_MAX_NAMED])}: name a path there"
