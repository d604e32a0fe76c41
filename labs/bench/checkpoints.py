"""What a checkpoint costs in a clone of 3,000 files: one of them changed since the last one, and all of them."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.task import DEFAULT_TENANT, EnvironmentSpec, RepoRef
from swe_ai_fleet.runtime.factories import workspace_provider
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.repositories import make_repository

ROUNDS = 10
FILES = 3_000
TARGET_MS = 100.0
_CHANGES = {
    "checkpoint_one_changed_ms": "echo {} >> a/module_0.py",
    "checkpoint_all_changed_ms": "for file in a/*.py; do echo {} >> $file; done",
}


async def checkpoint_figures(directory: Path) -> dict[str, float]:
    """`checkpoint_one_changed_ms` and `checkpoint_all_changed_ms`, medians over ROUNDS, each after a command."""
    files = {f"a/module_{number}.py": f"VALUE = {number}\n" * 20 for number in range(FILES)}
    repository = make_repository(directory / "repository", files)
    provider = workspace_provider(Settings(home=directory / "home"))
    pinned = await provider.pin(DEFAULT_TENANT, RepoRef(location=str(repository)))
    environment = await provider.environment(pinned, EnvironmentSpec(detect=False))
    figures: dict[str, float] = {}
    for name, change in _CHANGES.items():
        async with provider.open("bench", "agent", pinned, environment) as clone:
            spent: list[float] = []
            for number in range(ROUNDS):
                await clone.run(Command(argv=("sh", "-c", change.format(number))))
                began = time.perf_counter()
                assert (await clone.checkpoint()).bundle
                spent.append(1000 * (time.perf_counter() - began))
        figures[name] = round(statistics.median(spent), 1)
    return figures


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as place:
        print(asyncio.run(checkpoint_figures(Path(place))))
