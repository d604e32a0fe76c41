"""What the event log takes: steps a second, CPU and answers a step, with one NATS server and with three.

`python -m labs.bench nats`. A step writes what an agent's writes around a tool call: the reply and the tool's start, which
have to be durable before it runs, then its end. Writers are processes of their own with many journals each; batches off
(as a stream with one copy has it) and on take turns.
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
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import psutil

from swe_ai_fleet.adapters.jetstream import JetStream, StreamSettings
from swe_ai_fleet.domain.event import CancelRequested, Writer

SECONDS, ROUNDS, PROCESSES, JOURNALS = 5.0, 3, 2, 50
_STEP = (1100, 700, 1200)
"""Bytes of a step's events, about: the reply, the start of a tool, its end."""


async def nats_figures(*, seconds: float = SECONDS, rounds: int = ROUNDS) -> dict[str, float]:
    """Per number of copies, without and with batches: steps a second, CPU of servers and writers, answers a step."""
    figures: dict[str, float] = {"nats_load": round(psutil.getloadavg()[0], 1)}
    for copies in (1, 3):
        with tempfile.TemporaryDirectory(prefix="fleet-nats-") as name:
            async with _servers(Path(name), copies) as (urls, processes):
                async with JetStream.connect(urls, settings=StreamSettings(replicas=copies), waits=20) as log:
                    await _formed(log)
                    kinds: dict[str, list[dict[str, float]]] = {"single": [], "batch": []}
                    for _ in range(rounds):
                        for kind, measured in kinds.items():
                            config = (await log.connection.api("STREAM.INFO.AGENT_EVENTS", timeout=10))["config"]
                            config["allow_atomic"] = kind == "batch"
                            await log.connection.api("STREAM.UPDATE.AGENT_EVENTS", config, timeout=10)
                            measured.append(await _round(urls, processes, seconds))
        for kind, measured in kinds.items():
            for figure in measured[0]:
                middle = sorted(one[figure] for one in measured)[rounds // 2]
                figures[f"nats_{copies}_{kind}_{figure}"] = round(middle, 2)
    return figures


async def _round(urls: str, servers: list[psutil.Process], seconds: float) -> dict[str, float]:
    before = sum(sum(server.cpu_times()[:2]) for server in servers)
    run = [sys.executable, "-m", "labs.bench.nats_log", urls, str(seconds)]
    writers = [await asyncio.create_subprocess_exec(*run, stdout=subprocess.PIPE) for _ in range(PROCESSES)]
    told = [json.loads((await writer.communicate())[0]) for writer in writers]
    steps = sum(one["steps"] for one in told)
    cpu = sum(sum(server.cpu_times()[:2]) for server in servers) - before
    return {
        "steps_per_s": steps / seconds,
        "server_cpu_ms": 1000 * cpu / steps,
        "writer_cpu_ms": 1000 * sum(one["cpu"] for one in told) / steps,
        "answers_per_step": sum(one["answers"] for one in told) / steps,
    }


async def _write(urls: str, seconds: float) -> dict[str, float]:
    """What a process with many journals gets done in so many seconds."""
    texts = ["x" * (size - 300) for size in _STEP]
    async with JetStream.connect(urls, waits=20) as log, AsyncExitStack() as opened:
        steps, began, cpu = 0, time.monotonic(), time.process_time()
        answers: int = log.connection._requests

        async def agent(number: int) -> None:
            nonlocal steps
            own = Writer(tenant="b", execution_id=f"{os.getpid()}-{number}", task_id="t", agent_id="a", generation=1)
            async with log.journal(own, fresh=True) as journal:
                while time.monotonic() - began < seconds:
                    journal.post(CancelRequested(reason=texts[0]))
                    await journal.append(CancelRequested(reason=texts[1]))
                    journal.post(CancelRequested(reason=texts[2]))
                    await journal.flush()
                    steps += 1

        await asyncio.gather(*map(agent, range(JOURNALS)))
        return {"steps": steps, "cpu": time.process_time() - cpu, "answers": log.connection._requests - answers}


@asynccontextmanager
async def _servers(directory: Path, count: int) -> AsyncGenerator[tuple[str, list[psutil.Process]]]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2 * count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    clients, peers = ports[:count], ports[count:]
    children: list[subprocess.Popen[bytes]] = []
    for number, (client, peer) in enumerate(zip(clients, peers, strict=True)):
        config = {
            "server_name": f"n{number}",
            "listen": f"127.0.0.1:{client}",
            "jetstream": {"store_dir": str(directory / f"n{number}")},
        }
        if count > 1:
            routes = [f"nats://127.0.0.1:{port}" for port in peers]
            config |= {"cluster": {"name": "bench", "listen": f"127.0.0.1:{peer}", "routes": routes}}
        file = directory / f"n{number}.conf"
        file.write_text(json.dumps(config))
        children.append(
            subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("nats-server")),
                    "-c",
                    str(file),
                    "-l",
                    str(directory / f"n{number}.log"),
                ]
            )
        )
    try:
        yield ",".join(f"nats://127.0.0.1:{port}" for port in clients), [psutil.Process(one.pid) for one in children]
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


async def _formed(log: JetStream) -> None:
    """Wait for a cluster to have a leader, which it has once streams can be made."""
    async with asyncio.timeout(60):
        await log.ensure_streams()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_write(sys.argv[1], float(sys.argv[2])))))
