"""What the event log takes: steps a second, CPU and answers a step, with one NATS server and with three.

`python -m labs.bench nats`. A step writes what an agent's writes around a tool call: the reply and the tool's start,
which have to be durable before it runs, then its end. Writers are two processes with fifty journals each, on the same
machine; batches off and on take turns.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import psutil

from swe_ai_fleet.adapters.jetstream import JetStream, StreamSettings
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import CancelRequested, Writer

SECONDS, ROUNDS, PROCESSES, JOURNALS = 5.0, 3, 2, 50
_STEP = (1100, 700, 1200)
"""Bytes of a step's events, about: the reply, the start of a tool, its end."""


async def nats_figures(*, seconds: float = SECONDS, rounds: int = ROUNDS) -> dict[str, float]:
    """Per number of copies, without and with batches, the middle of some rounds; and the load before."""
    figures: dict[str, float] = {"nats_load": round(psutil.getloadavg()[0], 1)}
    for copies in (1, 3):
        measured: dict[str, list[dict[str, float]]] = {"single": [], "batch": []}
        with tempfile.TemporaryDirectory(prefix="fleet-nats-") as name:
            async with _servers(Path(name), copies) as (urls, servers):
                for _ in range(rounds):
                    for kind, taken in measured.items():
                        async with JetStream.connect(urls, settings=StreamSettings(replicas=copies), waits=20) as log:
                            await _ready(log, batches=kind == "batch")
                        taken.append(await _round(urls, servers, seconds))
        for kind, taken in measured.items():
            for figure in taken[0]:
                figures[f"nats_{copies}_{kind}_{figure}"] = round(sorted(one[figure] for one in taken)[rounds // 2], 2)
    return figures


async def _ready(log: JetStream, *, batches: bool) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await log.ensure_streams()
                break
            except FleetError:
                await asyncio.sleep(0.2)  # until the servers have chosen a leader
        config = (await log.connection.api("STREAM.INFO.AGENT_EVENTS", timeout=10))["config"]
        await log.connection.api("STREAM.UPDATE.AGENT_EVENTS", config | {"allow_atomic": batches}, timeout=10)


async def _round(urls: str, servers: list[psutil.Process], seconds: float) -> dict[str, float]:
    before = [_cpu(server) for server in servers]
    run = (sys.executable, "-m", "labs.bench.nats_log", urls, str(seconds))
    writers = [await asyncio.create_subprocess_exec(*run, stdout=subprocess.PIPE) for _ in range(PROCESSES)]
    told: list[dict[str, float]] = [json.loads((await writer.communicate())[0]) for writer in writers]
    steps = sum(one["steps"] for one in told)
    spent = [_cpu(server) - earlier for server, earlier in zip(servers, before, strict=True)]
    return {
        "steps_per_s": sum(one["steps"] / one["seconds"] for one in told),
        "servers_cpu_ms": 1000 * sum(spent) / steps,
        "busiest_server_cpu_ms": 1000 * max(spent) / steps,
        "writers_cpu_ms": 1000 * sum(one["cpu"] for one in told) / steps,
        "answers_per_step": sum(one["answers"] for one in told) / steps,
    }


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def _write(urls: str, seconds: float) -> dict[str, float]:
    """What a process with many journals gets done in so many seconds."""
    reply, start, end = (CancelRequested(reason="x" * (size - 300)) for size in _STEP)
    async with JetStream.connect(urls, waits=20) as log:
        steps, began, cpu = 0, time.monotonic(), time.process_time()
        connection = log.connection
        asked = connection._requests

        async def agent(number: int) -> None:
            nonlocal steps
            own = Writer(tenant="b", execution_id=f"{os.getpid()}-{number}", task_id="t", agent_id="a", generation=1)
            async with log.journal(own, fresh=True) as journal:
                while time.monotonic() - began < seconds:
                    journal.post(reply)
                    await journal.append(start)
                    await journal.append(end)
                    steps += 1

        await asyncio.gather(*map(agent, range(JOURNALS)))
        return {
            "steps": steps,
            "seconds": time.monotonic() - began,
            "cpu": time.process_time() - cpu,
            "answers": connection._requests - asked,
        }


@asynccontextmanager
async def _servers(directory: Path, count: int) -> AsyncGenerator[tuple[str, list[psutil.Process]]]:
    with ExitStack() as taken:
        sockets = [taken.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2 * count)]
        ports = [one.getsockname()[1] for one in sockets]
    clients, peers = ports[:count], ports[count:]
    children: list[subprocess.Popen[bytes]] = []
    for number, (client, peer) in enumerate(zip(clients, peers, strict=True)):
        place = directory / str(number)
        config: dict[str, object] = {
            "server_name": f"n{number}",
            "listen": f"127.0.0.1:{client}",
            "jetstream": {"store_dir": str(place)},
            "log_file": f"{place}.log",
        }
        if count > 1:
            routes = [f"nats://127.0.0.1:{port}" for port in peers]
            config["cluster"] = {"name": "bench", "listen": f"127.0.0.1:{peer}", "routes": routes}
        place.with_suffix(".conf").write_text(json.dumps(config))
        program = Path(sys.executable).with_name("nats-server")
        children.append(subprocess.Popen([program, "-c", place.with_suffix(".conf")]))
    try:
        yield ",".join(f"nats://127.0.0.1:{port}" for port in clients), [psutil.Process(one.pid) for one in children]
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_write(sys.argv[1], float(sys.argv[2])))))
