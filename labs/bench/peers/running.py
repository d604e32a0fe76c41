"""One peer: installed where it is missing, run alone and in a crowd, bounded in time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from labs.bench.peers.peers import Peer

INSTALL_SECONDS = 900.0
RUN_SECONDS = 120.0
_SAMPLE_SECONDS = 0.5
_TAIL = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a peer came to; `problem` says why a figure is missing. Memory is the peak of its processes' summed PSS."""

    name: str
    version: str = ""
    about: str = ""
    step_ms: float | None = None
    crowd_s: float | None = None
    peak_mib: float | None = None
    problem: str = ""


def best(one: Figures, other: Figures) -> Figures:
    """The lower of each figure of two rounds; a problem only where no round went well."""

    def lower(a: float | None, b: float | None) -> float | None:
        return min((value for value in (a, b) if value is not None), default=None)

    return replace(
        other,
        version=other.version or one.version,
        step_ms=lower(one.step_ms, other.step_ms),
        crowd_s=lower(one.crowd_s, other.crowd_s),
        peak_mib=lower(one.peak_mib, other.peak_mib),
        problem=one.problem and other.problem,
    )


class PeerFault(Exception):
    """It cannot be installed, or does not do the work."""


async def installed(peer: Peer, environments: Path) -> Path:
    """The interpreter of a peer's own environment. Raises PeerFault."""
    place = environments / peer.name
    python = place / "bin" / "python"
    if (place / "ready").exists():
        return python
    environments.mkdir(parents=True, exist_ok=True)
    for command in (
        (sys.executable, "-m", "venv", str(place)),
        (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.packages),
    ):
        await _ran(command, {}, INSTALL_SECONDS, what="could not be installed")
    (place / "ready").touch()
    return python


async def measure(peer: Peer, environments: Path, *, steps: int, agents: int, latency: float) -> Figures:
    """Run a peer alone without latency, and `agents` of it with; whatever fails is told in the figures."""
    version = ""
    step_ms = crowd_s = peak = None
    try:
        python = await installed(peer, environments)
        with tempfile.TemporaryDirectory(prefix="fleet-peer-") as name:
            async with _served(peer, Path(name), steps=steps, latency=0.0) as url:
                told, _ = await _driven(peer, python, url, Path(name) / "one", steps=steps, agents=1)
            version, step_ms = str(told["version"]), round(1000 * float(told["seconds"]) / steps, 1)
            async with _served(peer, Path(name), steps=steps, latency=latency) as url:
                told, peak = await _driven(peer, python, url, Path(name) / "crowd", steps=steps, agents=agents)
            crowd_s = round(float(told["seconds"]), 1)
    except PeerFault as fault:
        return Figures(
            name=peer.name, version=version, about=peer.about, step_ms=step_ms, crowd_s=crowd_s, problem=str(fault)
        )
    return Figures(
        name=peer.name, version=version, about=peer.about, step_ms=step_ms, crowd_s=crowd_s, peak_mib=round(peak or 0)
    )


@asynccontextmanager
async def _served(peer: Peer, directory: Path, *, steps: int, latency: float) -> AsyncGenerator[str]:
    """The same model server as ours, with the replies in the peer's own words."""
    script = directory / f"script-{latency:g}.json"
    script.write_text(json.dumps({"conversations": [{"turns": peer.turns(steps)}]}))
    process = subprocess.Popen(
        [sys.executable, "-m", "swe_ai_fleet.testing.scripted_model", str(script), "--latency", str(latency)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield (await asyncio.to_thread(process.stdout.readline)).split()[-1]
    finally:
        process.terminate()
        process.wait()


async def _driven(
    peer: Peer, python: Path, url: str, directory: Path, *, steps: int, agents: int
) -> tuple[dict[str, object], float]:
    """What the driver printed, checked against what was done, and its peak memory in MiB. Raises PeerFault."""
    directory.mkdir()
    command = (str(python), str(peer.program), url, str(directory), str(steps), str(agents))
    variables = {**peer.variables, "OPENAI_API_KEY": "none", "HOME": str(directory), "NO_COLOR": "1"}
    out, peak = await _ran(command, variables, RUN_SECONDS, what=f"did not finish with {agents} agents")
    try:
        told: dict[str, object] = json.loads(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise PeerFault(f"printed no result with {agents} agents: {out[-_TAIL:]}") from None
    for number in range(agents):
        notes = directory / str(number) / "notes.log"
        lines = notes.read_text().count("\n") if notes.exists() else 0
        if lines != steps:
            raise PeerFault(f"agent {number} of {agents} took {lines} steps of {steps}")
    return told, peak


async def _ran(command: tuple[str, ...], variables: dict[str, str], seconds: float, *, what: str) -> tuple[str, float]:
    with tempfile.TemporaryFile("w+") as errors:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        peak = [0.0]
        sampling = asyncio.create_task(_sample(process.pid, peak))
        try:
            async with asyncio.timeout(seconds):
                out, _ = await process.communicate()
        except TimeoutError:
            raise PeerFault(f"{what} within {seconds:g} s") from None
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            errors.seek(0)
            raise PeerFault(f"{what}: {errors.read()[-_TAIL:].strip()}")
    return out.decode(errors="replace"), peak[0]


async def _sample(pid: int, peak: list[float]) -> None:
    while True:
        peak[0] = max(peak[0], await asyncio.to_thread(_pss_mib, pid))
        await asyncio.sleep(_SAMPLE_SECONDS)


def _pss_mib(pid: int) -> float:
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    total = 0
    for process in tree:
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            total += process.memory_full_info().pss
    return total / 2**20
