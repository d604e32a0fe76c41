"""Callers' own shell lines, read as far as the one test runner that they start."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from swe_ai_fleet.tools.tests.runners.frameworks import framework_of
from swe_ai_fleet.tools.tests.runners.scripts import parts_of, words_of

_OTHERS_NEED = re.compile(r"[<>$*?`]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellLine:
    """A line that ends with a test runner: `cd dir && before && argv`."""

    argv: tuple[str, ...]
    directory: str = ""
    before: str = ""


def read_shell_line(line: str) -> ShellLine | str:
    """What a line starts, or in words why it is not understood as a test runner."""
    parts = parts_of(line)
    if not parts:
        return "only a shell can tell what it runs"
    *first, last = parts
    if any(part.operator not in ("", "&&") for part in parts):
        return "it combines commands by more than `&&`"
    directory = ""
    while first and (words := words_of(first[0].text))[:1] == ["cd"] and len(words) == 2:
        directory = posixpath.normpath(posixpath.join(directory, words[1]))
        first = first[1:]
    if directory.startswith(("/", "..")):
        return "it leaves the repository"
    argv = tuple(words_of(last.text))
    if not framework_of(argv):
        return "it starts no known test runner"
    if _OTHERS_NEED.search(re.sub(r"'[^']*'", "", last.text)):
        return "only a shell can tell what its words are"
    if any(words_of(part.text)[:1] == ["cd"] for part in first):
        return "it changes directories on its way"
    return ShellLine(argv=argv, directory=directory, before=" && ".join(part.text for part in first))
