"""Two texts as a unified diff that says all there is to say: line ends and a missing last one included."""

from __future__ import annotations

import difflib

from swe_ai_fleet.tools.failure import ToolFailure

MAX_LINES = 20_000
"""Longer texts are not compared: difflib holds the interpreter's lock, and is slow on much that is alike."""

NO_NEWLINE = "\\ No newline at end of file\n"


def split_lines(text: str) -> list[str]:
    """The lines with their ends; only `\\n` ends a line, as in a patch."""
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop().removesuffix("\n")
    return [*lines, last] if last else lines


def unified_diff(before: str, after: str, *, source: str, target: str) -> str:
    """The diff from `before` to `after`, empty where they are the same. Raises ToolFailure above MAX_LINES lines."""
    old, new = split_lines(before), split_lines(after)
    if max(len(old), len(new)) > MAX_LINES:
        raise ToolFailure(f"texts of more than {MAX_LINES} lines are not compared; compare parts with a command")
    diff = difflib.unified_diff(old, new, f"a/{source}", f"b/{target}")
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}" for line in diff)
