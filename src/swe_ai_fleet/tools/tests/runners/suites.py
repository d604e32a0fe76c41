"""Suites of tests: the one that a call of `tests_run` means, and the targets of make.

`make test` runs whatever it does, with the reports that can be recognised in its output.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files.paths import quoted
from swe_ai_fleet.tools.tests.runners.inventory import MAKEFILES, PYTEST, Inventory, Suite
from swe_ai_fleet.tools.tests.runners.plan import Plan, checked_path, not_installed
from swe_ai_fleet.tools.tests.runners.scripts import framework_of

_TARGET = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_./+-]{0,199}")
_PYTHON_RUNNERS = ("pytest", "unittest")
_TEST_COMMANDS = {"go": ("go", "test", "./..."), "cargo": ("cargo", "test"), "npm": ("npm", "test", "--silent")}


def make_plan(inventory: Inventory, directory: str, target: str, base: tuple[str, ...] = ("make", "test")) -> Plan:
    """How to make a target. Raises ToolRefusal for what make could take for an option or a variable; ToolFailure."""
    if not _TARGET.fullmatch(target):
        if target.startswith(("-", "@")) or "=" in target:
            raise ToolRefusal(f"target {quoted(target)} looks like an option or a variable of make's; give a target")
        raise ToolFailure(f"{quoted(target)} is not a target: letters, digits and . _ / + - only")
    prefix = "" if directory == "." else f"{directory}/"
    if not any(prefix + name in inventory.files for name in MAKEFILES):
        raise ToolFailure(f"there is no Makefile in {quoted(directory)}; use tests_run or shell_run_command")
    words = (*base[:-1], target)
    return Plan(
        framework="make",
        argv=words,
        told=words,
        cwd=directory,
        absent=not_installed("make", "make"),
        stream="output",
    )


async def suite_for(inventory: Inventory, own: tuple[str, ...], paths: Sequence[str]) -> Suite:
    """The environment's test command; where paths lie in another project of the repository, that one's.

    Args:
        own: The environment's test command, empty where it has none: then the files say what there is.

    Raises:
        ToolFailure: Nothing is found, or the paths belong to several suites.
    """
    if not paths:
        return Suite(directory=".", argv=own) if own else await inventory.only_suite()
    suites = list(dict.fromkeys([await _suite_of(inventory, own, path.partition("::")[0]) for path in paths]))
    if len(suites) > 1:
        named = "; ".join(f"{suite.directory}: {' '.join(suite.argv)}" for suite in suites)
        raise ToolFailure(f"these paths belong to several test suites, run each in a call of its own ({named})")
    return suites[0]


async def _suite_of(inventory: Inventory, own: tuple[str, ...], path: str) -> Suite:
    default = Suite(directory=".", argv=own)
    if own and framework_of(own) in ("", *_PYTHON_RUNNERS) and not inventory.has(path):
        return default  # it has names of its own for tests, and says itself what it cannot find
    framework = inventory.framework_of(path)
    if framework:
        root = inventory.root_for(framework, [inventory.real(checked_path(path))])
        return Suite(directory=root, argv=own if framework_of(own) == framework else _TEST_COMMANDS[framework])
    if path.endswith(".py"):
        return await _python(inventory, own)
    place = PurePosixPath(inventory.real(checked_path(path)))
    for directory in (place, *place.parents):
        suite = await inventory.suite(str(directory))
        if suite is not None and framework_of(suite.argv) in _PYTHON_RUNNERS:
            return await _python(inventory, own)
        if suite is not None:
            same = framework_of(own) == framework_of(suite.argv)
            return Suite(directory=suite.directory, argv=own) if same else suite
    if own:
        return default
    raise ToolFailure(f"no tests were found for {quoted(path)}; use tests_pytest or shell_run_command")


async def _python(inventory: Inventory, own: tuple[str, ...]) -> Suite:
    """Python's tests run from the top of the workspace, wherever they lie."""
    if framework_of(own) in _PYTHON_RUNNERS:
        return Suite(directory=".", argv=own)
    top = await inventory.suite()
    if top is not None and framework_of(top.argv) in _PYTHON_RUNNERS:
        return top
    return Suite(directory=".", argv=PYTEST)
