"""The integration branch with real git: merges, conflicts, bundles for other nodes, and where it ends up."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import Credential, GitWorkspaceProvider
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.task import Delivery, PinnedRepository, RepoRef
from swe_ai_fleet.ports import Merge, MergeRequest
from swe_ai_fleet.testing.repositories import git, make_repository, write_files
from tests.environments import provider_at
from tests.git_server import PASSWORD

LINES = "".join(f"line {number}\n" for number in range(1, 21))
FILES = {"app.py": LINES, "data.bin": bytes(range(256)), "old.py": LINES.replace("line", "old")}


async def find_credential(tenant: str, reference: str, location: str) -> Credential | None:
    return Credential(username="robot", password=PASSWORD) if (tenant, reference) == ("default", "robot") else None


class World:
    """A repository, and as many nodes as one likes that share nothing but it and the blobs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.repo = make_repository(root / "repo", FILES)
        self.blobs: dict[str, bytes] = {}
        self.node = self.new_node("one")
        self.other = self.new_node("two")

    def new_node(self, name: str) -> GitWorkspaceProvider:
        remote = {"protocols": ("http",), "hosts": ("127.0.0.1",), "credentials": find_credential}
        return provider_at(self.root, name, fetch=self.get, environ={"PATH": os.environ["PATH"]}, **remote)

    async def get(self, ref: BlobRef) -> bytes:
        return self.blobs[ref.name]

    def put(self, data: bytes) -> BlobRef:
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return BlobRef(name=digest, digest=digest, size=len(data))

    def at(self, pinned: PinnedRepository, merge: Merge) -> PinnedRepository:
        return replace(pinned, commit=merge.commit, bundle=self.put(merge.bundle), snapshot_of="")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
async def base(world: World) -> PinnedRepository:
    return await world.node.pin("default", RepoRef(location=str(world.repo)))


def a_request(head: PinnedRepository, base: PinnedRepository, patch: bytes, **changes: str) -> MergeRequest:
    said = {"message": "Merge it\n\nFleet-Task: t.a", "author_name": "Ada", "author_email": "ada@example.org"}
    told = {"execution_id": "e1", "since": base.commit, "at": "2026-03-01T10:00:00.250+00:00", **said, **changes}
    return MergeRequest(head=head, base=base, patch=patch, **told)


def a_patch(world: World, change: Callable[[Path], None]) -> bytes:
    """What `change` makes of a checkout of a commit, as an agent's clone would hand it in."""
    tree = world.root / "agent"
    git(world.repo, "worktree", "add", "-q", "--detach", str(tree), "main")
    try:
        change(tree)
        git(tree, "add", "-A")
        command = ("git", "diff", "--cached", "--binary", "--full-index", "--no-renames")
        return subprocess.run(command, cwd=tree, check=True, capture_output=True).stdout
    finally:
        git(world.repo, "worktree", "remove", "--force", str(tree))


def edits(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(tree: Path) -> None:
        file = tree / name
        file.write_text(file.read_text().replace(old, new))

    return change


async def files(node: GitWorkspaceProvider, repository: PinnedRepository) -> dict[str, bytes]:
    async with node.open("e1", "look", repository, Environment()) as clone:
        found = [path for path in clone.root.rglob("*") if path.is_file() and ".git" not in path.parts]
        return {str(path.relative_to(clone.root)): path.read_bytes() for path in found}


async def test_a_conflict_is_a_draft_that_somebody_can_finish(world: World, base: PinnedRepository) -> None:
    ours = a_patch(world, edits("app.py", "line 2\n", "line two\n"))

    def theirs(tree: Path) -> None:
        edits("app.py", "line 2\n", "line II\n")(tree)
        write_files(tree, {"added.py": "a = 1\n"})

    head = world.at(base, await world.node.merge(a_request(base, base, ours)))
    conflict = await world.node.merge(a_request(head, base, a_patch(world, theirs)))
    assert conflict.conflicts == ("app.py",)
    assert "CONFLICT (content)" in conflict.report
    assert (b"+line two" in conflict.ours, b"+line II" in conflict.theirs) == (True, True)
    assert b"added.py" not in conflict.theirs
    draft = world.at(base, conflict)
    told = await files(world.other, draft)
    assert told["added.py"] == b"a = 1\n"
    marked = told["app.py"].decode()
    assert ["<<<<<<< integration" in marked, ">>>>>>> subtask" in marked, "|||||||" in marked] == [True] * 3
    async with world.other.open("e1", "resolve", draft, Environment()) as clone:
        (clone.root / "app.py").write_text(LINES.replace("line 2\n", "line two, or II\n"))
        resolution = (await clone.diff()).patch
    done = await world.node.merge(a_request(head, draft, resolution))
    assert done.conflicts == ()
    told = await files(world.node, world.at(base, done))
    assert (told["app.py"].decode(), told["added.py"]) == (LINES.replace("line 2\n", "line two, or II\n"), b"a = 1\n")
    exported = await world.node.export(world.at(base, done), head.commit, "fleet/t")
    assert b"<<<<<<<" not in exported.patch
    assert b"+line two, or II" in exported.patch


async def test_a_repository_cannot_make_the_merge_run_anything(world: World) -> None:
    mark = world.root / "ran"
    git(world.repo, "config", "merge.evil.driver", f"touch {mark}")
    git(world.repo, "config", "filter.evil.clean", f"touch {mark}")
    write_files(world.repo, {".gitattributes": "*.py merge=evil filter=evil\n"})
    git(world.repo, "add", ".gitattributes")
    git(world.repo, "commit", "-q", "-m", "Attributes")
    pinned = await world.node.pin("default", RepoRef(location=str(world.repo)))
    ours = a_patch(world, edits("app.py", "line 2\n", "line two\n"))
    theirs = a_patch(world, edits("app.py", "line 19\n", "line nineteen\n"))
    mark.unlink(missing_ok=True)
    head = world.at(pinned, await world.node.merge(a_request(pinned, pinned, ours)))
    assert (await world.node.merge(a_request(head, pinned, theirs))).conflicts == ()
    assert not mark.exists()


async def test_the_branch_stands_in_the_target_and_can_be_brought_to_somebody_else(
    world: World, base: PinnedRepository, tmp_path: Path
) -> None:
    patch = a_patch(world, edits("app.py", "line 2\n", "line two\n"))
    head = world.at(base, await world.node.merge(a_request(base, base, patch)))
    # To somebody else, by patch and bundle.
    theirs = tmp_path / "theirs"
    git(tmp_path, "clone", "-q", str(world.repo), "theirs")
    exported = await world.other.export(head, base.commit, "fleet/t")
    (tmp_path / "it.bundle").write_bytes(exported.bundle)
    git(theirs, "fetch", "-q", str(tmp_path / "it.bundle"), "fleet/t:fleet/t")
    git(theirs, "apply", "--index", "-", stdin=exported.patch)
    tree = git(theirs, "rev-parse", "fleet/t^{tree}")
    assert (git(theirs, "rev-parse", "fleet/t"), git(theirs, "write-tree")) == (head.commit, tree)
    with pytest.raises(PreconditionFailed, match="does not build on"):
        await world.other.export(base, head.commit, "fleet/t")
    # In the target, from any node.
    for node in (world.node, world.other):
        delivered = await node.publish("e1", head, base.commit, Delivery(branch="fleet/t"))
        assert (delivered.commit_sha, delivered.branch) == (head.commit, "fleet/t")
    assert git(world.repo, "rev-parse", "fleet/t", "fleet/t~1").split() == [head.commit, base.commit]
    shown = git(world.repo, "log", "-1", "--format=%an <%ae>|%cI|%B", "fleet/t")
    assert shown == "Ada <ada@example.org>|2026-03-01T10:00:00+00:00|Merge it\n\nFleet-Task: t.a"
    git(world.repo, "fsck", "--strict")
    assert git(world.repo, "status", "--porcelain") == ""
    for pinned, branch, words in ((base, "fleet/t", "different content"), (head, "main", "checked out")):
        with pytest.raises(PreconditionFailed, match=words) as caught:
            await world.node.publish("e2", pinned, base.commit, Delivery(branch=branch))
        assert caught.value.field == "delivery.branch"
