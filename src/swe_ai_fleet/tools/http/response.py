"""The response of a server: how much of its body is read, what can be shown, and for how long it stays fresh."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from swe_ai_fleet.tools.definition import ToolFailure

_TEXT_TYPE = re.compile(
    r"text/.*|.*[+/](json|xml|yaml|x-yaml|toml|graphql|javascript|ecmascript|x-javascript|x-ndjson|ndjson|jsonl"
    r"|x-www-form-urlencoded|x-sh|sql)"
)
_CHARSETS = re.compile(
    r"ascii|utf-(8|16|32)(-le|-be|-sig)?|iso8859-\d+|cp125\d|koi8-[ru]|shift_jis|euc_(jp|kr)|gb(k|2312|18030)|big5"
)
MAX_SECONDS = 300.0
"""No answer stays fresh for longer."""
SAID_NOTHING_SECONDS = 30.0
"""Where the server does not say: long enough for agents that look at one page at a time, short for what changes."""
_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s?=\s?\"?(\d{1,9})")
_FORBIDDING = ("no-store", "no-cache", "private")
_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A body as far as it was read; `encoding` is the one that could not be undone."""

    data: bytes = b""
    cut: bool = False
    encoding: str = ""


async def read_body(response: httpx2.Response, limit: int) -> Received:
    """At most `limit` bytes of the body, counted on the wire and decompressed alike. Raises ToolFailure."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    packed = encoding in ("gzip", "x-gzip", "deflate")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    data, on_wire = bytearray(), 0
    async for part in response.aiter_raw():
        on_wire += len(part)
        room = limit + 1 - len(data)
        try:
            data += unpacker.decompress(part, room) if packed else part[:room]
        except zlib.error as error:
            raise ToolFailure(f"the body is said to be {encoding} but cannot be unpacked: {error}") from None
        if len(data) > limit or on_wire > limit or unpacker.eof:
            break
    unknown = "" if packed or encoding in ("", "identity") else encoding
    return Received(
        data=bytes(data[:limit]), cut=len(data) > limit or (on_wire > limit and not unpacker.eof), encoding=unknown
    )


def described(kind: str, body: Received, digest: str) -> str:
    """What a reader is told about a body that is not shown."""
    packed = f", packed as {body.encoding[:40]}" if body.encoding else ""
    return f"[not text: {kind or 'no content type'}{packed}, {len(body.data)} bytes, SHA-256 {digest}]"


def as_text(kind: str, data: bytes) -> str | None:
    """The body as text, or None if it is none."""
    media, _, parameters = kind.lower().partition(";")
    named = re.search(r"charset=\s*[\"']?([a-z0-9_-]+)", parameters)
    charset = _charset(named[1]) if named else "utf-8"
    if not _TEXT_TYPE.fullmatch(media.strip()) and (media.strip() or b"\0" in data):
        return None
    text = data.decode(charset, "replace")
    return None if "\0" in text else text


def _charset(name: str) -> str:
    # Python has codecs that are no character sets, some of them slow on hostile input.
    try:
        charset = codecs.lookup(name).name
    except LookupError:
        return "utf-8"
    return charset if _CHARSETS.fullmatch(charset) else "utf-8"


def fresh_seconds(asked: Mapping[str, str], status: int, told: Mapping[str, str]) -> float:
    """Seconds by the headers of the request and of the answer (RFC 9111, the plain part of it), at most 300.

    What a cookie or a credential went with is not for others; the caller looks at the request's credentials.
    """
    if status != _OK or "set-cookie" in told or told.get("vary", "").strip() == "*":
        return 0.0
    wanted = asked.get("cache-control", "") + asked.get("pragma", "")
    allowed = f"{told.get('cache-control', '')},{told.get('pragma', '')}".lower()
    if any(word in wanted.lower() for word in _FORBIDDING) or any(word in allowed for word in _FORBIDDING):
        return 0.0
    if match := _MAX_AGE.search(allowed):
        age = told.get("age", "0").strip()
        return max(0.0, min(MAX_SECONDS, int(match[1]) - (int(age) if age.isdecimal() and len(age) < 10 else 0)))
    return 0.0 if "expires" in told else SAID_NOTHING_SECONDS
