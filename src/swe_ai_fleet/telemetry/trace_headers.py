"""Trace context as W3C headers, which strangers write."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{1,256}")
_MAX_STATE_CHARS = 512
"""The length of a `tracestate` that every implementation must pass on."""


def w3c(headers: Mapping[str, str]) -> dict[str, str]:
    """The `traceparent` and `tracestate` of headers with names in lower case; empty without a valid `traceparent`.

    Malformed or overlong values count as absent and are not logged, because strangers write them.
    """
    parent = headers.get("traceparent", "")
    if _TRACEPARENT.fullmatch(parent) is None:
        return {}
    state = headers.get("tracestate", "")
    if not state or len(state) > _MAX_STATE_CHARS:
        return {"traceparent": parent}
    members = [member.strip(" \t") for member in state.split(",")]
    keys = {member.partition("=")[0] for member in members}
    whole = len(keys) == len(members) <= 32 and all(_MEMBER.fullmatch(member) for member in members)
    return {"traceparent": parent, "tracestate": state} if whole else {"traceparent": parent}
