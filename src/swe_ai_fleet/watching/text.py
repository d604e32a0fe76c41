"""Untrusted text made safe for a terminal.

The output of models, repositories and tools may contain escape sequences that move the cursor, set the title or hide
text on the screen. None of them reaches the terminal.
"""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections.abc import Iterable

# CSI and string sequences (OSC, DCS, SOS, PM, APC) in their 7-bit and 8-bit forms, then any other escape.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_JOINER = "\u200d"
_ELLIPSIS = "…"


def clean(text: str) -> str:
    """The text without escape sequences, control and direction characters; lines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    without = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return "".join(_kept(character) for character in without)


def one_line(text: str, limit: int = 0) -> str:
    """The text clean and on one line; longer than `limit` characters (0: none) it is cut."""
    line = " ".join(clean(text).split())
    return line if not limit or len(line) <= limit else line[: limit - 1].rstrip() + _ELLIPSIS


def command_line(words: Iterable[str]) -> str:
    """Words quoted for a shell, for people to paste. Characters that `clean` drops are written as numbers.

    If they were dropped after quoting, quotes could go with them, and untrusted text would be outside of quotes.
    """
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if clean(word) == word:
        return shlex.quote(word)
    # Quotes are written as numbers, too: a shell without this form then sees one odd word, and runs nothing of it.
    return "$'" + "".join(_escaped(character) for character in word) + "'"


def _escaped(character: str) -> str:
    if (character.isalnum() and character.isascii()) or character in " ./:=@%+,-_":
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def visible(text: str) -> str:
    """The text with the names of all characters that `clean` drops, for diffs, in which nothing may be hidden."""
    return "".join(character if _kept(character) == character else _name(character) for character in text)


def _kept(character: str) -> str:
    if character in "\n\t" or character == _JOINER:
        return character
    match unicodedata.category(character):
        case "Cc" | "Cf":
            return ""
        case "Cs":
            return "\ufffd"
        case _:
            return character


def _name(character: str) -> str:
    return f"<U+{ord(character):04X}>"
