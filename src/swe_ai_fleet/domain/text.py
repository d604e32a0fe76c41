"""Texts: how long they may be, and what is shown of those that are longer."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from urllib.parse import urlsplit, urlunsplit

from swe_ai_fleet.domain.errors import InvalidRequest

_LOOKED_AT = 4
"""So many times what is shown of a text is looked at: a flood costs no more than that."""


def check_length(text: str, most: int, *, field: str) -> str:
    """The text itself, if it has no more characters than that. Raises InvalidRequest."""
    if len(text) > most:
        raise InvalidRequest(f"{field} has {len(text)} characters", field=field, hint=f"at most {most}")
    return text


def nearest(name: str, known: Collection[str]) -> str:
    """A hint that says which known names may have been meant, or which there are."""
    if close := get_close_matches(name[:64], known, n=3, cutoff=0.6):
        return f"did you mean {' or '.join(map(repr, close))}?"
    first = sorted(known)[:12]
    return f"there are: {', '.join(first)}{', ...' if len(known) > len(first) else ''}" if known else ""


def well_formed(text: str) -> str:
    """The text with U+FFFD for halves of surrogate pairs: models write them and file names hold them, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def shortened(text: str, limit: int) -> str:
    """The text, its end replaced by an ellipsis where it has more than `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def one_line(text: str, limit: int) -> str:
    """The text on one line, `shortened`."""
    return shortened(" ".join(text[: _LOOKED_AT * limit].split()), limit)


def plain_line(text: str, limit: int) -> str:
    """As `one_line`, without characters that turn lines around or cannot be seen."""
    seen = "".join(character if character.isprintable() else " " for character in text[: _LOOKED_AT * limit])
    return one_line(seen, limit)


def without_login(location: str) -> str:
    """A repository's location without user and password."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return ""
    if not parts.scheme or "@" not in parts.netloc:
        return location
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
