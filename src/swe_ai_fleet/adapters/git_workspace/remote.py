"""Repositories behind URLs: asked with the caller's credential each time, fetched into a cache of that caller."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from swe_ai_fleet.adapters.git_workspace.git import HISTORY_MEMORY_BYTES, Git, GitFailed, Layout
from swe_ai_fleet.adapters.git_workspace.local import Resolved
from swe_ai_fleet.adapters.git_workspace.locations import Remote
from swe_ai_fleet.adapters.git_workspace.locks import locked
from swe_ai_fleet.adapters.git_workspace.skeleton import write_git_dir
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.task import RepoRef

_FULL_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# A port may have these digits in it.
_DENIED = re.compile(r"authentication failed|could not read (username|password)|permission denied|\b40[13]\b", re.I)
_ABSENT = re.compile(r"not found|does not exist|\b404\b|not appear to be a git repository", re.I)
_LIST_TIMEOUT_SECONDS = 60.0
_FETCH_TIMEOUT_SECONDS = 1800.0
# Git asks for the host that it was redirected to as well; only the one that was meant is told.
_ASKPASS = """#!/bin/sh
case "$1" in
  "Username for 'http://$FLEET_GIT_HOST': "|"Username for 'https://$FLEET_GIT_HOST': ")
    printf '%s\\n' "$FLEET_GIT_USERNAME" ;;
  "Password for 'http"*"@$FLEET_GIT_HOST': ") printf '%s\\n' "$FLEET_GIT_PASSWORD" ;;
  *) exit 1 ;;
esac
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What opens a remote repository. The password is kept out of every text form of the value."""

    username: str
    password: str = field(repr=False)


CredentialLookup = Callable[[str, str, str], Awaitable[Credential | None]]
"""The credential of (tenant, reference, URL), None where there is none; an empty reference is a repository's own."""


class RemoteRepositories:
    """Reads and writes repositories behind URLs.

    `credentials` is asked for every call, and what it answers reaches git through that one process's environment, for
    the host of the URL.
    """

    def __init__(
        self, git: Git, *, askpass: Path, protocols: tuple[str, ...], credentials: CredentialLookup | None
    ) -> None:
        self._git = git
        self._askpass = askpass
        self._protocols = protocols
        self._credentials = credentials

    async def resolve(self, tenant: str, repo: RepoRef, remote: Remote, cache: Path) -> Resolved:
        """The commit that a reference means now; it lies in the cache afterwards.

        Raises InvalidRequest, PreconditionFailed, Unavailable with `field`.
        """
        variables = await self._variables(tenant, repo.credential, remote)
        # Asked every time, also when the commit is in the cache: this is where the caller's right to read is proved.
        refs, head_branch = await self._list(remote, variables)
        object_format = "sha256" if any(len(commit) == 64 for commit in refs.values()) else "sha1"
        if not refs:
            raise PreconditionFailed("the repository has no commit yet", field="repo", hint="commit something first")
        wanted, branch = _choose(refs, head_branch, repo)
        async with locked(cache.with_suffix(".lock")):
            if not (cache / "HEAD").exists():
                await asyncio.to_thread(write_git_dir, cache, head="ref: refs/heads/none", object_format=object_format)
            if wanted:
                # Tags that point into its history come along: git follows them where the target has a name.
                specification = f"+{wanted}:refs/fleet/fetched/{wanted}"
                await self._fetch(remote, variables, cache, [specification], have=wanted, follows_tags=True)
                commit = await self._commit(cache, wanted)
            else:
                everything = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
                await self._fetch(remote, variables, cache, everything)
                commit = await self._commit(cache, repo.commit or repo.ref)
                if commit:
                    await self._git.run(
                        "update-ref", f"refs/fleet/fetched/{commit}", commit, layout=Layout(git_dir=cache)
                    )
        if not commit:
            name = "repo.commit" if repo.commit else "repo.ref"
            raise InvalidRequest(f"{(repo.commit or repo.ref)[:128]!r} is not a commit of the repository", field=name)
        return Resolved(commit=commit, branch=branch)

    async def push(
        self, tenant: str, credential: str, remote: Remote, layout: Layout, commit: str, branch: str
    ) -> None:
        """Put a commit on a branch that must not exist yet. Raises PreconditionFailed, Unavailable."""
        variables = await self._variables(tenant, credential, remote)
        try:
            await self._git.run(
                *("push", "--quiet", "--no-follow-tags", "--no-signed", f"--force-with-lease=refs/heads/{branch}:"),
                *("--", remote.url, f"{commit}:refs/heads/{branch}"),
                layout=layout,
                variables=variables,
                protocols=self._protocols,
                timeout_seconds=_FETCH_TIMEOUT_SECONDS,
            )
        except GitFailed as error:
            if "rejected" in error.message:
                raise PreconditionFailed(
                    f"the remote refused branch {branch}: {error.message[:500]}",
                    field="delivery.branch",
                    hint="choose another branch",
                ) from error
            raise _explained(error) from error

    async def branch(self, tenant: str, credential: str, remote: Remote, cache: Path, branch: str) -> str:
        """The commit a remote branch stands at, fetched into the cache; empty where there is no such branch."""
        variables = await self._variables(tenant, credential, remote)
        refs, _ = await self._list(remote, variables)
        commit = refs.get(f"refs/heads/{branch}", "")
        if commit:
            await self._fetch(remote, variables, cache, [f"+{commit}:refs/fleet/fetched/{commit}"], have=commit)
        return commit

    async def _list(self, remote: Remote, variables: dict[str, str]) -> tuple[dict[str, str], str]:
        try:
            listing = await self._git.run(
                *("ls-remote", "--symref", "--quiet", "--", remote.url),
                cwd=self._askpass.parent,
                variables=variables,
                protocols=self._protocols,
                timeout_seconds=_LIST_TIMEOUT_SECONDS,
            )
        except GitFailed as error:
            raise _explained(error) from error
        except Unavailable as error:
            raise Unavailable(error.message, field="repo.url") from error
        refs: dict[str, str] = {}
        head_branch = ""
        for line in listing.lines():
            value, _, name = line.partition("\t")
            if value.startswith("ref: ") and name == "HEAD":
                head_branch = value.removeprefix("ref: refs/heads/")
            elif _FULL_ID.fullmatch(value):
                refs[name] = value
        return refs, head_branch

    async def _fetch(
        self,
        remote: Remote,
        variables: dict[str, str],
        cache: Path,
        specifications: list[str],
        *,
        have: str = "",
        follows_tags: bool = False,
    ) -> None:
        if have and await self._commit(cache, f"refs/fleet/fetched/{have}"):
            return
        try:
            await self._git.run(
                *(
                    "fetch",
                    "--quiet",
                    *(() if follows_tags else ("--no-tags",)),
                    "--no-write-fetch-head",
                    "--no-auto-maintenance",
                ),
                *("--", remote.url, *specifications),
                layout=Layout(git_dir=cache),
                variables=variables,
                protocols=self._protocols,
                timeout_seconds=_FETCH_TIMEOUT_SECONDS,
                memory_bytes=HISTORY_MEMORY_BYTES,
            )
        except GitFailed as error:
            if have and re.search(r"not our ref|unadvertised object|couldn't find remote ref", error.message):
                return  # the caller finds nothing in the cache and says which reference it was
            raise _explained(error) from error

    async def _commit(self, cache: Path, name: str) -> str:
        found = await self._git.run(
            *("rev-parse", "--quiet", "--verify", "--end-of-options", f"{name}^{{commit}}"),
            layout=Layout(git_dir=cache),
            expect=(0, 1, 128),
        )
        return found.text() if found.code == 0 else ""

    async def _variables(self, tenant: str, reference: str, remote: Remote) -> dict[str, str]:
        lookup = self._credentials
        credential = await lookup(tenant, reference, remote.url) if lookup is not None else None
        if credential is None:
            if not reference:
                return {}
            raise InvalidRequest(f"there is no credential {reference[:64]!r}", field="repo.credential_ref")
        if not self._askpass.exists() or self._askpass.read_text() != _ASKPASS:
            draft = self._askpass.with_suffix(".new")
            draft.write_text(_ASKPASS)
            draft.chmod(0o700)
            draft.replace(self._askpass)
        return {
            "GIT_ASKPASS": str(self._askpass),
            "FLEET_GIT_HOST": urlsplit(remote.url).netloc.rpartition("@")[2],
            "FLEET_GIT_USERNAME": credential.username,
            "FLEET_GIT_PASSWORD": credential.password,
        }


def _choose(refs: dict[str, str], head_branch: str, repo: RepoRef) -> tuple[str, str]:
    """(commit to fetch, branch); the commit is empty where only the whole repository can tell."""
    if repo.commit:
        return (repo.commit.lower() if _FULL_ID.fullmatch(repo.commit.lower()) else ""), ""
    if repo.ref in ("", "HEAD"):
        if "HEAD" not in refs:
            raise PreconditionFailed("the repository has no HEAD", field="repo.ref", hint="name a branch")
        return refs["HEAD"], head_branch
    for name in (repo.ref, f"refs/{repo.ref}", f"refs/tags/{repo.ref}", f"refs/heads/{repo.ref}"):
        if name in refs:
            branch = name.removeprefix("refs/heads/") if name.startswith("refs/heads/") else ""
            return refs.get(f"{name}^{{}}", refs[name]), branch
    return (repo.ref if _FULL_ID.fullmatch(repo.ref) else ""), ""


def _explained(error: GitFailed) -> PreconditionFailed | Unavailable:
    text = error.message[:500]
    if _DENIED.search(text):
        return PreconditionFailed(f"access refused: {text}", field="repo.credential_ref")
    if _ABSENT.search(text):
        return PreconditionFailed(f"no such repository: {text}", field="repo.url")
    return Unavailable(f"the remote repository cannot be reached: {text}", field="repo.url")
