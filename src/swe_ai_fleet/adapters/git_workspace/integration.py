"""Merging: a patch into the integration branch, in a bare scratch repository where nothing is ever checked out."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.bundles import make_bundle
from swe_ai_fleet.adapters.git_workspace.directories import remove_tree
from swe_ai_fleet.adapters.git_workspace.git import PATCH_FORM, Git, Layout, apply_patch, bounded, readable
from swe_ai_fleet.adapters.git_workspace.git_dir import FIXED_IDENTITY, write_git_dir
from swe_ai_fleet.adapters.git_workspace.local import identity
from swe_ai_fleet.adapters.git_workspace.seeds import history_of
from swe_ai_fleet.domain.errors import PreconditionFailed, ResourceExhausted
from swe_ai_fleet.ports import OURS, THEIRS, Exported, Merge, MergeRequest
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

MAX_SIDE_BYTES = 1024 * 1024
MAX_SHOWN_FILES = 50
_MERGE_TIMEOUT_SECONDS = 600.0
_DRAFT_MESSAGE = "Draft of a merge with conflicts"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merged:
    """What git made of two commits: a tree, with conflict markers where there are `conflicts`."""

    tree: str
    conflicts: tuple[str, ...]
    report: str


class Integrations:
    """Merges and exports. `scratch` holds what lies between a patch and its commit."""

    def __init__(self, git: Git, *, scratch: Path, max_patch_bytes: int) -> None:
        self._git = git
        self._scratch = scratch
        self._max_patch_bytes = max_patch_bytes

    async def merge(self, request: MergeRequest, *, head: Path, base: Path, objects: Path) -> Merge:
        """Merge as `ports.Branches` says. `head` and `base` are the seeds; new objects go to `objects`.

        The three-way merge is git's own (`merge-ort`, with renames), between the head and a commit of the patch on
        its base, which is an ancestor of the head or a draft on top of it. Raises PatchRejected, PreconditionFailed,
        ResourceExhausted.
        """
        async with self._repository(head, objects=objects, others=(base / "objects",)) as layout:
            theirs = await self._patched(layout, base.name, request.patch)
            merged = await self._merged(layout, head.name, theirs)
            if not merged.conflicts and merged.tree == await self._git.tree(layout, head.name):
                return Merge(commit=head.name, bundle=b"")
            if merged.conflicts:
                commit = await self._commit(layout, merged.tree, head.name, _DRAFT_MESSAGE, FIXED_IDENTITY)
            else:
                commit = await self._commit(layout, merged.tree, head.name, request.message, _author(request))
            await self._git.run("update-ref", f"refs/heads/{OURS}", commit, layout=layout)
            bundle = await make_bundle(self._git, layout, f"refs/heads/{OURS}", request.since)
            if not merged.conflicts:
                return Merge(commit=commit, bundle=bundle)
            common = (await self._git.run("merge-base", head.name, theirs, layout=layout)).text()
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
                if not await self._git.is_ancestor(layout, earlier, seed.name):
                    raise PreconditionFailed(f"{seed.name[:12]} does not build on {earlier[:12]}", field="repo")
            await self._git.run("update-ref", f"refs/heads/{branch}", seed.name, layout=layout)
            return Exported(
                patch=await self._diff(layout, base, seed.name),
                bundle=await make_bundle(self._git, layout, f"refs/heads/{branch}", since),
            )

    @asynccontextmanager
    async def _repository(
        self, seed: Path, *, objects: Path | None = None, others: Iterable[Path] = ()
    ) -> AsyncGenerator[Layout]:
        private = self._scratch / secrets.token_hex(8)
        try:
            await uninterrupted(asyncio.to_thread(write_git_dir, private, head=seed.name, history=history_of(seed)))
            yield Layout(
                git_dir=private,
                index=private / "index",
                objects=objects,
                alternates=(seed / "objects", *others),
            )
        finally:
            await uninterrupted(asyncio.to_thread(remove_tree, private))

    async def _patched(self, layout: Layout, base: str, patch: bytes) -> str:
        """A commit of the patch on its base. Raises PatchRejected."""
        await self._git.run("read-tree", base, layout=layout)
        if patch.strip():
            await apply_patch(self._git, patch, "--cached", layout=layout, cwd=layout.git_dir)
        tree = (await self._git.run("write-tree", layout=layout)).text()
        return await self._commit(layout, tree, base, "Theirs", FIXED_IDENTITY)

    async def _merged(self, layout: Layout, head: str, theirs: str) -> _Merged:
        base = (await self._git.run("merge-base", head, theirs, layout=layout, expect=(0, 1))).text()
        if not base:
            raise PreconditionFailed(f"{head[:12]} and what is to be merged have no common commit", field="repo")
        for name, commit in ((OURS, head), (THEIRS, theirs)):
            await self._git.run("update-ref", f"refs/heads/{name}", commit, layout=layout)
        merge = await self._git.run(
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

    async def _commit(self, layout: Layout, tree: str, parent: str, message: str, variables: Mapping[str, str]) -> str:
        committed = await self._git.run(
            *("commit-tree", tree, "-p", parent),
            layout=layout,
            stdin=f"{message.strip()}\n".replace("\0", "").encode("utf-8", "replace"),
            variables=variables,
        )
        return committed.text()

    async def _diff(self, layout: Layout, older: str, newer: str) -> bytes:
        with bounded("the changes make a patch", self._max_patch_bytes, hint=""):
            diff = await self._git.run(
                *("diff", *PATCH_FORM, older, newer), layout=layout, output_limit=self._max_patch_bytes
            )
        return await asyncio.to_thread(readable, diff.stdout)

    async def _side(self, layout: Layout, older: str, newer: str, paths: Iterable[str]) -> bytes:
        """What one side changed in the files of a conflict, renames shown as such; empty where that is too long."""
        literal = [f":(literal){path}" for path in list(paths)[:MAX_SHOWN_FILES]]
        try:
            tree = await self._git.run(
                *("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--find-renames", older, newer, "--"),
                *literal,
                layout=layout,
                output_limit=MAX_SIDE_BYTES,
            )
        except ResourceExhausted:
            return b""
        return tree.stdout


def _author(request: MergeRequest) -> dict[str, str]:
    stamp = f"@{int(datetime.fromisoformat(request.at).timestamp())} +0000"
    dates = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), stamp)
    return identity(request.author_name, request.author_email) | dates


def _read(output: bytes) -> _Merged:
    """What `git merge-tree --write-tree --messages -z` says: a tree, the files in conflict, messages."""
    tree, *fields = output.split(b"\0")
    conflicts: dict[str, None] = {}
    position = 0
    while position < len(fields) and fields[position]:
        conflicts[os.fsdecode(fields[position].split(b"\t", 1)[-1])] = None
        position += 1
    messages: list[str] = []
    position += 1
    # Each message: how many paths, the paths, a kind, the text.
    while position < len(fields) and fields[position].strip().isdigit():
        text = position + int(fields[position]) + 2
        if text < len(fields) and fields[text - 1] != b"Auto-merging":
            messages.append(fields[text].decode("utf-8", "replace").strip())
        position = text + 1
    return _Merged(tree=tree.decode(), conflicts=tuple(conflicts), report="\n".join(messages))
