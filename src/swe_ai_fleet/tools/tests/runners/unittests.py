"""unittest, and Django's tests, run by a program of ours that reports each test as it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.tests.runners.frameworks import is_django
from swe_ai_fleet.tools.tests.runners.plan import Plan, Selection, checked_path, not_installed
from swe_ai_fleet.tools.tests.runners.unittest_reports import parse_unittest_output

_DOTTED = re.compile(r"\w{1,200}(?:\.\w{1,200}){0,20}")
# Options of Django's `test` that have a value, and those that spread a run, stop it early, or ask.
_VALUED = frozenset(
    {
        *(
            "--settings",
            "--pythonpath",
            "-p",
            "--pattern",
            "-t",
            "--top-level-directory",
            "-k",
            "--tag",
            "--exclude-tag",
        ),
        *("-v", "--verbosity", "--testrunner", "--durations"),
    }
)
_COUNTED = frozenset({"--parallel", "--shuffle"})
_LEFT_OUT = frozenset(
    {"--parallel", "--failfast", "-v", "--verbosity", "--noinput", "--no-input", "--pdb", "--keepdb", "--timing"}
)
DISCOVER = ("python3", "-m", "unittest", "discover")


def checked_name(tree: Tree, name: str) -> str:
    """A dotted name itself, or a path of something inside the workspace, with what follows its `::`.

    Raises ToolRefusal for what looks like an option, ToolFailure for what is neither.
    """
    path, mark, inside = checked_path(name).partition("::")
    if not mark and _DOTTED.fullmatch(path) and not path.endswith(".py"):
        try:
            return tree.find(path)
        except ToolFailure:
            return path
    return f"{tree.find(path)}{mark}{inside}"


def unittest_plan(
    selection: Selection,
    base: tuple[str, ...] = DISCOVER,
    *,
    program_directory: str,
    known_seconds: Mapping[str, float] | None = None,
) -> Plan:
    """How to run unittest, all that the repository's own command finds or a selection.

    Args:
        base: The repository's own command.
        program_directory: Where the program lies, as commands see it.
        known_seconds: Limits of single tests that are longer than the usual one.
    """
    patterns = (f"-k={selection.keyword}",) if selection.keyword else ()
    if is_django(base):
        options = _django_options(base[base.index("test") + 1 :], named=bool(selection.paths))
        told = (*base[: base.index("test") + 1], *options, *patterns, *map(_label, selection.paths))
        own = ("--django", *told[1:], "--noinput")
    elif selection.paths:
        names = tuple(f"./{path}" if path.startswith("-") else path for path in selection.paths)
        own, told = ("--paths", *patterns, *names), (*base[:3], *patterns, *names)
    else:
        own, told = (*base[3:], *patterns), (*base, *patterns)
    steering = {"limits": known_seconds or {}, "deselect": selection.deselect}
    return Plan(
        framework="unittest",
        argv=(base[0], f"{program_directory}/fleet_unittest.py", *own),
        told=told,
        absent=not_installed(base[0], "Python"),
        variables={"FLEET_TEST_OPTIONS": json.dumps(steering)} if any(steering.values()) else {},
        read_output=parse_unittest_output,
    )


def _django_options(words: tuple[str, ...], *, named: bool) -> tuple[str, ...]:
    """Django's words behind `test` without what spreads a run or stops it early; no labels where others are named."""
    kept: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        optional = word in _COUNTED and re.fullmatch(r"\d+|auto", rest[0] if rest else "")
        value = [rest.pop(0)] if rest and (optional or word in _VALUED) else []
        if word.partition("=")[0] not in _LEFT_OUT and (word.startswith("-") or not named):
            kept += [word, *value]
    return tuple(kept)


def _label(name: str) -> str:
    """A path, or an id with one, as Django names tests."""
    path, _, inside = name.partition("::")
    if not path.endswith(".py"):
        return name
    return ".".join((path.removeprefix("./").removesuffix(".py").replace("/", "."), *inside.split("::"))).rstrip(".")
