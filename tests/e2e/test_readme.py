"""The README's own words: its quick tour and its library example are run as they stand."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.domain.audit import verify
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.documented import blocks, run_python
from tests.environments import home_at
from tests.fleet_command import ended, ran
from tests.scripts import HELLO_FILES, HELLO_OPERATIONS

ROOT = Path(__file__).parents[2]


def _block(beginning: str) -> str:
    """The first code block that begins with these words."""
    return next(text for _, text in blocks("README.md") if text.startswith(beginning))


async def _run(command: str, **surroundings: Any) -> str:
    """What a command printed."""
    told = await ran(*shlex.split(command), **surroundings)
    assert told.code == 0, f"{command}\n{told.out}{told.err}"
    return told.out + told.err


async def test_the_library_example(model_server: ScriptedModelServer, tmp_path: Path) -> None:
    clone = make_repository(tmp_path / "clone", HELLO_FILES)
    example = _block("from swe_ai_fleet import ToolEnabledAgent")
    example = example.replace("path/to/clone", str(clone)).replace("http://127.0.0.1:8000/v1", model_server.url)
    os.environ["FLEET_HOME"] = str(home_at(tmp_path / "home"))
    try:
        names: dict[str, Any] = {}
        await run_python(example, names)
    finally:
        del os.environ["FLEET_HOME"]
    result = names["result"]
    assert (result.success, result.error, result.verdict) == (True, None, "verified")
    assert tuple(f"{one['tool']}_{one['operation']}" for one in result.operations) == HELLO_OPERATIONS
    assert result.artifacts["files_changed"] == ["utils.py"] and result.artifacts["tests"]["passed"] == 2
    assert result.artifacts["commit_sha"] == git(clone, "rev-parse", "HEAD")
    assert verify(result.audit_trail, head=json.loads(json.dumps(result.to_dict()))["audit_head"]) is None


@pytest.mark.slow  # quick: test_cli.py, unit/test_cli_help.py
@pytest.mark.timeout(600)
async def test_the_tour_is_walked_in_a_fresh_home() -> None:
    """Two terminals, the second one with the same PATH and nothing else; the model is the scripted one of the tour."""
    installed = Path(sys.executable).parents[1]
    said = await _run(f"{sys.executable} scripts/tour.py --installed {installed}", cwd=ROOT)
    assert said.count("\n0  ") == len(_block("fleet doctor").strip().splitlines())
    assert re.search(r"from git clone to the first delivered change: \d+ s", said)


# --- the demonstration, run as a newcomer runs it ---


CARD = re.compile(
    r"^rank: (\d)\s+candidate: (agent-dev-\d)\s+verdict: (verified|unverified|refuted)\s+score: ([01]\.\d+)"
    r"\s+(checks: .*?)(?=^rank: |\n\n)",
    re.MULTILINE | re.DOTALL,
)


@pytest.fixture
def short() -> Iterator[Path]:
    """A temporary directory whose path leaves room for Ray's sockets below it."""
    with tempfile.TemporaryDirectory(prefix="d") as directory:
        yield Path(directory)


@pytest.mark.slow  # quick: test_cli.py, which has such a ranking and a fleet that leaves nothing behind
async def test_the_evidence_picks_the_winner(short: Path) -> None:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    piped = {"stdin": asyncio.subprocess.DEVNULL} | dict.fromkeys(("stdout", "stderr"), asyncio.subprocess.PIPE)
    command = (sys.executable, "-m", "swe_ai_fleet.cli.demo")
    shown = await ended(
        await asyncio.create_subprocess_exec(*command, env={**kept, "TMPDIR": str(short)}, cwd=short, **piped)
    )
    out = shown.out
    assert shown.code == 0, out + shown.err
    assert "SCRIPTED" in out
    rows = [match.groups() for match in CARD.finditer(out)]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    evidence = {row[1]: (row[2] == "verified", "lint ok" in row[4], float(row[3])) for row in rows}
    best, sloppy, failing = evidence.values()
    assert best[:2] == (True, True)
    assert sloppy[:2] == (True, False)
    assert failing[0] is False
    assert best[2] > sloppy[2] > failing[2]
    winner = rows[0][1]
    assert f"verified: {winner} won" in out
    assert f"Fleet-Agent: {winner}" in out
    assert f'"winner": "{winner}"' in out and "agent.results.demo (" in out
    assert out.count(" intact") == 3 and "BROKEN" not in out
    assert "fleet run --local --repo ." in out
    # Nothing is left, but for the directory that all fleets of a user share.
    assert [path.name for path in short.glob("fleet-*") if path.name != f"fleet-{os.getuid()}"] == []
