"""Programs of a run that labs start, kill without a word and start again."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.processes import title

ROOT = Path(__file__).parents[1]
_PORTS = range(20_000, 32_768)
_STOP_SECONDS = 60.0
_TAIL = 4000


class Child:
    """One program of the run that can be killed and started again with the same words.

    Args:
        name: What it is called in reports, and its log file.
        arguments: Its argv behind the interpreter.
        variables: What its environment has beside ours.
        directory: Where it runs and where its log is kept.
    """

    def __init__(self, name: str, arguments: Sequence[str], variables: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self._arguments = tuple(arguments)
        self._variables = dict(variables)
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self.killed = False
        """Whether its last life was ended by `kill`."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def set(self, variables: Mapping[str, str]) -> None:
        """More variables of its environment from the next start on."""
        self._variables |= variables

    def said(self) -> str:
        """The end of what it printed, in all its lives."""
        try:
            return (self._directory / f"{self.name}.log").read_text(errors="replace")[-_TAIL:]
        except FileNotFoundError:
            return ""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it, unless it runs: of those who had it killed, the first to be back counts."""
        if self.running:
            return
        self.killed = False
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / f"{self.name}.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, *self._arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **self._variables},
                start_new_session=True,
            )

    async def kill(self) -> None:
        """kill -9; what it had started is left to find out by itself."""
        if self.running:
            assert self._process is not None
            self.killed = True
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        if not self.running:
            return
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            await self.kill()
            raise AssertionError(f"{self.name} did not end within {_STOP_SECONDS:g} seconds of SIGTERM") from None

    def descendants(self) -> list[psutil.Process]:
        """The processes below it, as far as they are alive."""
        return descendants(self.pid) if self.running else []


def descendants(pid: int) -> list[psutil.Process]:
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in below if title(process)]


def free_port() -> int:
    """A port of loopback that nobody has now, outside of those for outgoing connections and those of Ray's workers."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
