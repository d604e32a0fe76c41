"""The demonstration, run as a newcomer runs it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet_command import ended

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
    ran = await ended(
        await asyncio.create_subprocess_exec(*command, env={**kept, "TMPDIR": str(short)}, cwd=short, **piped)
    )
    code, out, err = ran.code, ran.out, ran.err
    assert code == 0, out + err
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
