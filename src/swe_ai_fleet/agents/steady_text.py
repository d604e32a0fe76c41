"""Output without what differs each time for no reason: clocks, durations, process ids, addresses, temporary names."""

from __future__ import annotations

import hashlib
import re

_LOOKED_AT = 20_000
_ERROR_CHARS = 1_000
# A regular expression that begins with a digit or a fixed text is searched for fast, and every repetition is of one
# class and bounded: the time is linear in the text whatever it holds.
_NUMBER = re.compile(
    r"[0-9](?<![\w.:].)[\w:.+-]{0,60}"
    r"(?:,[0-9]{3}(?!\w)|(?: (?:ns|us|µs|ms|s|secs?|seconds?|mins?|minutes?|h|hours?)(?!\w)))?"
)
_KINDS = re.compile(
    r"""
      (?P<date> \d{4}-\d\d-\d\d (?: T\d\d:\d\d (?: :\d\d (?:[.,]\d{1,9})? )? (?: Z|[+-]\d\d:?\d\d )? )? )
    | (?P<clock> \d{1,2}:\d\d (?: :\d\d (?:[.,]\d{1,9})? )? )
    | (?P<address> 0x[0-9a-fA-F]{4,16} )
    | (?P<epoch> 1[5-9]\d{8}(?:\d{3})?(?:\.\d{1,9})? )
    | (?P<port> 127\.0\.0\.1:\d{1,5} )
    | (?P<duration> (?: \d{1,12}(?:\.\d{1,9})?\ ?
        (?: ns|us|µs|ms|s|secs?|seconds?|m|mins?|minutes?|h|hours?) ){1,4} )
    """,
    re.VERBOSE,
)
_UUID_END = re.compile(r"-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?!\w)")
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TEMPORARY = re.compile(r"/tmp/[\w.@+-]{1,80}")  # noqa: S108 - a name to look for, not a place to write to
_LOCAL = re.compile(r"localhost:\d{1,5}")
_NAMED = ("pid", "tid", "process", "thread", "job", "seed")
_JOB_DIGITS = 4
_ERROR_DETAIL = re.compile(r"'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"|`[^`\n]{0,200}`|[\w.@-]{0,80}/[\w./@-]{1,200}|\d{1,20}")


def steady(text: str) -> str:
    """The text with each volatile part replaced by its kind; of a long one only head and tail are looked at."""
    if len(text) > 2 * _LOOKED_AT:
        return f"{steady(text[:_LOOKED_AT])}{text[_LOOKED_AT:-_LOOKED_AT]}{steady(text[-_LOOKED_AT:])}"
    if "/tmp/" in text:  # noqa: S108
        text = _TEMPORARY.sub("<temporary>", text)
    if "localhost:" in text:
        text = _LOCAL.sub("<port>", text)
    if _UUID_END.search(text) is not None:
        text = _UUID.sub("<uuid>", text)
    return _NUMBER.sub(_kind, text)


def error_class(*texts: str) -> str:
    """What several errors have in common: their texts without names in quotes, paths and numbers."""
    return _ERROR_DETAIL.sub("*", "\n".join([text[:_ERROR_CHARS] for text in texts]).lower())


def digest(*texts: str) -> bytes:
    """Eight bytes that differ where the texts do."""
    hashed = hashlib.blake2b(digest_size=8)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.digest()


def _kind(found: re.Match[str]) -> str:
    token = found.group()
    number = token.rstrip(".:+-")
    if number.isdigit() and len(number) < 10:
        start = found.start()
        before = found.string[max(0, start - 10) : start]
        job = before.endswith("] ") and len(number) >= _JOB_DIGITS
        return f"<process>{token[len(number) :]}" if job or before.lower().rstrip(" =:#").endswith(_NAMED) else token
    kind = _KINDS.fullmatch(number)
    return f"<{kind.lastgroup}>{token[len(number) :]}" if kind is not None else token
