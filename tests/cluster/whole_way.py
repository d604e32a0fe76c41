"""`python -m tests.cluster.whole_way`: a task through a fleet that runs elsewhere, and its patch back.

Where the fleet is and what it asks for, `FLEET_SERVER`, `FLEET_TOKEN` and `FLEET_TLS_CA` say. Exits 0 when a candidate
passed its checks, its branch came back and its audit chains hold.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from swe_ai_fleet.testing.repositories import make_repository
from tests.scripts import HELLO, HELLO_FILES

SECONDS = 600
CHECK = "python3 -c 'import utils; assert utils.hello_world() == \"Hello, World!\"'"


class Astray(Exception):
    """A part of the way that did not lead where it should."""


def fleet(*arguments: str) -> dict[str, object]:
    """What a command says in JSON. Raises Astray with what it says where it fails."""
    program = [sys.executable, "-m", "swe_ai_fleet.cli.main", *arguments, "--json"]
    run = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS, check=False)
    if run.returncode != 0:
        raise Astray(f"fleet {arguments[0]} ended with {run.returncode}\n{run.stdout[-4000:]}\n{run.stderr[-4000:]}")
    return json.loads(run.stdout)


def go(directory: Path, *, agents: int = 2) -> str:
    """The patch of a task that was carried out for a repository made in the directory. Raises Astray."""
    repository = make_repository(directory / "repository", HELLO_FILES)
    wanted = ("--repo", str(repository), "--agents", str(agents), "--rounds", "0", "--check", CHECK)
    outcome = fleet("run", HELLO, *wanted, "--upload", "--fetch")
    patch = str(outcome["diff"])
    if "+def hello_world():" not in patch:
        raise Astray(f"the winner's patch adds nothing: {patch[:2000]}")
    branches = subprocess.run(
        ["git", "-C", str(repository), "branch", "--list", "fleet/*"], capture_output=True, text=True, check=True
    ).stdout.split()
    if not branches:
        raise Astray("the winner's branch did not come back")
    fleet("audit", "verify", str(outcome["execution_id"]))
    return patch


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        try:
            patch = go(Path(directory))
        except Astray as fault:
            print(fault, file=sys.stderr)
            return 1
    print(patch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
