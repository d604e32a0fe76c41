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


def syntax_error(path: str, content: str) -> str:
    """What is wrong with a Python, JSON or TOML file, in one line; empty if nothing is or nobody can say cheaply."""
    parse = _PARSERS.get(PurePosixPath(path).suffix)
    if parse is None or len(content) > MAX_CHARS:
        return ""
    try:
        parse(content)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or "nested too deeply"
    return ""
