"""`python -m labs.bench.many_servers`: agents at many simulated model servers that come, drain, die and saturate.

The servers answer over HTTP on loopback by a script, so that steps a second are those of the pool, its clients and the
servers on this machine together; what a GPU would take is `--latency`.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.model_servers import play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=30)
    parser.add_argument("--agents", type=int, default=300)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds that a reply takes")
    chosen = parser.parse_args()
    with TemporaryDirectory() as directory:
        outcome, what = asyncio.run(play(Path(directory), **vars(chosen)))
    begun = chosen.agents + chosen.agents // 3
    moved = outcome.moves
    had_to = sum(moved[server.url] for server in (*what.drained, *what.died, *what.busy))
    print(f"{outcome.replies} of {begun * chosen.steps} replies, {len(outcome.failures)} failures")
    print(f"{outcome.replies / outcome.seconds:.0f} steps/s, {outcome.hits:.0%} of prompts found in caches")
    print(f"{moved.total()} moves of {begun} agents, {had_to} of them from servers that left, died or were full")
    print(f"{sum(server.requests for server in what.came)} calls at the {len(what.came)} that came later")


if __name__ == "__main__":
    main()
