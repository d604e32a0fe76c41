"""What commands cost: `fleet --help`, `fleet list` and `fleet show` beside an interpreter, and one with gRPC.

`python -m labs.bench.command_line` prints it. The best of several runs that take turns; a machine at work has its say
in all of them, so the ratio to the interpreter with gRPC is the figure to compare.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.orchestrator.main import open_fleet
from swe_ai_fleet.settings import Settings

ROUNDS = 9
TARGET_MS = 150.0
_FLEET = (sys.executable, "-m", "swe_ai_fleet.cli.main")
_PROGRAMS: Mapping[str, Sequence[str]] = {
    "python": (sys.executable, "-c", "pass"),
    "python_grpc": (sys.executable, "-c", "import grpc"),
    "help": (*_FLEET, "--help"),
    "list": (*_FLEET, "list"),
    "show": (*_FLEET, "show", "none-of-these"),
}


async def command_line_figures(directory: Path) -> dict[str, float]:
    settings = Settings(home=directory, model_url="http://127.0.0.1:9/v1", listen="127.0.0.1:0", http_listen="off")
    async with open_fleet(settings):
        return await asyncio.to_thread(_measure, {**os.environ, "FLEET_HOME": str(directory)})


def _measure(variables: Mapping[str, str]) -> dict[str, float]:
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, program in _PROGRAMS.items():
            began = time.perf_counter()
            process = subprocess.Popen(program, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, _, used = os.wait4(process.pid, 0)
            process.returncode = 0
            for kind, seconds in (("ms", time.perf_counter() - began), ("cpu_ms", used.ru_utime + used.ru_stime)):
                key = f"command_{name}_{kind}"
                best[key] = min(best.get(key, seconds), seconds)
    return {name: round(1000 * seconds, 1) for name, seconds in best.items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fleet-cli-") as temporary:
        for figure, value in asyncio.run(command_line_figures(Path(temporary))).items():
            print(f"{figure:28} {value:8.1f}")
