"""What a container image costs: unpacked once, and a second workspace with it beside one without, by turns."""

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

ROUNDS = 15
TARGET_MS = 100.0


async def image_figures(directory: Path) -> dict[str, float]:
    """`image_unpacked_ms`, `image_workspace_ms`, `workspace_ms` and the difference, `image_workspace_more_ms`.

    A workspace is an environment looked up, a clone opened, and its first command ended; medians over ROUNDS, with the
    image and without it interleaved, after the first of each.
    """
    # Only here: what it imports for tests would count as memory of the fleet in other parts.
    from tests.container_images import with_python

    (directory / "images").mkdir(parents=True)
    image = with_python().layout(directory / "images/python")
    repository = make_repository(directory / "repository", {"README.md": "x\n"})
    settings = Settings(home=directory / "home", image_folders=str(directory / "images"))
    provider = workspace_provider(settings)
    pinned = await provider.pin(DEFAULT_TENANT, RepoRef(location=str(repository)))
    spec = await provider.pin_image(DEFAULT_TENANT, EnvironmentSpec(image=image, detect=False))

    async def opened(name: str, spec: EnvironmentSpec) -> float:
        began = time.perf_counter()
        environment = await provider.environment(pinned, spec)
        async with provider.open("bench", name, pinned, environment) as clone:
            assert (await clone.run(Command(argv=("sh", "-c", "true")))).ok
            return 1000 * (time.perf_counter() - began)

    first = await opened("first", spec)
    await opened("plain", EnvironmentSpec(detect=False))
    with_image: list[float] = []
    without: list[float] = []
    for number in range(ROUNDS):
        with_image.append(await opened(f"with-{number}", spec))
        without.append(await opened(f"without-{number}", EnvironmentSpec(detect=False)))
    figures = {
        "image_unpacked_ms": first,
        "image_workspace_ms": statistics.median(with_image),
        "workspace_ms": statistics.median(without),
    }
    figures["image_workspace_more_ms"] = figures["image_workspace_ms"] - figures["workspace_ms"]
    return {name: round(value, 1) for name, value in figures.items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as place:
        for figure, value in asyncio.run(image_figures(Path(place))).items():
            print(f"{figure:28} {value:g}")
