"""`make soak`: mixed load of two tenants for half an hour, parts killed and restarted, everything accounted for,
nothing that grows, and of the alerts (where Prometheus is installed) those that should fire and no other.

MINUTES=… SEED=…; writes soak.json, and ends with 1 where a task is unaccounted for or a figure grows, and with 130
where it was interrupted. It ends within ten minutes of its time, and ends its own processes however it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
from pathlib import Path

from labs.soak.report import show, write
from labs.soak.run import Soak, new_soak, run_soak
from swe_ai_fleet.telemetry import configure_logging


def main() -> None:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0, help="0 takes a new one, and says which")
    parser.add_argument("--width", type=int, default=8, help="people at work at once")
    parser.add_argument("--pace", type=float, default=4.0, help="seconds from one thing that a person does to the next")
    parser.add_argument("--latency", type=float, default=0.1, help="seconds of a reply of the model")
    parser.add_argument(
        "--kept",
        type=float,
        default=0.0,
        help="seconds that events are kept; 0: a sixth of the time, 75 at least",
    )
    parser.add_argument("--calm", action="store_true", help="kill nothing")
    parser.add_argument("--output", type=Path, default=Path("soak.json"))
    options = parser.parse_args()
    seed = options.seed or secrets.randbelow(1_000_000) + 1
    configure_logging("error")
    print(f"seed {seed}", flush=True)
    # Longer than any outage: an execution of which the beginning is gone cannot be gone on with.
    kept = options.kept or max(75.0, 10 * options.minutes)
    soak = new_soak(seed=seed, minutes=options.minutes, kept_seconds=kept)
    code = 1
    try:
        asyncio.run(_run(soak, options))
        code = 0 if soak.holds else 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = 130
    finally:
        write(soak, options.output)
        show(soak)
    sys.exit(code)


async def _run(soak: Soak, options: argparse.Namespace) -> None:
    running = asyncio.current_task()
    assert running is not None
    # `timeout` and service managers say it so; Ctrl-C does the same by itself.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    await run_soak(soak, width=options.width, pace=options.pace, latency=options.latency, calm=options.calm)


if __name__ == "__main__":
    main()
