"""The tables of documents name tests and modules that exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.tables import table

REPOSITORY = Path(__file__).parents[2]
ATTACKS, BEHAVIOURS, SECURITY = (
    (REPOSITORY / f"docs/{name}.md").read_text() for name in ("attacks", "behaviours", "security")
)
CONTROLS = SECURITY.partition("## Controls")[2].partition("## Supply chain")[0]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    heads = ("| attack ", "| behaviour ", "| threat ", "| --- ")
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if not line.startswith(heads)]


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


@table(
    ("table", "cells", "whole_files"),
    [(ATTACKS, 3, False), (BEHAVIOURS, 2, False), (CONTROLS, 3, True)],
)
def test_what_a_row_names_is_there(table: str, cells: int, whole_files: bool) -> None:
    for row in rows(table):
        assert len(row) == cells, row
        named = quoted(row[-1])
        assert named and len(named) == len(set(named)), row
        assert cells == 3 or ", ".join(f"`{each}`" for each in named) == row[-1], row
        for each in named:
            file, _, name = each.partition("::")
            assert (REPOSITORY / "tests" / file).is_file(), each
            assert (whole_files and not name) or name in names_in(REPOSITORY / "tests" / file), each
        for place in (word for word in quoted(" ".join(row[1:-1])) if "/" in word and " " not in word):
            assert any((REPOSITORY / room / place).exists() for room in ("src/swe_ai_fleet", "")), place


def test_a_secret_in_the_tree_is_found(tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "check_secrets.py").write_bytes((REPOSITORY / "scripts/check_secrets.py").read_bytes())
    (scripts / "known_secrets.json").write_text("{}")
    made_up = "gh" + "p_" + "Zk3" * 12
    (tmp_path / "settings.py").write_text(f'TOKEN = "{made_up}"\n')
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
    scan = [sys.executable, scripts / "check_secrets.py"]
    found = subprocess.run(scan, capture_output=True, text=True, check=False)
    assert found.returncode == 1 and "settings.py: GitHub Token" in found.stdout
    assert made_up not in found.stdout
    subprocess.run([*scan, "--write"], check=True)
    assert subprocess.run(scan, check=False).returncode == 0
