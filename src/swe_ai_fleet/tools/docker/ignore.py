""".dockerignore: which paths of a context stay out of it. No pattern takes more than a product of the lengths."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from swe_ai_fleet.tools.failure import ToolFailure

MAX_PATTERNS = 500
MAX_PATTERN_CHARS = 1_000
_ANY_DEPTH = "**"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    segments: tuple[str, ...]
    negated: bool


class Ignore:
    """The patterns of one file. The last one that matches a path or a directory above it decides."""

    def __init__(self, text: str = "") -> None:
        self._patterns = tuple(_parsed(text))
        if len(self._patterns) > MAX_PATTERNS:
            raise ToolFailure(f".dockerignore has more than {MAX_PATTERNS} patterns")
        self._negations = any(pattern.negated for pattern in self._patterns)

    @property
    def nothing(self) -> tuple[bool, ...]:
        """The matches of the context's own directory: none."""
        return (False,) * len(self._patterns)

    def matches(self, path: str, above: tuple[bool, ...]) -> tuple[bool, ...]:
        """Which patterns match a path, given those that match its directory."""
        parts = path.split("/")
        return tuple(
            inherited or _match(pattern.segments, parts)
            for pattern, inherited in zip(self._patterns, above, strict=True)
        )

    def excludes(self, matches: tuple[bool, ...]) -> bool:
        """Whether something with these matches is left out."""
        last = [pattern for pattern, matched in zip(self._patterns, matches, strict=True) if matched][-1:]
        return bool(last) and not last[0].negated

    def prunes(self, matches: tuple[bool, ...]) -> bool:
        """Whether a directory with these matches need not be entered at all."""
        return not self._negations and self.excludes(matches)


def _parsed(text: str) -> list[_Pattern]:
    patterns: list[_Pattern] = []
    for line in text.lstrip("\ufeff").splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        negated = line.startswith("!")
        glob = posixpath.normpath(line.removeprefix("!").strip().lstrip("/") or ".")
        if len(glob) > MAX_PATTERN_CHARS:
            raise ToolFailure(f".dockerignore has a pattern of more than {MAX_PATTERN_CHARS} characters")
        if glob != ".":
            patterns.append(_Pattern(segments=tuple(glob.split("/")), negated=negated))
    return patterns


def _match(segments: Sequence[str], parts: Sequence[str]) -> bool:
    """`**` stands for any number of directories; everything else for one."""
    here = there = 0
    restart: tuple[int, int] | None = None
    while there < len(parts):
        if here < len(segments) and segments[here] == _ANY_DEPTH:
            restart = (here, there)
            here += 1
        elif here < len(segments) and match_name(segments[here], parts[there]):
            here += 1
            there += 1
        elif restart is not None:
            restart = (restart[0], restart[1] + 1)
            here, there = restart[0] + 1, restart[1]
        else:
            return False
    return all(segment == _ANY_DEPTH for segment in segments[here:])


def match_name(glob: str, name: str) -> bool:
    """Whether one component of a path matches one of a pattern: `*`, `?`, `[a-z]`, and a backslash before either."""
    here = there = 0
    restart: tuple[int, int] | None = None
    while there < len(name):
        if here < len(glob) and glob[here] == "*":
            restart = (here, there)
            here += 1
            continue
        step = _step(glob, here, name[there]) if here < len(glob) else 0
        if step:
            here += step
            there += 1
        elif restart is not None:
            restart = (restart[0], restart[1] + 1)
            here, there = restart[0] + 1, restart[1]
        else:
            return False
    return not glob[here:].strip("*")


def _step(glob: str, at: int, character: str) -> int:
    """How many characters of the glob the character uses up; 0 where it does not match."""
    match glob[at]:
        case "?":
            return 1
        case "\\" if at + 1 < len(glob):
            return 2 if glob[at + 1] == character else 0
        case "[":
            end = glob.find("]", at + 2)
            if end > 0:
                inside = glob[at + 1 : end]
                negated = inside[0] in "^!"
                return end + 1 - at if _in_class(inside[negated:], character) is not negated else 0
        case _:
            pass
    return 1 if glob[at] == character else 0


def _in_class(inside: str, character: str) -> bool:
    at = 0
    while at < len(inside):
        if at + 2 < len(inside) and inside[at + 1] == "-":
            if inside[at] <= character <= inside[at + 2]:
                return True
            at += 3
        elif inside[at] == character:
            return True
        else:
            at += 1
    return False
