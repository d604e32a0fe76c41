"""Processes of a run: marked, killed without a word, and looked for when nothing may be left."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

MARK = "FLEET_CHAOS_RUN"
"""A variable that every process of a run inherits, with the run's own value."""


@contextmanager
def new_mark() -> Generator[str]:
    """Mark whatever this process starts while the context lasts."""
    os.environ[MARK] = secrets.token_hex(8)
    try:
        yield os.environ[MARK]
    finally:
        del os.environ[MARK]


def title(process: psutil.Process) -> str:
    """The name that a process goes by; empty for one that has ended."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return process.cmdline()[0].rpartition("/")[2]
    except (psutil.NoSuchProcess, psutil.AccessDenied, IndexError):
        return ""


def kill(process: psutil.Process) -> bool:
    """kill -9 by id; whether it was still there."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def marked(mark: str, directory: Path) -> list[psutil.Process]:
    """Every process on this machine that belongs to the run, this one aside: by its mark or by its directory."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        if process.pid == os.getpid() or not title(process):
            continue
        try:
            ours = process.environ().get(MARK) == mark or str(directory) in " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if ours:
            found.append(process)
    return found


async def gone(directory: Path, pattern: str) -> None:
    """Wait until nothing in a directory fits: an agent's clone goes a moment after its result is there."""
    async with asyncio.timeout(30):
        while list(directory.glob(pattern)):
            await asyncio.sleep(0.02)
