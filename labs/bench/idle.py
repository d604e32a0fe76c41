"""What a fleet without work costs: CPU seconds of each of its processes, Ray's own apart, and messages on NATS.

`python -m labs.bench.idle [SECONDS]` prints it for a fleet of its own; `make bench` has the sums.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

SETTLING_SECONDS = 15.0
"""What a start leaves behind (first sweeps, workers of Ray that begin and end) is not measured."""
SECONDS = 60.0
TARGET_SHARE = 0.005
_RAYS_OWN = (
    "raylet",
    "gcs_server",
    "ray/_private",
    "ray/dashboard",
    "ray::IDLE",
    "plasma",
    "log_monitor",
    "ray::DashboardAgent",
    "ray::RuntimeEnvAgent",
)
_COUNTED = ("in_msgs", "out_msgs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """CPU seconds a process by its name, and messages that NATS took and sent, all of `seconds`."""

    seconds: float
    ours: dict[str, float]
    rays: dict[str, float]
    messages: dict[str, int]

    @property
    def share(self) -> float:
        """Of one core, without Ray's own processes."""
        return sum(self.ours.values()) / self.seconds


async def idle_figures(directory: Path) -> dict[str, float]:
    idle = await idle_fleet(directory, SECONDS)
    return {
        "idle_core_percent": round(100 * idle.share, 2),
        "idle_ray_core_percent": round(100 * sum(idle.rays.values()) / idle.seconds, 2),
        "idle_nats_messages_per_minute": round(60 * idle.messages["in_msgs"] / idle.seconds, 1),
    }


async def idle_fleet(directory: Path, seconds: float) -> Idle:
    async with _nats(directory / "nats") as (url, monitor, nats), _fleet(directory / "home", url) as fleet:
        await asyncio.sleep(SETTLING_SECONDS)
        before, sent = _cpu(fleet, nats), await _messages(monitor)
        began = time.monotonic()
        await asyncio.sleep(seconds)
        after, now = _cpu(fleet, nats), await _messages(monitor)
        took = time.monotonic() - began
    ours: dict[str, float] = defaultdict(float)
    rays: dict[str, float] = defaultdict(float)
    for pid, (process, used) in after.items():
        part = rays if any(sign in process for sign in _RAYS_OWN) else ours
        part[_named(process)] += used - before.get(pid, (process, 0.0))[1]
    messages = {name: now[name] - sent[name] for name in _COUNTED}
    return Idle(seconds=took, ours=dict(ours), rays=dict(rays), messages=messages)


@asynccontextmanager
async def _nats(directory: Path) -> AsyncGenerator[tuple[str, str, int]]:
    """A server that tells what it does, which the fleet's own does not: its address, its monitor's, its pid."""
    port, monitor = _free_port(), _free_port()
    process = await asyncio.create_subprocess_exec(
        *("nats-server", "-a", "127.0.0.1", "-p", str(port), "-m", str(monitor), "-js", "-sd", str(directory)),
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield f"nats://127.0.0.1:{port}", f"http://127.0.0.1:{monitor}/varz", process.pid
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def _fleet(home: Path, nats_url: str) -> AsyncGenerator[int]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "swe_ai_fleet.cli.main", "up", "--json"),
        env={
            **{name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ},
            "FLEET_HOME": str(home),
            "FLEET_NATS_URL": nats_url,
            "FLEET_LISTEN": "127.0.0.1:0",
            "FLEET_METRICS_LISTEN": "127.0.0.1:0",
            "FLEET_MODEL_URL": "http://127.0.0.1:9/v1",
            "FLEET_MODEL": "none",
        },
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            card = json.loads(await process.stdout.readline())
        yield int(card["pid"])
    finally:
        process.terminate()
        await process.wait()


def _cpu(fleet: int, nats: int) -> dict[int, tuple[str, float]]:
    """Of each process its command line and the CPU seconds it has used, those of its ended children too."""
    root = psutil.Process(fleet)
    found: dict[int, tuple[str, float]] = {}
    for process in (root, *root.children(recursive=True), psutil.Process(nats)):
        try:
            times, words = process.cpu_times(), process.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        used = times.user + times.system + times.children_user + times.children_system
        found[process.pid] = " ".join(words), used
    return found


def _named(command: str) -> str:
    words = [word for word in command.split() if not word.startswith("-")]
    scripts = [word for word in words if word.endswith(".py")]
    return Path(scripts[0]).name if scripts else " ".join(Path(word).name for word in words[:3])


async def _messages(monitor: str) -> dict[str, int]:
    def read() -> dict[str, int]:
        with urllib.request.urlopen(monitor) as reply:
            return json.loads(reply.read())

    return await asyncio.to_thread(read)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _print(idle: Idle) -> None:
    for title, processes in (("the fleet and NATS", idle.ours), ("Ray's own", idle.rays)):
        print(f"{title}: {100 * sum(processes.values()) / idle.seconds:.2f} % of a core")
        for name, used in sorted(processes.items(), key=lambda one: -one[1]):
            print(f"  {used:6.2f} CPU s  {name}")
    print(f"NATS in {idle.seconds:.0f} s: {idle.messages}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fleet-idle-") as temporary:
        _print(asyncio.run(idle_fleet(Path(temporary), float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)))
