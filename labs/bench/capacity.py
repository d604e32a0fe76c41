"""`python -m labs.bench.capacity`: the tables of docs/capacity.md, from bench.json and the ceilings of this machine.

Run `make bench` before, on an idle machine: what it wrote is what the first table is made of.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
from pathlib import Path

import psutil

from labs.bench.ceilings import ceiling_figures

STEPS, AGENTS = 20, 100
"""Of the run in bench.json that the first table is made of."""
PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"
_MARKED = re.compile(r"(<!-- figures -->\n).*(<!-- end of figures -->)", re.DOTALL)
_MISSING = "-"


def table(bench: dict[str, float], ceilings: dict[str, float], *, cpus: int, load: float) -> str:
    """Both tables in Markdown. `load` is the machine's before the ceilings were measured."""
    rows: list[tuple[str, str, str]] = []
    cpu = bench.get("fleet_100_cpu_s")
    if cpu:
        step = cpu / (AGENTS * STEPS)
        rows.append(("CPU of a step (tool call, audit, events)", f"{1000 * step:.1f} ms", "fleet_100_cpu_s / 2,000"))
        rows += [
            (f"agents per core, a step every {seconds} s", f"{0.7 * seconds / step:.0f}", "70 % of a core")
            for seconds in (2, 5, 15)
        ]
    memory = bench.get("fleet_100_pss_mib")
    if memory:
        rows.append(("agents per GiB, NATS, Ray and orchestrator included", f"{AGENTS * 1024 / memory:.0f}", "PSS"))
    events = bench.get("fleet_100_events")
    if events:
        share = events / (AGENTS * STEPS)
        rows.append(("events of a step", f"{share:.1f}", "fleet_100_events / 2,000"))
        limit = ceilings["nats_events_per_s"] / share
        rows.append(("steps a second that one process writes (R1)", f"{limit:.0f}", "events/s over events of a step"))
    first = "\n".join(f"| {name} | {value} | {source} |" for name, value, source in rows)
    names = {
        "nats_events_alone_per_s": "events a second, one writer (one publish in flight)",
        "nats_events_per_s": "events a second, 64 writers (one process)",
        "nats_publishes_per_s": "plain publishes a second, 64 at once (one process)",
        "nats_events_read_per_s": "events read and decoded a second (one reader)",
        "grpc_calls_per_s": "unary gRPC calls a second, client and server of one process",
        "grpc_stream_messages_per_s": "messages of a gRPC stream a second, likewise",
    }
    second = "\n".join(f"| {text} | {ceilings[name]:,.0f} |" for name, text in names.items())
    watchers = bench.get("watching_many_watchers")
    if watchers:
        second += f"\n| WebSocket watchers of one gateway, all whole (`make bench`) | {watchers:,.0f} |"
    busy = f" The machine was busy (load {load:.1f}): an idle one does better." if load > cpus / 2 else ""
    return (
        f"| agents | | from |\n| --- | ---: | --- |\n{first or _MISSING}\n\n"
        f"| ceilings | {cpus} CPUs |\n| --- | ---: |\n{second}\n\n"
        f"Events of 900 bytes, streams with one copy.{busy}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="capacity", description=__doc__)
    parser.add_argument("--bench", type=Path, default=Path("bench.json"))
    parser.add_argument("--write", action="store_true", help="write docs/capacity.md")
    options = parser.parse_args()
    load = psutil.getloadavg()[0]
    bench: dict[str, float] = json.loads(options.bench.read_text()) if options.bench.exists() else {}
    text = table(bench, asyncio.run(ceiling_figures()), cpus=os.cpu_count() or 1, load=load)
    print(text)
    if options.write:
        PAGE.write_text(_MARKED.sub(lambda marks: f"{marks[1]}{text}{marks[2]}", PAGE.read_text()))


if __name__ == "__main__":
    main()
