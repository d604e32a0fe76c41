"""What a fleet without work costs: CPU seconds of each of its processes, Ray's own apart, and messages on NATS.

Ray works in our processes, too: an agent host's main thread is Ray's, which looks for signals a hundred times a second,
and so do threads of Ray's and gRPC's libraries. They are part of their processes' figures, and told once more alone.

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
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
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
_PYTHONS = ("python", "fleet", "ray::", "nats-server")
"""How threads of an interpreter (and of Go) begin: with the name of their process."""
_COUNTED = ("in_msgs", "out_msgs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """CPU seconds a process by its name, and messages that NATS took and sent, all of `seconds`.

    `threads` are what threads of Ray's and gRPC's libraries have of `ours`.
    """

    seconds: float
    ours: dict[str, float]
    rays: dict[str, float]
    threads: dict[str, float]
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
        "idle_library_threads_core_percent": round(100 * sum(idle.threads.values()) / idle.seconds, 2),
        "idle_nats_messages_per_minute": round(60 * idle.messages["in_msgs"] / idle.seconds, 1),
    }


async def idle_fleet(directory: Path, seconds: float) -> Idle:
    async with _nats(directory / "nats") as (url, monitor, nats), _fleet(directory / "home", url) as fleet:
        await asyncio.sleep(SETTLING_SECONDS)
        before, sent = _cpu(fleet, nats), await _messages(monitor)
        threads = _native_threads(before)
        began = time.monotonic()
        await asyncio.sleep(seconds)
        after, now = _cpu(fleet, nats), await _messages(monitor)
        later = _native_threads(after)
        took = time.monotonic() - began
    ours: dict[str, float] = defaultdict(float)
    rays: dict[str, float] = defaultdict(float)
    for pid, (process, used) in after.items():
        part = rays if any(sign in process for sign in _RAYS_OWN) else ours
        part[_named(process)] += used - before.get(pid, (process, 0.0))[1]
    in_ours: dict[str, float] = defaultdict(float)
    for (pid, thread), used in later.items():
        process = after[pid][0]
        if not any(sign in process for sign in _RAYS_OWN):
            in_ours[_named(process)] += used - threads.get((pid, thread), 0.0)
    messages = {name: now[name] - sent[name] for name in _COUNTED}
    return Idle(seconds=took, ours=dict(ours), rays=dict(rays), threads=dict(in_ours), messages=messages)


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


def _native_threads(processes: Iterable[int]) -> dict[tuple[int, str], float]:
    """CPU seconds of threads with names of their own, and of a Ray worker's main thread."""
    used: dict[tuple[int, str], float] = {}
    for pid in processes:
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError):
                name = (thread / "comm").read_text()
                if not name.startswith(_PYTHONS) or (name.startswith("ray::") and thread.name == str(pid)):
                    used[pid, thread.name] = int((thread / "schedstat").read_text().split()[0]) / 1e9
    return used


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
    parts = {"the fleet and NATS": idle.ours, "of it Ray's and gRPC's threads": idle.threads, "Ray's own": idle.rays}
    for title, processes in parts.items():
        print(f"{title}: {100 * sum(processes.values()) / idle.seconds:.2f} % of a core")
        for name, used in sorted(processes.items(), key=lambda one: -one[1]):
            print(f"  {used:6.2f} CPU s  {name}")
    print(f"NATS in {idle.seconds:.0f} s: {idle.messages}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fleet-idle-") as temporary:
        _print(asyncio.run(idle_fleet(Path(temporary), float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)))
