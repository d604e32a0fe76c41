"""What a tenant leaves on a node's disk counts, the least recently used goes first; programs that stay have a limit."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import CloneBounds, GitWorkspaceProvider
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import ResourceExhausted
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository, RepoRef
from swe_ai_fleet.sandbox import IsolationLevel, SandboxPolicy
from swe_ai_fleet.sandbox.interactive import InteractiveCommand, InteractiveProcess
from swe_ai_fleet.testing.repositories import make_repository
from tests.confinement import needs_bwrap
from tests.environments import built, make_provider

MIB = 1024**2
BARE = Environment()


def make(root: Path, limit: int, *, level: IsolationLevel = IsolationLevel.NONE) -> GitWorkspaceProvider:
    return make_provider(root, level=level, bounds=CloneBounds(tenant_disk_bytes=limit))


def filling(name: str) -> EnvironmentSpec:
    """Set-up that leaves three MiB, other ones for each name."""
    return EnvironmentSpec(detect=False, setup=(f"head -c {3 * MIB} /dev/urandom >/environment/{name}",))


def unused(*places: Path) -> None:
    """Say that places were last used long ago, the first of them longest."""
    for number, place in enumerate(places):
        then = time.time() - 30 * 3600.0 + number
        os.utime(place, (then, then))


def environments(root: Path) -> list[Path]:
    return [root / "home/environments" / name for name in built(root)]


@needs_bwrap
async def test_environments_beyond_the_limit_are_refused_then_the_oldest_goes(tmp_path: Path) -> None:
    provider = make(tmp_path, 8 * MIB, level=IsolationLevel.BUBBLEWRAP)
    path = make_repository(tmp_path / "repo", {"README": "x\n"})
    mine = await provider.pin("acme", RepoRef(location=str(path)))
    await provider.environment(mine, filling("first"))
    (oldest,) = environments(tmp_path)
    await provider.environment(mine, filling("second"))
    both = environments(tmp_path)
    with pytest.raises(ResourceExhausted, match="FLEET_TENANT_DISK_BYTES") as refused:
        await provider.environment(mine, filling("third"))
    assert refused.value.field == "tenant_disk_bytes"
    # Nothing that was in use is gone, and nothing of what was refused is left.
    assert environments(tmp_path) == both
    assert not [*(tmp_path / "home/trash").iterdir()]
    unused(oldest, *(place for place in both if place != oldest))
    assert (await provider.environment(mine, filling("third"))).key
    assert not oldest.exists()
    assert (await provider.environment(mine, filling("second"))).cached


@pytest.mark.slow  # quick: environments beyond the limit
@needs_bwrap
async def test_an_environment_that_an_execution_holds_stays(tmp_path: Path) -> None:
    provider = make(tmp_path, 5 * MIB, level=IsolationLevel.BUBBLEWRAP)
    mine = await provider.pin("acme", RepoRef(location=str(make_repository(tmp_path / "repo", {"README": "x\n"}))))
    environment = await provider.environment(mine, filling("held"))
    (held,) = environments(tmp_path)
    async with provider.open("e", "a", mine, environment):
        unused(held)
        with pytest.raises(ResourceExhausted):
            await provider.environment(mine, filling("more"))
    assert held.exists()
    # Another clone of the execution may come; once it has ended none does.
    await provider.release("e")
    unused(held)
    await provider.environment(mine, filling("more"))
    assert not held.exists()


async def pinned(provider: GitWorkspaceProvider, root: Path, name: str) -> PinnedRepository:
    path = make_repository(root / name, {"blob": os.urandom(2 * MIB)})
    return await provider.pin("acme", RepoRef(location=str(path)))


async def test_repositories_beyond_the_limit_are_refused_then_the_oldest_go(tmp_path: Path) -> None:
    provider = make(tmp_path, 5 * MIB)
    first, second = await pinned(provider, tmp_path, "first"), await pinned(provider, tmp_path, "second")
    with pytest.raises(ResourceExhausted, match="FLEET_TENANT_DISK_BYTES"):
        await pinned(provider, tmp_path, "third")
    seeds = {seed.name: seed for seed in (tmp_path / "home/seeds").glob("*/[0-9a-f]*")}
    assert set(seeds) == {first.commit, second.commit}
    unused(seeds[second.commit], seeds[first.commit])
    third = await provider.pin("acme", RepoRef(location=str(tmp_path / "third")))
    assert not seeds[second.commit].exists()
    async with provider.open("e", "a", third, BARE), provider.open("e", "b", first, BARE) as clone:
        assert (clone.root / "blob").stat().st_size == 2 * MIB
        # Both are held now: there is no room for what went.
        unused(*(tmp_path / "home/seeds").glob("*/[0-9a-f]*"))
        with pytest.raises(ResourceExhausted):
            await provider.pin("acme", RepoRef(location=str(tmp_path / "second")))
    await provider.release("e")
    unused(*(tmp_path / "home/seeds").glob("*/[0-9a-f]*"))
    assert (await provider.pin("acme", RepoRef(location=str(tmp_path / "second")))) == second


# --- programs that stay (MCP servers) ---


FILL = "for i in $(seq 2000); do head -c 1048576 /dev/zero >>/workspace/x; done; echo filled; cat"


@needs_bwrap
async def test_a_server_that_fills_the_disk_is_killed(tmp_path: Path) -> None:
    command, policy = InteractiveCommand(argv=("sh", "-c", FILL)), SandboxPolicy(max_disk_bytes=32 * MIB)
    process = await InteractiveProcess.start(tmp_path, command, policy=policy)
    try:
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b""
            assert await process.wait()
        assert "disk limit" in process.errors().text()
    finally:
        await process.kill()
