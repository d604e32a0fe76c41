"""Commands for sandboxes, and what lives of them."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.sandbox import Rung
from swe_ai_fleet.sandbox.landlock import Landlock

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
LANDLOCK = pytest.param(
    Rung.LANDLOCK, marks=pytest.mark.skipif(Landlock.find() is None, reason="the kernel offers no Landlock")
)

CONFINED = [pytest.param(Rung.BUBBLEWRAP, marks=needs_bwrap), LANDLOCK]

RUNGS = [*CONFINED, Rung.NONE]


def shell(script: str, **options: object) -> Command:
    return Command(argv=("sh", "-c", script), **options)  # pyright: ignore[reportArgumentType]


def python(script: str, *arguments: str, **options: object) -> Command:
    return Command(argv=("python3", "-c", script, *arguments), **options)  # pyright: ignore[reportArgumentType]


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


def token() -> str:
    """A number of seconds that no other process sleeps for."""
    return f"86{secrets.randbelow(10**6):06d}.{secrets.randbelow(10**6):06d}1"
