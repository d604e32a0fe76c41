"""Commands for sandboxes, what lives of them, and sandboxes of an ordinary user's."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.sandbox import IsolationLevel
from swe_ai_fleet.sandbox.landlock import Landlock

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
LANDLOCK = pytest.param(
    IsolationLevel.LANDLOCK, marks=pytest.mark.skipif(Landlock.find() is None, reason="the kernel offers no Landlock")
)

CONFINED = [pytest.param(IsolationLevel.BUBBLEWRAP, marks=needs_bwrap), LANDLOCK]
# Where the level decides about a part that other tests show at both.
MAINLY_BWRAP = [CONFINED[0], pytest.param(IsolationLevel.LANDLOCK, marks=[*LANDLOCK.marks, pytest.mark.slow])]

SOURCE = Path(__file__).parents[1] / "src"
DRIVER = Path(__file__).with_name("sandbox_driver.py")
SYSTEM_PYTHON = "/usr/bin/python3"
NOBODY = 65534


def shell(script: str, **options: object) -> Command:
    return Command(argv=("sh", "-c", script), **options)


def python(script: str, *arguments: str, **options: object) -> Command:
    return Command(argv=("python3", "-c", script, *arguments), **options)


def living(token: str) -> list[int]:
    """Processes of this machine that carry `token` on their command line."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if token.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


async def until(holds: Callable[[], object]) -> None:
    """Wait for something that nobody announces."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


def token() -> str:
    """A number of seconds that no other process sleeps for."""
    return f"86{secrets.randbelow(10**6):06d}.{secrets.randbelow(10**6):06d}1"


def as_nobody(argv: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    variables = {"PATH": "/usr/bin:/bin", "TMPDIR": "/tmp", "SECRET": "of-the-fleet"}
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/", "env": variables}
    return subprocess.run(argv, **user, input=text, capture_output=True, text=True, check=False, timeout=300)


def drive(level: str, ordinary: bool, *commands: tuple[list[str], dict[str, Any]], **order: Any) -> dict[str, Any]:
    """Run commands in a workspace of a process of its own, as `sandbox_driver.py` takes them; what it says of them."""
    text = json.dumps({"level": level, "commands": commands, **order})
    argv, env = ["-B", str(DRIVER), str(SOURCE)], os.environ | {"SECRET": "of-the-fleet"}
    if ordinary:
        finished = as_nobody([SYSTEM_PYTHON, *argv], text)
    else:
        finished = subprocess.run(
            [sys.executable, *argv], input=text, capture_output=True, text=True, check=False, timeout=300, env=env
        )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def braced(text: str) -> str:
    """As `drive` takes it, for which braces stand for its own places."""
    return text.replace("{", "{{").replace("}", "}}")


def require_ordinary_user() -> None:
    """Skip where nobody else can be, or finds what tests need."""
    if os.geteuid():
        pytest.skip("we are an ordinary user already")
    check = "import sys, os; os.listdir(sys.argv[1]); sys.exit(sys.version_info < (3, 11))"
    if not Path(SYSTEM_PYTHON).exists() or as_nobody([SYSTEM_PYTHON, "-c", check, str(SOURCE)]).returncode:
        pytest.skip("an ordinary user finds no recent interpreter or no source here")
