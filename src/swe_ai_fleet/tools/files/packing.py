"""Packs a directory as a tar, without following links, and without the files that a `.dockerignore` excludes."""

from __future__ import annotations

import io
import os
import posixpath
import re
import stat
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.paths import is_git_directory, quoted

MAX_PATTERNS = 500
MAX_PATTERN_CHARS = 1_000
_ANY_DEPTH = "**"
MAX_DEPTH = 64
IGNORE_FILE = ".dockerignore"
# Python's patterns have no backslash escapes, and negate a class with `!` only.
_ESCAPES = re.compile(r"\\(.)|\[\^", re.DOTALL)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Ignore:
    """The patterns of a `.dockerignore`. The last one that matches a path or a directory above it decides."""

    def __init__(self, text: str = "") -> None:
        self._patterns = tuple(_parsed(text))
        if len(self._patterns) > MAX_PATTERNS:
            raise ToolFailure(f".dockerignore has more than {MAX_PATTERNS} patterns")
        self._negations = any(negated for _, negated in self._patterns)

    @property
    def nothing(self) -> tuple[bool, ...]:
        """The matches of the packed directory itself: none."""
        return (False,) * len(self._patterns)

    def matches(self, path: str, above: tuple[bool, ...]) -> tuple[bool, ...]:
        """The patterns that match a path, given those that match its directory."""
        parts = path.split("/")
        return tuple(
            inherited or _match(segments, parts) for (segments, _), inherited in zip(self._patterns, above, strict=True)
        )

    def excludes(self, matches: tuple[bool, ...]) -> bool:
        decisions = [not negated for (_, negated), matched in zip(self._patterns, matches, strict=True) if matched]
        return bool(decisions) and decisions[-1]

    def prunes(self, matches: tuple[bool, ...]) -> bool:
        """Whether a directory with these matches can be skipped with all that is in it."""
        return not self._negations and self.excludes(matches)


def _parsed(text: str) -> list[tuple[tuple[str, ...], bool]]:
    """The segments of each pattern, and whether it includes again (`!`)."""
    patterns: list[tuple[tuple[str, ...], bool]] = []
    for line in text.lstrip("\ufeff").splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        negated = line.startswith("!")
        glob = posixpath.normpath(line.removeprefix("!").strip().lstrip("/") or ".")
        if len(glob) > MAX_PATTERN_CHARS:
            raise ToolFailure(f".dockerignore has a pattern of more than {MAX_PATTERN_CHARS} characters")
        if glob != ".":
            patterns.append((tuple(glob.split("/")), negated))
    return patterns


def _match(segments: Sequence[str], parts: Sequence[str]) -> bool:
    """Match a path: the segment `**` stands for any number of directories, each other one for one."""
    segment = part = 0
    restart: tuple[int, int] | None = None
    while part < len(parts):
        if segment < len(segments) and segments[segment] == _ANY_DEPTH:
            restart = (segment, part)
            segment += 1
        elif segment < len(segments) and match_name(segments[segment], parts[part]):
            segment += 1
            part += 1
        elif restart is not None:
            restart = (restart[0], restart[1] + 1)
            segment, part = restart[0] + 1, restart[1]
        else:
            return False
    return all(rest == _ANY_DEPTH for rest in segments[segment:])


def match_name(glob: str, name: str) -> bool:
    """Whether a component of a path matches one of a pattern: `*`, `?`, `[a-z]`, or escaped by a backslash."""
    return fnmatchcase(name, _ESCAPES.sub(_as_python, glob))


def _as_python(match: re.Match[str]) -> str:
    character = match[1]
    return "[!" if character is None else f"[{character}]" if character in "*?[" else character


def pack(
    root: Path, directory: str, *, ignore: Ignore, extra: Mapping[str, bytes], max_bytes: int, max_files: int
) -> IO[bytes]:
    """A tar of a directory, in a temporary file at position 0.

    Links are packed as links and never followed; devices, pipes, sockets, `.git` and files that `ignore` excludes are
    left out. Owners, dates and set-user-id bits are not kept.

    Args:
        root: The workspace on this host.
        directory: The real path of the directory below it.
        ignore: The patterns of the directory's `.dockerignore`.
        extra: Further files for the top; they replace those of the same name.
        max_bytes: The most bytes of all files together.
        max_files: The most entries.

    Raises:
        ToolFailure: A limit is exceeded, or a file changed while it was read.
    """
    packing = tempfile.TemporaryFile()  # noqa: SIM115 (handed to the caller)
    try:
        with tarfile.open(fileobj=packing, mode="w", format=tarfile.GNU_FORMAT) as archive:
            packer = _Packer(archive, ignore, frozenset(extra), max_bytes, max_files)
            with ExitStack() as handles:
                packer.directory(_open_beneath(root, directory, handles), "", ignore.nothing, 0)
            for name, data in extra.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(data), 0o644
                archive.addfile(member, io.BytesIO(data))
        packing.seek(0)
    except OSError as error:
        packing.close()
        raise ToolFailure(f"the context can't be read: {error.strerror or error}") from error
    except BaseException:
        packing.close()
        raise
    return packing


def _open_beneath(root: Path, directory: str, handles: ExitStack) -> int:
    """Open a directory without following links, even if an agent replaces directories by links meanwhile."""
    handle = os.open(root, _DIRECTORY & ~os.O_NOFOLLOW)
    handles.callback(os.close, handle)
    for name in Path(directory).parts:
        handle = os.open(name, _DIRECTORY, dir_fd=handle)
        handles.callback(os.close, handle)
    return handle


class _Packer:
    def __init__(
        self, archive: tarfile.TarFile, ignore: Ignore, taken: frozenset[str], max_bytes: int, max_files: int
    ) -> None:
        self._archive = archive
        self._ignore = ignore
        self._taken = taken
        self._max_bytes, self._max_files = max_bytes, max_files
        self._bytes = self._files = 0

    def directory(self, handle: int, path: str, matches: tuple[bool, ...], depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ToolFailure(f"the context is more than {MAX_DEPTH} directories deep")
        for name in sorted(os.listdir(handle)):
            if is_git_directory(name):
                continue
            inside = f"{path}/{name}" if path else name
            ignore_state = self._ignore.matches(inside, matches)
            info = os.stat(name, dir_fd=handle, follow_symlinks=False)
            left_out = self._ignore.excludes(ignore_state) or inside in self._taken
            if stat.S_ISDIR(info.st_mode):
                if self._ignore.prunes(ignore_state):
                    continue
                if not left_out:
                    self._entry(inside, tarfile.DIRTYPE, info)
                below = os.open(name, _DIRECTORY, dir_fd=handle)
                try:
                    self.directory(below, inside, ignore_state, depth + 1)
                finally:
                    os.close(below)
            elif left_out:
                continue
            elif stat.S_ISLNK(info.st_mode):
                self._entry(inside, tarfile.SYMTYPE, info, target=os.readlink(name, dir_fd=handle))
            elif stat.S_ISREG(info.st_mode):
                self._file(handle, name, inside)

    def _file(self, directory: int, name: str, path: str) -> None:
        with open(os.open(name, _FILE, dir_fd=directory), "rb") as file:  # noqa: PTH123 (an open file)
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):  # it became something else since it was looked at
                return
            self._bytes += info.st_size
            if self._bytes > self._max_bytes:
                raise ToolFailure(
                    f"the context has more than {self._max_bytes // 1024 // 1024} MiB; "
                    f"name what the build does not need in {IGNORE_FILE}, or build a smaller directory"
                )
            try:
                self._entry(path, tarfile.REGTYPE, info, file=file)
            except OSError as error:
                raise ToolFailure(f"{quoted(path)} changed while it was read: {error}") from error

    def _entry(
        self, path: str, kind: bytes, info: os.stat_result, *, target: str = "", file: IO[bytes] | None = None
    ) -> None:
        self._files += 1
        if self._files > self._max_files:
            raise ToolFailure(
                f"the context has more than {self._max_files} entries; name what the build does not need in "
                f"{IGNORE_FILE}, or build a smaller directory"
            )
        member = tarfile.TarInfo(path)
        member.type, member.linkname, member.mode = kind, target, stat.S_IMODE(info.st_mode) & 0o777
        member.size = info.st_size if file is not None else 0
        self._archive.addfile(member, file)
