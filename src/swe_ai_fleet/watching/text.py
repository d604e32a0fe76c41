"""Text that others wrote, made fit for a terminal.

What models, repositories and tools print may hold escape sequences that move the cursor, set the title or hide what
is on the screen. None of them reaches the terminal.
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
    """Words as a shell takes them, for people who paste them. What `clean` drops is written by number.

    Dropped after quoting it would take quotes along, and text of strangers would stand outside of any.
    """
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if clean(word) == word:
        return shlex.quote(word)
    # Each quote by number too: shells that do not know this form take the word for another one, and run nothing of it.
    return "$'" + "".join(_escaped(character) for character in word) + "'"


def _escaped(character: str) -> str:
    if (character.isalnum() and character.isascii()) or character in " ./:=@%+,-_":
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def visible(text: str) -> str:
    """The text with everything that `clean` drops shown by name instead, for diffs, where nothing may hide."""
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
