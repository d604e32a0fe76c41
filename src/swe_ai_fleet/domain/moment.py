"""Moments: ISO 8601 in UTC, as values and events have them; milliseconds since the epoch, as they go over the wire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_MS = 253_402_300_799_999
"""The last moment of the year 9999."""


def now() -> str:
    """This moment, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def milliseconds(at: str) -> int:
    """An ISO 8601 time as milliseconds since the epoch; 0 for none, and for text that is none."""
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return 0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))


def iso_time(at_ms: int) -> str:
    """Milliseconds since the epoch as ISO 8601, UTC; empty for 0 and for what is no time up to `MAX_MS`."""
    if not 0 < at_ms <= MAX_MS:
        return ""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds")
