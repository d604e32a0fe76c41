"""`make simulate`: the whole simulation, its figures and plots into the documents.

python -m labs.simulation [--executions N] [--seed N] [--write]
"""

from __future__ import annotations

import argparse
import re
import time
from dataclasses import replace
from pathlib import Path

from labs.simulation.figures import Figures, figures, percentiles
from labs.simulation.ledger import Setup
from labs.simulation.scale import World
from labs.simulation.svg import bars, lines

DOCS = Path(__file__).parents[2] / "docs"
_MARKED = re.compile(r"(<!-- figures -->\n).*(<!-- end of figures -->)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=Setup().executions)
    parser.add_argument("--seed", type=int, default=Setup().seed)
    parser.add_argument("--write", action="store_true", help="write docs/scale.md and docs/plots")
    chosen = parser.parse_args()
    fair = scaled(chosen.executions, chosen.seed)
    began = time.perf_counter()
    worlds: dict[str, World] = {}
    for name, setup in {"fair": fair, "first come": replace(fair, order="first come")}.items():
        worlds[name] = World(setup)
        worlds[name].run()
    found = {name: figures(world) for name, world in worlds.items()}
    text = table(found)
    print(text)
    print(f"{2 * chosen.executions} executions simulated in {time.perf_counter() - began:.0f} s")
    if chosen.write:
        page = DOCS / "scale.md"
        page.write_text(_MARKED.sub(lambda marks: f"{marks[1]}{text}{marks[2]}", page.read_text()))
        (DOCS / "plots").mkdir(exist_ok=True)
        for name, plot in plots(worlds, found).items():
            (DOCS / "plots" / f"{name}.svg").write_text(plot)


def scaled(executions: int, seed: int = Setup().seed) -> Setup:
    """The same load on as many machines as so many executions need."""
    whole = Setup()
    share = executions / whole.executions
    nodes, driven = max(2, round(whole.nodes * share)), max(4, round(whole.driven * share))
    return replace(whole, executions=executions, seed=seed, nodes=nodes, driven=driven)


def table(found: dict[str, Figures]) -> str:
    names = list(found)
    rows = [["", *names]]
    one = found[names[0]]
    for label, waits in [(f"wait of {kind}", kind) for kind in one.waits]:
        rows.append([f"{label}: p50 / p95 / p99", *(_seconds(found[name].waits[waits]) for name in names)])
    for priority in one.by_priority:
        values = [_seconds(found[name].by_priority[priority]) for name in names]
        rows.append([f"wait at priority {priority}: p50 / p95 / p99", *values])
    rows.append(["Jain's index, mean of windows (worst)", *(_fairness(found[name]) for name in names)])
    rows.append(["places of agents busy until the last arrival", *(f"{found[name].busy:.1%}" for name in names)])
    rows.append(["work done again after failures", *(f"{found[name].lost:.2%}" for name in names)])
    takes = [_seconds(found[name].take_overs) for name in names]
    rows.append(["from a driver's last sign of life to its successor: p50 / p95 / p99", *takes])
    rows.extend([label, *(str(found[name].counts[label]) for name in names)] for label in one.counts)
    rows.append(["executions that ended", *(str(found[name].executions) for name in names)])
    rows.append(["virtual hours until the last ended", *(f"{found[name].hours:.1f}" for name in names)])
    lines_ = ["| " + " | ".join(row) + " |" for row in rows]
    lines_.insert(1, "| " + " | ".join(["---"] + ["---:"] * len(names)) + " |")
    return "\n".join(lines_) + "\n"


def _seconds(values: tuple[float, ...]) -> str:
    return " / ".join(f"{value:.0f}" for value in values) + " s"


def _fairness(one: Figures) -> str:
    return f"{one.fairness:.2f} ({one.worst_fairness:.2f}) of {one.windows}"


def plots(worlds: dict[str, World], found: dict[str, Figures]) -> dict[str, str]:
    kinds = list(found["fair"].waits)
    waits = {name: [one.waits[kind][1] for kind in kinds] for name, one in found.items()}
    fair = worlds["fair"]
    capacity = fair.nodes.capacity
    waiting = {name: [(at / 3600, float(n)) for at, n, _ in world.tally.samples] for name, world in worlds.items()}
    busy = {"places busy": [(at / 3600, 100 * n / capacity) for at, _, n in fair.tally.samples]}
    shares = [number / 100 for number in range(101)]
    taken = {
        name: list(zip(percentiles(world.tally.take_overs, shares), [100 * share for share in shares], strict=True))
        for name, world in worlds.items()
    }
    return {
        "waits": bars("Wait until the first agent is at work, 95th percentile", kinds, waits, unit="s"),
        "waiting": lines("Executions that wait", waiting, unit="number", across="hours"),
        "busy": lines("Places of agents that are busy, fair order", busy, unit="%", across="hours", most=100),
        "take-over": lines("Take-overs that took no longer than", taken, unit="%", across="seconds", most=100),
    }


if __name__ == "__main__":
    main()
