"""Repositories behind URLs: accessed with the caller's credential each time, fetched into that caller's cache.

Credentials come from files, like mounted secrets in a container. Callers choose the repository, so a credential is only
sent to the hosts configured for it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from swe_ai_fleet.adapters.git_workspace.directories import locked
from swe_ai_fleet.adapters.git_workspace.git import (
    COMMIT_ID,
    HISTORY_MEMORY_BYTES,
    Allowance,
    Git,
    GitExhausted,
    GitFailed,
    GitLayout,
    GitResult,
)
from swe_ai_fleet.adapters.git_workspace.git_dirs import begin_cache, remove_received
from swe_ai_fleet.adapters.git_workspace.local import Resolved
from swe_ai_fleet.adapters.git_workspace.locations import Credential, Remote, RemoteRoutes, Route, host_of, out_of_reach
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed, ResourceExhausted, Unavailable
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.domain.text import check_identifier

# As whole words, since a port may contain these digits.
_DENIED = re.compile(r"authentication failed|could not read (username|password)|permission denied|\b40[13]\b", re.I)
_ABSENT = re.compile(r"not found|does not exist|\b404\b|not appear to be a git repository", re.I)
_UNKNOWN_HOST = re.compile(r"host key verification failed|no .* host key is known", re.I)
_LIST_TIMEOUT_SECONDS = 60.0
_ASKING = Allowance()
_FETCH_TIMEOUT_SECONDS = 1800.0
_log = structlog.get_logger(__name__)
# Git also asks for the credential of a host it was redirected to; the script answers for the original host only.
_ASKPASS = """#!/bin/sh
case "$1" in
  "Username for 'http://$FLEET_GIT_HOST': "|"Username for 'https://$FLEET_GIT_HOST': ")
    printf '%s\\n' "$FLEET_GIT_USERNAME" ;;
  "Password for 'http"*"@$FLEET_GIT_HOST': ") printf '%s\\n' "$FLEET_GIT_PASSWORD" ;;
  *) exit 1 ;;
esac
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connection:
    """A remote repository, git's route to it, and the variables of its credential."""

    remote: Remote
    route: Route
    variables: Mapping[str, str]


CredentialLookup = Callable[[str, str, str], Awaitable[Credential | None]]
"""Finds the credential of (tenant, reference, URL), None without one; an empty reference means the default one."""


@dataclass(frozen=True, kw_only=True)
class RemoteRepositories:
    """Reads and writes repositories behind URLs.

    `credentials` is asked for every call; git gets the credential in its environment, for the host of the URL only.
    `routes` are git's routes to remotes.
    """

    git: Git
    routes: RemoteRoutes
    askpass: Path
    protocols: tuple[str, ...]
    credentials: CredentialLookup | None

    async def resolve(self, tenant: str, repo: RepoRef, remote: Remote, cache: Path) -> Resolved:
        """The current commit of a reference, fetched into the cache.

        Raises InvalidRequest, PreconditionFailed, Unavailable with `field`.
        """
        async with self._connected(tenant, repo.credential, remote) as connection:
            # Asked every time, even for a cached commit: this proves the right to read.
            refs, head_branch = await self._list(connection)
            object_format = "sha256" if any(len(commit) == 64 for commit in refs.values()) else "sha1"
            if not refs:
                raise PreconditionFailed("the repository has no commit yet", field="repo", hint="make a first commit")
            wanted, branch = _choose(refs, head_branch, repo)
            async with locked(cache.with_suffix(".lock")):
                await begin_cache(cache, object_format=object_format)
                commit = await self._fetched(connection, cache, wanted, repo)
        if not commit:
            name = "repo.commit" if repo.commit else "repo.ref"
            raise InvalidRequest(f"{(repo.commit or repo.ref)[:128]!r} is not a commit of the repository", field=name)
        return Resolved(commit=commit, branch=branch)

    async def push(
        self, tenant: str, credential: str, remote: Remote, layout: GitLayout, commit: str, branch: str
    ) -> None:
        """Push a commit to a branch that must not exist yet. Raises PreconditionFailed, Unavailable."""
        async with self._connected(tenant, credential, remote) as connection:
            try:
                await self._call(
                    connection,
                    *("push", "--quiet", "--no-follow-tags", "--no-signed", f"--force-with-lease=refs/heads/{branch}:"),
                    *("--", remote.url, f"{commit}:refs/heads/{branch}"),
                    layout=layout,
                    timeout_seconds=_FETCH_TIMEOUT_SECONDS,
                )
            except GitFailed as error:
                if "rejected" in error.message and not connection.route.refusal:
                    raise PreconditionFailed(
                        f"the remote refused branch {branch}: {error.message[:500]}",
                        field="delivery.branch",
                        hint="choose another branch",
                    ) from error
                raise _explained(connection, error) from error

    async def branch(self, tenant: str, credential: str, remote: Remote, cache: Path, branch: str) -> str:
        """The commit of a remote branch, fetched into the cache; empty without such a branch."""
        async with self._connected(tenant, credential, remote) as connection:
            refs, _ = await self._list(connection)
            commit = refs.get(f"refs/heads/{branch}", "")
            if commit:
                await self._fetch(connection, cache, [f"+{commit}:refs/fleet/fetched/{commit}"], have=commit)
        return commit

    async def _call(
        self,
        connection: _Connection,
        *args: str,
        layout: GitLayout | None = None,
        timeout_seconds: float,
        allowance: Allowance = _ASKING,
    ) -> GitResult:
        """Run git with a remote's route. Raises GitFailed, Unavailable."""
        return await self.git.run(
            *args,
            options=connection.route.options,
            layout=layout,
            cwd=self.askpass.parent if layout is None else None,
            variables={**connection.route.variables, **connection.variables},
            protocols=self.protocols,
            timeout_seconds=timeout_seconds,
            allowance=allowance,
        )

    async def _list(self, connection: _Connection) -> tuple[dict[str, str], str]:
        try:
            listing = await self._call(
                connection,
                *("ls-remote", "--symref", "--quiet", "--", connection.remote.url),
                timeout_seconds=_LIST_TIMEOUT_SECONDS,
            )
        except GitFailed as error:
            raise _explained(connection, error) from error
        except Unavailable as error:
            raise out_of_reach(connection.remote, error.message) from error
        refs: dict[str, str] = {}
        head_branch = ""
        for line in listing.lines():
            value, _, name = line.partition("\t")
            if value.startswith("ref: ") and name == "HEAD":
                head_branch = value.removeprefix("ref: refs/heads/")
            elif COMMIT_ID.fullmatch(value):
                refs[name] = value
        return refs, head_branch

    async def _fetched(self, connection: _Connection, cache: Path, wanted: str, repo: RepoRef) -> str:
        """Fetch the commit of a reference into the cache; empty if the remote does not have it."""
        if wanted:
            # With a named target, git also fetches the tags in its history.
            specification = f"+{wanted}:refs/fleet/fetched/{wanted}"
            await self._fetch(connection, cache, [specification], have=wanted, follows_tags=True)
            return await self.git.commit(GitLayout(git_dir=cache), wanted)
        await self._fetch(connection, cache, ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"])
        commit = await self.git.commit(GitLayout(git_dir=cache), repo.commit or repo.ref)
        if commit:
            await self.git.run("update-ref", f"refs/fleet/fetched/{commit}", commit, layout=GitLayout(git_dir=cache))
        return commit

    async def _fetch(
        self,
        connection: _Connection,
        cache: Path,
        specifications: list[str],
        *,
        have: str = "",
        follows_tags: bool = False,
    ) -> None:
        if have and await self.git.commit(GitLayout(git_dir=cache), f"refs/fleet/fetched/{have}"):
            return
        tags = () if follows_tags else ("--no-tags",)
        try:
            await self._call(
                connection,
                *("fetch", "--quiet", *tags, "--no-write-fetch-head", "--no-auto-maintenance"),
                *("--", connection.remote.url, *specifications),
                layout=GitLayout(git_dir=cache),
                timeout_seconds=_FETCH_TIMEOUT_SECONDS,
                allowance=Allowance(memory_bytes=HISTORY_MEMORY_BYTES),
            )
        except GitExhausted as error:
            _log.info("repository.too_large", host=connection.remote.host, reason=error.message)
            await asyncio.to_thread(remove_received, cache)
            raise ResourceExhausted(
                "the repository takes more memory or disk than may be", field="repo.url", hint=error.hint
            ) from None
        except Unavailable:
            await asyncio.to_thread(remove_received, cache)
            raise
        except GitFailed as error:
            if have and re.search(r"not our ref|unadvertised object|couldn't find remote ref", error.message):
                return  # the caller finds no commit in the cache and reports the reference
            raise _explained(connection, error) from error

    @asynccontextmanager
    async def _connected(self, tenant: str, reference: str, remote: Remote) -> AsyncGenerator[_Connection]:
        """Connect to a remote with the caller's credential. Raises InvalidRequest, PreconditionFailed, Unavailable."""
        lookup = self.credentials
        credential = await lookup(tenant, reference, remote.url) if lookup is not None else None
        if credential is None and reference:
            raise InvalidRequest(f"there is no credential {reference[:64]!r}", field="repo.credential_ref")
        variables: dict[str, str] = {}
        if credential is not None and credential.password:
            await asyncio.to_thread(self._write_askpass)
            variables = {
                "GIT_ASKPASS": str(self.askpass),
                "FLEET_GIT_HOST": urlsplit(remote.url).netloc.rpartition("@")[2],
                "FLEET_GIT_USERNAME": credential.username,
                "FLEET_GIT_PASSWORD": credential.password,
            }
        async with self.routes.open(remote, credential) as route:
            yield _Connection(remote=remote, route=route, variables=variables)

    def _write_askpass(self) -> None:
        if not self.askpass.exists() or self.askpass.read_text() != _ASKPASS:
            draft = self.askpass.with_suffix(".new")
            draft.write_text(_ASKPASS)
            draft.chmod(0o700)
            draft.replace(self.askpass)


def _choose(refs: dict[str, str], head_branch: str, repo: RepoRef) -> tuple[str, str]:
    """(commit to fetch, branch); the commit is empty if it can only be found in the whole repository."""
    if repo.commit:
        return (repo.commit.lower() if COMMIT_ID.fullmatch(repo.commit.lower()) else ""), ""
    if repo.ref in ("", "HEAD"):
        if "HEAD" not in refs:
            raise PreconditionFailed("the repository has no HEAD", field="repo.ref", hint="name a branch")
        return refs["HEAD"], head_branch
    for name in (repo.ref, f"refs/{repo.ref}", f"refs/tags/{repo.ref}", f"refs/heads/{repo.ref}"):
        if name in refs:
            branch = name.removeprefix("refs/heads/") if name.startswith("refs/heads/") else ""
            return refs.get(f"{name}^{{}}", refs[name]), branch
    return (repo.ref if COMMIT_ID.fullmatch(repo.ref) else ""), ""


def _explained(connection: _Connection, error: GitFailed) -> PreconditionFailed | Unavailable:
    """The fault for the caller, without the text of git or of the server."""
    remote, text = connection.remote, error.message[:500]
    if connection.route.refusal:
        return out_of_reach(remote, connection.route.refusal)
    faults = (
        (_DENIED, "the repository refuses access", "repo.credential_ref"),
        (_ABSENT, "there is no such repository", "repo.url"),
        (_UNKNOWN_HOST, "the server shows another host key than the known one, or none is known", "repo.url"),
    )
    for pattern, message, field in faults:
        if pattern.search(text):
            _log.info("repository.refused", host=remote.host, port=remote.port, reason=text)
            return PreconditionFailed(message, field=field)
    return out_of_reach(remote, text)


DEFAULT = "default"
"""The reference of the default credential."""
_MAX_BYTES = 64 * 1024


def mounted_credentials(directory: Path, *, by_tenant: bool = False, hosts: Sequence[str] = ()) -> CredentialLookup:
    """Finds credentials in a directory.

    `<reference>.username`, `<reference>.password` and `<reference>.hosts` are the files of a reference; `username`,
    `password` (as in a secret of type `kubernetes.io/basic-auth`) and `hosts` those of the default credential, for
    repositories without a reference. For ssh `ssh-privatekey` (as in `kubernetes.io/ssh-auth`) replaces `password`.

    Args:
        by_tenant: Each tenant has its own directory in it.

    The lookup raises InvalidRequest for a malformed reference, PreconditionFailed for a host that is not in `hosts`.
    """

    async def credential(tenant: str, reference: str, location: str) -> Credential | None:
        folder = directory / check_identifier(tenant, field="tenant") if by_tenant else directory
        is_named = reference not in ("", DEFAULT)
        prefix = f"{check_identifier(reference, field='repo.credential_ref')}." if is_named else ""
        try:
            return await asyncio.to_thread(_read, folder, prefix, location, tuple(hosts))
        except PreconditionFailed:
            if not reference:
                return None
            raise

    return credential


def _read(directory: Path, prefix: str, location: str, hosts: Sequence[str]) -> Credential | None:
    over_http = urlsplit(location).scheme.lower() in ("http", "https")
    secret = directory / f"{prefix}{'password' if over_http else 'ssh-privatekey'}"
    if not secret.is_file():
        return None
    try:
        host = host_of(location)
    except ValueError as fault:
        raise InvalidRequest(f"{location[:128]!r} is not a URL", field="repo.url") from fault
    hosts_file = directory / f"{prefix}hosts"
    patterns = _line(hosts_file).split(",") if hosts_file.is_file() else [host for host in hosts if host != "*"]
    allowed = [pattern.strip().lower() for pattern in patterns if pattern.strip()]
    if not any(fnmatchcase(host, pattern) for pattern in allowed):
        raise PreconditionFailed(
            f"the credential may not be shown to {host[:128]!r}",
            field="repo.credential_ref",
            hint=f"name the host in the key {prefix}hosts of the secret",
        )
    if not over_http:
        return Credential(key=_line(secret))
    username = directory / f"{prefix}username"
    return Credential(username=_line(username) if username.is_file() else "git", password=_line(secret))


def _line(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode().strip("\r\n")
