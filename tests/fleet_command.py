"""`fleet` as its users run it: a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS = 120.0
WARM = Path(__file__).with_name("warm_fleet.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """What it printed, which must be one JSON document on one line."""
        assert self.out.count("\n") == 1 and self.out.endswith("\n"), self.out + self.err
        return json.loads(self.out)


async def ended(process: asyncio.subprocess.Process) -> Ran:
    """What a command printed and ended with. It gets two minutes."""
    try:
        async with asyncio.timeout(SECONDS):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return Ran(code=process.returncode, out=out.decode(), err=err.decode())


async def ran(*command: str, cwd: Path | None = None, **variables: str) -> Ran:
    """Any program with these surroundings and more variables, once it has ended."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={**os.environ, **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    return await ended(process)


@asynccontextmanager
async def program(
    *command: str, log: Path, cwd: Path | None = None, **variables: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program with these surroundings and more variables, ended with the context; what it says is in `log`."""
    with log.open("ab") as said:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=cwd,
            env={**os.environ, **variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """Starts `fleet` with one home and nothing else of the surroundings.

    `warm` is the socket of `tests.warm_fleet`; without one the program is started as it is installed.
    """

    home: Path
    model_url: str = ""
    directory: Path | None = None
    warm: str = ""
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> Mapping[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
        model = {"FLEET_MODEL_URL": self.model_url, "FLEET_MODEL": "scripted"} if self.model_url else {}
        metrics = {"FLEET_METRICS_LISTEN": "127.0.0.1:0"}  # the default one may be another run's
        return {**kept, **metrics, "FLEET_HOME": str(self.home), **model, **self.more}

    async def start(self, *arguments: str, stdin: bytes = b"", **variables: str) -> asyncio.subprocess.Process:
        """Start a command, or a program of Python's; what it is given on standard input has to fit into a pipe."""
        cold = () if arguments[0].endswith(".py") else ("-m", "swe_ai_fleet.cli.main")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *(("-I", "-S", str(WARM), self.warm) if self.warm else cold), *arguments),
            env={**self.variables, **variables},
            cwd=self.directory or self.home.parent,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        if process.stdin is not None:
            process.stdin.write(stdin)
            process.stdin.write_eof()
        return process

    async def fleet(self, *arguments: str, **variables: str) -> Ran:
        return await ended(await self.start(*arguments, **variables))


@asynccontextmanager
async def warm_fleet(directory: Path) -> AsyncIterator[str]:
    """What a `Shell` starts commands from, by a socket in the directory; the first ones wait until it is loaded."""
    path = str(directory / "warm")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        kept = listening.fileno()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.warm_fleet", "--keep", str(kept)),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(kept,),
        )
    try:
        yield path
    finally:
        process.kill()
        await process.wait()
