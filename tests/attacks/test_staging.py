"""What the fleet reads and keeps of a clone or a build, while directories become links and files pipes."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitClone
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.errors import PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.task import EnvironmentSpec, RepoRef, UncommittedChanges
from swe_ai_fleet.sandbox import IsolationLevel, Sandbox, SandboxPolicy
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.confinement import CONFINED, MAINLY_BWRAP, needs_bwrap, until
from tests.environments import BACKEND, PYPROJECT, make_provider, opened, pin, provider_at, sh

SECRET = b"the fleet's own token"
FILES = 600
# So many swaps meet the moment where nothing is in the way, as a rule the first one does.
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


async def _diff(clone: GitClone) -> bytes:
    return (await clone.diff()).patch


async def _under_attack(
    tree: Path, root: Path, objects: Path, read: Callable[[], Awaitable[bytes]], tries: int = 2
) -> bytes:
    """Everything that readings of a tree held while one of its directories was swapped for a link to the host."""
    held, loot = b"", _filled(root / "loot", SECRET)
    for round_ in range(tries):
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


CONTROL = pytest.param(IsolationLevel.NONE, id="control", marks=pytest.mark.slow)


@pytest.mark.parametrize("level", [*MAINLY_BWRAP, CONTROL])
async def test_a_link_swapped_in_leads_git_nowhere(level: IsolationLevel, tmp_path: Path) -> None:
    async with opened(tmp_path, level) as (_, clone):
        await clone.run(Command(argv=("true",)))
        tries = _TRIES if level is IsolationLevel.NONE else 2
        held = await _under_attack(clone.root, tmp_path, clone.root.parent / "git/objects", lambda: _diff(clone), tries)
    # It did read what is the clone's own; without confinement also what is the host's.
    assert b"harmless" in held
    assert (SECRET in held) is (level is IsolationLevel.NONE)


@pytest.mark.parametrize("level", MAINLY_BWRAP)
async def test_nested_repositories_are_looked_for_within_bounds(level: IsolationLevel, tmp_path: Path) -> None:
    async with opened(tmp_path, level) as (_, clone):
        # A chain of directories costs the square of its length.
        await sh(clone, "git init -q n && cd n && touch a b && mkdir -p $(printf 'd/%.0s' $(seq 720))")
        with pytest.raises(ResourceExhausted, match="within directories"):
            await clone.diff()
        # Control: without it they are taken, file by file.
        await sh(clone, "rm -r n/d")
        assert set((await clone.diff()).files) == {"n/a", "n/b"}


ENDLESS = {
    ".gitignore": "mkfifo .gitignore",
    "d/.gitattributes": "mkdir d && touch d/file && mkfifo d/.gitattributes",
    "n/.git/HEAD": "git init -q n && touch n/file && rm n/.git/HEAD && mkfifo n/.git/HEAD",
    "n/.git/commondir": "git init -q n && touch n/file && mkfifo pipe && ln -s ../../pipe n/.git/commondir",
}


@needs_bwrap
@pytest.mark.parametrize(
    "name", [".gitignore", *(pytest.param(name, marks=pytest.mark.slow) for name in ENDLESS if name != ".gitignore")]
)
async def test_a_pipe_where_git_expects_a_file_is_named_at_once(name: str, tmp_path: Path) -> None:
    async with opened(tmp_path, IsolationLevel.BUBBLEWRAP) as (_, clone):
        # Elsewhere a pipe is nothing to git.
        assert await sh(clone, f"{ENDLESS[name]} && mkfifo other && echo y >> README && echo made") == "made"
        with pytest.raises(PreconditionFailed, match=re.escape(f"{name}' is a pipe or a device")):
            await clone.diff()
        # Control: without it the tree is read, and nothing that was killed is in the way.
        assert await sh(clone, f"rm {name} && echo gone") == "gone"
        assert "README" in (await clone.diff()).files


# Takes the name of a pipe away, so that whoever waits at it waits for ever and nobody finds it.
UNLINKING = "mkfifo .gitignore; : >ready; until [ -e now ]; do :; done; rm .gitignore; sleep 1000"


def _waits_at_a_pipe(directory: Path) -> bool:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == directory and (process / "comm").read_text() == "git\n":
                return (process / "wchan").read_text() == "wait_for_partner"
    return False


@pytest.mark.parametrize("level", MAINLY_BWRAP)
async def test_nobody_takes_a_pipe_away_while_git_waits(level: IsolationLevel, tmp_path: Path) -> None:
    async with opened(tmp_path, level) as (_, clone):
        living = asyncio.create_task(clone.run(Command(argv=("sh", "-c", UNLINKING))))
        await until((clone.root / "ready").exists)
        reading = asyncio.create_task(clone.diff())
        try:
            await until(lambda: _waits_at_a_pipe(clone.root))
            (clone.root / "now").touch()
            # Who had taken it away would have git wait for ever.
            with pytest.raises(PreconditionFailed, match="is a pipe"):
                await reading
        finally:
            for task in (reading, living):
                task.cancel()
            await asyncio.wait([reading, living])


# --- a build, which runs code of the repository ---

TOKEN = "the fleet's own token"


@needs_bwrap
async def test_pipes_and_links_in_what_is_copied(tmp_path: Path) -> None:
    (loot := tmp_path / "loot").mkdir()
    (loot / "token.txt").write_text(TOKEN)
    provider = make_provider(tmp_path)
    left = f"mkfifo /environment/pipe && ln -s {loot} /environment/loot"
    repository = await pin(provider, tmp_path, {"README": "x\n"})
    environment = await provider.environment(repository, EnvironmentSpec(detect=False, setup=(left,)))
    async with provider.open("e", "a", repository, environment) as clone:
        assert await sh(clone, "test -p /environment/pipe && echo there") == "there"  # control: the build did leave it
    async with provider.workshop("e", "b", repository, environment) as clone:
        assert await sh(clone, "test -p /environment/pipe && echo there") == "there"
        assert TOKEN not in await sh(clone, "cat /environment/loot/token.txt")


@pytest.mark.slow
@needs_bwrap
async def test_a_copy_takes_no_more_of_the_disk_than_the_build_was_allowed(tmp_path: Path) -> None:
    mib = 1024**2
    sandbox = Sandbox(SandboxPolicy(max_disk_bytes=64 * mib, max_file_bytes=256 * mib))
    provider = make_provider(tmp_path, sandbox=sandbox)
    left = f"""
for number in range(4):
    with open(f"/environment/hole{{number}}", "wb") as file:
        file.truncate(200 * {mib})
with open("/environment/many", "wb") as file:
    file.write(os.urandom({mib}))
for number in range(300):
    os.link("/environment/many", f"/environment/name{{number}}")
"""
    files: dict[str, str | bytes] = {"pyproject.toml": PYPROJECT, "backend.py": BACKEND + left, "src/a.py": ""}
    repository = await pin(provider, tmp_path, files)
    environment = await provider.environment(repository, EnvironmentSpec())
    async with provider.workshop("e", "a", repository, environment) as clone:
        # Control: read as a whole they are more than a gigabyte.
        assert int(await sh(clone, "cat /environment/hole* /environment/name* | wc -c")) == 1100 * mib
        kept = {entry.st_ino: entry.st_blocks for entry in map(os.lstat, (tmp_path / "home/scratch").rglob("*"))}
        assert 512 * sum(kept.values()) < 64 * mib


@pytest.mark.slow  # quick: a link swapped in, a pipe where git expects a file
@pytest.mark.parametrize("level", [CONFINED[0], CONTROL])
async def test_pinning_a_work_tree_leads_git_nowhere(level: IsolationLevel, tmp_path: Path) -> None:
    tree = make_repository(tmp_path / "repository", {"README": "x\n"})
    provider = provider_at(tmp_path, level=level)
    asked = RepoRef(location=str(tree), uncommitted=UncommittedChanges.INCLUDE)
    await provider.pin("default", asked)
    (cache,) = (path for path in (tmp_path / "home/repositories").iterdir() if path.is_dir())

    async def read() -> bytes:
        return git(cache, "log", "-1", "-p", (await provider.pin("default", asked)).commit).encode()

    tries = _TRIES if level is IsolationLevel.NONE else 2
    held = await _under_attack(tree, tmp_path, cache / "objects", read, tries)
    assert b"harmless" in held
    assert (SECRET in held) is (level is IsolationLevel.NONE)
    os.mkfifo(tree / ".gitignore")
    with pytest.raises(PreconditionFailed, match=r"gitignore' is a pipe"):
        await provider.pin("default", asked)
    (tree / ".gitignore").unlink()
    assert (await provider.pin("default", asked)).snapshot_of
