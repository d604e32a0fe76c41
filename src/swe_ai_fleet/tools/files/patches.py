"""Unified diffs, plain or git's: parsed strictly, and applied exactly, at most MAX_OFFSET lines from their position."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as ParsedHunk
from unidiff.patch import PatchedFile, PatchSet

from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files.paths import MAX_PATH_BYTES, is_git_directory, quoted
from swe_ai_fleet.tools.files.text import split_lines

MAX_OFFSET = 200
"""The maximum distance, in lines, at which a hunk may apply."""

MAX_CHARS = 1024 * 1024

_NOWHERE = "/dev/null"
_MODES = {"100644": False, "100755": True}
_REFUSED_MODES = {"120000": "a symbolic link", "160000": "a submodule", "040000": "a directory"}
_PREFIXES = (("a/", "b/"), ("i/", "w/"), ("c/", "i/"), ("c/", "w/"), ("o/", "w/"), ("1/", "2/"))
_MODE_LINE = re.compile(r"(?:old mode|new mode|new file mode|deleted file mode|index [0-9a-f]+\.\.[0-9a-f]+) (\d+)\s*$")
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")
_ESCAPE = re.compile(rb'\\([0-7]{3}|[abfnrtv"\\])')
_ESCAPES = dict(zip(b'abfnrtv"\\', b'\a\b\f\n\r\t\v"\\', strict=True))
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class EditHunk:
    """The lines (with their line ends) at `start` (from 0), before and after the patch."""

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    added: int
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEdit:
    """The changes of a patch to one file.

    `source` is None for a new file, `target` None for a deleted one; they differ for a renamed or (`copy`) copied file.
    `executable` is None if the patch does not change the mode.
    """

    source: str | None
    target: str | None
    hunks: tuple[EditHunk, ...]
    executable: bool | None = None
    copy: bool = False

    @property
    def added(self) -> int:
        return sum(hunk.added for hunk in self.hunks)

    @property
    def removed(self) -> int:
        return sum(hunk.removed for hunk in self.hunks)


def parse_patch(text: str) -> tuple[FileEdit, ...]:
    """The files of a patch, in its order.

    Raises:
        ToolFailure: A part of it cannot be parsed, or it is binary.
        ToolRefusal: It names a path outside or in `.git`, a link, or a submodule.
    """
    if len(text) > MAX_CHARS:
        raise ToolFailure(f"the patch has {len(text)} characters; at most {MAX_CHARS} are applied at once")
    lines = split_lines(text)
    for line in lines:
        if line.startswith(("GIT binary patch", "Binary file")):
            raise ToolFailure("binary patches are not applied; write such a file with a command")
        # The parser's regular expressions take cubic time on such a line.
        if line.startswith("diff --git ") and ("://" in line or len(line) > 2 * MAX_PATH_BYTES + 20):
            raise ToolFailure(f"the patch has a line that names no files: {line[:100]!r}")
    if lines and all(line.endswith("\r\n") for line in lines if line.endswith("\n")):
        lines = [line.replace("\r\n", "\n") for line in lines]
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    try:
        parsed = PatchSet(lines)
    except UnidiffParseError as error:
        reason = str(error).strip()[:300]
        raise ToolFailure(
            f"the patch can't be read: {reason}. "
            "The numbers of an '@@ -start,count +start,count @@' line must fit the lines below it"
        ) from None
    _refuse_leftovers(lines, parsed)
    files = tuple(_file(file) for file in parsed)
    if not files:
        raise ToolFailure("the patch names no file: each begins with '--- a/path' and '+++ b/path'")
    return files


def apply_hunks(content: str, hunks: Sequence[EditHunk]) -> tuple[str, tuple[int, ...]]:
    """The content with the hunks applied, and the offset of each from its stated position, in lines.

    Raises:
        ToolFailure: The lines of a hunk are neither at its position nor at exactly one position near it.
    """
    lines = split_lines(content)
    result: list[str] = []
    done = offset = 0
    offsets: list[int] = []
    for number, hunk in enumerate(hunks, start=1):
        at = _position(lines, hunk, hunk.start + offset, done, number)
        offset = at - hunk.start
        offsets.append(offset)
        result += lines[done:at]
        result += hunk.new
        done = at + len(hunk.old)
    result += lines[done:]
    for line in result[:-1]:
        if not line.endswith("\n"):
            raise ToolFailure("the patch adds lines behind a last line without an end; change that line too")
    return "".join(result), tuple(offsets)


def _position(lines: list[str], hunk: EditHunk, expected: int, first: int, number: int) -> int:
    old = list(hunk.old)
    last = len(lines) - len(old)
    if first <= expected <= last and lines[expected : expected + len(old)] == old:
        return expected
    if not old:
        raise ToolFailure(f"hunk {number} inserts at line {expected + 1}, but the file has {len(lines)} lines")
    low, high = max(first, expected - MAX_OFFSET), min(last, expected + MAX_OFFSET)
    exact = [at for at in range(low, high + 1) if lines[at] == old[0] and lines[at : at + len(old)] == old]
    if len(exact) == 1:
        return exact[0]
    if exact:
        places = ", ".join(str(at + 1) for at in exact[:10])
        raise ToolFailure(
            f"hunk {number} does not stand at line {expected + 1} but at lines {places}; give it more context"
        )
    raise ToolFailure(f"hunk {number} does not fit: {_misfit(lines, old, max(expected, 0))}")


def _misfit(lines: list[str], old: list[str], expected: int) -> str:
    for number, line in enumerate(old, start=expected):
        if number >= len(lines):
            return f"the patch has {line[:200]!r} at line {number + 1}, but the file ends at line {len(lines)}"
        if lines[number] != line:
            return f"line {number + 1} is {lines[number][:200]!r}, the patch has {line[:200]!r}. Read the file again"
    return "its lines overlap those of the hunk before it"


def _refuse_leftovers(lines: list[str], parsed: PatchSet) -> None:
    """Raise ToolFailure for lines that look like a part of a hunk but that the parser skipped."""
    parsed_lines = {line.diff_line_no for file in parsed for hunk in file for line in hunk if line.diff_line_no}
    first = min(parsed_lines, default=len(lines) + 1)
    for number, line in enumerate(lines, start=1):
        if number in parsed_lines or line.startswith(("--- ", "+++ ")) or line.rstrip() == "--":
            continue
        if line.startswith("@@") and not _HUNK.match(line):
            raise ToolFailure(
                f"line {number} of the patch is not a hunk header: {line.rstrip()[:100]!r}; "
                "write '@@ -start,count +start,count @@'"
            )
        if number > first and line[0] in "+- ":
            raise ToolFailure(
                f"line {number} of the patch belongs to no hunk: {line.rstrip()[:100]!r}; the counts in the '@@' line "
                "above are too small"
            )


def _file(file: PatchedFile) -> FileEdit:
    information = [str(line).rstrip("\r\n") for line in file.patch_info or ()]
    headers = {key: line[len(key) :] for line in information for key in _RENAMES if line.startswith(key)}
    source, target = _name(file.source_file), _name(file.target_file)
    source, target = _without_prefixes(source, target)
    copy = "copy to " in headers
    renamed = copy or "rename to " in headers
    if renamed:
        source = _name(headers.get("copy from ") or headers.get("rename from ", ""))
        target = _name(headers.get("copy to ") or headers.get("rename to ", ""))
    for line in information:
        mode = _MODE_LINE.match(line)
        if mode and mode[1] not in _MODES:
            kind = _REFUSED_MODES.get(mode[1], "no ordinary file")
            raise ToolRefusal(f"{quoted(target or source or '')}: mode {mode[1]} is {kind}; patches change only files")
    if source is None and target is None:
        raise ToolFailure("the patch has a file that is /dev/null before and after")
    for path in (source, target):
        if path is not None:
            _check(path)
    if not renamed and source is not None and target is not None:
        source = target  # `diff -u x.orig x` changes x
    mode = str(file.target_mode) if file.target_mode is not None and target is not None else ""
    changed = source is None or any(line.startswith("new mode ") for line in information)
    return FileEdit(
        source=source,
        target=target,
        hunks=tuple(_hunk(hunk) for hunk in file),
        executable=_MODES.get(mode) if changed else None,
        copy=copy,
    )


_RENAMES = ("rename from ", "rename to ", "copy from ", "copy to ")


def _hunk(hunk: ParsedHunk) -> EditHunk:
    old, new = list[str](), list[str]()
    last: tuple[list[str], ...] = ()
    for line in hunk:
        match line.line_type:
            case " ":
                last = (old, new)
            case "-":
                last = (old,)
            case "+":
                last = (new,)
            case "\\":
                for side in last:
                    side[-1] = side[-1].removesuffix("\n")
                continue
            case _:  # an empty line after this hunk
                continue
        for side in last:
            side.append(str(line.value))
    # The header of a hunk without old lines names the line before it, any other header its own first line.
    start = hunk.source_start - 1 if hunk.source_length else hunk.source_start
    return EditHunk(start=max(start, 0), old=tuple(old), new=tuple(new), added=hunk.added, removed=hunk.removed)


def _name(text: str | None) -> str | None:
    """The unquoted file name, None for /dev/null; git quotes names with special characters as C does."""
    if text is None or text == _NOWHERE:
        return None
    if len(text) < 2 or not (text.startswith('"') and text.endswith('"')):
        return text.rstrip()
    raw = _ESCAPE.sub(_unescaped, os.fsencode(text[1:-1]))
    return os.fsdecode(raw)


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else bytes([_ESCAPES[code[0]]])


def _without_prefixes(source: str | None, target: str | None) -> tuple[str | None, str | None]:
    for old, new in _PREFIXES:
        if (source is None or source.startswith(old)) and (target is None or target.startswith(new)):
            return source and source[len(old) :], target and target[len(new) :]
    return source, target


def _check(path: str) -> None:
    """Refuse, before any access to files, names that no valid patch has."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        raise ToolRefusal(f"{quoted(path)} leads outside the workspace; name files relative to its root")
    if any(is_git_directory(part) for part in parts):
        raise ToolRefusal(f"{quoted(path)} lies in .git, which only the git tool may touch")
    if not parts[-1] or any(part in ("", ".") for part in parts) or _CONTROL.search(path):
        raise ToolFailure(f"{quoted(path)} is not a file name that a patch may hold")
