"""What a function's docstring says: its first line, the whole of it, and what it tells of each parameter."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_GOOGLE = frozenset({"args:", "arguments:", "parameters:", "params:", "keyword args:", "other parameters:"})
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?\s*:(?:\s+(.*))?")
_NUMPY_ENTRY = re.compile(r"(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
_REST = re.compile(r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")
_MAX_CHARS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Docstring:
    """The first line of a docstring, the whole, and its parameters' descriptions by name.

    Parameters are found in Google's `Args:`, NumPy's underlined `Parameters` and reStructuredText's `:param name:`.
    """

    first_line: str = ""
    whole: str = ""
    parameters: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def parse(cls, text: str) -> Docstring:
        """Read a docstring whose common indentation is already gone (`inspect.getdoc`)."""
        lines = text[:_MAX_CHARS].splitlines()
        found: dict[str, list[str]] = {}
        for number, line in enumerate(lines):
            below = lines[number + 1 :]
            if line.strip().lower() in _GOOGLE:
                _google(below, _indent(line), found)
            elif line.strip().lower() in ("parameters", "other parameters") and below and _underlines(below[0]):
                _numpy(below[1:], _indent(line), found)
            elif entry := _REST.fullmatch(line.strip()):
                found[entry[1]] = [entry[2], *_deeper(below, _indent(line))]
        paragraphs = text.strip().splitlines()
        return cls(
            first_line=paragraphs[0].strip() if paragraphs else "",
            whole=text.strip(),
            parameters={name: joined for name, parts in found.items() if (joined := " ".join(filter(None, parts)))},
        )


def _google(lines: list[str], margin: int, found: dict[str, list[str]]) -> None:
    depth = 0
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        if _indent(line) <= margin:
            return
        depth = depth or _indent(line)
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) == depth else None
        if entry:
            found[entry[1]] = [(entry[2] or "").strip(), *_deeper(lines[number + 1 :], depth)]


def _numpy(lines: list[str], margin: int, found: dict[str, list[str]]) -> None:
    for number, line in enumerate(lines):
        if not line.strip() or _indent(line) > margin:
            continue
        if _indent(line) < margin or _underlines("".join(lines[number + 1 : number + 2])):
            return
        entry = _NUMPY_ENTRY.fullmatch(line.strip())
        if entry is None:
            return
        for name in entry[1].split(","):
            found[name.strip()] = _deeper(lines[number + 1 :], margin)


def _deeper(lines: list[str], margin: int) -> list[str]:
    """The lines that follow with a deeper indentation, stripped."""
    found: list[str] = []
    for line in lines:
        if line.strip() and _indent(line) <= margin:
            break
        found.append(line.strip())
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _underlines(line: str) -> bool:
    return len(line.strip()) >= 3 and not line.strip().strip("-")
