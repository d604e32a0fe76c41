"""Server-sent events as they go over the wire."""

from __future__ import annotations

from collections.abc import Mapping

MEDIA_TYPE = "text/event-stream"
HEADERS: Mapping[str, str] = {"cache-control": "no-store", "x-accel-buffering": "no"}
KEEPALIVE = b": still here\n\n"
KEEPALIVE_SECONDS = 15.0
"""After that long without an event a comment goes out, so that nobody on the way takes the connection for dead."""


def wants_events(accept: str) -> bool:
    """Whether a header `Accept` names the media type."""
    return MEDIA_TYPE in accept.lower()


def event(name: str, data: bytes, *, number: int = 0) -> bytes:
    """One event; `data` has no line ends, `number` 0 is none."""
    return (b"id: %d\n" % number if number else b"") + b"event: %b\ndata: %b\n\n" % (name.encode(), data)
