"""Fetch, push and clone for agents, at the remotes that were granted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import httpcore2
import httpx2

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import IsolationLevel, Sandbox
from swe_ai_fleet.sandbox.network import Resolver
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files.paths import MissingPath, Tree
from swe_ai_fleet.tools.git.gateway import Gateway, RefUpdate
from swe_ai_fleet.tools.git.grants import RemoteGrant, Target, checked_branch, find_target
from swe_ai_fleet.tools.git.transport import PLACE, GitTransport, Origins
from swe_ai_fleet.tools.http.transport import GuardedTransport, HttpPolicy, port_of
from swe_ai_fleet.tools.secrets import Secrets

DEFAULT_MAX_RECEIVED_BYTES = 512 * 1024**2
DEFAULT_MAX_SENT_BYTES = 64 * 1024**2
DEFAULT_SECONDS = 600.0

Changes = Mapping[str, tuple[str, str]]
"""Refs by name, each with its old commit (empty where it is new) and its new one."""

_FETCH = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules")
_PUSH = ("push", "--porcelain", "--no-verify", "--no-follow-tags", "--no-signed", "--recurse-submodules=no")
_TAGS = "refs/tags/*:refs/tags/*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What a fetch or a clone changed, and how many bytes the server sent."""

    target: Target
    changes: Changes
    received: int
    branch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What a push changed; `old` is empty for a new branch, and equal to `new` where there was nothing to do."""

    target: Target
    branch: str
    old: str
    new: str
    forced: bool = False


class GitRemotes:
    """The remotes of one agent run.

    Args:
        sandbox: Where git runs; its isolation level must be bubblewrap.
        grants: What may be reached.
        seconds: Limit of one operation.
        max_received_bytes: Of all that a server sends in one operation.
        max_sent_bytes: Of one push.
        resolver: Turns names into addresses; without one, the system's.
        network: Opens connections to checked addresses; without one, the real network.
        tls: How servers prove who they are; without one, by the usual public authorities.

    Raises InvalidRequest where two grants have the same name.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        grants: Iterable[RemoteGrant],
        *,
        seconds: float = DEFAULT_SECONDS,
        max_received_bytes: int = DEFAULT_MAX_RECEIVED_BYTES,
        max_sent_bytes: int = DEFAULT_MAX_SENT_BYTES,
        resolver: Resolver | None = None,
        network: httpcore2.AsyncNetworkBackend | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.grants = tuple(grants)
        self.seconds = seconds
        self._sandbox = sandbox
        self._max_received_bytes = max_received_bytes
        self._max_sent_bytes = max_sent_bytes
        self._resolver = resolver
        self._network = network
        self._tls = tls
        if len({grant.name for grant in self.grants}) < len(self.grants):
            raise InvalidRequest("two remotes have the same name", field="grants")
        self._mask = Secrets(
            value for grant in self.grants for value in (grant.secret, grant.authorization.removeprefix("Basic "))
        )

    def target(self, remote: str) -> Target:
        """What a remote's name or URL stands for. Raises ToolRefusal where it is not granted."""
        return find_target(self.grants, remote)

    async def fetch(self, workspace: Workspace, target: Target, branches: Iterable[str], *, tags: bool) -> Fetched:
        """Bring branches (none: all) of a remote up to date below `refs/remotes/<name>/`.

        Raises ToolFailure, ToolRefusal, TimeoutError (nothing of the clone's refs has changed then).
        """
        async with self._transport(workspace, target) as transport:
            origins = await transport.origins()
            await asyncio.to_thread(transport.prepare, origins)
            await transport.reach(*_FETCH, "--", transport.gateway.url, *_specifications(target, branches, tags=tags))
            changes = _changes(origins.refs, await transport.refs(), target)
            if changes:
                await transport.update_refs(changes)
            return Fetched(target=target, changes=changes, received=transport.gateway.received)

    async def push(self, workspace: Workspace, target: Target, branch: str, to: str, *, force: bool) -> Pushed:
        """Push a branch of the clone to one of the remote; with `force`, over what the clone last saw there.

        Raises ToolFailure, ToolRefusal, TimeoutError.
        """
        ref, tracking = f"refs/heads/{to}", f"refs/remotes/{target.name}/{to}"
        if not target.grant.may_push(to, default_branch=""):
            raise _not_granted(target, to)
        async with self._transport(workspace, target) as transport:
            new, _ = await transport.clone.commit_of(f"refs/heads/{branch}")
            origins = await transport.origins()
            await asyncio.to_thread(transport.prepare, origins)
            advertised, default = await transport.advertised(ref)
            if not target.grant.may_push(to, default):
                raise _not_granted(target, to)
            old, seen = advertised.get(ref, ""), origins.refs.get(tracking, "")
            forced = False
            if old and old != new:
                forced = await self._needs_force(transport, old, new)
                if forced and not force:
                    raise ToolFailure(
                        f"{target.name}/{to} has commits ({old[:12]}) that {branch} does not: bring them in with "
                        f"git_pull(branch='{to}') and push again"
                    )
                if forced and old != seen:
                    raise ToolFailure(
                        f"{target.name}/{to} is at {old[:12]}, but the clone last saw {seen[:12] or 'nothing'} there: "
                        "call git_fetch, look at what has changed, and push again"
                    )
            if old != new:
                nothing = "0" * len(new)
                transport.gateway.permit(RefUpdate(ref=ref, old=old or nothing, new=new))
                lease = (f"--force-with-lease={ref}:{old}",) if forced else ()
                await transport.reach(*_PUSH, *lease, "--", transport.gateway.url, f"{new}:{ref}")
            if seen != new:
                # What is pushed is pushed; the next fetch sets the ref that could not be set now.
                with suppress(ToolFailure):
                    await transport.update_refs({tracking: (seen, new)})
            return Pushed(target=target, branch=to, old=old, new=new, forced=forced)

    async def clone(
        self, workspace: Workspace, target: Target, directory: str, branch: str | None, depth: int | None
    ) -> Fetched:
        """Clone into an empty directory of the workspace; where it fails, the directory is empty again.

        Raises ToolFailure, ToolRefusal, TimeoutError.
        """
        tree = Tree(workspace.root, workspace.mount)
        await asyncio.to_thread(_must_be_empty, tree, directory)
        async with self._transport(workspace, target) as transport:
            await asyncio.to_thread(transport.prepare, Origins(refs={}))
            wanted = f"refs/heads/{branch}" if branch else "refs/heads/*"
            advertised, default = await transport.advertised(wanted)
            if branch and wanted not in advertised:
                raise ToolFailure(f"{target.url} has no branch {branch!r}")
            # The default is a stranger's text until it was looked at.
            branch = branch or checked_branch(default or "main")
            lengths = {len(commit) for commit in advertised.values()}
            origins = Origins(object_format="sha256" if lengths == {64} else "sha1", refs={})
            await asyncio.to_thread(transport.prepare, origins)  # once more, now that the format is known
            if advertised:
                only = [branch] if depth else []
                shallow = [f"--depth={depth}"] if depth else []
                specifications = _specifications(target, only, tags=not depth)
                await transport.reach(*_FETCH, *shallow, "--", transport.gateway.url, *specifications)
            refs = await transport.refs()
            place = await asyncio.to_thread(_make, tree, directory)
            await _settle(transport, place, target, origins.object_format, branch, refs)
            changes = {name: ("", commit) for name, commit in refs.items()}
            return Fetched(target=target, changes=changes, received=transport.gateway.received, branch=branch)

    async def _needs_force(self, transport: GitTransport, old: str, new: str) -> bool:
        """Whether the push would drop commits of the remote's branch, as far as the clone knows them."""
        if not (await transport.run("cat-file", "-e", f"{old}^{{commit}}")).ok:
            return True
        return not (await transport.run("merge-base", "--is-ancestor", old, new)).ok

    @asynccontextmanager
    async def _transport(self, workspace: Workspace, target: Target) -> AsyncGenerator[GitTransport]:
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
            transport=GuardedTransport(policy, resolver=self._resolver, network=self._network, tls=self._tls),
            max_received_bytes=self._max_received_bytes,
            max_sent_bytes=self._max_sent_bytes,
        )
        # Twice the limit for a command: it is the limit here that ends an operation.
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
            raise TimeoutError(f"{target.name} was not done within {self.seconds:g} seconds") from None


async def _settle(
    transport: GitTransport, place: str, target: Target, object_format: str, branch: str, refs: Mapping[str, str]
) -> None:
    """Make the clone out of what the transport brought: objects, refs, one remote in its config, files."""
    source = f"{PLACE}/repository"
    git = ("git", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*", "-c", "protocol.allow=never")
    form = (f"--object-format={object_format}", f"--initial-branch={branch}")
    try:
        await transport.local(*git, "init", "--quiet", "--template=", *form, directory=place)
        await transport.local("cp", "-R", f"{source}/objects", ".git", directory=place)
        if (transport.directory / "repository/shallow").is_file():
            await transport.local("cp", f"{source}/shallow", ".git/shallow", directory=place)
        await transport.local(*git, "remote", "add", "--", target.name, target.url, directory=place)
        if refs:
            await transport.update_refs({name: ("", commit) for name, commit in refs.items()}, place)
        start = f"refs/remotes/{target.name}/{branch}"
        if start in refs:
            await transport.local(*git, "checkout", "--quiet", "--track", "-b", branch, start, "--", directory=place)
    except BaseException:
        with suppress(ToolFailure):
            await transport.local("find", ".", "-mindepth", "1", "-delete", directory=place)
        raise


def _specifications(target: Target, branches: Iterable[str], *, tags: bool) -> list[str]:
    names = list(branches) or ["*"]
    wanted = [f"+refs/heads/{name}:refs/remotes/{target.name}/{name}" for name in names]
    return [*wanted, _TAGS] if tags else wanted


def _changes(before: Mapping[str, str], after: Mapping[str, str], target: Target) -> Changes:
    ours = (f"refs/remotes/{target.name}/", "refs/tags/")
    return {
        name: (before.get(name, ""), commit)
        for name, commit in after.items()
        if name.startswith(ours) and before.get(name) != commit
    }


def _not_granted(target: Target, branch: str) -> ToolRefusal:
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
    """The real path of the directory, which exists and is empty."""
    tree.make_directory(directory)
    _must_be_empty(tree, directory)
    return tree.find(directory)
