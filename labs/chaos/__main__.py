"""`make chaos`: 200 executions under kill -9, with the seed that decides what is killed when (SEED=…, EXECUTIONS=…)."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from pathlib import Path

from labs.chaos.plan import Victim
from labs.chaos.report import markdown, show, write
from labs.chaos.run import Phase, run_chaos
from swe_ai_fleet.telemetry import configure_logging

OWN = {
    Victim.ORCHESTRATOR: 6,
    Victim.BOTH: 2,
    Victim.ACTOR: 6,
    Victim.WORKER: 3,
    Victim.NATS: 4,
    Victim.MODEL: 1,
}
CLUSTER = {
    Victim.ORCHESTRATOR: 4,
    Victim.ACTOR: 4,
    Victim.WORKER: 2,
    Victim.NATS: 3,
    Victim.NODE: 1,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="0 takes a new one, and says which")
    parser.add_argument("--executions", type=int, default=200, help="in both phases together")
    parser.add_argument("--width", type=int, default=14, help="executions that have not ended, at most")
    parser.add_argument("--latency", type=float, default=0.2, help="seconds of a reply of the model")
    parser.add_argument("--minutes", type=float, default=12.0, help="the run fails when it takes longer")
    parser.add_argument("--only", choices=("own", "cluster"), help="one phase alone")
    parser.add_argument("--calm", action="store_true", help="kill nothing: the same load and the same proof")
    parser.add_argument("--kill", action="append", default=[], metavar="WHAT=COUNT", help="in place of the usual kills")
    parser.add_argument("--markdown", action="store_true", help="print the table for docs/chaos.md too")
    options = parser.parse_args()
    seed = options.seed or secrets.randbelow(1_000_000) + 1
    own = options.executions if options.only == "own" else options.executions * 3 // 5
    chosen = {Victim(what): int(count) for what, _, count in (one.partition("=") for one in options.kill)}
    own_kills, cluster_kills = (chosen, chosen) if chosen or options.calm else (OWN, CLUSTER)
    phases = [
        Phase(name="own Ray each", executions=own, victims=own_kills),
        Phase(
            name="three nodes",
            executions=options.executions - (0 if options.only == "cluster" else own),
            victims=cluster_kills,
            nodes=3,
        ),
    ]
    if options.only is not None:
        phases = [phases[options.only == "cluster"]]
    configure_logging("error")
    print(f"seed {seed}", flush=True)
    outcome = asyncio.run(
        run_chaos(phases, seed=seed, width=options.width, latency=options.latency, limit_seconds=60 * options.minutes)
    )
    write(outcome, Path("chaos.json"))
    show(outcome)
    if options.markdown:
        print(markdown(outcome))
    sys.exit(0 if outcome.holds else 1)


if __name__ == "__main__":
    main()
