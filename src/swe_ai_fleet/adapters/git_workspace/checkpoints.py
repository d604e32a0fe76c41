"""Checkpoints: a clone's HEAD and tree as a git bundle on top of its base commit, and back.

What the agent committed lies in a repository that the agent wrote. Its own git packs that, inside the sandbox, where
neither hooks nor paths of this host are in reach; our git sees a stream of objects, as from any stranger.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from swe_ai_fleet.adapters.git_workspace.git import COMMIT_ID, Git, GitFailed, Layout, bounded
from swe_ai_fleet.adapters.git_workspace.git_dir import FIXED_IDENTITY, WORK_BRANCH
from swe_ai_fleet.adapters.git_workspace.staging import check_size
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.text import check_branch
from swe_ai_fleet.ports import Checkpoint, Workspace

_log = structlog.get_logger()
_PACK_SECONDS = 120.0
_REF = "refs/fleet/checkpoint"


async def take(
    git: Git,
    layout: Layout,
    workspace: Workspace,
    *,
    base: str,
    head: str,
    branch: str,
    known: dict[str, str],
    max_bytes: int,
) -> Checkpoint:
    """The checkpoint of a clone whose tree is staged in the index of `layout`, a git directory of our own.

    `head` is what the agent's HEAD says. Where its history can't be had (the agent broke it, it is larger than
    `max_bytes`, or takes more memory or files than there may be), the tree is kept on top of the base commit, and its
    commits become uncommitted changes. `known` are the heads that were taken before, each with its tree; this one is
    added. Raises ResourceExhausted where the tree itself is too large.
    """
    if (
        head != base
        and head not in known
        and not await _fetch(git, layout, workspace, base=base, head=head, max_bytes=max_bytes)
    ):
        head, branch = base, branch or WORK_BRANCH
    tree = (await git.run("write-tree", layout=layout)).text()
    if head not in known:
        known[head] = await git.tree(layout, head)
    commit = head
    if known[head] != tree:
        created = await git.run(
            *("commit-tree", tree, "-p", head, "-m", "Checkpoint"), layout=layout, variables=FIXED_IDENTITY
        )
        commit = created.text()
    bundle = b""
    # What was made on top of the base commit is not within it.
    if commit != base and (head == base or not await git.is_ancestor(layout, commit, base)):
        await git.run("update-ref", "--no-deref", _REF, commit, layout=layout)
        with bounded("the workspace makes a checkpoint", max_bytes):
            created = await git.run(
                *("bundle", "create", "--quiet", "-", _REF, f"^{base}"), layout=layout, output_limit=max_bytes
            )
        bundle = created.stdout
    return Checkpoint(commit=commit, head=head, branch=branch, bundle=bundle)


async def restore(git: Git, layout: Layout, checkpoint: Checkpoint, *, scratch: Path) -> None:
    """Bring a clean clone, whose `.git` is still ours, to a checkpoint. Raises PreconditionFailed.

    Every change counts as not staged afterwards: what was in the index is not kept, nor are other branches.
    """
    for name in (checkpoint.commit, checkpoint.head):
        if not COMMIT_ID.fullmatch(name):
            raise PreconditionFailed("the checkpoint has no commit")
    tree = layout.work_tree
    try:
        if checkpoint.bundle:
            file = scratch / "checkpoint.bundle"
            await asyncio.to_thread(file.write_bytes, checkpoint.bundle)
            try:
                await git.run("bundle", "unbundle", str(file), layout=layout, cwd=tree)
            finally:
                file.unlink(missing_ok=True)
            # Before anything is made of its trees: an index or files.
            for commit in {checkpoint.commit, checkpoint.head}:
                await check_size(git, layout, commit)
        await git.run("read-tree", "--reset", "-u", checkpoint.commit, layout=layout, cwd=tree)
        if checkpoint.branch and _is_branch(checkpoint.branch):
            ref = f"refs/heads/{checkpoint.branch}"
            if checkpoint.branch != WORK_BRANCH:
                # A branch may stand where the first one's directory would (`fleet`), which git refuses.
                await git.run("update-ref", "-d", f"refs/heads/{WORK_BRANCH}", layout=layout, cwd=tree)
            await git.run("update-ref", ref, checkpoint.head, layout=layout, cwd=tree)
            await git.run("symbolic-ref", "HEAD", ref, layout=layout, cwd=tree)
        else:
            await git.run("update-ref", "--no-deref", "HEAD", checkpoint.head, layout=layout, cwd=tree)
        await git.run("read-tree", checkpoint.head, layout=layout, cwd=tree)
        await git.run("update-index", "-q", "--refresh", layout=layout, cwd=tree, expect=(0, 1))
    except (GitFailed, ResourceExhausted) as error:
        raise PreconditionFailed(
            f"the checkpoint cannot be restored: {error.message[:500]}", hint=error.hint
        ) from error


async def _fetch(git: Git, layout: Layout, workspace: Workspace, *, base: str, head: str, max_bytes: int) -> bool:
    """Take the agent's commits up to `head` into our git directory; whether we have all of it now."""
    if not COMMIT_ID.fullmatch(head):
        return False
    if await git.is_ancestor(layout, head, base):
        return True
    packed = await workspace.run(
        Command(
            argv=("sh", "-c", 'printf "%s\\n^%s\\n" "$1" "$2" | git pack-objects --revs --stdout -q', "sh", head, base),
            variables={"GIT_NO_REPLACE_OBJECTS": "1"},
            timeout_seconds=_PACK_SECONDS,
            output_limit=max_bytes,
            light=True,
        )
    )
    if not packed.ok or packed.stdout.elided:
        return False
    pack = packed.stdout.head + packed.stdout.tail
    try:
        await git.run("index-pack", "--stdin", "--fix-thin", f"--max-input-size={max_bytes}", layout=layout, stdin=pack)
        # Everything it stands on must be there: a commit alone proves nothing about its trees.
        await git.run("rev-list", "--objects", "--quiet", head, f"^{base}", layout=layout)
        await check_size(git, layout, head)
    except FleetError as error:
        _log.warning("commits of a workspace become uncommitted changes", commit=head, reason=str(error))
        await asyncio.to_thread(_remove_drafts, layout.git_dir / "objects/pack")
        return False
    return True


def _remove_drafts(packs: Path) -> None:
    """Remove what git leaves of a pack that it gave up."""
    for draft in packs.glob("tmp_*"):
        draft.unlink(missing_ok=True)


def _is_branch(name: str) -> bool:
    try:
        check_branch(name, field="branch")
    except FleetError:
        return False
    return True
