"""Many watchers at once: five hundred of one busy execution, and fifty executions with some each.

The gateway is a process of its own, so are the clients; the events come over gRPC from a double of the orchestrator
in this one. `python -m labs.bench.watchers` prints the figures; with `--small` fifty watchers of one execution.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from services.gateway.access.credentials import CredentialChecker
from services.gateway.main import gateway_app, serve_http
from services.gateway.upstream import open_upstream
from swe_ai_fleet.domain.event import EventBody
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.event_source import STRIDE, EventSource, a_deliberation, numbered, serving

Story = Sequence[tuple[str, EventBody]]
TOKEN = "token-of-the-bench"
_SAMPLE_SECONDS = 0.5
_PACE_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much: executions at once, watchers of each, events of each and their rate in a second."""

    executions: int
    watchers: int
    agents: int
    steps: int
    events_per_second: float


BUSY = Load(executions=1, watchers=500, agents=4, steps=160, events_per_second=200.0)
MANY = Load(executions=50, watchers=10, agents=2, steps=10, events_per_second=4.0)
SMALL = Load(executions=1, watchers=50, agents=2, steps=40, events_per_second=400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a load. `whole` watchers had every event once, in order, and were closed with 1000.

    Lags are from an event's storing to its arrival; PSS in MiB; CPU seconds are the gateway's.
    """

    watchers: int
    whole: int
    messages: int
    seconds: float
    lag_p50_ms: float
    lag_p99_ms: float
    pss_before_mib: float
    pss_peak_mib: float
    cpu_seconds: float
    upstream_streams: int

    def figures(self, name: str) -> dict[str, float]:
        return {
            f"{name}_watchers": self.watchers,
            f"{name}_whole": self.whole,
            f"{name}_messages_per_s": round(self.messages / self.seconds),
            f"{name}_lag_p50_ms": round(self.lag_p50_ms, 1),
            f"{name}_lag_p99_ms": round(self.lag_p99_ms, 1),
            f"{name}_gateway_cpu_share": round(self.cpu_seconds / self.seconds, 2),
            f"{name}_gateway_pss_mib": round(self.pss_peak_mib, 1),
            f"{name}_gateway_pss_growth_mib": round(self.pss_peak_mib - self.pss_before_mib, 1),
        }


async def watcher_figures() -> dict[str, float]:
    """Both loads, one after the other."""
    busy, many = await loaded(BUSY), await loaded(MANY)
    return busy.figures("watching_busy") | many.figures("watching_many")


async def loaded(load: Load) -> Outcome:
    """Put a load on a gateway of its own."""
    source = EventSource()
    ids = [str(uuid.uuid4()) for _ in range(load.executions)]
    stories = [a_deliberation(agents=load.agents, steps=load.steps) for _ in ids]
    for name, story in zip(ids, stories, strict=True):
        source.add(*numbered(name, story[:1]))
    paths = [f"/api/ws/executions/{name}" for name in ids for _ in range(load.watchers)]
    async with (
        serving(source) as port,
        _process("labs.bench.watchers", "gateway", f"127.0.0.1:{port}") as gateway,
        _process("labs.bench.watching_client") as clients,
    ):
        asked = {"url": await _line(gateway), "token": TOKEN, "stride": STRIDE, "paths": paths}
        assert clients.stdin is not None
        clients.stdin.write(json.dumps(asked).encode() + b"\n")
        await clients.stdin.drain()
        assert await _line(clients) == "opened"
        measured = psutil.Process(gateway.pid)
        before, peak, cpu = _pss_mib(measured), 0.0, sum(measured.cpu_times()[:2])
        began = time.perf_counter()
        telling = asyncio.create_task(_tell(source, ids, stories, load.events_per_second))
        reading = asyncio.create_task(_line(clients))
        while not reading.done():
            await asyncio.wait((reading,), timeout=_SAMPLE_SECONDS)
            peak = max(peak, await asyncio.to_thread(_pss_mib, measured))
        await telling
        seconds = time.perf_counter() - began
        told, cpu = json.loads(await reading), sum(measured.cpu_times()[:2]) - cpu
    events = len(stories[0])
    complete = [events, 1, 1 + STRIDE * (events - 1), 0, 1000]
    return Outcome(
        watchers=len(paths),
        whole=sum(count for *seen, count in told["wholes"] if seen == complete),
        messages=told["messages"],
        seconds=seconds,
        lag_p50_ms=told["lag_p50_ms"],
        lag_p99_ms=told["lag_p99_ms"],
        pss_before_mib=before,
        pss_peak_mib=peak,
        cpu_seconds=cpu,
        upstream_streams=source.opened,
    )


async def _tell(source: EventSource, ids: list[str], stories: Sequence[Story], rate: float) -> None:
    """Every execution's further events at a rate; an event's time is when it is told."""
    loop = asyncio.get_running_loop()
    began, told, total = loop.time(), 1, len(stories[0])
    while told < total:
        due = min(total, 1 + int((loop.time() - began) * rate))
        if due > told:
            for name, story in zip(ids, stories, strict=True):
                source.add(*numbered(name, story[told:due], first=told + 1))
            told = due
        await asyncio.sleep(_PACE_SECONDS)


@asynccontextmanager
async def _process(*arguments: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=16 * 1024 * 1024,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode().strip()
    assert line, f"process {process.pid} ended early"
    return line


def _pss_mib(process: psutil.Process) -> float:
    return process.memory_full_info().pss / 2**20


async def _gateway(address: str) -> None:
    """A gateway in front of an address, until stdin ends or the process is told to."""

    async def ready() -> bool:
        return True

    settings = Settings(home=Path("/nonexistent"), http_listen="127.0.0.1:0", http_requests_per_minute=1_000_000)
    async with open_upstream(address, address) as upstream:
        app = gateway_app(settings, upstream, CredentialChecker(TOKEN), MemoryKeyValue(), ready)
        async with serve_http(app, settings.http_address) as url:
            print(url, flush=True)
            await asyncio.to_thread(sys.stdin.read)


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=("gateway",))
    parser.add_argument("where", nargs="?", default="")
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    if asked.part == "gateway":
        await _gateway(asked.where)
    else:
        figures = (await loaded(SMALL)).figures("watching_small") if asked.small else await watcher_figures()
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    asyncio.run(_main())
