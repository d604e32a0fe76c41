"""Repositories and agents that want to run something on the host, and checkpoints of what agents left."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitClone, GitWorkspaceProvider
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.run import Checkpoint
from swe_ai_fleet.domain.task import Delivery, EnvironmentSpec, RepoRef, UncommittedChanges
from swe_ai_fleet.testing.repositories import git, make_repository, write_files
from tests.environments import provider_at

PATCH = b"--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
HOOKS = (
    *("pre-commit", "post-checkout", "post-index-change", "reference-transaction", "pre-receive", "update"),
    *("post-receive", "post-update", "pre-push", "proc-receive", "pre-auto-gc", "fsmonitor-watchman", "commit-msg"),
)


@pytest.fixture
def provider(tmp_path: Path) -> GitWorkspaceProvider:
    return provider_at(tmp_path)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that comes into being when something hostile ran on the host."""
    return tmp_path / "pwned"


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


async def test_a_hostile_local_repository(provider: GitWorkspaceProvider, tmp_path: Path, marker: Path) -> None:
    attributes = "* filter=evil diff=evil merge=evil text\n"
    repo = make_repository(tmp_path / "repo", {"app.py": "a = 1\n", ".gitattributes": attributes})
    arm(repo / ".git", marker)
    (repo / ".git/info/attributes").write_text(attributes)
    write_files(repo, {"app.py": "a = 1\nb = 1\n", "new.py": "n\n"})
    for choice in (UncommittedChanges.IGNORE, UncommittedChanges.INCLUDE):
        pinned = await provider.pin("default", RepoRef(location=str(repo), uncommitted=choice))
        await provider.environment(pinned, EnvironmentSpec())
        async with provider.open("e1", "a", pinned, Environment()) as clone:
            (clone.root / "x").write_text("x")
            patch = (await clone.diff()).patch
        delivered = await provider.deliver("e1", pinned, patch, Delivery(branch=f"fleet/{choice}"))
        assert delivered.commit_sha
        assert not marker.exists()
    # The traps were armed: an ordinary git springs them.
    with contextlib.suppress(subprocess.CalledProcessError):
        git(repo, "status")
    assert marker.exists()


async def test_a_missing_object_is_not_fetched_by_their_rules(
    provider: GitWorkspaceProvider, tmp_path: Path, marker: Path
) -> None:
    repo = make_repository(tmp_path / "repo", {"app.py": "a = 1\n", "b": "b\n"})
    blob = git(repo, "rev-parse", "HEAD:b")
    (repo / ".git/objects" / blob[:2] / blob[2:]).unlink()
    arm(repo / ".git", marker)
    with pytest.raises(Exception, match="incomplete"):
        await provider.pin("default", RepoRef(location=str(repo), uncommitted=UncommittedChanges.IGNORE))
    assert not marker.exists()


async def test_a_partial_clone_will_do_where_the_commit_is_complete(
    provider: GitWorkspaceProvider, tmp_path: Path
) -> None:
    repo = make_repository(tmp_path / "repo", {"app.py": "a = 1\n", "big": "big\n"})
    blob = git(repo, "rev-parse", "HEAD:big")
    earlier = git(repo, "rev-parse", "HEAD")
    git(repo, "rm", "-q", "big")
    git(repo, "commit", "-qm", "Without big")
    git(repo, "tag", "v1")
    (repo / ".git/objects" / blob[:2] / blob[2:]).unlink()
    pinned = await provider.pin("default", RepoRef(location=str(repo)))
    async with provider.open("e1", "a", pinned, Environment()) as clone:
        write_files(clone.root, {"app.py": "a = 2\n"})
        patch = (await clone.diff()).patch
        assert git(clone.root, "describe", "--tags") == "v1"
        assert git(clone.root, "rev-parse", "HEAD^") == earlier
    delivered = await provider.deliver("e1", pinned, patch, Delivery(branch="fleet/x"))
    assert git(repo, "show", f"{delivered.commit_sha}:app.py") == "a = 2"
    with pytest.raises(PreconditionFailed, match=f"{earlier[:12]} is incomplete.* big"):
        await provider.pin("default", RepoRef(location=str(repo), ref=earlier))


async def test_a_hostile_agent(provider: GitWorkspaceProvider, tmp_path: Path, marker: Path) -> None:
    repo = make_repository(tmp_path / "repo", {"app.py": "a = 1\n"})
    pinned = await provider.pin("default", RepoRef(location=str(repo)))
    async with provider.open("e1", "a", pinned, Environment()) as clone:
        # As if written by a command: the files are the agent's, the paths lead to programs on the host.
        arm(clone.root / ".git", marker)
        write_files(clone.root, {".gitattributes": "* filter=evil diff=evil\n", "app.py": "a = 2\n", "sub/new": "x"})
        (clone.root / ".git/info/attributes").write_text("* filter=evil\n")
        (clone.root / ".git/info/exclude").write_text("*\n")
        diff = await clone.diff()
        assert diff.files == (".gitattributes", "app.py", "sub/new")
        assert b"+a = 2" in diff.patch
        assert not marker.exists()
        await clone.head()
        assert not marker.exists()
    delivered = await provider.deliver("e1", pinned, diff.patch, Delivery(branch="fleet/x"))
    assert git(repo, "show", f"{delivered.commit_sha}:app.py") == "a = 2"
    assert not marker.exists()


@pytest.mark.parametrize(
    "line",
    [
        "rm -rf .git && ln -s / .git",
        "rm -rf .git && ln -s {victim}/.git .git",
        "rm -rf .git && echo 'gitdir: {victim}/.git' > .git",
        "rm -rf .git/objects && ln -s {victim} .git/objects; rm .git/index; ln -s {victim}/stolen .git/index",
        "mv .git deeper; mkdir .git; echo '[core]' > .git/config",
        "mkdir sub && ln -s {victim}/.git sub/.git",
        "mkdir sub && echo 'gitdir: {victim}/.git' > sub/.git && touch sub/f",
        "ln -s {victim} link; mkfifo pipe; ln -s link/secret .gitignore; ln -s {victim}/secret .gitattributes",
        "mkdir -p a && cd a && ln -s ../../../.. up",
    ],
)
async def test_a_work_tree_with_traps(provider: GitWorkspaceProvider, tmp_path: Path, line: str) -> None:
    repo = make_repository(tmp_path / "repo", {"app.py": "a = 1\n"})
    victim = make_repository(tmp_path / "victim", {"secret": "host secret\n"})
    before = sorted(os.walk(victim))
    pinned = await provider.pin("default", RepoRef(location=str(repo)))
    async with provider.open("e1", "a", pinned, Environment()) as clone:
        done = await clone.run(Command(argv=("sh", "-c", line.format(victim=victim))))
        assert done.ok, done.stderr.text()
        (clone.root / "app.py").write_text("a = 2\n")
        diff = await clone.diff()
        assert "app.py" in diff.files
        assert b"host secret" not in diff.patch
        assert b"Subproject" not in diff.patch
        await clone.head()
    assert sorted(os.walk(victim)) == before
    assert git(victim, "status", "--porcelain") == ""


async def test_refs_with_names_like_options(provider: GitWorkspaceProvider, tmp_path: Path) -> None:
    repo = make_repository(tmp_path / "repo", {"app.py": "a = 1\n"})
    commit = git(repo, "rev-parse", "HEAD")
    odd = "--upload-pack=touch"
    (repo / ".git/refs/heads" / odd).write_text(f"{commit}\n")
    (repo / ".git/HEAD").write_text(f"ref: refs/heads/{odd}\n")
    pinned = await provider.pin("default", RepoRef(location=str(repo)))
    assert (pinned.commit, pinned.branch) == (commit, odd)
    with pytest.raises(InvalidRequest) as caught:
        await provider.pin("default", RepoRef(location=str(repo), ref=odd))
    assert caught.value.field == "repo.ref"
    for branch in (odd, "-x", "", "HEAD", "a..b", "a b", "x.lock", "a\nb", "@{-1}", "refs/../x"):
        with pytest.raises(InvalidRequest) as caught:
            await provider.deliver("e1", pinned, PATCH, Delivery(branch=branch))
        assert caught.value.field == "delivery.branch"


# --- checkpoints: what an agent left comes back in a fresh clone ---

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
