"""A local repository at one commit, packed into a bundle that stands on its own."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.git import HISTORY_MEMORY_BYTES, Allowance, Git, GitFailed, Layout
from swe_ai_fleet.adapters.git_workspace.local import LocalRepositories, user_excludes
from swe_ai_fleet.adapters.git_workspace.locations import LocationPolicy
from swe_ai_fleet.adapters.git_workspace.skeleton import write_git_dir
from swe_ai_fleet.adapters.git_workspace.tags import merged_tags
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.task import RepoRef, check_branch

_PACK_SECONDS = 1_800.0
_ALLOWANCE = Allowance(memory_bytes=HISTORY_MEMORY_BYTES)
_UNNAMED = "base"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A bundle whose branch stands at `commit`; `subdirectory` is where in the repository the path lies."""

    bundle: Path
    commit: str
    branch: str
    subdirectory: str = ""


async def pack_repository(repo: RepoRef, into: Path) -> Packed:
    """A bundle of what a reference to a local repository means, with its history, in the directory `into`.

    Nothing is written into the repository. Raises InvalidRequest, PreconditionFailed with `field`.
    """
    git = Git(os.environ)
    policy = LocationPolicy(allowed_roots=(Path("/"),), allow_local_paths=True)
    local = LocalRepositories(git, policy, scratch=into, excludes=user_excludes(os.environ))
    path = await asyncio.to_thread(Path(repo.location).resolve)
    found = await local.find(path)
    if found.shallow:
        raise PreconditionFailed(
            "a shallow clone cannot be uploaded", field="repo", hint="git fetch --unshallow, or name its URL"
        )
    own = into / "repository"
    await asyncio.to_thread(write_git_dir, own, head="ref: refs/heads/none", history=found.history)
    resolved = await local.resolve(found, repo, own / "objects")
    branch, layout, bundle = resolved.branch or _UNNAMED, Layout(git_dir=own), into / "bundle"
    (own / "HEAD").write_text(f"ref: refs/heads/{branch}\n")
    try:
        await git.run("update-ref", "--no-deref", f"refs/heads/{branch}", resolved.commit, layout=layout)
        tags = await merged_tags(git, Layout(git_dir=found.git_dir), resolved.snapshot_of or resolved.commit)
        lines = "".join(f"{line}\n" for line in ("# pack-refs with: peeled fully-peeled sorted ", *tags))
        (own / "packed-refs").write_text(lines, "utf-8", "surrogateescape")
        names = [line.partition(" ")[2] for line in tags if not line.startswith("^")]
        await git.run(
            # With one thread the same commit makes the same bundle, and so the same upload.
            *("-c", "pack.threads=1", "bundle", "create", "--quiet", str(bundle), "--stdin"),
            layout=layout,
            stdin="".join(f"{name}\n" for name in ("HEAD", f"refs/heads/{branch}", *names)).encode(
                "utf-8", "surrogateescape"
            ),
            timeout_seconds=_PACK_SECONDS,
            allowance=_ALLOWANCE,
        )
    except GitFailed as error:
        raise PreconditionFailed(f"the repository cannot be packed: {error.message[:500]}", field="repo") from error
    inside = "" if found.bare or path == found.top else path.relative_to(found.top).as_posix()
    return Packed(bundle=bundle, commit=resolved.commit, branch=branch, subdirectory=inside)


async def unpack_branch(repository: Path, bundle: Path, branch: str, *, known: Path | None = None) -> str:
    """Put a bundle's branch into a local repository, where it must not exist yet; its commit.

    `known` is a bundle that has what the other one builds on, where the repository itself may not. No work tree is
    touched, and no hook runs. Raises InvalidRequest where it is no name of a branch, PreconditionFailed.
    """
    # A server says its name: with a star in it, branches of any name would be written.
    git, ref = Git(os.environ), f"refs/heads/{check_branch(branch, field='--fetch')}"
    fetch = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--")
    try:
        there = await git.run("for-each-ref", "--format=%(objectname)", "--", ref, cwd=repository)
        if there.text():
            raise PreconditionFailed(f"branch {branch} exists already", field="--fetch", hint="choose another --branch")
        if known is not None:
            await git.run(*fetch, str(known), "HEAD", cwd=repository, protocols=("file",), allowance=_ALLOWANCE)
        await git.run(*fetch, str(bundle), f"{ref}:{ref}", cwd=repository, protocols=("file",))
        return (await git.run("rev-parse", "--verify", "--end-of-options", ref, cwd=repository)).text()
    except GitFailed as error:
        raise PreconditionFailed(f"the branch could not be fetched: {error.message[:500]}", field="--fetch") from error
