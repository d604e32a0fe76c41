"""How soon an environment is there: built the first time, found by another process, found again by the same one."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from swe_ai_fleet.domain.task import DEFAULT_TENANT, EnvironmentSpec, RepoRef
from swe_ai_fleet.runtime.factories import workspace_provider
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.repositories import git, make_repository

ROUNDS = 20
FILES = 500
TARGET_MS = 50.0


async def environment_figures(directory: Path) -> dict[str, float]:
    """`environment_built_ms`, `environment_cached_commit_ms` and `environment_cached_ms`.

    The repository has FILES modules and a set-up command, no dependencies. A cached commit is one that this process has
    not seen and whose environment is there; the last figure is about one that it has. Both are medians over ROUNDS.
    """
    files = {f"a/module_{number}.py": f"VALUE = {number}\n" for number in range(FILES)}
    repository = make_repository(directory / "repository", {**files, "Makefile": "test:\n\ttrue\n"})
    provider = workspace_provider(Settings(home=directory / "home"))
    await provider.warm()

    async def taken() -> tuple[bool, float]:
        pinned = await provider.pin(DEFAULT_TENANT, RepoRef(location=str(repository)))
        began = time.perf_counter()
        environment = await provider.environment(pinned, EnvironmentSpec(setup=("echo ready > /environment/state",)))
        return environment.cached, 1000 * (time.perf_counter() - began)

    _, built = await taken()
    commits: list[float] = []
    again: list[float] = []
    for _ in range(ROUNDS):
        git(repository, "commit", "--quiet", "--allow-empty", "--message", "The same files")
        for found in (commits, again):
            cached, spent = await taken()
            assert cached
            found.append(spent)
    return {
        "environment_built_ms": round(built, 1),
        "environment_cached_commit_ms": round(statistics.median(commits), 1),
        "environment_cached_ms": round(statistics.median(again), 1),
    }


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as place:
        print(asyncio.run(environment_figures(Path(place))))
