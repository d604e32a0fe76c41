"""For how long an answer of a server may be given again."""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_SECONDS = 300.0
SAID_NOTHING_SECONDS = 30.0
"""Where the server does not say: long enough for agents that look at one page at a time, short for what changes."""
_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s?=\s?\"?(\d{1,9})")
_FORBIDDING = ("no-store", "no-cache", "private")
_OK = 200


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
    if found := _MAX_AGE.search(allowed):
        age = told.get("age", "0").strip()
        return max(0.0, min(MAX_SECONDS, int(found[1]) - (int(age) if age.isdecimal() and len(age) < 10 else 0)))
    return 0.0 if "expires" in told else SAID_NOTHING_SECONDS
