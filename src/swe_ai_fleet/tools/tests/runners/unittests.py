"""unittest, run by a program of ours that writes a report."""

from __future__ import annotations

import re

from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.tests.reports import ReportUnreadable, TestReport, parse_junit
from swe_ai_fleet.tools.tests.runners.plan import Plan, Selection, checked_path, not_installed
from swe_ai_fleet.tools.tests.runners.unittest_program import PROGRAM
from swe_ai_fleet.tools.tests.runners.unittest_reports import parse_unittest_output

_DOTTED = re.compile(r"\w{1,200}(?:\.\w{1,200}){0,20}")
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


def unittest_plan(selection: Selection, report: str, base: tuple[str, ...] = DISCOVER) -> Plan:
    """How to run unittest, all that the repository's own command finds or a selection.

    Args:
        report: A file that does not exist yet, as commands see it.
        base: The repository's own command.
    """
    patterns = (f"-k={selection.keyword}",) if selection.keyword else ()
    if selection.paths:
        names = tuple(f"./{path}" if path.startswith("-") else path for path in selection.paths)
        own, told = ("--paths", *patterns, *names), (*base[:3], *patterns, *names)
    else:
        own, told = (*base[3:], *patterns), (*base, *patterns)
    return Plan(
        framework="unittest",
        argv=(base[0], "-c", PROGRAM, report, *own),
        told=told,
        absent=not_installed(base[0], "Python"),
        report=report,
        read_report=_read,
        read_output=parse_unittest_output,
    )


def _read(data: bytes) -> TestReport | None:
    try:
        return parse_junit(data, repeated=False)
    except ReportUnreadable:
        return None
