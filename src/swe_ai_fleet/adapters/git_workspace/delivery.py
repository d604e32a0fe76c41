"""Commits of patches: delivered on a branch of the target, or merged into the integration branch.

They are made in bare scratch repositories; the target's work tree and hooks are not used.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.bundles import make_bundle
from swe_ai_fleet.adapters.git_workspace.directories import locked, vanishing
from swe_ai_fleet.adapters.git_workspace.git import (
    PATCH_FORM,
    Git,
    GitFailed,
    GitLayout,
    apply_patch,
    bounded,
    readable,
)
from swe_ai_fleet.adapters.git_workspace.git_dirs import FIXED_IDENTITY, dates_of, history_of, write_git_dir
from swe_ai_fleet.adapters.git_workspace.local import LocalRepository, identity
from swe_ai_fleet.adapters.git_workspace.locations import Remote
from swe_ai_fleet.adapters.git_workspace.remote import RemoteRepositories
from swe_ai_fleet.domain.candidate import Delivered
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.task import Delivery, PinnedRepository, check_branch
from swe_ai_fleet.ports import OURS, THEIRS, Exported, Merge, MergeRequest
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

_MAX_SIDE_BYTES = 1024 * 1024
_MAX_SHOWN_FILES = 50
_MERGE_TIMEOUT_SECONDS = 600.0
_DRAFT_MESSAGE = "Draft of a merge with conflicts"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merged:
    """A merge by git: a tree, with conflict markers in the files of `conflicts`."""

    tree: str
    conflicts: tuple[str, ...]
    report: str


@dataclass(frozen=True, kw_only=True)
class Deliveries:
    """Makes commits of patches, delivers and merges them. `scratch` is for its temporary repositories."""

    git: Git
    remotes: RemoteRepositories
    scratch: Path
    max_patch_bytes: int

    async def to_local(
        self,
        target: LocalRepository,
        repository: PinnedRepository,
        seed: Path,
        delivery: Delivery,
        *,
        patch: bytes | None,
        known: str,
    ) -> Delivered:
        """The commit of a patch on its branch in a local repository; without a patch the pinned commit itself.

        The parent of a commit on a snapshot is the snapshot. `known` is a commit that the target has.

        Raises PatchRejected, InvalidRequest and PreconditionFailed (`delivery.branch`).
        """
        _check_branch_name(delivery.branch)
        ref, target_layout = f"refs/heads/{delivery.branch}", GitLayout(git_dir=target.git_dir)
        async with self._repository(seed) as layout:
            tree = "" if patch is None else await self._tree(layout, seed.name, patch)
            await self._check_free(target_layout, delivery.branch)
            commit = await self._existing(target_layout, ref, repository.commit, tree)
            if not commit:
                commit = await self._delivered(layout, tree, repository.commit, delivery)
                await self._copy_objects(layout, target, commit, known)
                try:
                    await self.git.run("update-ref", ref, commit, "0" * len(commit), layout=target_layout)
                except GitFailed as error:
                    # Another process was faster, perhaps with the same delivery.
                    commit = await self._existing(target_layout, ref, repository.commit, tree)
                    if not commit:
                        raise _branch_taken(delivery.branch, error.message) from error
        return Delivered(commit_sha=commit, branch=delivery.branch, tree=tree)

    async def keep(
        self,
        target: LocalRepository | Path,
        repository: PinnedRepository,
        seed: Path,
        patch: bytes,
        ref: str,
        message: str,
    ) -> Delivered:
        """Commit the patch under a reference below `refs/fleet/`, replacing a former commit there.

        Raises PatchRejected, PreconditionFailed.
        """
        git_dir = target if isinstance(target, Path) else target.git_dir
        async with self._repository(seed, objects=target / "objects" if isinstance(target, Path) else None) as layout:
            tree = await self._tree(layout, seed.name, patch)
            commit = await self._delivered(layout, tree, repository.commit, Delivery(message=message))
            if not isinstance(target, Path):
                await self._copy_objects(layout, target, commit, repository.shared_commit)
            await self.git.run("update-ref", ref, commit, layout=GitLayout(git_dir=git_dir))
        return Delivered(commit_sha=commit, branch=ref, tree=tree)

    async def to_remote(
        self,
        remote: Remote,
        repository: PinnedRepository,
        seed: Path,
        delivery: Delivery,
        *,
        patch: bytes | None,
        cache: Path,
        pin: str,
    ) -> Delivered:
        """As `to_local`, but with `delivery.push` on a remote branch; in any case in the cache, under the ref `pin`.

        Raises PatchRejected, InvalidRequest, PreconditionFailed, Unavailable.
        """
        _check_branch_name(delivery.branch)
        cache_layout = GitLayout(git_dir=cache, alternates=(seed / "objects",))
        async with self._repository(seed, objects=cache / "objects") as layout, locked(cache.with_suffix(".lock")):
            tree = "" if patch is None else await self._tree(layout, seed.name, patch)
            commit = await self._existing(cache_layout, pin, repository.commit, tree) if tree else repository.commit
            commit = commit or await self._delivered(layout, tree, repository.commit, delivery)
            await self.git.run("update-ref", pin, commit, layout=cache_layout)
            if not delivery.push:
                return Delivered(commit_sha=commit, branch=delivery.branch, tree=tree)
            access = (repository.tenant, repository.credential, remote)
            if remote_ref := await self.remotes.branch(*access, cache, delivery.branch):
                commit = await self._existing(cache_layout, remote_ref, repository.commit, tree)
                if not commit:
                    raise _branch_taken(delivery.branch, "it exists at the remote with different content")
            else:
                await self.remotes.push(*access, cache_layout, commit, delivery.branch)
        return Delivered(commit_sha=commit, branch=delivery.branch, pushed=True, tree=tree)

    async def commit(self, seed: Path, patch: bytes, *, objects: Path) -> str:
        """A commit of a patch on a seed's commit, with its objects in `objects`; the same patch gives the same commit.

        It has the date of the seed's commit, which limits the releases in its environment.

        Raises PatchRejected.
        """
        async with self._repository(seed, objects=objects) as layout:
            tree = await self._tree(layout, seed.name, patch)
            identity = FIXED_IDENTITY | await dates_of(self.git, seed.name, layout)
            return await self._commit(layout, tree, seed.name, "Candidate", identity)

    @asynccontextmanager
    async def _repository(
        self, seed: Path, *, objects: Path | None = None, others: Iterable[Path] = ()
    ) -> AsyncGenerator[GitLayout]:
        """A bare repository on the seed's commit until the context ends; new objects are stored in `objects`."""
        async with vanishing(self.scratch) as private:
            await uninterrupted(asyncio.to_thread(write_git_dir, private, head=seed.name, history=history_of(seed)))
            yield GitLayout(
                git_dir=private, index=private / "index", objects=objects, alternates=(seed / "objects", *others)
            )

    async def _tree(self, layout: GitLayout, base: str, patch: bytes) -> str:
        """The tree of a patch on a commit. Raises PatchRejected."""
        await self.git.run("read-tree", base, layout=layout)
        if patch.strip():
            await apply_patch(self.git, patch, "--cached", layout=layout, cwd=layout.git_dir)
        return (await self.git.run("write-tree", layout=layout)).text()

    async def _check_free(self, layout: GitLayout, branch: str) -> None:
        worktrees = await self.git.run("worktree", "list", "--porcelain", "-z", layout=layout)
        if f"branch refs/heads/{branch}" in os.fsdecode(worktrees.stdout).split("\0"):
            raise _branch_taken(branch, "it is checked out")

    async def _existing(self, layout: GitLayout, name: str, pinned: str, tree: str) -> str:
        """The commit of a ref, if it has the content of the delivery; empty without such a ref.

        That content is a tree on the pinned commit, or that commit itself if `tree` is empty. Raises PreconditionFailed
        for a ref with other content.
        """
        questions = (f"{name}^{{commit}}", f"{name}^{{tree}}", f"{name}^1")
        answers = await self.git.run(
            *("cat-file", "--batch-check=%(objectname) %(objecttype)"),
            layout=layout,
            stdin="".join(f"{question}\n" for question in questions).encode(),
        )
        commit, *content = [line.rsplit(" ", 1) for line in answers.lines()]
        if commit[1] != "commit":
            return ""
        if content != [[tree, "tree"], [pinned, "commit"]] if tree else commit[0] != pinned:
            raise _branch_taken(name.removeprefix("refs/heads/"), "it exists with different content")
        return commit[0]

    async def _delivered(self, layout: GitLayout, tree: str, parent: str, delivery: Delivery) -> str:
        """The commit of a delivery, dated now; without a tree the pinned commit."""
        if not tree:
            return parent
        message = delivery.message.strip() or "Apply the winning candidate"
        author = identity(delivery.author_name, delivery.author_email)
        return await self._commit(layout, tree, parent, message, author)

    async def _copy_objects(self, layout: GitLayout, target: LocalRepository, commit: str, known: str) -> None:
        """Put the commit's objects into the target's store as one small pack; the target's own git is not involved."""
        ours = layout.git_dir / "objects"
        theirs = GitLayout(git_dir=layout.git_dir, objects=target.objects, alternates=(ours,))
        present = await self.git.run(
            "cat-file", "-e", known, layout=GitLayout(git_dir=target.git_dir), expect=(0, 1, 128)
        )
        if present.code:
            raise PreconditionFailed(
                f"commit {known[:12]} is no longer in the repository", field="repo", hint="start from a commit it has"
            )
        await self.git.run(
            *("pack-objects", "--quiet", "--revs", "--delta-base-offset", str(target.objects / "pack/pack")),
            layout=theirs,
            stdin=f"{commit}\n^{known}\n".encode(),
        )

    async def merge(self, request: MergeRequest, *, head: Path, base: Path, objects: Path) -> Merge:
        """Merge as in `ports.Branches`. `head` and `base` are the seeds; new objects are stored in `objects`.

        The three-way merge is git's own (`merge-ort`, with renames), between the head and a commit of the patch on
        its base, which is an ancestor of the head or a draft on top of it. Raises PatchRejected, PreconditionFailed,
        ResourceExhausted.
        """
        async with self._repository(head, objects=objects, others=(base / "objects",)) as layout:
            patched = await self._tree(layout, base.name, request.patch)
            theirs = await self._commit(layout, patched, base.name, "Theirs", FIXED_IDENTITY)
            merged = await self._merged(layout, head.name, theirs)
            if not merged.conflicts and merged.tree == await self.git.tree(layout, head.name):
                return Merge(commit=head.name, bundle=b"")
            if merged.conflicts:
                commit = await self._commit(layout, merged.tree, head.name, _DRAFT_MESSAGE, FIXED_IDENTITY)
            else:
                commit = await self._commit(layout, merged.tree, head.name, request.message, _author(request))
            await self.git.run("update-ref", f"refs/heads/{OURS}", commit, layout=layout)
            bundle = await make_bundle(self.git, layout, f"refs/heads/{OURS}", request.since)
            if not merged.conflicts:
                return Merge(commit=commit, bundle=bundle)
            common = (await self.git.run("merge-base", head.name, theirs, layout=layout)).text()
            return Merge(
                commit=commit,
                bundle=bundle,
                conflicts=merged.conflicts,
                report=merged.report,
                ours=await self._side(layout, common, head.name, merged.conflicts),
                theirs=await self._side(layout, common, theirs, merged.conflicts),
            )

    async def export(self, seed: Path, base: str, branch: str, since: str) -> Exported:
        """The seed's commit as a patch, and as a bundle with a branch. Raises ResourceExhausted, PreconditionFailed."""
        async with self._repository(seed) as layout:
            for earlier in (base, since):
                if not await self.git.is_ancestor(layout, earlier, seed.name):
                    raise PreconditionFailed(f"{seed.name[:12]} does not build on {earlier[:12]}", field="repo")
            await self.git.run("update-ref", f"refs/heads/{branch}", seed.name, layout=layout)
            return Exported(
                patch=await self._diff(layout, base, seed.name),
                bundle=await make_bundle(self.git, layout, f"refs/heads/{branch}", since),
            )

    async def _merged(self, layout: GitLayout, head: str, theirs: str) -> _Merged:
        base = (await self.git.run("merge-base", head, theirs, layout=layout, expect=(0, 1))).text()
        if not base:
            raise PreconditionFailed(f"{head[:12]} and what is to be merged have no common commit", field="repo")
        for name, commit in ((OURS, head), (THEIRS, theirs)):
            await self.git.run("update-ref", f"refs/heads/{name}", commit, layout=layout)
        merge = await self.git.run(
            *("-c", "merge.conflictStyle=diff3", "-c", "merge.renames=true"),
            *("merge-tree", "--write-tree", "--messages", "-z", OURS, THEIRS),
            layout=layout,
            expect=(0, 1),
            timeout_seconds=_MERGE_TIMEOUT_SECONDS,
        )
        merged = _read(merge.stdout)
        if merge.code and not merged.conflicts:
            raise PreconditionFailed(f"the merge failed: {merged.report[:500] or merge.stderr[:500]}")
        return merged

    async def _commit(
        self, layout: GitLayout, tree: str, parent: str, message: str, variables: Mapping[str, str]
    ) -> str:
        committed = await self.git.run(
            *("commit-tree", tree, "-p", parent),
            layout=layout,
            stdin=f"{message.strip()}\n".replace("\0", "").encode("utf-8", "replace"),
            variables=variables,
        )
        return committed.text()

    async def _diff(self, layout: GitLayout, older: str, newer: str) -> bytes:
        with bounded("the changes make a patch", self.max_patch_bytes, hint=""):
            diff = await self.git.run(
                *("diff", *PATCH_FORM, older, newer), layout=layout, output_limit=self.max_patch_bytes
            )
        return await asyncio.to_thread(readable, diff.stdout)

    async def _side(self, layout: GitLayout, older: str, newer: str, paths: Iterable[str]) -> bytes:
        """One side's changes to the files in conflict, with renames; empty if that is too long."""
        literal = [f":(literal){path}" for path in list(paths)[:_MAX_SHOWN_FILES]]
        try:
            tree = await self.git.run(
                *("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--find-renames", older, newer, "--"),
                *literal,
                layout=layout,
                output_limit=_MAX_SIDE_BYTES,
            )
        except ResourceExhausted:
            return b""
        return tree.stdout


def _check_branch_name(branch: str) -> None:
    if check_branch(branch, field="delivery.branch") == "HEAD":
        raise InvalidRequest("'HEAD' is not a branch name", field="delivery.branch")


def _branch_taken(branch: str, reason: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"branch {branch} cannot be used: {reason[:500]}", field="delivery.branch", hint="choose another branch"
    )


def _author(request: MergeRequest) -> dict[str, str]:
    stamp = f"@{int(datetime.fromisoformat(request.at).timestamp())} +0000"
    dates = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), stamp)
    return identity(request.author_name, request.author_email) | dates


def _read(output: bytes) -> _Merged:
    """The output of `git merge-tree --write-tree --messages -z`: a tree, the files in conflict, messages."""
    tree, *fields = output.split(b"\0")
    conflicts: dict[str, None] = {}
    position = 0
    while position < len(fields) and fields[position]:
        conflicts[os.fsdecode(fields[position].split(b"\t", 1)[-1])] = None
        position += 1
    messages: list[str] = []
    position += 1
    # Each message has a number of paths, the paths, a kind and a text.
    while position < len(fields) and fields[position].strip().isdigit():
        text = position + int(fields[position]) + 2
        if text < len(fields) and fields[text - 1] != b"Auto-merging":
            messages.append(fields[text].decode("utf-8", "replace").strip())
        position = text + 1
    return _Merged(tree=tree.decode(), conflicts=tuple(conflicts), report="\n".join(messages))
