"""A patch in git's own form, parsed strictly: anything that git might read differently is refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from swe_ai_fleet.domain.errors import FleetError

_HEADER = b"diff --git "
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: (.*))?\r?", re.S)
_BINARY_LINE = re.compile(rb"(?:literal|delta) \d{1,12}|[A-Za-z][!-~]{1,65}|")
_EXTENDED = re.compile(
    rb"(old mode|new mode|deleted file mode|new file mode|copy from|copy to|rename from|rename to|similarity index"
    rb"|dissimilarity index|index) (.+)",
    re.S,
)
# Git quotes all other bytes; unquoted, or with an unknown escape, git would read a different name.
_BARE = re.compile(rb'[^\x00-\x1f"\\\x7f]+')
_QUOTED = re.compile(rb'"((?:[^\x00-\x1f"\\\x7f]|\\(?:[abtnvfr"\\]|[0-3][0-7]{2}))+)"')
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
# Git cuts a name at its first NUL, and turns two slashes into one.
_NO_NAME = re.compile(rb"\x00|//|/$")
# The valid combinations of header lines; with repeated or contradictory lines git picks one by its own rules.
_HEADERS = tuple(
    frozenset(kinds)
    for kinds in (
        (b"new file mode",),
        (b"deleted file mode",),
        (b"old mode", b"new mode"),
        (b"old mode", b"new mode", b"rename from", b"rename to"),
        (b"old mode", b"new mode", b"copy from", b"copy to"),
    )
)
_MOVES = frozenset({b"rename from", b"rename to", b"copy from", b"copy to"})
_NEUTRAL = frozenset({b"index", b"similarity index", b"dissimilarity index"})
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}
_NOWHERE = b"/dev/null"


class PatchUnreadable(FleetError):
    """A patch is not in the form that `git diff` writes."""


@dataclass(frozen=True, slots=True)
class PatchLine:
    """A line of a hunk: its sign (blank, `+`, `-`), its text, its number (in the old file for a removed line)."""

    sign: str
    text: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """A hunk; `section` is git's text after the line numbers, usually the enclosing function."""

    new_start: int
    new_count: int
    section: str
    lines: tuple[PatchLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """A patch's change of one file. Modes are octal, empty where the patch has none.

    `moved_to` is set on the removal among the `sides`: the path of its text after the patch.
    """

    path: str
    old_path: str
    raw: bytes
    is_new: bool = False
    is_deleted: bool = False
    is_binary: bool = False
    mode: str = ""
    hunks: tuple[Hunk, ...] = ()
    moved_to: str = ""

    @property
    def sides(self) -> tuple[FilePatch, ...]:
        """A move or copy as a removal and an addition; any other change as itself."""
        if self.path == self.old_path:
            return (self,)
        removal = replace(self, path=self.old_path, is_deleted=True, moved_to=self.path)
        return removal, replace(self, old_path=self.path, is_new=True)

    def lines(self, signs: str) -> Iterator[PatchLine]:
        """The lines of these signs, in their order."""
        return (line for hunk in self.hunks for line in hunk.lines if line.sign in signs)

    def from_line(self, number: int) -> bytes:
        """The patch of the file from a line of the new file on; hunks with additions above it are left out."""
        header, *hunks = re.split(rb"^(?=@@ )", self.raw, flags=re.M)
        kept = [
            raw
            for raw, hunk in zip(hunks, self.hunks, strict=True)
            if all(line.number >= number for line in hunk.lines if line.sign == "+")
        ]
        return header + b"".join(kept) if kept else b""

    def before(self, after: str) -> str:
        """The file's text before the patch, given the text after it; lines end with line feeds."""
        lines, before, at = after.split("\n"), list[str](), 0
        for hunk in self.hunks:
            start = max(at, hunk.new_start - 1 if hunk.new_count else hunk.new_start)
            before += lines[at:start]
            before += (line.text for line in hunk.lines if line.sign in " -")
            at = start + hunk.new_count
        return "\n".join([*before, *lines[at:]])


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch by files."""

    files: tuple[FilePatch, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that exist after it."""
        return tuple(file.path for file in self.files if not file.is_deleted)

    def without(self, paths: Collection[str]) -> bytes:
        """The patch as bytes, without these files."""
        return b"".join(file.raw for file in self.files if not {file.path, file.old_path} & set(paths))


def parse_patch(data: bytes) -> Patch:
    """Read a patch. Raises PatchUnreadable for a line that is not valid in git's form."""
    reader = _Reader(data.split(b"\n"))
    files: list[FilePatch] = []
    while not reader.ended:
        files.append(reader.file())
    return Patch(tuple(files))


class _Reader:
    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._at = 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._lines) - 1 and not self._peek()

    def file(self) -> FilePatch:
        start, header = self._at, self._next()
        if not header.startswith(_HEADER):
            raise self._unreadable("expected a file header")
        facts: dict[bytes, bytes] = {}
        while match := _EXTENDED.fullmatch(self._peek()):
            if match[1] in facts:
                raise self._unreadable("a file header repeats a line")
            facts[match[1]] = match[2]
            self._at += 1
        if not any(facts.keys() - _NEUTRAL <= kinds for kinds in _HEADERS):
            raise self._unreadable("a file header contradicts itself")
        old = _unquoted(facts.get(b"rename from") or facts.get(b"copy from") or b"")
        new = _unquoted(facts.get(b"rename to") or facts.get(b"copy to") or b"")
        named = _header_names(header.removeprefix(_HEADER))
        if not facts.keys() & _MOVES:
            old = new = named[0] if named and named[0] == named[1] and not _NO_NAME.search(named[0]) else b""
        if not old or not new or named != (old, new):
            raise self._unreadable("the names in a file header differ")
        binary, hunks = False, list[Hunk]()
        following = self._peek()
        if following == b"GIT binary patch":
            binary = True
            self._at += 1
            while not self.ended and not self._peek().startswith(_HEADER):
                if not _BINARY_LINE.fullmatch(self._next()):
                    raise self._unreadable("expected binary content")
        elif following.startswith(b"Binary files ") and following.endswith(b" differ"):
            binary = True
            self._at += 1
        elif following.startswith(b"--- "):
            self._check_names(old, new, is_new=b"new file mode" in facts, is_deleted=b"deleted file mode" in facts)
            while self._peek().startswith(b"@@ "):
                hunks.append(self._hunk())
        return FilePatch(
            path=new.decode("utf-8", "backslashreplace"),
            old_path=old.decode("utf-8", "backslashreplace"),
            raw=b"\n".join(self._lines[start : self._at]) + b"\n",
            is_new=b"new file mode" in facts,
            is_deleted=b"deleted file mode" in facts,
            is_binary=binary,
            mode=(facts.get(b"new file mode") or facts.get(b"new mode") or b"").decode("ascii", "replace"),
            hunks=tuple(hunks),
        )

    def _check_names(self, old: bytes, new: bytes, *, is_new: bool, is_deleted: bool) -> None:
        for mark, prefix, name, absent in ((b"--- ", b"a/", old, is_new), (b"+++ ", b"b/", new, is_deleted)):
            line = self._next()
            path = _unquoted(line.removeprefix(mark).removesuffix(b"\t"))
            if not line.startswith(mark) or path != (_NOWHERE if absent else prefix + name):
                raise self._unreadable("the names of a file differ")

    def _hunk(self) -> Hunk:
        match = _HUNK.fullmatch(self._next())
        if match is None:
            raise self._unreadable("expected a hunk header")
        old_at, new_at = int(match[1]), int(match[3])
        new_start = new_at
        old_left, new_left = int(match[2] or 1), int(match[4] or 1)
        new_count, lines = new_left, list[PatchLine]()
        while old_left > 0 or new_left > 0:
            if self._at >= len(self._lines):
                raise self._unreadable("a hunk is truncated")
            raw = self._next()
            sign = chr(raw[0]) if raw else " "
            if sign == "\\":
                continue
            if sign not in " +-":
                raise self._unreadable("expected a line of a hunk")
            text = raw[1:].decode("utf-8", "replace")
            lines.append(PatchLine(sign, text, old_at if sign == "-" else new_at))
            old_at, old_left = old_at + (sign != "+"), old_left - (sign != "+")
            new_at, new_left = new_at + (sign != "-"), new_left - (sign != "-")
        if old_left or new_left:
            raise self._unreadable("a hunk is longer than its header says")
        if self._peek().startswith(b"\\ "):
            self._at += 1
        section = (match[5] or b"").decode("utf-8", "replace")
        return Hunk(new_start=new_start, new_count=new_count, section=section, lines=tuple(lines))

    def _peek(self) -> bytes:
        return self._lines[self._at] if self._at < len(self._lines) else b""

    def _next(self) -> bytes:
        line = self._peek()
        self._at += 1
        return line

    def _unreadable(self, why: str) -> PatchUnreadable:
        return PatchUnreadable(f"line {self._at} of the patch: {why}")


def _header_names(text: bytes) -> tuple[bytes, bytes] | None:
    """Old and new name in `a/x b/x`, without their prefixes; None where they cannot be separated."""
    if b'"' in text:
        names, rest = list[bytes](), text
        while rest and len(names) < 2:
            match = _QUOTED.match(rest)
            end = match.end() if match else (rest.find(b" ") if not names and b" " in rest else len(rest))
            names.append(_unquoted(rest[:end]))
            rest = rest[end:].removeprefix(b" ")
        pair = (names[0], names[1]) if len(names) == 2 and not rest else None
    else:
        pair = _split(text) if _BARE.fullmatch(text) else None
    if pair is None or not pair[0].startswith(b"a/") or not pair[1].startswith(b"b/"):
        return None
    return pair[0][2:], pair[1][2:]


def _split(text: bytes) -> tuple[bytes, bytes] | None:
    half = len(text) // 2
    if text[half : half + 1] == b" " and text[2:half] == text[half + 3 :]:
        return text[:half], text[half + 1 :]
    # Renamed: unambiguous as long as ` b/` occurs once.
    old, mark, new = text.partition(b" b/")
    return (old, b"b/" + new) if mark and b" b/" not in new else None


def _unquoted(name: bytes) -> bytes:
    """A name as git reads it; empty for text that git would not write as a name."""
    match = _QUOTED.fullmatch(name)
    read = _ESCAPE.sub(_character, match[1]) if match else name if _BARE.fullmatch(name) else b""
    return b"" if _NO_NAME.search(read) else read


def _character(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else _ESCAPES.get(code, code)
