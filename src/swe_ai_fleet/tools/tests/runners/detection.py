"""How a directory's tests are run, read off its files. Pure; nothing is executed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

from swe_ai_fleet.tools.tests.runners.values import json_object, mapping, string, toml

PYTEST = ("python3", "-m", "pytest", "-q")
MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
_PYTEST_MARK = re.compile(r"^[ \t]*(?:import pytest\b|from pytest\b)|^(?:async )?def test_", re.M)
_UNITTEST_MARK = re.compile(r"^[ \t]*(?:import unittest\b|from unittest\b|from django\.test\b)", re.M)
_MAKE_TEST = re.compile(r"^(?:\.PHONY\s*:.*\n)?test\s*::?(?!=)", re.M)


def is_test(path: str) -> bool:
    """Whether a path is named as Python test runners expect it."""
    name = PurePosixPath(path).name
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py") or name == "tests.py")


def test_command(files: Collection[str], texts: Mapping[str, str]) -> tuple[str, ...]:
    """The argv that runs the tests among some files (paths relative to their top), empty where there are none.

    Args:
        files: All paths.
        texts: The contents of manifests at the top, and of some tests.
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
    """Whether the tests are pytest's: it is configured, or tests look like its own."""
    configured = (
        "pytest.ini" in files
        or any(PurePosixPath(path).name == "conftest.py" for path in files)
        or "pytest" in mapping(toml(texts.get("pyproject.toml", "")).get("tool"))
        or "[tool:pytest]" in texts.get("setup.cfg", "")
        or "[pytest]" in texts.get("tox.ini", "")
    )
    return configured or any(_PYTEST_MARK.search(text) for path, text in texts.items() if is_test(path))


def test_script(package: str) -> str:
    """The test script in the text of a package.json; empty where there is none but npm's placeholder."""
    script = string(mapping(json_object(package).get("scripts")).get("test"))
    return script if "no test specified" not in script else ""


test_script.__test__ = False  # type: ignore[attr-defined]


def _unittest(files: Collection[str], tests: list[str]) -> tuple[str, ...]:
    """unittest finds tests below the top only through packages; a plain directory of tests must be named."""
    command = ("python3", "-m", "unittest", "discover")
    pattern = () if any(PurePosixPath(path).name.startswith("test") for path in tests) else ("-p", "*_test.py")
    top = posixpath.commonpath([f"/{PurePosixPath(path).parent}" for path in tests]).lstrip("/.")
    while f"{top}/__init__.py" in files:
        top = str(PurePosixPath(top).parent).lstrip(".")
    if top:
        return (*command, "-s", top, *pattern)
    return (*command, *pattern)
