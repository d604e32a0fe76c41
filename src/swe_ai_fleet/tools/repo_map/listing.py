"""Lists the source files of a tree with digests of their content, and reads them.

Git lists the files and knows which ones have not changed since it last hashed them; without a repository the directory
is walked. Digests are those of git's blob objects in both cases.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from .languages import language_of

MAX_FILES = 20_000
MAX_FILE_BYTES = 512 * 1024
_MAX_DEPTH = 40
_GIT_SECONDS = 60
_GIT = (
    "git", "--no-pager", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.quotePath=false",
    "-c", "safe.directory=*", "ls-files", "-z",
)  # fmt: skip
_VARIABLES = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_LITERAL_PATHSPECS": "1", "LC_ALL": "C.UTF-8"}
# Directories of installed or built files, skipped if there is no .gitignore.
_SKIPPED = frozenset({"__pycache__", "build", "dist", "node_modules", "site-packages", "target", "venv", "vendor"})
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file in a parsed language. `digest` is empty until the file was hashed."""

    path: str
    language: str
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Files in the order of their paths, and the number of those left out: over the limits, or unreadable."""

    files: tuple[SourceFile, ...]
    left_out: int


class Reader:
    """Reads regular files below a directory, without following links in any part of a path.

    A context manager: it keeps the last directory open.
    """

    def __init__(self, root: str) -> None:
        self._handles = [os.open(root, _DIRECTORY & ~os.O_NOFOLLOW)]
        self._names: list[str] = []

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        while self._handles:
            os.close(self._handles.pop())

    def read(self, path: str) -> bytes | None:
        """The content; None if the file is missing, not a regular one, or larger than MAX_FILE_BYTES."""
        *parents, name = path.split("/")
        if not name or any(part in ("", ".", "..") for part in (*parents, name)):
            return None
        try:
            self._enter(parents)
            handle = os.open(name, _FILE, dir_fd=self._handles[-1])
        except (OSError, ValueError):
            return None
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
                return None
            data = b""
            while chunk := os.read(handle, MAX_FILE_BYTES + 1 - len(data)):
                data += chunk
        except OSError:
            return None
        finally:
            os.close(handle)
        return data if len(data) <= MAX_FILE_BYTES else None

    def _enter(self, names: list[str]) -> None:
        same = 0
        while same < min(len(names), len(self._names)) and names[same] == self._names[same]:
            same += 1
        while len(self._names) > same:
            os.close(self._handles.pop())
            self._names.pop()
        for name in names[same:]:
            self._handles.append(os.open(name, _DIRECTORY, dir_fd=self._handles[-1]))
            self._names.append(name)


def list_sources(root: str, scope: str) -> Listing:
    """The source files below `scope`, a path relative to `root` ('.' for all)."""
    tracked = _git(root, scope, "--stage")
    if tracked is None:
        paths = dict.fromkeys(_walk(root, scope), "")
    else:
        paths = dict(_entries(tracked))
        changed = _git(root, scope, "--modified", "--others", "--exclude-standard") or b""
        paths |= dict.fromkeys(_decoded(changed), "")
    files = [SourceFile(path=path, language=language_of(path), digest=digest) for path, digest in paths.items()]
    files = sorted((file for file in files if file.language), key=lambda file: file.path)
    listing = Listing(files=tuple(files[:MAX_FILES]), left_out=max(0, len(files) - MAX_FILES))
    return _with_digests(root, listing)


def blob_digest(data: bytes, like: str = "") -> str:
    """The name of git's object for a file's content, with the hash function of `like` (or SHA-1)."""
    # Not a security measure: a forged collision would only mislead the maps of the forger's own workspace.
    digest = hashlib.sha256() if len(like) == 64 else hashlib.sha1(usedforsecurity=False)
    digest.update(b"blob %d\0" % len(data))
    digest.update(data)
    return digest.hexdigest()


def _with_digests(root: str, listing: Listing) -> Listing:
    """The listing with digests for files that git has not hashed, without unreadable files."""
    files, left_out = list[SourceFile](), listing.left_out
    with Reader(root) as reader:
        for file in listing.files:
            if not file.digest:
                data = reader.read(file.path)
                if data is None:
                    left_out += os.path.lexists(os.path.join(root, file.path))  # noqa: PTH118
                    continue
                file = replace(file, digest=blob_digest(data))
            files.append(file)
    return Listing(files=tuple(files), left_out=left_out)


def _git(root: str, scope: str, *options: str) -> bytes | None:
    """Git's output; None if there is no repository or no git, or git fails."""
    try:
        done = subprocess.run(
            [*_GIT, *options, "--", scope],
            cwd=root,
            env={**os.environ, **_VARIABLES},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _entries(staged: bytes) -> Iterator[tuple[str, str]]:
    """(path, digest) of the regular files of the index: `mode digest stage<TAB>path`."""
    for record in staged.split(b"\0"):
        head, tab, name = record.partition(b"\t")
        fields = head.split(b" ")
        if tab and len(fields) == 3 and fields[0].startswith(b"100"):
            for path in _decoded(name):
                yield path, fields[1].decode("ascii", "replace") if fields[2] == b"0" else ""


def _decoded(names: bytes) -> Iterator[str]:
    for name in names.split(b"\0"):
        # A name that is not UTF-8 cannot be read by path either.
        with suppress(UnicodeDecodeError):
            if name:
                yield name.decode()


def _walk(root: str, scope: str) -> Iterator[str]:
    start = os.path.normpath(os.path.join(root, scope))  # noqa: PTH118
    if os.path.isfile(start):  # noqa: PTH113
        yield scope
        return
    entries = 0
    for directory, names, files in os.walk(start):
        below = os.path.relpath(directory, root)
        depth = below.count("/")
        names[:] = sorted(
            name for name in names if name not in _SKIPPED and not name.startswith(".") and depth < _MAX_DEPTH
        )
        for name in sorted(files):
            path = name if below == "." else f"{below}/{name}"
            if language_of(path):
                entries += 1
                if entries > MAX_FILES + 1:
                    return
                yield path
