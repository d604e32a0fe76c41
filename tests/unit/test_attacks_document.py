"""docs/attacks.md names tests and modules that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCUMENT = REPOSITORY / "docs/attacks.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in DOCUMENT.read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| attack ", "| --- "))
]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@cache
def names_in(path: Path) -> frozenset[str]:
    """The tests of a file as pytest names them, found without importing it."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        within = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        functions = (each for each in within if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
        found |= {prefix + each.name for each in functions if each.name.startswith("test_")}
    return frozenset(found)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_is_there(row: list[str]) -> None:
    _, stops, tests = row
    named = quoted(tests)
    assert named
    for each in named:
        file, _, name = each.partition("::")
        assert name in names_in(REPOSITORY / "tests" / file), each
    for module in (word for word in quoted(stops) if "/" in word):
        assert any((REPOSITORY / room / module).exists() for room in ("src/swe_ai_fleet", "")), module


def test_each_tool_of_the_catalogue_that_can_be_attacked_has_rows() -> None:
    headings = [line.removeprefix("## ") for line in DOCUMENT.read_text().splitlines() if line.startswith("## ")]
    tools = [
        "Files",
        "Git",
        "Tests and shell",
        "What the fleet itself does for a task",
        "Docker",
        "HTTP",
        "Databases",
        "Python and the calculator",
        "MCP servers",
        "Harnesses",
        "Approvals",
        "The gateway and what comes in through it",
    ]
    assert headings == tools
    assert len(ROWS) > 60
