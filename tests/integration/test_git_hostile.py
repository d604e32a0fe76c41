"""Repositories and agents that want to run something on the host, and checkpoints of what agents left."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitClone
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.task import Delivery, EnvironmentSpec, PinnedRepository, RepoRef, UncommittedChanges
from swe_ai_fleet.ports import Checkpoint
from swe_ai_fleet.testing.repositories import git, make_repository, write_files
from tests.environments import provider_at

HOOKS = (
    *("pre-commit", "post-checkout", "post-index-change", "reference-transaction", "pre-receive", "update"),
    *("post-receive", "post-update", "pre-push", "proc-receive", "pre-auto-gc", "fsmonitor-watchman", "commit-msg"),
)


class Place:
    """A provider, a repository, and what it takes to pin and to clone it."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path
        self.provider = provider_at(tmp_path)
        # A file that comes into being when something hostile ran on the host.
        self.marker = tmp_path / "pwned"

    @property
    def repo(self) -> Path:
        return self.root / "repo"

    def make(self, files: Mapping[str, str]) -> Path:
        return make_repository(self.repo, files)

    async def pin(self, **options: object) -> PinnedRepository:
        return await self.provider.pin("default", RepoRef(location=str(self.repo), **options))

    @asynccontextmanager
    async def clone(self, **options: object) -> AsyncIterator[GitClone]:
        async with self.provider.open("e1", "a", await self.pin(**options), Environment()) as clone:
            yield clone

    async def deliver(self, patch: bytes, branch: str = "fleet/x", **options: object) -> str:
        return (await self.provider.deliver("e1", await self.pin(**options), patch, Delivery(branch=branch))).commit_sha


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def sh(clone: GitClone, script: str) -> str:
    result = await clone.run(Command(argv=("bash", "-ec", script)))
    assert result.ok, result.stderr.text()
    return result.stdout.text()


# By sections of a configuration what names a program, and what else makes git start one.
PROGRAMS = {
    "core": "fsmonitor sshCommand gitProxy askPass editor pager alternateRefsCommand",
    'filter "evil"': "clean smudge process",
    'diff "evil"': "command textconv",
    "diff": "external",
    'merge "evil"': "driver",
    "uploadpack": "packObjectsHook",
    "gpg": "program",
    'remote "origin"': "uploadpack",
}
MORE = """
[core]
	hooksPath = {hooks}
	repositoryformatversion = 1
[filter "evil"]
	required = true
[alias]
	status = !{evil}
	add = !{evil}
[commit]
	gpgSign = true
[credential]
	helper = !{evil}
[remote "origin"]
	url = ext::{evil}
	promisor = true
	partialclonefilter = blob:none
[extensions]
	partialClone = origin
"""


def arm(dot_git: Path, marker: Path) -> None:
    """Everything in a `.git` that makes git start a program."""
    evil = dot_git / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    evil.chmod(0o755)
    (dot_git / "hooks").mkdir(exist_ok=True)
    for hook in HOOKS:
        (dot_git / "hooks" / hook).symlink_to(evil)
    with (dot_git / "config").open("a") as config:
        for section, names in PROGRAMS.items():
            config.write(f"[{section}]\n" + "".join(f"\t{name} = {evil}\n" for name in names.split()))
        config.write(MORE.format(hooks=dot_git / "hooks", evil=evil))


async def test_a_hostile_local_repository(place: Place) -> None:
    attributes = "* filter=evil diff=evil merge=evil text\n"
    repo = place.make({"app.py": "a = 1\n", "b": "b\n", ".gitattributes": attributes})
    blob = git(repo, "rev-parse", "HEAD:b")
    arm(repo / ".git", place.marker)
    (repo / ".git/info/attributes").write_text(attributes)
    # A missing object is not fetched by their rules.
    (repo / ".git/objects" / blob[:2] / blob[2:]).rename(place.root / "blob")
    with pytest.raises(Exception, match="incomplete"):
        await provider_at(place.root, "fresh").pin(
            "default", RepoRef(location=str(repo), uncommitted=UncommittedChanges.IGNORE)
        )
    (place.root / "blob").rename(repo / ".git/objects" / blob[:2] / blob[2:])
    write_files(repo, {"app.py": "a = 1\nb = 1\n", "new.py": "n\n"})
    for choice in (UncommittedChanges.IGNORE, UncommittedChanges.INCLUDE):
        await place.provider.environment(await place.pin(uncommitted=choice), EnvironmentSpec())
        async with place.clone(uncommitted=choice) as clone:
            (clone.root / "x").write_text("x")
            patch = (await clone.diff()).patch
        assert await place.deliver(patch, f"fleet/{choice}", uncommitted=choice)
        assert not place.marker.exists()
    # The traps were armed: an ordinary git springs them.
    with contextlib.suppress(subprocess.CalledProcessError):
        git(repo, "status")
    assert place.marker.exists()


async def test_a_hostile_agent(place: Place) -> None:
    repo = place.make({"app.py": "a = 1\n"})
    async with place.clone() as clone:
        # As if written by a command: the files are the agent's, the paths lead to programs on the host.
        arm(clone.root / ".git", place.marker)
        write_files(clone.root, {".gitattributes": "* filter=evil diff=evil\n", "app.py": "a = 2\n", "sub/new": "x"})
        write_files(clone.root, {".git/info/attributes": "* filter=evil\n", ".git/info/exclude": "*\n"})
        diff = await clone.diff()
        assert diff.files == (".gitattributes", "app.py", "sub/new")
        assert b"+a = 2" in diff.patch
        await clone.head()
    assert git(repo, "show", f"{await place.deliver(diff.patch)}:app.py") == "a = 2"
    assert not place.marker.exists()


TREES = (
    "rm -rf .git && ln -s / .git",
    "rm -rf .git && ln -s {victim}/.git .git",
    "rm -rf .git/objects && ln -s {victim} .git/objects; rm .git/index; ln -s {victim}/stolen .git/index",
    "mkdir sub && ln -s {victim}/.git sub/.git",
    "mkdir sub && echo 'gitdir: {victim}/.git' > sub/.git && touch sub/f",
    "ln -s {victim} link; mkfifo pipe; ln -s link/secret .gitignore; ln -s {victim}/secret .gitattributes",
)


async def test_a_work_tree_with_traps(place: Place) -> None:
    place.make({"app.py": "a = 1\n"})
    victim = make_repository(place.root / "victim", {"secret": "host secret\n"})

    def names() -> list[tuple[str, list[str], list[str]]]:
        return sorted((root, sorted(directories), sorted(files)) for root, directories, files in os.walk(victim))

    before = names()
    for line in TREES:
        async with place.clone() as clone:
            await sh(clone, line.format(victim=victim))
            (clone.root / "app.py").write_text("a = 2\n")
            diff = await clone.diff()
            assert "app.py" in diff.files, line
            assert b"host secret" not in diff.patch and b"Subproject" not in diff.patch, line
            await clone.head()
        assert (names(), git(victim, "status", "--porcelain")) == (before, ""), line


# --- checkpoints: what an agent left comes back in a fresh clone ---

FILES = {"app.py": "a = 1\n", "old.py": "old\n", ".gitignore": "*.log\n", "sub/deep.txt": "deep\n"}


WORKED = (
    "echo 2 >> app.py; git commit -qam one; git mv old.py moved.py; git commit -q --amend -m two; "
    "git checkout -q --detach; echo 3 >> app.py; echo u > u.txt; chmod +x app.py; ln -s app.py l"
)


async def test_a_fresh_clone_gets_what_was_there(place: Place) -> None:
    asked = "git rev-parse HEAD; git symbolic-ref -q HEAD || echo detached; git log --format=%s | head -5"
    place.make(FILES)
    async with place.clone() as clone:
        await sh(clone, WORKED)
        before, patch = await sh(clone, asked), (await clone.diff()).patch
        checkpoint = await clone.checkpoint()
        assert await clone.checkpoint() == checkpoint
        assert await sh(clone, asked) == before
    async with place.clone() as clone:
        await clone.restore(checkpoint)
        assert (await clone.diff()).patch == patch
        assert await sh(clone, asked) == before
        assert await sh(clone, "git diff --cached --name-only") == ""
        assert await clone.head() == (checkpoint.head, checkpoint.branch)
        await sh(clone, "git fsck --no-dangling; echo later > later.txt; git add -A; git commit -qm later")
        twice = await clone.checkpoint()
    async with place.clone() as clone:
        await clone.restore(twice)
        assert await sh(clone, "cat later.txt; git log -1 --format=%s") == "later\nlater\n"


BROKEN = (
    "echo x > x.txt; git add x.txt; git commit -qm x; echo y > y.txt; rm -rf .git",
    # An object is missing.
    "echo x > x.txt; git add x.txt; git commit -qm x; rm -f .git/objects/$(git rev-parse HEAD:x.txt | sed 's|^..|&/|')",
)


async def test_a_broken_repository_costs_the_commits_and_not_the_files(place: Place) -> None:
    place.make(FILES)
    for script in BROKEN:
        async with place.clone() as clone:
            await sh(clone, script)
            checkpoint, patch = await clone.checkpoint(), (await clone.diff()).patch
        async with place.clone() as clone:
            assert checkpoint.head == clone.base_commit
            await clone.restore(checkpoint)
            assert (await clone.diff()).patch == patch
            assert b"x.txt" in patch
            assert await sh(clone, "git symbolic-ref HEAD") == "refs/heads/fleet/work\n"
    # A broken bundle, a commit that is none, and a clone that was used are refused.
    async with place.clone() as clone:
        for broken in (replace(checkpoint, bundle=b"# v2 git bundle\n"), Checkpoint(commit="--help", head="x")):
            with pytest.raises(PreconditionFailed):
                await clone.restore(broken)
        await sh(clone, "true")
        with pytest.raises(PreconditionFailed, match="before anything has run"):
            await clone.restore(checkpoint)


async def test_nothing_of_the_agents_runs_on_the_host_and_no_foreign_object_gets_in(place: Place) -> None:
    """Hooks, filters, fsmonitor; a HEAD that names a commit of another repository of this host."""
    place.make(FILES)
    secret = make_repository(place.root / "secret", {"secret.txt": "s3cret\n"})
    stolen = git(secret, "rev-parse", "HEAD")
    async with place.clone() as clone:
        await sh(clone, "echo '* filter=evil' > .gitattributes; echo x > x; git add -A; git commit -qm x")
        arm(clone.root / ".git", place.marker)
        checkpoint = await clone.checkpoint()
        write_files(clone.root, {".git/objects/info/alternates": f"{secret}/.git/objects\n", ".git/HEAD": stolen})
        assert (await clone.checkpoint()).head != stolen
    async with place.clone() as clone:
        await clone.restore(checkpoint)
        assert (clone.root / "x").read_text() == "x\n"
    assert not place.marker.exists()
