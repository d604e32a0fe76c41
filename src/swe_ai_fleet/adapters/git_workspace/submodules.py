"""The submodules of a commit, at their pinned commits: fetched by the rules that hold for the repository itself."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from swe_ai_fleet.adapters.git_workspace.git import Git, Layout
from swe_ai_fleet.adapters.git_workspace.git_dir import History, format_of
from swe_ai_fleet.adapters.git_workspace.local import LocalRepository
from swe_ai_fleet.adapters.git_workspace.locations import LocationPolicy, Remote
from swe_ai_fleet.adapters.git_workspace.seeds import Seeds, Submodule, submodules_of
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed

_MAX_SUBMODULES = 100
_DEEPEST = 3
Fetch = Callable[[Remote, str], Awaitable[History]]
"""Brings a commit of a remote repository here; raises FleetError."""
Holds = Callable[[Iterable[Path], str], Awaitable[bool]]
"""Whether a tenant may name git directories; see `LocalRepositories.holds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pinned:
    """A submodule as a commit names it."""

    path: str
    name: str
    commit: str
    url: str


class Submodules:
    """Takes the files of submodules into seeds. What cannot be had is noted there with its reason, not raised."""

    def __init__(self, git: Git, policy: LocationPolicy, seeds: Seeds, *, holds: Holds) -> None:
        self._git = git
        self._holds = holds
        self._policy = policy
        self._seeds = seeds

    async def provide(self, seed: Path, *, location: str, local: LocalRepository | None, fetch: Fetch) -> None:
        """Take all submodules of a seed's commit, theirs among them.

        A local repository's own stores are looked into first. Their URLs come from the repository: a path or a file
        URL is never followed, whatever callers may name.

        Args:
            seed: The seed.
            location: The URL of the repository, which relative ones are relative to; empty where it has none.
            local: The local repository that the commit is from, if it is.
            fetch: Brings a commit of a remote repository here.
        """
        stores = () if local is None else (local.common_dir / "modules",)
        pending = [("", seed.name, Layout(git_dir=seed), location, stores, 0)]
        count = 0
        room = self._git.max_disk_bytes
        while pending:
            prefix, commit, layout, base, stores, depth = pending.pop()
            for pinned in await self._pinned(layout, commit):
                count += 1
                path = f"{prefix}{pinned.path}"
                if count > _MAX_SUBMODULES or depth >= _DEEPEST:
                    await self._missing(seed, path, pinned, "there are too many submodules, or they are too deep")
                    continue
                try:
                    url = _absolute(pinned.url, base)
                    store = next((store / pinned.name for store in stores if (store / pinned.name).is_dir()), None)
                    history = await self._history(url, pinned, store, fetch, tenant=local.tenant if local else "")
                    inner = Layout(git_dir=seed, alternates=(history.objects,))
                    tree = (await self._git.run("rev-parse", f"{pinned.commit}^{{tree}}", layout=inner)).text()
                    submodule = Submodule(path=path, commit=pinned.commit, tree=tree)
                    room -= await self._seeds.add_submodule(seed, submodule, history, most_bytes=max(0, room))
                except FleetError as error:
                    await self._missing(seed, path, pinned, f"{pinned.url}: {error.message}")
                    continue
                below = () if store is None else (store / "modules",)
                pending.append((f"{path}/", pinned.commit, inner, url, below, depth + 1))

    async def _missing(self, seed: Path, path: str, pinned: _Pinned, reason: str) -> None:
        missing = Submodule(path=path, commit=pinned.commit, reason=reason[:300])
        await self._seeds.add_submodule(seed, missing, None)

    async def _history(self, url: str, pinned: _Pinned, store: Path | None, fetch: Fetch, *, tenant: str) -> History:
        if store is not None and await self._holds((store, store / "objects"), tenant):
            asked = await self._git.run(
                "cat-file", "-e", f"{pinned.commit}^{{commit}}", layout=Layout(git_dir=store), expect=(0, 1, 128)
            )
            if asked.code == 0:
                return History(objects=store / "objects", object_format=format_of(pinned.commit))
        remote = self._policy.parse(url) if "://" in url or "@" in url else None
        if not isinstance(remote, Remote) or remote.upload:
            raise InvalidRequest("only URLs of remote repositories are followed")
        return await fetch(remote, pinned.commit)

    async def _pinned(self, layout: Layout, commit: str) -> list[_Pinned]:
        """The submodules that a commit pins and its .gitmodules names."""
        listed = await self._git.run("ls-tree", "-r", "-z", "--full-tree", commit, layout=layout)
        links: dict[str, str] = {}
        for entry in filter(None, os.fsdecode(listed.stdout).split("\0")):
            facts, path = entry.split("\t", 1)
            if facts.startswith("160000 "):
                links[path] = facts.split()[2]
        if not links:
            return []
        # Read from the blob, without includes: nothing else is looked into.
        named = await self._git.run(
            *("config", "--blob", f"{commit}:.gitmodules", "-z", "--get-regexp", r"^submodule\..*\.(path|url)$"),
            layout=layout,
            expect=(0, 1, 128),
        )
        values: dict[str, dict[str, str]] = {}
        for entry in filter(None, os.fsdecode(named.stdout).split("\0")):
            key, _, value = entry.partition("\n")
            name, _, option = key.removeprefix("submodule.").rpartition(".")
            values.setdefault(name, {})[option] = value
        by_path = {value.get("path", ""): (name, value.get("url", "")) for name, value in values.items()}
        gitlinks: list[_Pinned] = []
        for path, linked in sorted(links.items()):
            name, url = by_path.get(path, ("", ""))
            safe = name if name and ".." not in name.split("/") and not name.startswith("/") else "\0"
            gitlinks.append(_Pinned(path=path, name=safe.replace("\0", "_"), commit=linked, url=url))
        return gitlinks


def missing_submodules(seed: Path) -> list[Submodule]:
    """The submodules that could not be had. Blocking."""
    return [submodule for submodule in submodules_of(seed) if not submodule.tree]


def _absolute(url: str, base: str) -> str:
    """A submodule's URL, a relative one against that of its repository. Raises PreconditionFailed."""
    if not url:
        raise PreconditionFailed(".gitmodules does not say where it is")
    if not url.startswith(("./", "../")):
        return url
    if not base:
        raise PreconditionFailed("its URL is relative, and the repository has none")
    if "://" not in base:
        # As scp writes it: host:path
        host, _, path = base.partition(":")
        return f"{host}:{posixpath.normpath(posixpath.join(path, url))}"
    joined = urljoin(base.rstrip("/") + "/", url)
    return joined if urlsplit(joined).netloc == urlsplit(base).netloc else url
