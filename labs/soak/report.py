"""What a soak tells: tables for people, a file for machines."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from labs.soak.run import Soak
from labs.soak.samples import FOR_EVER


def write(soak: Soak, path: Path) -> None:
    document = asdict(soak) | {"holds": soak.holds}
    for told, one in zip(document["judged"], soak.judged, strict=True):
        told["flat"] = one.flat
    path.write_text(json.dumps(document, indent=2) + "\n")


def show(soak: Soak) -> None:
    console = Console(width=120)
    flat = Table("figure", "at half time", "at the end", "growth", "allowed", "", title="The second half")
    for one in soak.judged:
        row = (f"{value:.1f}" for value in (one.first, one.last, one.growth, one.allowed))
        flat.add_row(one.name, *row, "flat" if one.flat else "GROWS")
    console.print(flat)
    times = Table("ms", "count", "p50", "p95", "p99", "max", title="Latency")
    for what, found in soak.latency.items():
        times.add_row(what, *(f"{found[name]:g}" for name in ("count", "p50", "p95", "p99", "max")))
    console.print(times)
    if soak.samples:
        kept = {name: soak.samples[-1].get(f"stream {name}", 0) for name in FOR_EVER}
        console.print(f"kept for ever, messages: {kept}")
    console.print(
        f"seed {soak.seed}, {soak.minutes:g} minutes, events kept {soak.kept_seconds:g} s, {soak.machine}, "
        f"load {soak.load_average[0]:.1f}: {soak.accepted} tasks accepted, {soak.executions} executions, "
        f"{soak.events} events; {len(soak.kills)} kills disturbed {soak.disturbed} executions; "
        f"done {soak.done}; asked again {soak.again}; "
        f"streams taken up again {soak.broken}"
    )
    for note in soak.notes:
        console.print(f"note: {note}", markup=False)
    for fault in soak.faults:
        console.print(f"FAULT: {fault}", markup=False)
    console.print("it holds" if soak.holds else "IT DOES NOT HOLD")
