"""Checkpoints of clones: what an agent left comes back in a fresh clone, with real git and a real sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitClone
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.run import Checkpoint
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.testing.repositories import make_repository
from tests.environments import provider_at
from tests.integration.test_git_hostile import arm

FILES = {"app.py": "a = 1\n", "old.py": "old\n", ".gitignore": "*.log\n", "sub/deep.txt": "deep\n"}


class Place:
    """A provider, and clones of one repository."""

    def __init__(self, tmp_path: Path) -> None:
        self.repository = make_repository(tmp_path / "repository", FILES)
        self.provider = provider_at(tmp_path)

    @asynccontextmanager
    async def clone(self, name: str = "agent") -> AsyncIterator[GitClone]:
        pinned = await self.provider.pin("default", RepoRef(location=str(self.repository)))
        async with self.provider.open("e1", name, pinned, Environment()) as clone:
            yield clone

    async def taken(self, script: str) -> tuple[Checkpoint, bytes]:
        """The checkpoint of a clone in which a script has run, and its diff."""
        async with self.clone() as clone:
            if script:
                await sh(clone, script)
            return await clone.checkpoint(), (await clone.diff()).patch


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def sh(clone: GitClone, script: str) -> str:
    result = await clone.run(Command(argv=("bash", "-ec", script)))
    assert result.ok, result.stderr.text()
    return result.stdout.text()


SCRIPTS = {
    "untracked, changed and deleted": "echo 2 >> app.py; rm old.py; mkdir new; echo n > 'new/a b.txt'",
    "committed and more on top": "echo 2 >> app.py; git commit -qam one; git mv old.py moved.py; "
    "git commit -qm two; echo 3 >> app.py; echo u > u.txt",
    "binary, empty, mode and link": "head -c 70000 /dev/urandom > b.bin; : > empty; chmod +x app.py; ln -s app.py l",
    "another branch": "git checkout -qb topic/x; echo t > t; git add t; git commit -qm t; echo dirty >> t",
    "a branch where a directory was": "git branch -m fleet; echo t > t; git add t; git commit -qm t",
    "detached": "echo d > d; git add d; git commit -qm d; git checkout -q --detach",
    "staged": "echo s > s.txt; git add s.txt app.py; echo 9 >> app.py; git add app.py",
    "amended into history": "git commit -q --amend -m rewritten; echo 5 >> app.py",
    "a file becomes a directory": "rm app.py; mkdir app.py; echo x > app.py/x",
    "a repository inside": "mkdir in; cd in; git init -q; echo i > i.txt; git add .; "
    "git -c user.name=a -c user.email=a@b commit -qm i",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
async def test_a_fresh_clone_gets_what_was_there(place: Place, script: str):
    asked = "git rev-parse HEAD; git symbolic-ref -q HEAD || echo detached; git log --format=%s | head -5"
    async with place.clone() as clone:
        await sh(clone, script)
        before, patch = await sh(clone, asked), (await clone.diff()).patch
        checkpoint = await clone.checkpoint()
        assert await clone.checkpoint() == checkpoint
        assert await sh(clone, asked) == before
    async with place.clone("again") as clone:
        await clone.restore(checkpoint)
        assert (await clone.diff()).patch == patch
        assert await sh(clone, asked) == before
        assert await sh(clone, "git diff --cached --name-only") == ""
        assert await clone.head() == (checkpoint.head, checkpoint.branch)
        await sh(clone, "git fsck --no-dangling; echo later > later.txt; git add -A; git commit -qm later")
        twice = await clone.checkpoint()
    async with place.clone("third") as clone:
        await clone.restore(twice)
        assert await sh(clone, "cat later.txt; git log -1 --format=%s") == "later\nlater\n"


async def test_nothing_changed_needs_no_bundle(place: Place):
    for script in ("", "true"):
        checkpoint, patch = await place.taken(script)
        assert (checkpoint.bundle, patch) == (b"", b"")
        assert checkpoint.commit == checkpoint.head
    async with place.clone() as clone:
        await clone.restore(checkpoint)
        assert await sh(clone, "git status --porcelain; git symbolic-ref HEAD") == "refs/heads/fleet/work\n"


BROKEN = {
    "no repository": "echo x > x.txt; git add x.txt; git commit -qm x; echo y > y.txt; rm -rf .git",
    "an object is missing": "echo x > x.txt; git add x.txt; git commit -qm x; "
    "rm -f .git/objects/$(git rev-parse HEAD:x.txt | sed 's|^..|&/|')",
    "ignored files": "echo noise > a.log; echo kept > x.txt; mkdir __pycache__; echo x > __pycache__/x",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_repository_costs_the_commits_and_not_the_files(place: Place, script: str):
    checkpoint, patch = await place.taken(script)
    async with place.clone() as clone:
        assert checkpoint.head == clone.base_commit
        await clone.restore(checkpoint)
        assert (await clone.diff()).patch == patch
        assert b"x.txt" in patch and b"a.log" not in patch and b"__pycache__" not in patch
        assert not {"a.log", "__pycache__"} & {path.name for path in clone.root.iterdir()}
        assert await sh(clone, "git symbolic-ref HEAD") == "refs/heads/fleet/work\n"


async def test_nothing_of_the_agents_runs_on_the_host_and_no_foreign_object_gets_in(place: Place, tmp_path: Path):
    """Hooks, filters, fsmonitor; a HEAD that names a commit of another repository of this host."""
    secret = make_repository(tmp_path / "secret", {"secret.txt": "s3cret\n"})
    stolen = (secret / ".git/refs/heads/main").read_text().strip()
    marker = tmp_path / "pwned"
    async with place.clone() as clone:
        await sh(clone, "echo '* filter=evil' > .gitattributes; echo x > x; git add -A; git commit -qm x")
        arm(clone.root / ".git", marker)
        checkpoint = await clone.checkpoint()
        assert not marker.exists()
        (clone.root / ".git/objects/info").mkdir(exist_ok=True)
        (clone.root / ".git/objects/info/alternates").write_text(f"{secret}/.git/objects\n")
        (clone.root / ".git/HEAD").write_text(f"{stolen}\n")
        robbed = await clone.checkpoint()
    assert robbed.head != stolen
    assert not marker.exists()
    async with place.clone("again") as clone:
        await clone.restore(checkpoint)
        assert (clone.root / "x").read_text() == "x\n"
    assert not marker.exists()


async def test_a_used_clone_and_a_broken_bundle_are_refused(place: Place):
    checkpoint, _ = await place.taken("echo x > x.txt")
    async with place.clone() as clone:
        with pytest.raises(PreconditionFailed):
            await clone.restore(Checkpoint(commit=checkpoint.commit, head=checkpoint.head, bundle=b"# v2 git bundle\n"))
        with pytest.raises(PreconditionFailed):
            await clone.restore(Checkpoint(commit="--help", head="x"))
        await sh(clone, "true")
        with pytest.raises(PreconditionFailed, match="before anything has run"):
            await clone.restore(checkpoint)
