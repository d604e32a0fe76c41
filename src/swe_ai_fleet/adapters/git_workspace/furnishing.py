"""The stored results of a build: its facts, and the files it left in its checkout, which every clone gets.

Generated files are copied; packages of Node become directories of links into the environment, which stays read-only.
A build's files are untrusted: links are kept as links and never followed.
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
# Caches and intermediate files of tools.
_CACHES = (
    *("__pycache__", "*.pyc", ".pytest_cache", ".ruff_cache", ".mypy_cache", ".hypothesis", ".tox", ".nox"),
    *("node_modules", "/build/temp.*", "/build/bdist.*", "/build/lib*", ".eggs", "/.yarn/cache", "/.yarn/unplugged"),
    *(".pnpm-store", "/target/debug", "/target/release", ".coverage", ".git"),
)
_FACTS = "facts.json"
_FURNISHING = "furnishing.json"
_NPM_LOCK = "npm-lock.json"
# Vitest's type checker writes its state beside its own code, which is read-only here.
_VITEST, _VITEST_CACHE = f"{_MODULES}/vitest/dist", "tsconfig.tmp.tsbuildinfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Furnishing:
    """The files that clones get from an environment.

    `kept` are the paths of files, relative to the checkout; those in `shown` are not ignored by the repository, so that
    clones must hide them from their diffs. `modules` are the entries of each `node_modules` by the path of that
    directory: names (`@scope/name` too) and the links' targets.
    """

    kept: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    modules: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict[str, tuple[tuple[str, str], ...]])

    def __bool__(self) -> bool:
        return bool(self.kept or self.modules)

    @property
    def excludes(self) -> tuple[str, ...]:
        """Lines for `info/exclude` that hide files which would appear as changes."""
        return tuple(f"/{_escaped(path)}" for path in self.shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The furnishing from a build, and messages about files that were too many or too large."""

    furnishing: Furnishing
    too_much: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of a build that are stored beside its files.

    `tree` is set if the build left files that may depend on any file: then it is only for that content. `code` is set
    if code of the content it was built from may have run: then it is only for commits based on that content.
    `retry_at` is set if nothing could be installed: after that time (seconds since 1970) it is built again.
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
    """The facts of a complete build in a directory, None without one. Blocking."""
    try:
        text = (directory / _FACTS).read_bytes()
        os.utime(directory)
    except FileNotFoundError:
        return None
    return codec.from_json(Facts, text)


def is_complete(directory: Path) -> bool:
    """Whether the build in a directory is complete. Blocking."""
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
    """The packages that npm installed in a build, as a package-lock.json; empty without any. Blocking."""
    try:
        return (directory / _NPM_LOCK).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def read_furnishing(directory: Path) -> Furnishing:
    """The furnishing of a build's clones. Blocking."""
    try:
        return codec.from_json(Furnishing, (directory / _FURNISHING).read_bytes())
    except FileNotFoundError:
        return Furnishing()


async def collect(git: Git, layout: GitLayout, root: Path, *, mount: str, base: str) -> Collected:
    """Move the files of an ended build from its checkout, the layout's work tree, to `root`.

    Args:
        mount: The path of all checkouts in sandboxes; empty where each has its own path.
        base: The path of `root` in sandboxes.
    """
    tree = layout.work_tree
    if tree is None:
        return Collected(furnishing=Furnishing())
    for name in (KEPT, NODE):
        # The build could write there, and may have made a link of that name.
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
    """Put an environment's furnishing into a new checkout, in which nothing has run. Blocking.

    Files of the commit are not replaced.
    """
    top = os.open(tree, DIRECTORY)
    try:
        for path in furnishing.kept:
            _copy(root / KEPT / path, top, path)
        for directory, entries in furnishing.modules.items():
            _link(top, directory, entries)
    finally:
        os.close(top)


def remove(tree: Path, paths: Iterable[str]) -> None:
    """Remove furnishing from a checkout in which nothing has run, so that a patch can add its own files. Blocking."""
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            (tree / path).unlink()


def _paths(listing: bytes) -> set[str]:
    """The files in a listing; a repository inside the tree is listed as a directory and left out."""
    return {text for name in listing.split(b"\0") if name and not (text := os.fsdecode(name)).endswith("/")}


def _directories(listing: bytes) -> frozenset[str]:
    """The `node_modules` directories in which the commit has files."""
    directories: set[str] = set()
    for name in filter(None, listing.split(b"\0")):
        path = os.fsdecode(name)
        if f"{_MODULES}/" in path:
            directories.add(path[: path.index(f"{_MODULES}/") + len(_MODULES)])
    return frozenset(directories)


def _keep(tree: Path, target: Path, paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Move files to `target`, small groups first; returns (their paths, messages about groups that were too large)."""
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
            destination = target / path
            destination.parent.mkdir(parents=True, exist_ok=True)
            (tree / path).rename(destination)
            kept.append(path)
    return sorted(kept), too_much


def _move_modules(
    tree: Path, root: Path, tracked: frozenset[str], *, mount: str, base: str
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Move every `node_modules` of a checkout to `root`, and adjust links between packages of a workspace."""
    modules: dict[str, tuple[tuple[str, str], ...]] = {}
    for directory in list(_find_modules(tree)):
        relative = directory.relative_to(tree).as_posix()
        if relative in tracked or len(modules) >= MAX_FILES:
            continue
        target = root / NODE / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        directory.rename(target)
        members = _redirect(target, relative, mount)
        modules[relative] = tuple(
            (name, members.get(f"{relative}/{name}") or f"{base}/{NODE}/{relative}/{name}")
            for name in _entries(target, relative, members)
        )
    return modules


def _find_modules(tree: Path) -> Iterator[Path]:
    """The outermost `node_modules` directories; links are not followed."""
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
    """The names in a `node_modules`; a scope's packages one by one if some belong to the workspace."""
    own = {path.rpartition("/")[0] for path in members}
    for entry in sorted(modules.iterdir()):
        if f"{relative}/{entry.name}" in own:
            yield from (f"{entry.name}/{inner.name}" for inner in sorted(entry.iterdir()))
        elif entry.name != ".cache":
            yield entry.name


def _redirect(modules: Path, relative: str, mount: str) -> dict[str, str]:
    """The targets in a clone of links to packages of the workspace, by the links' paths.

    In the environment the links are changed to lead into the checkout at `mount`.
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
                # With its modification time, since built files must not look older than they are.
                os.utime(created, ns=(status.st_atime_ns, status.st_mtime_ns))
    except OSError:
        return  # the commit has a file of this name
    finally:
        os.close(directory)


def _link(top: int, directory: str, entries: Sequence[tuple[str, str]]) -> None:
    *parents, name = directory.split("/")
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
