"""What the fleet's own git reads of a clone, while a process of that clone swaps directories for links to the host."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider, staging
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.errors import PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.task import EnvironmentSpec, RepoRef, UncommittedChanges
from swe_ai_fleet.sandbox import Rung, Sandbox, SandboxPolicy
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.confinement import CONFINED, needs_bwrap
from tests.environments import make_provider, pin, sh

SECRET = b"the fleet's own token"
FILES = 600
_TRIES = 4


def _filled(directory: Path, content: bytes) -> Path:
    directory.mkdir()
    for number in range(FILES):
        (directory / f"f{number:05}").write_bytes(content + b"%d" % number)
    return directory


def _swap(target: Path, loot: Path, objects: Path) -> None:
    """From the host, as a live process would do it at the worst moment: a directory becomes a link to the host.

    The moment is when git has listed the directory, and the first of its files stand among the objects.
    """
    before, give_up = _written(objects), time.monotonic() + 60
    while _written(objects) == before and time.monotonic() < give_up:
        time.sleep(0.001)
    link = target.with_name("link")
    link.symlink_to(loot)
    target.rename(loot.with_name(target.name))
    link.rename(target)


def _written(objects: Path) -> int:
    return sum(1 for _ in objects.glob("??/*"))


async def _under_attack(tree: Path, loot: Path, objects: Path, read: Callable[[], Awaitable[bytes]]) -> bytes:
    """Everything that readings of a tree held while one of its directories was swapped for a link to the host."""
    held = b""
    for round_ in range(_TRIES):
        target = _filled(tree / f"d{round_}", b"harmless %d " % round_)
        swapping = asyncio.get_running_loop().run_in_executor(None, _swap, target, loot, objects)
        try:
            held += await read()
        except PreconditionFailed as fault:
            held += fault.message.encode()
        await swapping
        target.unlink()
        if SECRET in held:
            break
    _filled(tree / "calm", b"harmless")
    return held + await read()


async def _attacked(rung: Rung, root: Path) -> bytes:
    """What diffs of a clone held."""
    (root / "tools").mkdir()
    provider = make_provider(root, root / "tools", sandbox=Sandbox(SandboxPolicy(rung=rung)))
    repository = await pin(provider, root, {"README": "x\n"})
    environment = await provider.environment(repository, EnvironmentSpec(detect=False))
    async with provider.open("e", "a", repository, environment) as clone:
        await clone.run(Command(argv=("true",)))

        async def read() -> bytes:
            return (await clone.diff()).patch

        return await _under_attack(clone.root, _filled(root / "loot", SECRET), clone.root.parent / "git/objects", read)


async def test_control_without_confinement_the_host_is_read(tmp_path: Path) -> None:
    assert SECRET in await _attacked(Rung.NONE, tmp_path)


@pytest.mark.parametrize("rung", CONFINED)
async def test_a_link_swapped_in_leads_git_nowhere(rung: Rung, tmp_path: Path) -> None:
    held = await _attacked(rung, tmp_path)
    # It did read what is the clone's own.
    assert b"harmless" in held
    assert SECRET not in held


async def _pinned(rung: Rung, root: Path) -> bytes:
    """What snapshots of a user's own work tree held."""
    tree = make_repository(root / "repository", {"README": "x\n"})
    sandbox = Sandbox(SandboxPolicy(rung=rung))
    provider = GitWorkspaceProvider(root / "home", sandbox, allowed_roots=(root,), allow_local_paths=True)
    asked = RepoRef(location=str(tree), uncommitted=UncommittedChanges.INCLUDE)
    await provider.pin("default", asked)
    (cache,) = (path for path in (root / "home/repositories").iterdir() if path.is_dir())

    async def read() -> bytes:
        return git(cache, "log", "-1", "-p", (await provider.pin("default", asked)).commit).encode()

    return await _under_attack(tree, _filled(root / "loot", SECRET), cache / "objects", read)


async def test_control_a_work_tree_that_is_pinned_without_confinement(tmp_path: Path) -> None:
    assert SECRET in await _pinned(Rung.NONE, tmp_path)


@pytest.mark.parametrize("rung", CONFINED)
async def test_pinning_a_work_tree_leads_git_nowhere(rung: Rung, tmp_path: Path) -> None:
    held = await _pinned(rung, tmp_path)
    assert b"harmless" in held
    assert SECRET not in held


@pytest.mark.parametrize("rung", CONFINED)
async def test_nested_repositories_are_looked_for_within_bounds(
    rung: Rung, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "MAX_NAME_BYTES", 10_000)
    (tmp_path / "tools").mkdir()
    provider = make_provider(tmp_path, tmp_path / "tools", sandbox=Sandbox(SandboxPolicy(rung=rung)))
    repository = await pin(provider, tmp_path, {"README": "x\n"})
    environment = await provider.environment(repository, EnvironmentSpec(detect=False))
    async with provider.open("e", "a", repository, environment) as clone:
        fill = "mkdir n && cd n && git init -q . && touch a b && for i in $(seq 2000); do : >file-$i; done && echo done"
        assert await sh(clone, fill) == "done"
        with pytest.raises(ResourceExhausted, match="names"):
            await clone.diff()
        # Control: fewer are taken, file by file.
        await sh(clone, "rm n/file-*")
        assert set((await clone.diff()).files) == {"n/a", "n/b"}


ENDLESS = {
    ".gitignore": "mkfifo .gitignore",
    "d/.gitattributes": "mkdir d && touch d/file && mkfifo d/.gitattributes",
    "n/.git/HEAD": "git init -q n && touch n/file && rm n/.git/HEAD && mkfifo n/.git/HEAD",
    "n/.git/commondir": "git init -q n && touch n/file && mkfifo pipe && ln -s ../../pipe n/.git/commondir",
}


@pytest.mark.parametrize("rung", CONFINED)
@pytest.mark.parametrize("name", ENDLESS)
async def test_a_pipe_where_git_expects_a_file_is_named_at_once(rung: Rung, name: str, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    provider = make_provider(tmp_path, tmp_path / "tools", sandbox=Sandbox(SandboxPolicy(rung=rung)))
    repository = await pin(provider, tmp_path, {"README": "x\n"})
    environment = await provider.environment(repository, EnvironmentSpec(detect=False))
    async with provider.open("e", "a", repository, environment) as clone:
        # Elsewhere a pipe is nothing to git.
        assert await sh(clone, f"{ENDLESS[name]} && mkfifo other && echo y >> README && echo made") == "made"
        for read in (clone.diff, clone.checkpoint):
            with pytest.raises(PreconditionFailed, match=re.escape(f"{name}' is a pipe or a device")):
                await read()
        # Control: without it the tree is read, and nothing that was killed is in the way.
        assert await sh(clone, f"rm {name} && echo gone") == "gone"
        assert "README" in (await clone.diff()).files


@pytest.mark.parametrize("rung", CONFINED)
async def test_a_pipe_in_a_work_tree_that_is_pinned_is_named(rung: Rung, tmp_path: Path) -> None:
    tree = make_repository(tmp_path / "repository", {"README": "x\n"})
    (tree / "new").write_text("new\n")
    os.mkfifo(tree / ".gitignore")
    sandbox = Sandbox(SandboxPolicy(rung=rung))
    provider = GitWorkspaceProvider(tmp_path / "home", sandbox, allowed_roots=(tmp_path,), allow_local_paths=True)
    asked = RepoRef(location=str(tree), uncommitted=UncommittedChanges.INCLUDE)
    with pytest.raises(PreconditionFailed, match=r"gitignore' is a pipe"):
        await provider.pin("default", asked)
    (tree / ".gitignore").unlink()
    assert (await provider.pin("default", asked)).snapshot_of


@needs_bwrap
async def test_a_pipe_that_a_build_left_is_named(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    provider = make_provider(tmp_path, tmp_path / "tools")
    repository = await pin(provider, tmp_path, {"README": "x\n"})
    with pytest.raises(PreconditionFailed, match=r"gitignore' is a pipe"):
        await provider.environment(repository, EnvironmentSpec(detect=False, setup=("mkfifo .gitignore",)))
    assert await provider.environment(repository, EnvironmentSpec(detect=False, setup=("mkfifo other",)))
