"""Delivery into local repositories: one branch more, and otherwise not a byte changed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.domain.candidate import Delivered
from swe_ai_fleet.domain.errors import PatchRejected, PreconditionFailed
from swe_ai_fleet.domain.task import Delivery, PinnedRepository, RepoRef, UncommittedChanges
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository, write_files
from tests.environments import provider_at

PATCH = b"--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
OTHER = PATCH.replace(b"+a = 2", b"+a = 3")
DELIVERY = Delivery(
    branch="fleet/task-1",
    author_name="Ada",
    author_email="ada@example.org",
    message="Change a\n\nFleet-Execution: e1",
    push=True,
)


@pytest.fixture
def provider(tmp_path: Path) -> GitWorkspaceProvider:
    return provider_at(tmp_path)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"app.py": "a = 1\n", "other.py": "b = 1\n"})


@pytest.fixture
async def pinned(provider: GitWorkspaceProvider, repo: Path) -> PinnedRepository:
    return await provider.pin("default", RepoRef(location=str(repo)))


def state(repo: Path) -> dict[str, tuple[int, bytes]]:
    """All files of a repository but its objects and the fleet's branches."""
    found: dict[str, tuple[int, bytes]] = {}
    for folder, _, names in os.walk(repo):
        for name in names:
            path = Path(folder, name)
            key = str(path.relative_to(repo))
            if not key.startswith((".git/objects", ".git/refs/heads/fleet", ".git/logs/refs/heads/fleet")):
                found[key] = (path.stat().st_mtime_ns, path.read_bytes())
    return found


async def test_a_commit_on_a_branch_and_nothing_else(
    provider: GitWorkspaceProvider, pinned: PinnedRepository, repo: Path
) -> None:
    with pytest.raises(PatchRejected):
        await provider.deliver("e1", pinned, PATCH.replace(b"-a = 1", b"-a = 9"), DELIVERY)
    assert git(repo, "branch", "--list", "fleet/*") == ""
    write_files(repo, {"other.py": "being edited\n", "loose.txt": "x"})
    before = state(repo)
    delivered = await provider.deliver("e1", pinned, PATCH, DELIVERY)
    assert state(repo) == before
    assert (delivered.branch, delivered.pushed) == ("fleet/task-1", False)
    assert git(repo, "rev-parse", "fleet/task-1", "fleet/task-1~1").split() == [delivered.commit_sha, pinned.commit]
    shown = git(repo, "log", "-1", "--format=%an <%ae>|%cn|%B", "fleet/task-1")
    assert shown == "Ada <ada@example.org>|Ada|Change a\n\nFleet-Execution: e1"
    assert git(repo, "show", "fleet/task-1:app.py") == "a = 2"
    git(repo, "fsck", "--strict")
    # Twice is once.
    objects = git(repo, "count-objects", "-v")
    assert await provider.deliver("e1", pinned, PATCH, DELIVERY) == delivered
    assert git(repo, "count-objects", "-v") == objects
    # A branch with other content is left alone.
    with pytest.raises(PreconditionFailed, match="other content") as caught:
        await provider.deliver("e2", pinned, OTHER, DELIVERY)
    assert caught.value.field == "delivery.branch"
    assert git(repo, "rev-parse", "fleet/task-1") == delivered.commit_sha
    with pytest.raises(PreconditionFailed, match="cannot be used"):
        await provider.deliver("e2", pinned, OTHER, Delivery(branch="fleet/task-1/below"))
    git(repo, "branch", "-q", "-D", "fleet/task-1")
    together = await asyncio.gather(*(provider.deliver("e1", pinned, PATCH, DELIVERY) for _ in range(4)))
    assert len(set(together)) == 1
    # So is one that is checked out.
    git(repo, "worktree", "add", "-q", "-b", "linked", str(repo.parent / "linked"))
    git(repo, "symbolic-ref", "HEAD", "refs/heads/unborn")
    for branch in ("linked", "unborn"):
        with pytest.raises(PreconditionFailed, match="checked out") as caught:
            await provider.deliver("e1", pinned, PATCH, Delivery(branch=branch))
        assert caught.value.field == "delivery.branch"


async def test_a_snapshot_is_the_parent(provider: GitWorkspaceProvider, repo: Path, tmp_path: Path) -> None:
    write_files(repo, {"loose.py": "l = 1\n"})
    before = state(repo)
    pinned = await provider.pin("default", RepoRef(location=str(repo), uncommitted=UncommittedChanges.INCLUDE))
    delivered: Delivered = await provider.deliver("e1", pinned, PATCH, DELIVERY)
    assert state(repo) == before
    assert git(repo, "rev-parse", "fleet/task-1~1", "fleet/task-1~2").split() == [pinned.commit, pinned.snapshot_of]
    assert git(repo, "show", f"{delivered.commit_sha}:loose.py") == "l = 1"
    git(repo, "fsck", "--strict")


async def test_bare_repositories_and_worktrees(provider: GitWorkspaceProvider, repo: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(repo), "bare.git")
    git(repo, "worktree", "add", "-q", "-b", "linked", str(tmp_path / "linked"))
    for place in ("bare.git", "linked"):
        pinned = await provider.pin("default", RepoRef(location=str(tmp_path / place)))
        delivered = await provider.deliver("e1", pinned, PATCH, Delivery(branch=f"fleet/{place[:4]}"))
        assert git(tmp_path / place, "rev-parse", f"fleet/{place[:4]}") == delivered.commit_sha


async def test_a_base_that_the_repository_has_lost(
    provider: GitWorkspaceProvider, pinned: PinnedRepository, repo: Path
) -> None:
    git(repo, "checkout", "-q", "--orphan", "anew")
    commit_files(repo, {"app.py": "z\n"})
    git(repo, "branch", "-q", "-D", "main")
    git(repo, "reflog", "expire", "--expire=now", "--all")
    git(repo, "gc", "-q", "--prune=now")
    with pytest.raises(PreconditionFailed, match="no longer in the repository"):
        await provider.deliver("e1", pinned, PATCH, DELIVERY)
