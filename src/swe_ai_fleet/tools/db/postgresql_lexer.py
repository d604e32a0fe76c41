"""A statement of PostgreSQL as its own lexer reads it: nested comments, every kind of quote, Unicode escapes.

After `src/backend/parser/scan.l`, with `standard_conforming_strings` on, which a session of ours sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

_SPACE = re.compile(r"[ \t\n\r\f\v]+|--[^\n\r]*")
_COMMENT = re.compile(r"/\*|\*/")
_NAME = re.compile(r"[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*")
_PREFIXED = re.compile(r"(?P<escapes>[eE])'|[bBxXnN]'|(?P<unicode>[uU]&)(?P<quote>['\"])|(?P<plain>['\"])")
_DOLLAR = re.compile(r"\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$")
_ESCAPED = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_MAX_NAME_BYTES = 63


class Kind(StrEnum):
    NAME = "name"
    STRING = "string"
    SIGN = "sign"
    UNCLOSED = "unclosed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A name as the server looks it up, a string's content, one other character, or a quote or comment without end."""

    kind: Kind
    text: str


def tokens(sql: str) -> Iterator[Token]:
    """The tokens of a statement; strings that the server joins are one."""
    joined: Token | None = None
    for token in _decoded(list(_raw(sql))):
        if token.kind is Kind.STRING:
            joined = token if joined is None else Token(kind=Kind.STRING, text=joined.text + token.text)
            continue
        if joined is not None:
            yield joined
            joined = None
        yield token
    if joined is not None:
        yield joined


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raw:
    """A token whose Unicode escapes are still there where `unicode` says so: their sign may be named behind it."""

    kind: Kind
    text: str
    unicode: bool = False


def _raw(sql: str) -> Iterator[_Raw]:
    at = 0
    while at < len(sql):
        if space := _SPACE.match(sql, at):
            at = space.end()
        elif sql.startswith("/*", at):
            end = _after_comment(sql, at)
            if end < 0:
                yield _Raw(kind=Kind.UNCLOSED, text="/*")
                return
            at = end
        elif opened := _PREFIXED.match(sql, at):
            quote = sql[opened.end() - 1]
            end = _after_quote(sql, opened.end(), quote, escapes=bool(opened["escapes"]))
            if end < 0:
                yield _Raw(kind=Kind.UNCLOSED, text=quote)
                return
            content = sql[opened.end() : end - 1].replace(quote * 2, quote)
            kind = Kind.NAME if quote == '"' else Kind.STRING
            yield _Raw(
                kind=kind, text=_unescaped(content) if opened["escapes"] else content, unicode=bool(opened["unicode"])
            )
            at = end
        elif name := _NAME.match(sql, at):
            yield _Raw(kind=Kind.NAME, text=re.sub("[A-Z]+", lambda match: match[0].lower(), name[0]))
            at = name.end()
        elif tag := _DOLLAR.match(sql, at):
            end = sql.find(tag[0], tag.end())
            if end < 0:
                yield _Raw(kind=Kind.UNCLOSED, text="$")
                return
            yield _Raw(kind=Kind.STRING, text=sql[tag.end() : end])
            at = end + len(tag[0])
        else:
            yield _Raw(kind=Kind.SIGN, text=sql[at])
            at += 1


def _decoded(raw: list[_Raw]) -> Iterator[Token]:
    skipped = 0
    for at, token in enumerate(raw):
        if skipped:
            skipped -= 1
            continue
        text = token.text
        if token.unicode:
            sign = "\\"
            following = raw[at + 1 : at + 3]
            if len(following) == 2 and following[0].text == "uescape" and len(following[1].text) == 1:
                sign, skipped = following[1].text, 2
            text = _with_unicode(text, sign)
        if token.kind is Kind.NAME:
            text = text.encode("utf-8", "replace")[:_MAX_NAME_BYTES].decode("utf-8", "ignore")
        yield Token(kind=token.kind, text=text)


def _after_comment(sql: str, at: int) -> int:
    depth = 0
    for mark in _COMMENT.finditer(sql, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return -1


def _after_quote(sql: str, at: int, quote: str, *, escapes: bool) -> int:
    while at < len(sql):
        if sql.startswith(quote * 2, at) or (escapes and sql[at] == "\\"):
            at += 2
        elif sql[at] == quote:
            return at + 1
        else:
            at += 1
    return -1


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        if found[5] is not None:
            return _LETTERS.get(found[5], found[5])
        return _character(found[1] or found[2] or found[3], 16) if not found[4] else _character(found[4], 8)

    return _ESCAPED.sub(character, text)


def _with_unicode(text: str, sign: str) -> str:
    escaped = re.compile(rf"{re.escape(sign)}(?:([0-9A-Fa-f]{{4}})|\+([0-9A-Fa-f]{{6}})|{re.escape(sign)})")
    return escaped.sub(lambda match: _character(match[1] or match[2], 16) if match[1] or match[2] else sign, text)


def _character(digits: str, base: int) -> str:
    code = int(digits, base)
    return chr(code) if code <= 0x10FFFF else "\ufffd"
