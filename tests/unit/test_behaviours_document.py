"""docs/behaviours.md names tests that exist, once each in a row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_attacks_document import names_in, quoted

REPOSITORY = Path(__file__).parents[2]
LINES = (REPOSITORY / "docs/behaviours.md").read_text().splitlines()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in LINES
    if line.startswith("| ") and not line.startswith(("| behaviour ", "| --- "))
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_is_there(row: list[str]) -> None:
    _, tests = row
    named = quoted(tests)
    assert ", ".join(f"`{each}`" for each in named) == tests
    assert named and len(named) == len(set(named))
    for each in named:
        file, _, name = each.partition("::")
        assert name in names_in(REPOSITORY / "tests" / file), each


def test_each_group_has_rows_and_no_behaviour_stands_twice() -> None:
    groups = re.split(r"^## ", "\n".join(LINES), flags=re.MULTILINE)[1:]
    for group in groups:
        assert group.count("\n| ") > 3, group.partition("\n")[0]
    behaviours = [row[0] for row in ROWS]
    assert len(behaviours) == len(set(behaviours)) > 100


def test_every_new_behaviour_that_is_tested_apart_is_named() -> None:
    """Tests that were written for this list are all in it."""
    file = "integration/test_agent_behaviours.py"
    named = {each.partition("::")[2] for row in ROWS for each in quoted(row[1]) if each.startswith(f"{file}::")}
    assert named == names_in(REPOSITORY / "tests" / file)
