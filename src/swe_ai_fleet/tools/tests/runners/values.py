"""TOML and INI that a repository or a runner wrote, read without believing that they have a particular shape."""

from __future__ import annotations

import configparser
import tomllib
from collections.abc import Mapping

from swe_ai_fleet.domain.json_values import parsed

# The time of the parser of TOML grows with the parts of a table's name for each line below it, that of the parser of
# INI with the square of a line, and of the number of its faults.
_MOST_TOML_DOTS = 200
_MOST_INI_CHARS = 128 * 1024
_MOST_INI_LINES = 5_000
_LONGEST_INI_LINE = 2_000


def toml(text: str) -> Mapping[str, object]:
    """A TOML document, empty where it cannot be parsed."""
    return parsed_toml(text) or {}


def parsed_toml(text: str) -> Mapping[str, object] | None:
    """A TOML document; None where it cannot be parsed, or has names of hundreds of parts."""
    if any(line.partition("=")[0].count(".") > _MOST_TOML_DOTS for line in text.split("\n")):
        return None
    try:
        return parsed(tomllib.loads, text)
    except ValueError:
        return None


def parsed_ini(text: str) -> configparser.RawConfigParser | None:
    """An INI document, nothing in it expanded; None where it cannot be parsed, or is much longer than people write."""
    lines = text.split("\n")
    if len(text) > _MOST_INI_CHARS or len(lines) > _MOST_INI_LINES or max(map(len, lines)) > _LONGEST_INI_LINE:
        return None
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return None
    return parser
