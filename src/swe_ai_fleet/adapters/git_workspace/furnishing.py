"""What is kept of a build: its facts, and what it leaves in its checkout, which is put into every clone.

Generated files are copied; packages of Node become directories of links into the environment, which stays read-only.
What a build left is a stranger's: links are kept as links and never followed.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from swe_ai_fleet import codec
from swe_ai_fleet.adapters.git_workspace.directories import DIRECTORY, NEW_FILE, clear_name, open_directory
from swe_ai_fleet.adapters.git_workspace.git import Git, GitLayout
from swe_ai_fleet.adapters.git_workspace.staging import run_on_tree
from swe_ai_fleet.domain.environment import EnvironmentReport
from swe_ai_fleet.domain.errors import ResourceExhausted

KEPT = "kept"
NODE = "node"
MAX_FILES = 20_000
MAX_BYTES = 256 * 1024 * 1024
_MODULES = "node_modules"
# What tools write to find things faster the next time, and what they have built on the way to something else.
_CACHES = (
    *("__pycache__", "*.pyc", ".pytest_cache", ".ruff_cache", ".mypy_cache", ".hypothesis", ".tox", ".nox"),
    *("node_modules", "/build/temp.*", "/build/bdist.*", "/build/lib*", ".eggs", "/.yarn/cache", "/.yarn/unplugged"),
    *(".pnpm-store", "/target/debug", "/target/release", ".coverage", ".git"),
)
_FACTS = "facts.json"
_FURNISHING = "furnishing.json"
_NPM_LOCK = "npm-lock.json"
# Vitest's type checker keeps its state beside its own code, which is read-only.
_VITEST, _VITEST_CACHE = f"{_MODULES}/vitest/dist", "tsconfig.tmp.tsbuildinfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Furnishing:
    """What clones get of an environment.

    `kept` are the paths of files, relative to the checkout; those in `shown` are no repository's ignored ones, so that
    clones must hide them from their diffs. `modules` are the entries of each `node_modules` by the path of that
    directory: names (`@scope/name` too) and where each link leads.
    """

    kept: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    modules: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict[str, tuple[tuple[str, str], ...]])

    def __bool__(self) -> bool:
        return bool(self.kept or self.modules)

    @property
    def excludes(self) -> tuple[str, ...]:
        """Lines for `info/exclude` that hide what would show up as a change."""
        return tuple(f"/{_escaped(path)}" for path in self.shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The furnishing that a build left, and in words what of it was too much to keep."""

    furnishing: Furnishing
    too_much: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is kept of a build, beside its files.

    `tree` is set where the build left files that may depend on anything: they belong to that content only. `code` is
    set where something of the content that it was made from may have run: then it is for what stands on that content
    only. `retry_at` is set where nothing could be installed: from that moment on (seconds since the epoch) it is built
    once more.
    """

    report: EnvironmentReport
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    path: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    python: tuple[int, int] | None = None
    tree: str = ""
    code: str = ""
    retry_at: float = 0.0


def read_facts(directory: Path) -> Facts | None:
    """What was kept of a complete build in a directory, None where there is none. Blocking."""
    try:
        text = (directory / _FACTS).read_bytes()
        os.utime(directory)
    except FileNotFoundError:
        return None
    return codec.from_json(Facts, text)


def is_complete(directory: Path) -> bool:
    """Whether the build in a directory came to its end. Blocking."""
    return (directory / _FACTS).exists()


def write_facts(directory: Path, facts: Facts, furnishing: Furnishing, *, npm_lock: str = "") -> None:
    """Complete a build. Blocking."""
    if npm_lock:
        (directory / _NPM_LOCK).write_text(npm_lock, encoding="utf-8")
    if furnishing:
        (directory / _FURNISHING).write_bytes(codec.to_json(furnishing))
    draft = directory / f".{_FACTS}"
    draft.write_bytes(codec.to_json(facts))
    draft.rename(directory / _FACTS)


def read_npm_lock(directory: Path) -> str:
    """What npm installed in a build, as a package-lock.json; empty where it did nothing. Blocking."""
    try:
        return (directory / _NPM_LOCK).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def read_furnishing(directory: Path) -> Furnishing:
    """What the clones of a build are furnished with. Blocking."""
    try:
        return codec.from_json(Furnishing, (directory / _FURNISHING).read_bytes())
    except FileNotFoundError:
        return Furnishing()


async def collect(git: Git, layout: GitLayout, root: Path, *, mount: str, base: str) -> Collected:
    """Move what a build left from its checkout, the layout's work tree, below `root`; the build has ended.

    Args:
        git: Ours.
        layout: Of the checkout, with an index of its commit.
        root: The environment's directory on this host.
        mount: Where commands see every checkout; empty where each lies somewhere else.
        base: Where commands see `root`.
    """
    tree = layout.work_tree
    if tree is None:
        return Collected(furnishing=Furnishing())
    for name in (KEPT, NODE):
        # The build could write there: a link of that name would lead what we keep to anywhere.
        clear_name(root / name)
    tracked = await git.run("ls-files", "-z", layout=layout)
    modules = _move_modules(tree, root, _directories(tracked.stdout), mount=mount, base=base)
    caches = [f"--exclude={pattern}" for pattern in _CACHES]
    try:
        others = ("ls-files", "--others", "-z", *caches)
        everything = await run_on_tree(git, *others, layout=layout, tree=tree)
        visible = await run_on_tree(git, *others, "--exclude-standard", layout=layout, tree=tree)
    except ResourceExhausted:
        return Collected(furnishing=Furnishing(modules=modules), too_much=("what the build left: too many files",))
    paths = _paths(everything.stdout)
    kept, too_much = _keep(tree, root / KEPT, paths)
    shown = sorted(_paths(visible.stdout) & set(kept))
    return Collected(
        furnishing=Furnishing(kept=tuple(kept), shown=tuple(shown), modules=modules), too_much=tuple(too_much)
    )


def furnish(tree: Path, root: Path, furnishing: Furnishing) -> None:
    """Put an environment's furnishing into a fresh checkout, in which nothing has run. Blocking.

    What the commit itself has at a place stays.
    """
    top = os.open(tree, DIRECTORY)
    try:
        for path in furnishing.kept:
            _copy(root / KEPT / path, top, path)
        for place, entries in furnishing.modules.items():
            _link(top, place, entries)
    finally:
        os.close(top)


def remove(tree: Path, paths: Iterable[str]) -> None:
    """Take kept files out of a checkout in which nothing has run, so that a patch may bring its own. Blocking."""
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            (tree / path).unlink()


def _paths(listing: bytes) -> set[str]:
    """The files of a listing; a repository inside the tree is listed as a directory, and left out."""
    return {text for name in listing.split(b"\0") if name and not (text := os.fsdecode(name)).endswith("/")}


def _directories(listing: bytes) -> frozenset[str]:
    """The `node_modules` that a commit itself has files in."""
    directories: set[str] = set()
    for name in filter(None, listing.split(b"\0")):
        path = os.fsdecode(name)
        if f"{_MODULES}/" in path:
            directories.add(path[: path.index(f"{_MODULES}/") + len(_MODULES)])
    return frozenset(directories)


def _keep(tree: Path, target: Path, paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """(the paths that were moved to `target`, what was too much in words); small groups of files first."""
    groups: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path in paths:
        try:
            status = (tree / path).lstat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            groups[path.split("/")[0]].append((path, status.st_size))
    kept: list[str] = []
    too_much: list[str] = []
    size = 0
    for name, group in sorted(groups.items(), key=lambda item: sum(size for _, size in item[1])):
        total = sum(each for _, each in group)
        if len(kept) + len(group) > MAX_FILES or size + total > MAX_BYTES:
            too_much.append(f"{name}: {len(group)} files with {total // 1024**2} MiB that the build left")
            continue
        size += total
        for path, _ in group:
            place = target / path
            place.parent.mkdir(parents=True, exist_ok=True)
            (tree / path).rename(place)
            kept.append(path)
    return sorted(kept), too_much


def _move_modules(
    tree: Path, root: Path, tracked: frozenset[str], *, mount: str, base: str
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Move every `node_modules` of a checkout below `root`, links between packages of a workspace made to fit there."""
    modules: dict[str, tuple[tuple[str, str], ...]] = {}
    for place in list(_find_modules(tree)):
        relative = place.relative_to(tree).as_posix()
        if relative in tracked or len(modules) >= MAX_FILES:
            continue
        target = root / NODE / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        place.rename(target)
        members = _redirect(target, relative, mount)
        modules[relative] = tuple(
            (name, members.get(f"{relative}/{name}") or f"{base}/{NODE}/{relative}/{name}")
            for name in _entries(target, relative, members)
        )
    return modules


def _find_modules(tree: Path) -> Iterator[Path]:
    """The outermost `node_modules` directories, links left alone."""
    pending = [tree]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.name == ".git" or not entry.is_dir(follow_symlinks=False):
                    continue
                if entry.name == _MODULES:
                    yield Path(entry.path)
                else:
                    pending.append(Path(entry.path))


def _entries(modules: Path, relative: str, members: Mapping[str, str]) -> Iterator[str]:
    """The names in a `node_modules`; a scope's packages one by one where some are the workspace's own."""
    own = {path.rpartition("/")[0] for path in members}
    for entry in sorted(modules.iterdir()):
        if f"{relative}/{entry.name}" in own:
            yield from (f"{entry.name}/{inner.name}" for inner in sorted(entry.iterdir()))
        elif entry.name != ".cache":
            yield entry.name


def _redirect(modules: Path, relative: str, mount: str) -> dict[str, str]:
    """Where links to packages of the workspace lead in a clone, by their path.

    In the environment they are made to lead into whatever checkout the commands see at `mount`.
    """
    targets: dict[str, str] = {}
    for folder, directories, files in os.walk(modules):
        inner = posixpath.join(relative, Path(folder).relative_to(modules).as_posix())
        if mount and inner.endswith(_VITEST) and _VITEST_CACHE not in files:
            Path(folder, _VITEST_CACHE).symlink_to(f"/tmp/{_VITEST_CACHE}")  # noqa: S108 - of the sandbox
        for name in (*directories, *files):
            link = Path(folder, name)
            if not link.is_symlink():
                continue
            path = posixpath.normpath(posixpath.join(inner, name))
            target = str(link.readlink())
            member = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            if target.startswith("/") or member.startswith("..") or _MODULES in member.split("/"):
                continue
            targets[path] = target
            if mount:
                link.unlink()
                link.symlink_to(f"{mount}/{member}" if member != "." else mount)
    return targets


def _copy(source: Path, top: int, path: str) -> None:
    try:
        status = source.lstat()
    except OSError:
        return
    *parents, name = path.split("/")
    directory = open_directory(top, parents, create=True)
    if directory is None:
        return
    try:
        if stat.S_ISLNK(status.st_mode):
            os.symlink(source.readlink(), name, dir_fd=directory)
            return
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as reading:
            created = os.open(name, NEW_FILE, stat.S_IMODE(status.st_mode) | 0o600, dir_fd=directory)
            with os.fdopen(created, "wb") as writing:
                shutil.copyfileobj(reading, writing, 1 << 20)
                # With its time: what was built from sources must not look older than it is.
                os.utime(created, ns=(status.st_atime_ns, status.st_mtime_ns))
    except OSError:
        return  # the commit has something there itself
    finally:
        os.close(directory)


def _link(top: int, place: str, entries: Sequence[tuple[str, str]]) -> None:
    *parents, name = place.split("/")
    outer = open_directory(top, parents, create=False)
    if outer is None:
        return
    modules = open_directory(outer, [name], create=True)
    os.close(outer)
    if modules is None:
        return
    scopes: dict[str, int] = {}
    try:
        for entry, target in entries:
            scope, slash, package = entry.partition("/")
            if not slash:
                with suppress(FileExistsError):
                    os.symlink(target, entry, dir_fd=modules)
                continue
            if scope not in scopes:
                opened = open_directory(modules, [scope], create=True)
                if opened is None:
                    continue
                scopes[scope] = opened
            with suppress(FileExistsError):
                os.symlink(target, package, dir_fd=scopes[scope])
    finally:
        for descriptor in (modules, *scopes.values()):
            os.close(descriptor)


def _escaped(path: str) -> str:
    """A path as a pattern that matches itself in git's exclude files."""
    special = path.replace("\\", "\\\\")
    for character in "*?[!# ":
        special = special.replace(character, f"\\{character}")
    return special.replace("\n", "?")
