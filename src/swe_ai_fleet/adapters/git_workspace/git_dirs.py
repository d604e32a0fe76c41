"""Writes git directories like `git init`, but without a process and without templates; and makes seeds.

A seed has a commit, its ancestry and its submodules, and no other objects; clones read their history from it.
Submodules are fetched at their pinned commits, by the same rules as the repository itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import shutil
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from swe_ai_fleet.adapters.git_workspace.directories import appearing, locked
from swe_ai_fleet.adapters.git_workspace.git import HISTORY_MEMORY_BYTES, Allowance, Git, GitFailed, GitLayout, quoted
from swe_ai_fleet.adapters.git_workspace.locations import LocationPolicy, Remote
from swe_ai_fleet.adapters.git_workspace.staging import check_size
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

IDENTITY_NAME = "SWE AI Fleet"
IDENTITY_EMAIL = "fleet@localhost"
WORK_BRANCH = "fleet/work"
# A constant, so that the same tree on the same commit gives the same commit.
FIXED_IDENTITY = {
    f"GIT_{person}_{part}": text
    for person in ("AUTHOR", "COMMITTER")
    for part, text in (("NAME", IDENTITY_NAME), ("EMAIL", IDENTITY_EMAIL), ("DATE", "2000-01-01T00:00:00+00:00"))
}

# Files that tools create when they run. A repository's own .gitignore can include any of them again.
BY_PRODUCTS = (
    *("__pycache__/", "*.pyc", ".pytest_cache/", ".ruff_cache/", ".mypy_cache/", ".hypothesis/", ".coverage"),
    *("*.egg-info/", "node_modules/", ".venv/"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHistory:
    """The object store of a commit. `shallow` has the commits where a shallow history ends."""

    objects: Path
    object_format: str = "sha1"
    shallow: bytes = b""


def write_git_dir(
    path: Path,
    *,
    head: str,
    history: GitHistory | None = None,
    object_format: str = "sha1",
    excludes: Iterable[str] = (),
    work_tree: bool = False,
) -> None:
    """Make a git directory whose HEAD is `head` (a commit, or `ref: …`), with the objects of `history`.

    With `work_tree` it is the `.git` of a clone: not bare, with an identity for commits.
    """
    if history is not None:
        object_format = history.object_format
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info"):
        (path / name).mkdir(parents=True, exist_ok=True)
    (path / "HEAD").write_text(f"{head}\n")
    (path / "config").write_text(_config(object_format, work_tree=work_tree))
    if excludes:
        (path / "info/exclude").write_text("".join(f"{line}\n" for line in excludes))
    if history is not None:
        objects = str(history.objects)
        line = quoted(history.objects) if '"' in objects or "\\" in objects else objects
        (path / "objects/info/alternates").write_text(f"{line}\n")
        if history.shallow:
            (path / "shallow").write_bytes(history.shallow)


def format_of(commit: str) -> str:
    """The object format of a full commit id."""
    return "sha256" if len(commit) == 64 else "sha1"


def stored_history(git_dir: Path, commit: str) -> GitHistory:
    """Our own git directory as the source of a commit's objects. Blocking."""
    shallow = git_dir / "shallow"
    return GitHistory(
        objects=git_dir / "objects",
        object_format=format_of(commit),
        shallow=shallow.read_bytes() if shallow.exists() else b"",
    )


async def begin_cache(path: Path, *, history: GitHistory | None = None, object_format: str = "sha1") -> None:
    """Make a git directory without a branch, unless it exists already."""
    if not (path / "HEAD").exists():
        head = "ref: refs/heads/none"
        await asyncio.to_thread(write_git_dir, path, head=head, history=history, object_format=object_format)


def _config(object_format: str, *, work_tree: bool) -> str:
    lines = ["[core]", f"\trepositoryformatversion = {0 if object_format == 'sha1' else 1}"]
    lines.append(f"\tbare = {'false' if work_tree else 'true'}")
    lines.append(f"\tlogallrefupdates = {'true' if work_tree else 'false'}")
    if work_tree:
        lines.append("\thooksPath = /dev/null")
        lines += ["[user]", f"\tname = {IDENTITY_NAME}", f"\temail = {IDENTITY_EMAIL}"]
        lines += ["[commit]", "\tgpgSign = false", "[advice]", "\tdetachedHead = false"]
    lines += ["[gc]", "\tauto = 0", "[maintenance]", "\tauto = false"]
    if object_format != "sha1":
        lines += ["[extensions]", f"\tobjectFormat = {object_format}"]
    return "\n".join(lines) + "\n"


def remove_received(cache: Path) -> None:
    """Remove the partial packs of a git that failed or was killed. Blocking."""
    for draft in (cache / "objects/pack").glob("tmp_*"):
        draft.unlink(missing_ok=True)


async def dates_of(git: Git, commit: str, layout: GitLayout) -> dict[str, str]:
    """The variables for a new commit with another one's date."""
    stamp = f"@{(await git.run('log', '-1', '--format=%ct', commit, layout=layout)).text()} +0000"
    return {"GIT_AUTHOR_DATE": stamp, "GIT_COMMITTER_DATE": stamp}


_PACK_TIMEOUT_SECONDS = 1800.0
_TAGS = "packed-refs"
_SUBMODULES = "submodules.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submodule:
    """A submodule of a seed's commit: its path, its pinned commit, its tree.

    `tree` is empty if it could not be fetched, for the `reason`.
    """

    path: str
    commit: str
    tree: str = ""
    reason: str = ""


class Seeds:
    """The seeds of one node, below `home`: `<repository>/<commit>`, bare, read-only for all others."""

    def __init__(self, home: Path, git: Git) -> None:
        self._home = home
        self._git = git

    def find(self, repository_key: str, commit: str) -> Path | None:
        """The seed, if it exists; this counts as its use."""
        seed = self._home / repository_key / commit
        try:
            os.utime(seed)
        except FileNotFoundError:
            return None
        return seed

    async def plant(
        self,
        repository_key: str,
        commit: str,
        source: GitHistory,
        *,
        over: Path | None = None,
        tags: Sequence[str] = (),
    ) -> Path:
        """The seed of a commit, made from a repository that has it.

        `over` is the seed of an ancestor, whose packs, tags and submodules it shares. `tags` are the lines of a
        packed-refs file for tags in the commit's ancestry. A partial clone suffices, if the commit's own files are
        there. Raises PreconditionFailed where they are not, ResourceExhausted where they are more than a clone may
        have.
        """
        if (seed := self.find(repository_key, commit)) is not None:
            return seed
        seed = self._home / repository_key / commit
        seed.parent.mkdir(parents=True, exist_ok=True)
        async with locked(seed.parent / ".lock"):
            if seed.is_dir():
                return seed
            async with appearing(seed) as draft:
                await uninterrupted(asyncio.to_thread(write_git_dir, draft, head=commit, history=source))
                names = (commit, *(line.split()[0] for line in tags if line[0] != "^"))
                names_text = "".join(f"{name}\n" for name in names)
                if over is not None:
                    await uninterrupted(asyncio.to_thread(_share, over, draft))
                    names_text += f"^{over.name}\n"
                try:
                    await self._git.run(
                        *("pack-objects", "--quiet", "--revs", "--delta-base-offset", "--missing=allow-any"),
                        "objects/pack/pack",
                        layout=GitLayout(git_dir=draft),
                        stdin=names_text.encode(),
                        timeout_seconds=_PACK_TIMEOUT_SECONDS,
                        allowance=Allowance(memory_bytes=HISTORY_MEMORY_BYTES),
                    )
                    await check_size(self._git, GitLayout(git_dir=draft), commit, field="repo")
                except GitFailed as error:
                    raise PreconditionFailed(
                        f"the history of {commit[:12]} is incomplete: {error.message[:500]}", field="repo"
                    ) from error
                (draft / "objects/info/alternates").unlink()
                if tags:
                    lines = "".join(f"{line}\n" for line in ("# pack-refs with: peeled fully-peeled sorted ", *tags))
                    await uninterrupted(asyncio.to_thread((draft / _TAGS).write_bytes, os.fsencode(lines)))
        return seed

    async def add_submodule(
        self, seed: Path, submodule: Submodule, source: GitHistory | None, *, most_bytes: int | None = None
    ) -> int:
        """Record a submodule of a seed's commit; with a `source` its files are added. Returns their bytes.

        Raises GitFailed, ResourceExhausted where they are more than `most_bytes`.
        """
        files_bytes = 0
        if source is not None:
            await self._git.run(
                *("pack-objects", "--quiet", "--revs", "--delta-base-offset", "objects/pack/pack"),
                layout=GitLayout(git_dir=seed, alternates=(source.objects,)),
                stdin=f"{submodule.tree}\n".encode(),
                timeout_seconds=_PACK_TIMEOUT_SECONDS,
            )
            files_bytes = await check_size(
                self._git, GitLayout(git_dir=seed), submodule.tree, most_bytes=most_bytes, field="repo"
            )
        others = [other for other in submodules_of(seed) if other.path != submodule.path]
        draft = seed / f".{_SUBMODULES}"
        entries = [asdict(entry) for entry in sorted((*others, submodule), key=lambda entry: entry.path)]
        await uninterrupted(asyncio.to_thread(draft.write_text, json.dumps(entries)))
        draft.rename(seed / _SUBMODULES)
        return files_bytes


def packed_refs(seed: Path) -> bytes:
    """A seed's packed-refs file with its tags; empty without tags. Blocking."""
    try:
        return (seed / _TAGS).read_bytes()
    except FileNotFoundError:
        return b""


def submodules_of(seed: Path) -> list[Submodule]:
    """The recorded submodules of a seed's commit, by path. Blocking."""
    try:
        entries = json.loads((seed / _SUBMODULES).read_text())
    except FileNotFoundError:
        return []
    return [Submodule(**entry) for entry in entries]


def _share(seed: Path, draft: Path) -> None:
    """Share a seed's packs, tags and submodules with a new one; either can be removed without the other."""
    for name in (_TAGS, _SUBMODULES):
        with suppress(FileNotFoundError):
            shutil.copyfile(seed / name, draft / name)
    for pack in (seed / "objects/pack").iterdir():
        shared = draft / "objects/pack" / pack.name
        try:
            shared.hardlink_to(pack)
        except OSError:
            shutil.copyfile(pack, shared)  # a file system without links


def history_of(seed: Path) -> GitHistory:
    """A seed as the source of objects for clones. Blocking."""
    return stored_history(seed, seed.name)


_MAX_SUBMODULES = 100
_DEEPEST = 3
Fetch = Callable[[Remote, str], Awaitable[GitHistory]]
"""Fetches a commit of a remote repository; raises FleetError."""
Holds = Callable[[Iterable[Path], str], Awaitable[bool]]
"""See `LocalRepositories.holds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pinned:
    """A submodule in a commit: its path, name, pinned commit and URL."""

    path: str
    name: str
    commit: str
    url: str


@dataclass(frozen=True, kw_only=True)
class Submodules:
    """Adds the files of submodules to seeds. A submodule that cannot be fetched is recorded with the reason."""

    git: Git
    policy: LocationPolicy
    seeds: Seeds
    holds: Holds

    async def provide(self, seed: Path, *, location: str, stores: Path | None, tenant: str, fetch: Fetch) -> None:
        """Add all submodules of a seed's commit, nested ones included.

        A local repository's own stores are tried first. The URLs come from the repository, so a path or a file URL is
        never followed, even if callers may name paths.

        Args:
            location: The URL of the repository, the base of relative URLs; empty if it has none.
            stores: The `modules` directory of a local repository.
        """
        pending = [("", seed.name, GitLayout(git_dir=seed), location, stores, 0)]
        count = 0
        room = self.git.max_disk_bytes
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
                    store = stores / pinned.name if stores and (stores / pinned.name).is_dir() else None
                    history = await self._history(url, pinned, store, fetch, tenant=tenant)
                    inner = GitLayout(git_dir=seed, alternates=(history.objects,))
                    tree = (await self.git.run("rev-parse", f"{pinned.commit}^{{tree}}", layout=inner)).text()
                    submodule = Submodule(path=path, commit=pinned.commit, tree=tree)
                    room -= await self.seeds.add_submodule(seed, submodule, history, most_bytes=max(0, room))
                except FleetError as error:
                    await self._missing(seed, path, pinned, f"{pinned.url}: {error.message}")
                    continue
                below = None if store is None else store / "modules"
                pending.append((f"{path}/", pinned.commit, inner, url, below, depth + 1))

    async def _missing(self, seed: Path, path: str, pinned: _Pinned, reason: str) -> None:
        missing = Submodule(path=path, commit=pinned.commit, reason=reason[:300])
        await self.seeds.add_submodule(seed, missing, None)

    async def _history(self, url: str, pinned: _Pinned, store: Path | None, fetch: Fetch, *, tenant: str) -> GitHistory:
        if store is not None and await self.holds((store, store / "objects"), tenant):
            answer = await self.git.run(
                "cat-file", "-e", f"{pinned.commit}^{{commit}}", layout=GitLayout(git_dir=store), expect=(0, 1, 128)
            )
            if answer.code == 0:
                return GitHistory(objects=store / "objects", object_format=format_of(pinned.commit))
        remote = self.policy.parse(url) if "://" in url or "@" in url else None
        if not isinstance(remote, Remote) or remote.upload:
            raise InvalidRequest("only URLs of remote repositories are followed")
        return await fetch(remote, pinned.commit)

    async def _pinned(self, layout: GitLayout, commit: str) -> list[_Pinned]:
        """The submodules that a commit pins, with the names and URLs in its .gitmodules."""
        listed = await self.git.run("ls-tree", "-r", "-z", "--full-tree", commit, layout=layout)
        links: dict[str, str] = {}
        for entry in filter(None, os.fsdecode(listed.stdout).split("\0")):
            facts, path = entry.split("\t", 1)
            if facts.startswith("160000 "):
                links[path] = facts.split()[2]
        if not links:
            return []
        # Read from the blob, without includes, so that no other file is read.
        config = await self.git.run(
            *("config", "--blob", f"{commit}:.gitmodules", "-z", "--get-regexp", r"^submodule\..*\.(path|url)$"),
            layout=layout,
            expect=(0, 1, 128),
        )
        values: dict[str, dict[str, str]] = {}
        for entry in filter(None, os.fsdecode(config.stdout).split("\0")):
            key, _, value = entry.partition("\n")
            name, _, option = key.removeprefix("submodule.").rpartition(".")
            values.setdefault(name, {})[option] = value
        by_path = {value.get("path", ""): (name, value.get("url", "")) for name, value in values.items()}
        gitlinks: list[_Pinned] = []
        for path, linked in sorted(links.items()):
            name, url = by_path.get(path, ("", ""))
            is_safe = name and ".." not in name.split("/") and not name.startswith("/")
            gitlinks.append(_Pinned(path=path, name=name if is_safe else "_", commit=linked, url=url))
        return gitlinks


def _absolute(url: str, base: str) -> str:
    """A submodule's URL; a relative one is joined to its repository's. Raises PreconditionFailed."""
    if not url:
        raise PreconditionFailed(".gitmodules does not say where it is")
    if not url.startswith(("./", "../")):
        return url
    if not base:
        raise PreconditionFailed("its URL is relative, and the repository has none")
    if "://" not in base:
        # The scp form host:path
        host, _, path = base.partition(":")
        return f"{host}:{posixpath.normpath(posixpath.join(path, url))}"
    joined = urljoin(base.rstrip("/") + "/", url)
    return joined if urlsplit(joined).netloc == urlsplit(base).netloc else url
