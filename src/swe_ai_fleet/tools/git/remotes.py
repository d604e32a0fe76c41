"""Fetch, push and clone for agents, from and to granted remotes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import httpx2

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import IsolationLevel, Sandbox
from swe_ai_fleet.sandbox.network import Resolver
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal, ToolTimeout
from swe_ai_fleet.tools.files.paths import MissingPath, Tree
from swe_ai_fleet.tools.git.gateway import (
    Gateway,
    GrantedRepository,
    RefUpdate,
    RemoteGrant,
    checked_branch,
    find_target,
)
from swe_ai_fleet.tools.git.repository import MAX_FILES_LISTED
from swe_ai_fleet.tools.git.transport import PLACE, GitTransport, TransportSource
from swe_ai_fleet.tools.http_transport import GuardedTransport, HttpPolicy, port_of
from swe_ai_fleet.tools.secrets import Secrets

Changes = Mapping[str, tuple[str, str]]
"""The old commit (empty for a new ref) and the new one, by ref."""

_FETCH = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules")
_PUSH = ("push", "--porcelain", "--no-verify", "--no-follow-tags", "--no-signed", "--recurse-submodules=no")
_SHORT = 10
_NO_BRANCH = "The remote has no branch yet"


class GitRemotes:
    """The remotes of one agent run. Pass the result of `target()` to the other methods; failures are ToolFailures.

    Args:
        sandbox: The sandbox for git; its isolation level must be bubblewrap.
        grants: The repositories that may be reached.
        seconds: The time limit of one operation.
        max_received_bytes: The limit of a server's data in one operation.
        max_sent_bytes: The limit of one push.
        resolver: Resolves names; by default the system's.

    Raises InvalidRequest if two grants have the same name.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        grants: Iterable[RemoteGrant],
        *,
        seconds: float = 600.0,
        max_received_bytes: int = 512 * 1024**2,
        max_sent_bytes: int = 64 * 1024**2,
        resolver: Resolver | None = None,
    ) -> None:
        self.grants = tuple(grants)
        self.seconds = seconds
        self._sandbox = sandbox
        self._max_received_bytes = max_received_bytes
        self._max_sent_bytes = max_sent_bytes
        self._resolver = resolver
        if len({grant.name for grant in self.grants}) < len(self.grants):
            raise InvalidRequest("two remotes have the same name", field="grants")
        self._mask = Secrets(
            value for grant in self.grants for value in (grant.secret, grant.authorization.removeprefix("Basic "))
        )

    def target(self, remote: str) -> GrantedRepository:
        """The granted repository of a remote's name or URL. Raises ToolRefusal if it is not granted."""
        return find_target(self.grants, remote)

    async def fetch(
        self, workspace: Workspace, target: GrantedRepository, branches: Iterable[str], *, tags: bool
    ) -> ToolResult:
        """Update branches (none given: all) of a remote below `refs/remotes/<name>/`; all of them or none."""
        async with self._transport(workspace, target) as transport:
            source = await transport.source()
            await asyncio.to_thread(transport.prepare, source)
            await transport.reach(*_FETCH, "--", transport.gateway.url, *_specifications(target, branches, tags=tags))
            changes = _changes(source.refs, await transport.refs(), target)
            if changes:
                await transport.update_refs(changes)
            return _fetched("git_fetch", target, changes, transport.gateway.received)

    async def push(
        self, workspace: Workspace, target: GrantedRepository, branch: str, to: str, *, force: bool
    ) -> ToolResult:
        """Push a branch of the clone to a remote branch; `force` replaces the commits that the clone last saw there."""
        ref, tracking = f"refs/heads/{to}", f"refs/remotes/{target.name}/{to}"
        if not target.grant.may_push(to, default_branch=""):
            raise _not_granted(target, to)
        async with self._transport(workspace, target) as transport:
            new, _ = await transport.clone.commit_of(f"refs/heads/{branch}")
            source = await transport.source()
            await asyncio.to_thread(transport.prepare, source)
            advertised, default = await transport.advertised(ref)
            if not target.grant.may_push(to, default):
                raise _not_granted(target, to)
            old, last_fetched = advertised.get(ref, ""), source.refs.get(tracking, "")
            forced = False
            if old and old != new:
                forced = await self._needs_force(transport, old, new)
                if forced and not force:
                    raise ToolFailure(
                        f"{target.name}/{to} has commits ({old[:12]}) that {branch} does not: bring them in with "
                        f"git_pull(branch='{to}') and push again"
                    )
                if forced and old != last_fetched:
                    raise ToolFailure(
                        f"{target.name}/{to} is at {old[:12]}, but the clone last saw {last_fetched[:12] or 'nothing'} "
                        "there: call git_fetch, look at what has changed, and push again"
                    )
            if old != new:
                transport.gateway.permit(RefUpdate(ref=ref, old=old or "0" * len(new), new=new))
                lease = (f"--force-with-lease={ref}:{old}",) if forced else ()
                await transport.reach(*_PUSH, *lease, "--", transport.gateway.url, f"{new}:{ref}")
            if last_fetched != new:
                # The push has succeeded; if this ref cannot be updated now, the next fetch does.
                with suppress(ToolFailure):
                    await transport.update_refs({tracking: (last_fetched, new)})
            return _pushed(target, to, old, new, forced=forced)

    async def clone(
        self, workspace: Workspace, target: GrantedRepository, directory: str, branch: str | None, depth: int | None
    ) -> ToolResult:
        """Clone into an empty directory of the workspace; after a failure the directory is empty again."""
        tree = Tree(workspace.root, workspace.mount)
        await asyncio.to_thread(_must_be_empty, tree, directory)
        async with self._transport(workspace, target) as transport:
            await asyncio.to_thread(transport.prepare, TransportSource(refs={}))
            pattern = f"refs/heads/{branch}" if branch else "refs/heads/*"
            advertised, default = await transport.advertised(pattern)
            if branch and pattern not in advertised:
                raise ToolFailure(f"{target.url} has no branch {branch!r}")
            # The default branch is untrusted text until it is checked.
            branch = branch or checked_branch(default or "main")
            lengths = {len(commit) for commit in advertised.values()}
            source = TransportSource(object_format="sha256" if lengths == {64} else "sha1", refs={})
            await asyncio.to_thread(transport.prepare, source)  # again, now that the format is known
            if advertised:
                only = [branch] if depth else []
                shallow = [f"--depth={depth}"] if depth else []
                specifications = _specifications(target, only, tags=not depth)
                await transport.reach(*_FETCH, *shallow, "--", transport.gateway.url, *specifications)
            refs = await transport.refs()
            path = await asyncio.to_thread(_make, tree, directory)
            await _fill(transport, path, target, source.object_format, branch, refs)
            changes = {name: ("", commit) for name, commit in refs.items()}
            result = _fetched("git_clone", target, changes, transport.gateway.received)
            into = f"Cloned into {directory}, on branch {branch}\n{result.content}" if changes else _NO_BRANCH
            return replace(result, content=into, metadata={**result.metadata, "path": directory, "branch": branch})

    async def _needs_force(self, transport: GitTransport, old: str, new: str) -> bool:
        """Whether the push would drop commits of the remote's branch; True if the clone lacks them."""
        if not (await transport.run("cat-file", "-e", f"{old}^{{commit}}")).ok:
            return True
        return not (await transport.run("merge-base", "--is-ancestor", old, new)).ok

    @asynccontextmanager
    async def _transport(self, workspace: Workspace, target: GrantedRepository) -> AsyncGenerator[GitTransport]:
        if self._sandbox.policy.level is not IsolationLevel.BUBBLEWRAP:
            raise ToolRefusal("remotes are reached from a sandbox with a network of its own only: it takes bubblewrap")
        url = httpx2.URL(target.url)
        policy = HttpPolicy(
            allowed_hosts=(url.host,),
            private_hosts=(url.host,) if target.grant.private else (),
            ports=(port_of(url),),
        )
        gateway = Gateway(
            target.url,
            authorization=target.grant.authorization,
            transport=GuardedTransport(policy, resolver=self._resolver),
            max_received_bytes=self._max_received_bytes,
            max_sent_bytes=self._max_sent_bytes,
        )
        # Twice the limit for a command, so that the limit here ends an operation.
        opening = GitTransport.open(
            self._sandbox, workspace, gateway, mask=self._mask, shown=target.url, seconds=2 * self.seconds
        )
        scope = asyncio.timeout(self.seconds)
        try:
            async with scope, gateway, opening as transport:
                yield transport
        except TimeoutError:
            if not scope.expired():
                raise
            raise ToolTimeout(f"{target.name} was not done within {self.seconds:g} seconds") from None


async def _fill(
    transport: GitTransport,
    directory: str,
    target: GrantedRepository,
    object_format: str,
    branch: str,
    refs: Mapping[str, str],
) -> None:
    """Make the clone from the transport's objects and refs, with one remote in its config, and check out its files."""
    source = f"{PLACE}/repository"
    git = ("git", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*", "-c", "protocol.allow=never")
    form = (f"--object-format={object_format}", f"--initial-branch={branch}")
    try:
        await transport.local(*git, "init", "--quiet", "--template=", *form, directory=directory)
        await transport.local("cp", "-R", f"{source}/objects", ".git", directory=directory)
        if (transport.directory / "repository/shallow").is_file():
            await transport.local("cp", f"{source}/shallow", ".git/shallow", directory=directory)
        await transport.local(*git, "remote", "add", "--", target.name, target.url, directory=directory)
        if refs:
            await transport.update_refs({name: ("", commit) for name, commit in refs.items()}, directory)
        start = f"refs/remotes/{target.name}/{branch}"
        if start in refs:
            checkout = ("checkout", "--quiet", "--track", "-b", branch, start, "--")
            await transport.local(*git, *checkout, directory=directory)
    except BaseException:
        with suppress(ToolFailure):
            await transport.local("find", ".", "-mindepth", "1", "-delete", directory=directory)
        raise


def _specifications(target: GrantedRepository, branches: Iterable[str], *, tags: bool) -> list[str]:
    names = list(branches) or ["*"]
    refspecs = [f"+refs/heads/{name}:refs/remotes/{target.name}/{name}" for name in names]
    return [*refspecs, "refs/tags/*:refs/tags/*"] if tags else refspecs


def _changes(before: Mapping[str, str], after: Mapping[str, str], target: GrantedRepository) -> Changes:
    ours = (f"refs/remotes/{target.name}/", "refs/tags/")
    return {
        name: (before.get(name, ""), commit)
        for name, commit in after.items()
        if name.startswith(ours) and before.get(name) != commit
    }


def _not_granted(target: GrantedRepository, branch: str) -> ToolRefusal:
    granted = ", ".join(target.grant.push) or "none"
    return ToolRefusal(
        f"pushing {branch!r} to {target.name} is not granted; branches that are: {granted} (the default branch and "
        "protected ones only where they are named exactly)"
    )


def _must_be_empty(tree: Tree, directory: str) -> None:
    try:
        tree.find(directory)
    except MissingPath:
        return
    if tree.count(directory):
        raise ToolRefusal(f"{directory!r} is not empty; clone into a directory that is empty or does not exist yet")


def _make(tree: Tree, directory: str) -> str:
    """Make the directory, which must be empty if it exists; its real path."""
    tree.make_directory(directory)
    _must_be_empty(tree, directory)
    return tree.find(directory)


def _fetched(operation: str, target: GrantedRepository, changes: Changes, received: int) -> ToolResult:
    """The result of a fetch or clone: new and changed refs, and the bytes that the server sent."""
    lines = [
        f"{old[:_SHORT]}..{new[:_SHORT]} {_short(name)}" if old else f"[new] {_short(name)} at {new[:_SHORT]}"
        for name, (old, new) in changes.items()
    ]
    listed = lines[:MAX_FILES_LISTED]
    if len(lines) > len(listed):
        listed.append(f"[... {len(lines) - len(listed)} more refs ...]")
    refs = {_short(name): {"old": old, "new": new} for name, (old, new) in list(changes.items())[:MAX_FILES_LISTED]}
    return ToolResult(
        success=True,
        operation=operation,
        content="\n".join([f"From {target.url}", *(listed or ["everything is up to date"])]),
        exit_code=0,
        metadata={"remote": target.name, "url": target.url, "refs": refs, "received_bytes": received},
    )


def _pushed(target: GrantedRepository, branch: str, old: str, new: str, *, forced: bool) -> ToolResult:
    """The result of a push; `old` is empty for a new branch, and equal to `new` if nothing was pushed."""
    where = f"{target.name}/{branch}"
    if old == new:
        text = f"{where} is at {new[:_SHORT]} already; there was nothing to push"
    elif old:
        text = f"{old[:_SHORT]}..{new[:_SHORT]} -> {where}{' (forced: commits that stood there are gone)' * forced}"
    else:
        text = f"[new branch] {new[:_SHORT]} -> {where}"
    return ToolResult(
        success=True,
        operation="git_push",
        content=f"To {target.url}\n{text}",
        exit_code=0,
        metadata={"remote": target.name, "branch": branch, "old": old, "new": new, "forced": forced},
    )


def _short(ref: str) -> str:
    return ref.removeprefix("refs/").removeprefix("remotes/")
