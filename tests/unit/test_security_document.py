"""docs/security.md names controls and tests that exist, and the scan that it promises finds what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_attacks_document import names_in, quoted

REPOSITORY = Path(__file__).parents[2]
_, _, CONTROLS = (REPOSITORY / "docs/security.md").read_text().partition("## Controls")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in CONTROLS.partition("## Supply chain")[0].splitlines()
    if line.startswith("| ") and not line.startswith(("| threat ", "| --- "))
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_is_there(row: list[str]) -> None:
    _, control, tests = row
    named = quoted(tests)
    assert named
    for each in named:
        file, _, name = each.partition("::")
        assert (REPOSITORY / "tests" / file).is_file(), each
        assert not name or name in names_in(REPOSITORY / "tests" / file), each
    for place in (word for word in quoted(control) if "/" in word and " " not in word):
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
