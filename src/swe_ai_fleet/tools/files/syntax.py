"""Whether a file of code or data still parses."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

MAX_CHARS = 256 * 1024
"""Longer files are not checked: parsing holds the interpreter's lock, 256 KiB about 40 ms."""

_PARSERS: Mapping[str, Callable[[str], object]] = {
    ".py": ast.parse,
    ".pyi": ast.parse,
    ".json": json.loads,
    ".toml": tomllib.loads,
}


_CLAUSES = ("else", "elif", "except", "finally", "case")


def syntax_error(path: str, content: str, *, changed: tuple[int, int] | None = None) -> str:
    """What is wrong with a Python, JSON or TOML file, in one line; empty if nothing is or nobody can say cheaply.

    `changed` are the first and last line (from 1) of the only passage that is new. In a Python file the statements
    around it are parsed then, and the whole file only if those do not parse: the whole costs 15 times as much.
    """
    suffix = PurePosixPath(path).suffix
    parse = _PARSERS.get(suffix)
    if parse is None or len(content) > MAX_CHARS:
        return ""
    if changed is not None and parse is ast.parse and not _problem(parse, _statements_around(content, *changed)):
        return ""
    return _problem(parse, content)


def _problem(parse: Callable[[str], object], content: str) -> str:
    try:
        parse(content)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or "nested too deeply"
    return ""


def _statements_around(content: str, first: int, last: int) -> str:
    """The lines from the beginning of one top-level statement to that of another, around those given."""
    lines = content.split("\n")
    start, end = min(first, len(lines)) - 1, last
    while start > 0 and not _begins_statement(lines[start]):
        start -= 1
    while end < len(lines) and not _begins_statement(lines[end]):
        end += 1
    return "\n".join(lines[start:end])


def _begins_statement(line: str) -> bool:
    return (line[:1].isidentifier() or line[:1] == "@") and not line.startswith(_CLAUSES)
