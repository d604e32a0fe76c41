"""A runner's output as lines that are safe to match: without colours, of bounded length and number."""

from __future__ import annotations

import re

MAX_LINES = 200_000
_MAX_LINE_CHARS = 4_000
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def lines(text: str) -> list[str]:
    """The lines, split at line feeds only; of too many, the last ones."""
    found = text.split("\n")
    return [uncoloured(line[:_MAX_LINE_CHARS]).rstrip() for line in found[-MAX_LINES:]]


def uncoloured(text: str) -> str:
    """The text without the sequences that colour it."""
    return _ANSI.sub("", text)


def seconds(text: str) -> float:
    """A number of seconds as a runner printed it, 0 where it is none."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 <= value < 1e7 else 0.0
