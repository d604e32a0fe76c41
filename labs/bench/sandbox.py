"""What the sandbox adds to a command: the same argv in a workspace and as a plain process, by turns."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.sandbox import IsolationLevel, Sandbox, SandboxPolicy, choose_isolation_level

ROUNDS = 60
TARGET_MS = 3.0
ARGV = ("sh", "-c", "echo step >> notes.log; wc -l notes.log")


async def sandbox_figures() -> dict[str, float]:
    """`sandbox_<level>_start_ms`, `sandbox_<level>_command_ms`, `sandbox_plain_command_ms` and each overhead.

    Commands are medians over ROUNDS, plain and confined ones interleaved; a start is a workspace's first command.
    """
    figures: dict[str, float] = {}
    for level in (IsolationLevel.BUBBLEWRAP, IsolationLevel.LANDLOCK):
        try:
            await choose_isolation_level(level.value)
        except PreconditionFailed:
            continue
        with tempfile.TemporaryDirectory(prefix="fleet-bench-") as name:
            began = time.perf_counter()
            async with Sandbox(SandboxPolicy(level=level)).workspace(Path(name)) as workspace:
                await workspace.run(Command(argv=ARGV))
                figures[f"sandbox_{level}_start_ms"] = _ms(time.perf_counter() - began)
                confined: list[float] = []
                plain: list[float] = []
                for _ in range(ROUNDS):
                    began = time.perf_counter()
                    await _plain(name)
                    between = time.perf_counter()
                    await workspace.run(Command(argv=ARGV))
                    plain.append(between - began)
                    confined.append(time.perf_counter() - between)
        figures["sandbox_plain_command_ms"] = _ms(statistics.median(plain))
        figures[f"sandbox_{level}_command_ms"] = _ms(statistics.median(confined))
        figures[f"sandbox_{level}_overhead_ms"] = _ms(statistics.median(confined) - statistics.median(plain))
    return figures


async def _plain(directory: str) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *ARGV, cwd=directory, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    await process.communicate()


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)


if __name__ == "__main__":
    for figure, value in asyncio.run(sandbox_figures()).items():
        print(f"{figure:36} {value:g}")
