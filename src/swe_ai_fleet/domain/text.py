"""Texts: their limits and short forms, ids and branch names, and times.

Times are ISO 8601 in UTC in values and events, and milliseconds since the epoch on the wire.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from urllib.parse import urlsplit, urlunsplit

from swe_ai_fleet.domain.errors import InvalidRequest

_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NOT_IN_A_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{")
_SCAN_FACTOR = 4
"""Only this multiple of the shown length is scanned, so that a very long text costs no more."""

# Every repetition is bounded: the time is linear in the text whatever it holds.
_ESCAPES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]{0,64}[ -/]{0,16}[@-~]"
    "|(?:\x1b\\]|\x9d)[^\x07\x1b\x9c]{0,2000}(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[ -/]{0,4}[0-~]"
)
_LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co"})
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_NAMES = (
    r"s|bos|eos|pad|unk|sep|cls|mask|sop|gmask|think|thinking|thought|tool\w*|function\w*|invoke|parameter\w*|arg_\w+"
    r"|args?|minimax|antml|start_of\w*|end_of\w*|begin_of\w*|im_\w+|sys|system|user|assistant|human|model|developer"
    r"|instructions?|inst|turn|channel|message|observation|reserved\w*|plugin|image|context|documents?"
)
_TAG = re.compile(rf"<(?=[/!]?(?:[|\uff5c]|(?:{_NAMES})(?![A-Za-z0-9])))", re.IGNORECASE)
_BRACKET = re.compile(
    r"\[(?=/?(?:INST|TOOL_|AVAILABLE_|SYSTEM_|ARGS\]|CALL_ID|CONTROL|PREFIX\]|SUFFIX\]|MIDDLE\]|IMG|THINK|gMASK|SEP\]"
    r"|CLS\]|MASK\]))",
    re.IGNORECASE,
)
_FENCE = re.compile(r"<{3,}|>{3,}(?=[0-9A-Fa-f]{8})")


def check_length(text: str, most: int, *, field: str) -> str:
    """The text itself, if it has at most `most` characters. Raises InvalidRequest."""
    if len(text) > most:
        raise InvalidRequest(f"{field} has {len(text)} characters", field=field, hint=f"at most {most}")
    return text


def check_identifier(text: str, *, field: str) -> str:
    """The identifier itself, if it is valid in subjects, branch names and file names. Raises InvalidRequest."""
    if not _IDENTIFIER.fullmatch(text) or ".." in text or text.endswith((".", ".lock")):
        raise InvalidRequest(
            f"{text[:64]!r} is not a valid id",
            field=field,
            hint="1 to 128 of A-Z a-z 0-9 . _ -, the first a letter or digit, no '..', no '.' or '.lock' at the end",
        )
    return text


def check_branch(name: str, *, field: str) -> str:
    """The name itself, if git accepts it for a branch (the rules of `git check-ref-format`). Raises InvalidRequest."""
    parts = name.split("/")
    if (
        _NOT_IN_A_REF.search(name)
        or name.startswith("-")
        or name == "@"
        or any(not part or part.startswith(".") or part.endswith((".", ".lock")) for part in parts)
    ):
        raise InvalidRequest(f"{name[:64]!r} is not a branch name", field=field, hint="see git help check-ref-format")
    return name


def nearest(name: str, candidates: Collection[str]) -> str:
    """A hint with the known names that are most similar, else with the first ones."""
    if close := get_close_matches(name[:64], candidates, n=3, cutoff=0.6):
        # A name with the same beginning is more likely than one with only the same letters.
        close.sort(key=lambda other: not other.startswith(name))
        return f"did you mean {' or '.join(map(repr, close))}?"
    first = sorted(candidates)[:12]
    return f"there are: {', '.join(first)}{', ...' if len(candidates) > len(first) else ''}" if candidates else ""


def well_formed(text: str) -> str:
    """The text with U+FFFD for lone surrogates: models and file names may contain them, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def utf8(text: str) -> bytes:
    """The bytes of a text, for its digest: lone surrogates are kept, so that different texts have different digests."""
    return text.encode("utf-8", "surrogatepass")


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things in words: `1 agent`, `2 agents`; `plural` where that is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def first_names(names: Sequence[str], most: int = 3) -> str:
    """At most `most` names in a line, with the number of the others: `a, b, c and 4 more`."""
    others = len(names) - most
    return ", ".join(names[:most]) + (f" and {others} more" if others > 0 else "")


def shortened(text: str, limit: int) -> str:
    """The text, its end replaced by an ellipsis where it has more than `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def one_line(text: str, limit: int) -> str:
    """The text on one line, `shortened`."""
    return shortened(" ".join(text[: _SCAN_FACTOR * limit].split()), limit)


def plain_line(text: str, limit: int) -> str:
    """As `one_line`, with a space for each character that is invisible or changes the text's direction."""
    printable = "".join(character if character.isprintable() else " " for character in text[: _SCAN_FACTOR * limit])
    return one_line(printable, limit)


def without_login(location: str) -> str:
    """A repository's location without user and password."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return ""
    if not parts.scheme or "@" not in parts.netloc:
        return location
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def visible(text: str) -> str:
    """The text as a person sees it: no escape sequences, no invisible characters, line ends as `\\n`."""
    text = _LINE_ENDS.sub("\n", _ESCAPES.sub("", well_formed(text)))
    return "".join(character for character in text if character in "\n\t" or _is_visible(character))


def disarmed(text: str) -> str:
    """A text, already `visible`, with spaces that break the marks of chat templates, tool calls and fences.

    Many tokenizers turn text that looks like a control token into that token.
    """
    text = _FENCE.sub(lambda match: " ".join(match[0]), text)
    return _BRACKET.sub("[ ", _TAG.sub("< ", text))


def _is_visible(character: str) -> bool:
    if character.isascii():
        return character.isprintable()
    # Variation selectors can hide bytes, as tag characters can.
    selector = "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
    return not selector and character not in _BLANK and unicodedata.category(character) not in _INVISIBLE


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_MS = 253_402_300_799_999
"""The last moment of the year 9999."""


def now() -> str:
    """The current time, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def milliseconds(at: str) -> int:
    """An ISO 8601 time as milliseconds since the epoch; 0 for any other text."""
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return 0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))


def iso_time(at_ms: int) -> str:
    """Milliseconds since the epoch as ISO 8601, UTC; empty outside 1 to `MAX_MS`."""
    if not 0 < at_ms <= MAX_MS:
        return ""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds")
