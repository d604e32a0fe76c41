"""Git bundles of whole repositories, commits and checkpoints, for transport to another repository.

A clone's base commit, or a local repository at one commit, becomes a self-contained bundle, with its history if that
is not too large. It includes the tags in the commit's ancestry, which version tools and `git describe` read.

A checkpoint is a clone's HEAD and tree on top of its base commit. The agent's commits are in a repository that the
agent wrote: its own git packs them inside the sandbox, where neither hooks nor paths of this host are reachable; our
git reads a stream of objects, as from any untrusted source.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from swe_ai_fleet.adapters.git_workspace.git import (
    COMMIT_ID,
    HISTORY_MEMORY_BYTES,
    Allowance,
    Git,
    GitFailed,
    GitLayout,
    bounded,
)
from swe_ai_fleet.adapters.git_workspace.git_dirs import FIXED_IDENTITY, WORK_BRANCH, remove_received, write_git_dir
from swe_ai_fleet.adapters.git_workspace.local import LocalRepositories, user_excludes
from swe_ai_fleet.adapters.git_workspace.locations import LocationPolicy
from swe_ai_fleet.adapters.git_workspace.staging import check_size
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.domain.text import check_branch
from swe_ai_fleet.ports import BUNDLE_BRANCH, Checkpoint, RepositoryBundle, Workspace

MAX_TAGS = 5000


async def merged_tags(git: Git, layout: GitLayout, commit: str) -> tuple[str, ...]:
    """The packed-refs lines of the tags in a commit's ancestry, at most 5000, sorted by name.

    A repository that lacks the commit has none.
    """
    listed = await git.run(
        *("for-each-ref", f"--merged={commit}", f"--count={MAX_TAGS}", "--sort=refname"),
        *("--format=%(objectname) %(objecttype) %(*objectname) %(refname)", "refs/tags"),
        layout=layout,
        expect=(0, 128, 129),
    )
    lines: list[str] = []
    for line in listed.lines() if listed.code == 0 else ():
        name, kind, peeled, ref = line.split(" ", 3)
        lines.append(f"{name} {ref}")
        if kind == "tag" and peeled:
            lines.append(f"^{peeled}")
    return tuple(lines)


MAX_BUNDLE_BYTES = 256 * 1024 * 1024
_PACK_TIMEOUT_SECONDS = 1800.0
_HEADER_BYTES = 64 * 1024
_SIGNATURE = re.compile(rb"# v[23] git bundle")
_PREREQUISITE = re.compile(rb"-([0-9a-f]{40}(?:[0-9a-f]{24})?)(?: .*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleHeader:
    """A bundle's header: the commits it builds on, and the offset of its pack."""

    prerequisites: tuple[str, ...]
    pack_at: int


def read_header(data: bytes) -> BundleHeader:
    """The header of a bundle (git's `bundle-format`). Raises PreconditionFailed for other data."""
    beginning, blank, _ = data[:_HEADER_BYTES].partition(b"\n\n")
    signature, *lines = beginning.split(b"\n")
    if not blank or not _SIGNATURE.fullmatch(signature):
        raise PreconditionFailed("this is not a git bundle")
    prerequisites = [match[1].decode() for line in lines if (match := _PREREQUISITE.fullmatch(line))]
    return BundleHeader(prerequisites=tuple(prerequisites), pack_at=len(beginning) + 2)


async def make_bundle(git: Git, layout: GitLayout, ref: str, since: str) -> bytes:
    """A bundle of a ref with its commits after `since`; empty if there are none.

    Raises ResourceExhausted where it is larger than `MAX_BUNDLE_BYTES`.
    """
    added = await git.run("rev-list", "--count", "--max-count=1", ref, f"^{since}", layout=layout)
    if added.text() == "0":
        return b""
    with bounded("the changes make a bundle", MAX_BUNDLE_BYTES):
        bundle = await git.run(
            *("bundle", "create", "--quiet", "-", ref, f"^{since}"),
            layout=layout,
            timeout_seconds=_PACK_TIMEOUT_SECONDS,
            output_limit=MAX_BUNDLE_BYTES,
        )
    return bundle.stdout


async def unpack(git: Git, layout: GitLayout, data: bytes, commit: str) -> None:
    """Import a bundle into a repository that has its prerequisites; `commit` is complete there afterwards.

    Raises PreconditionFailed for a damaged bundle, or one without that commit.
    """
    header = read_header(data)
    try:
        pack, most = data[header.pack_at :], MAX_BUNDLE_BYTES
        await _take_pack(git, layout, pack, commit, header.prerequisites, max_bytes=most, seconds=_PACK_TIMEOUT_SECONDS)
    except GitFailed as error:
        raise PreconditionFailed(f"the bundle of {commit[:12]} is broken: {error.message[:500]}") from error


async def _take_pack(
    git: Git, layout: GitLayout, pack: bytes, commit: str, known: Iterable[str], *, max_bytes: int, seconds: float
) -> None:
    """Import objects into a repository with the `known` commits. Raises GitFailed unless `commit` is complete then."""
    await git.run(
        *("index-pack", "--stdin", "--fix-thin", f"--max-input-size={max_bytes}"),
        layout=layout,
        stdin=pack,
        timeout_seconds=seconds,
    )
    # Checks all reachable objects: an existing commit proves nothing about its trees.
    await git.run("rev-list", "--objects", "--quiet", commit, *(f"^{name}" for name in known), layout=layout)


_ALLOWANCE = Allowance(memory_bytes=HISTORY_MEMORY_BYTES)
_REF = f"refs/heads/{BUNDLE_BRANCH}"


async def bundled(git: Git, layout: GitLayout, base: str, *, shallow: bool, max_bytes: int) -> RepositoryBundle:
    """The bundle of `base`, made in our own git directory.

    It has no history if that is `shallow` or makes it larger than `max_bytes`. Raises ResourceExhausted where the
    files alone exceed that.
    """
    if not shallow:
        # the files alone may fit
        with suppress(ResourceExhausted):
            return RepositoryBundle(commit=base, data=await _pack(git, layout, base, max_bytes))
    commit = await git.run("commit-tree", f"{base}^{{tree}}", "-m", "Base", layout=layout, variables=FIXED_IDENTITY)
    try:
        data = await _pack(git, layout, commit.text(), max_bytes)
    except ResourceExhausted as error:
        raise ResourceExhausted(
            f"the files of the repository make a bundle of more than {max_bytes} bytes",
            hint="external agents get no repositories of this size",
        ) from error
    return RepositoryBundle(commit=commit.text(), data=data, without_history=True)


async def _pack(git: Git, layout: GitLayout, commit: str, max_bytes: int) -> bytes:
    await git.run("update-ref", "--no-deref", _REF, commit, layout=layout)
    pack = await git.run(
        *("bundle", "create", "--quiet", "-", _REF),
        layout=layout,
        output_limit=max_bytes,
        allowance=_ALLOWANCE,
    )
    return pack.stdout


_UNNAMED = "base"
SHALLOW_REFS = "refs/fleet/shallow/"
"""Refs in a bundle for the commits where a shallow history ends, which git's format cannot express."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A bundle whose branch is at `commit`; `subdirectory` is the packed path relative to the repository."""

    bundle: Path
    commit: str
    branch: str
    subdirectory: str = ""


async def pack_repository(repo: RepoRef, into: Path) -> Packed:
    """A bundle of the commit that a reference to a local repository names, with its available history, in `into`.

    Nothing is written into the repository. Raises InvalidRequest, PreconditionFailed with `field`.
    """
    git = Git(os.environ)
    policy = LocationPolicy(allowed_roots=(Path("/"),), allow_local_paths=True)
    local = LocalRepositories(git, policy, scratch=into, excludes=user_excludes(os.environ))
    path = await asyncio.to_thread(Path(repo.location).resolve)
    checkout = await local.find(path)
    own = into / "repository"
    await asyncio.to_thread(write_git_dir, own, head="ref: refs/heads/none", history=checkout.history)
    resolved = await local.resolve(checkout, repo, own / "objects")
    branch, layout, bundle = resolved.branch or _UNNAMED, GitLayout(git_dir=own), into / "bundle"
    (own / "HEAD").write_text(f"ref: refs/heads/{branch}\n")
    try:
        await git.run("update-ref", "--no-deref", f"refs/heads/{branch}", resolved.commit, layout=layout)
        tags = await merged_tags(git, GitLayout(git_dir=checkout.git_dir), resolved.snapshot_of or resolved.commit)
        lines = "".join(f"{line}\n" for line in ("# pack-refs with: peeled fully-peeled sorted ", *tags))
        (own / "packed-refs").write_bytes(os.fsencode(lines))
        names = [line.partition(" ")[2] for line in tags if not line.startswith("^")]
        if checkout.shallow:
            names += await _name_ends(git, layout, checkout.shallow, resolved.commit)
        await git.run(
            # With one thread the same commit gives the same bundle, and so the same upload.
            *("-c", "pack.threads=1", "bundle", "create", "--quiet", str(bundle), "--stdin"),
            layout=layout,
            stdin=os.fsencode("".join(f"{name}\n" for name in ("HEAD", f"refs/heads/{branch}", *names))),
            timeout_seconds=_PACK_TIMEOUT_SECONDS,
            allowance=_ALLOWANCE,
        )
    except GitFailed as error:
        raise PreconditionFailed(f"the repository cannot be packed: {error.message[:500]}", field="repo") from error
    inside = "" if checkout.bare or path == checkout.top else path.relative_to(checkout.top).as_posix()
    return Packed(bundle=bundle, commit=resolved.commit, branch=branch, subdirectory=inside)


async def _name_ends(git: Git, layout: GitLayout, shallow: bytes, commit: str) -> list[str]:
    """Refs to the commits of a shallow repository where the history of `commit` ends."""
    roots = await git.run("rev-list", "--max-parents=0", commit, layout=layout)
    ends = sorted(set(roots.lines()).intersection(shallow.decode("ascii").split()))
    refs = {f"{SHALLOW_REFS}{number}": end for number, end in enumerate(ends, 1)}
    lines = "".join(f"create {name} {end}\n" for name, end in refs.items())
    await git.run("update-ref", "--stdin", layout=layout, stdin=lines.encode())
    return list(refs)


async def unpack_branch(repository: Path, bundle: Path, branch: str, *, known: Path | None = None) -> str:
    """Import a bundle's branch, which must not exist yet, into a local repository; returns its commit.

    `known` is a bundle of the commits that the other one builds on, if the repository may lack them. No work tree is
    touched, and no hook runs. Raises InvalidRequest for an invalid branch name, PreconditionFailed.
    """
    # The name comes from a server: with a star in it, git would write branches of any name.
    git, ref = Git(os.environ), f"refs/heads/{check_branch(branch, field='--fetch')}"
    fetch = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--")
    try:
        existing = await git.run("for-each-ref", "--format=%(objectname)", "--", ref, cwd=repository)
        if existing.text():
            raise PreconditionFailed(f"branch {branch} already exists", field="--fetch", hint="choose another --branch")
        if known is not None:
            await git.run(*fetch, str(known), "HEAD", cwd=repository, protocols=("file",), allowance=_ALLOWANCE)
        await git.run(*fetch, str(bundle), f"{ref}:{ref}", cwd=repository, protocols=("file",))
        return (await git.run("rev-parse", "--verify", "--end-of-options", ref, cwd=repository)).text()
    except GitFailed as error:
        raise PreconditionFailed(f"the branch could not be fetched: {error.message[:500]}", field="--fetch") from error


_log = structlog.get_logger()
_PACK_SECONDS = 120.0
_CHECKPOINT_REF = "refs/fleet/checkpoint"


async def take_checkpoint(
    git: Git,
    layout: GitLayout,
    workspace: Workspace,
    *,
    base: str,
    head: str,
    branch: str,
    changed: bool,
    known: dict[str, str],
    max_bytes: int,
) -> Checkpoint:
    """The checkpoint of a clone whose tree is staged in the index of `layout`, our own git directory.

    `changed`: the tree differs from the base commit's. `head` is the agent's HEAD. If its history can't be packed (the
    agent broke it, or it exceeds `max_bytes` or the limits of memory or files), the checkpoint has the tree on top of
    the base commit, and the agent's commits become uncommitted changes. `known` are the heads of earlier checkpoints,
    each with its tree; this one is added. Raises ResourceExhausted where the tree itself is too large.
    """
    if (
        head != base
        and head not in known
        and not await _take_history(git, layout, workspace, base=base, head=head, max_bytes=max_bytes)
    ):
        head, branch = base, branch or WORK_BRANCH
    commit = head
    if head == base and not changed:
        return Checkpoint(commit=base, head=base, branch=branch, bundle=b"")
    tree = (await git.run("write-tree", layout=layout)).text()
    if head != base and head not in known:
        known[head] = await git.tree(layout, head)
    if head == base or known[head] != tree:
        created = await git.run(
            *("commit-tree", tree, "-p", head, "-m", "Checkpoint"), layout=layout, variables=FIXED_IDENTITY
        )
        commit = created.text()
    bundle = b""
    # A commit on top of the base commit cannot be its ancestor, so that need not be checked.
    if commit != base and (head == base or not await git.is_ancestor(layout, commit, base)):
        await git.run("update-ref", "--no-deref", _CHECKPOINT_REF, commit, layout=layout)
        with bounded("the workspace makes a checkpoint", max_bytes):
            created = await git.run(
                *("bundle", "create", "--quiet", "-", _CHECKPOINT_REF, f"^{base}"),
                layout=layout,
                output_limit=max_bytes,
            )
        bundle = created.stdout
    return Checkpoint(commit=commit, head=head, branch=branch, bundle=bundle)


async def restore_checkpoint(git: Git, layout: GitLayout, checkpoint: Checkpoint, *, scratch: Path) -> None:
    """Restore a checkpoint in a clean clone, whose `.git` is still ours. Raises PreconditionFailed.

    All changes are unstaged afterwards: the former index is lost, as are other branches.
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
            # Before its trees become an index or files.
            for commit in {checkpoint.commit, checkpoint.head}:
                await check_size(git, layout, commit)
        await git.run("read-tree", "--reset", "-u", checkpoint.commit, layout=layout, cwd=tree)
        if checkpoint.branch and _is_branch(checkpoint.branch):
            ref = f"refs/heads/{checkpoint.branch}"
            if checkpoint.branch != WORK_BRANCH:
                # A branch called like the work branch's directory (`fleet`) cannot exist beside it.
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


async def _take_history(
    git: Git, layout: GitLayout, workspace: Workspace, *, base: str, head: str, max_bytes: int
) -> bool:
    """Import the agent's commits up to `head` into our git directory; returns whether they are complete."""
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
        await _take_pack(git, layout, pack, head, (base,), max_bytes=max_bytes, seconds=_PACK_SECONDS)
        await check_size(git, layout, head)
    except FleetError as error:
        _log.warning("commits of a workspace become uncommitted changes", commit=head, reason=str(error))
        await asyncio.to_thread(remove_received, layout.git_dir)
        return False
    return True


def _is_branch(name: str) -> bool:
    try:
        check_branch(name, field="branch")
    except FleetError:
        return False
    return True
