"""`make bench-peers`: our figures beside those of other agents, on this machine, in one run; writes docs/bench.md.

Everybody does the same work against the same scripted model server: twenty shell steps an agent, alone without
latency, then a hundred at once at half a second a reply, in rounds of which the best counts. What cannot be
installed or fails is told so.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from labs.bench.__main__ import hundred, single
from labs.bench.peers.page import Machine, page
from labs.bench.peers.peers import PEERS
from labs.bench.peers.running import RUN_SECONDS, Figures, best, measure
from swe_ai_fleet.telemetry import configure_logging

STEPS, AGENTS, LATENCY = 20, 100, 0.5
ROUNDS = 3


async def ours() -> Figures:
    """The fleet's own figures of one round: audit, events, clones and the sandbox on; bounded in time as peers are."""
    figures: dict[str, float] = {}
    problem = ""
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as name:
        try:
            for part in (single, hundred):
                async with asyncio.timeout(RUN_SECONDS):
                    figures |= await part(Path(name) / part.__name__)
        except TimeoutError:
            problem = f"did not finish within {RUN_SECONDS:g} s"
    return Figures(
        name="SWE AI Fleet",
        version=version("swe-ai-fleet"),
        about="asyncio, in Ray actors; audit, events, a clone and a sandbox each",
        step_ms=figures.get("step_ms"),
        crowd_s=figures.get("fleet_100_wall_s"),
        peak_mib=figures.get("fleet_100_pss_mib"),
        problem=problem,
    )


async def run(environments: Path, names: list[str], output: Path, rounds: int) -> None:
    began = psutil.getloadavg()[0]
    measured: dict[str, Figures] = {}
    # All of them in each round, not each of them in a row: what else the machine does then meets everybody alike.
    for number in range(1, rounds + 1):
        found = [await ours()]
        found += [
            await measure(peer, environments, steps=STEPS, agents=AGENTS, latency=LATENCY)
            for peer in PEERS
            if not names or peer.name in names
        ]
        for one in found:
            print(f"round {number}: {one.name}: {one.problem or 'measured'}", flush=True)
            measured[one.name] = best(measured.get(one.name, one), one)
    machine = Machine(
        cpus=os.cpu_count() or 1,
        memory_gib=psutil.virtual_memory().total / 2**30,
        architecture=platform.machine(),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}",
        load_before=began,
        load_after=psutil.getloadavg()[0],
        at=datetime.now(UTC).date().isoformat(),
    )
    rows = list(measured.values())
    # Sections behind the figures are written by hand.
    _, heading, rest = (output.read_text() if output.exists() else "").partition("\n## ")
    figures = page(rows, machine, steps=STEPS, agents=AGENTS, latency=LATENCY, rounds=rounds)
    output.write_text(figures + heading + rest)
    table = Table("", "version", "ms a step", f"{AGENTS} agents, s", "peak MiB", "")
    for one in rows:
        cells = (f"{value:g}" if value is not None else "-" for value in (one.step_ms, one.crowd_s, one.peak_mib))
        table.add_row(one.name, one.version, *cells, one.problem[:60])
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-peers", description=__doc__)
    parser.add_argument("--environments", type=Path, default=Path(".venv-peers"), help="where peers are installed")
    parser.add_argument("--only", action="append", default=[], metavar="PEER")
    parser.add_argument("--output", type=Path, default=Path("docs/bench.md"))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often everybody is measured; the best counts")
    options = parser.parse_args()
    configure_logging("error")
    asyncio.run(run(options.environments.absolute(), options.only, options.output, options.rounds))


if __name__ == "__main__":
    main()
