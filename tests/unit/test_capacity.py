"""`fleet capacity` and docs/capacity.md: one set of figures, and an example that is what the command prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from swe_ai_fleet.cli.main import app

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "capacity.md"
COMMAND = ("capacity", "--gpus", "60", "--steps-per-minute", "10")


def test_the_example_of_the_page_is_what_the_command_prints() -> None:
    done = CliRunner().invoke(app, [*COMMAND, "--json"])
    rows = json.loads(done.stdout)["rows"]
    table = "\n".join(f"| {row['what']} | {row['needed']} | {row['from']} |" for row in rows)
    wanted = f"`fleet {' '.join(COMMAND)}`\n\n| what | needed | from |\n| --- | ---: | --- |\n{table}\n"
    found = re.search(r"<!-- example -->\n(.*)<!-- end of example -->", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found and found[1] == wanted, f"write it between the marks:\n{wanted}"
