"""What an answer of a receiver means, and when a failed delivery is tried again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

WAITS = (5.0, 30.0, 120.0, 600.0, 3_600.0, 7_200.0, 14_400.0, 28_800.0, 28_800.0)
"""Seconds before each further attempt: ten attempts in about 23 hours."""
MAX_RETRY_AFTER_SECONDS = 6 * 3_600.0
_GONE = 410


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The response of a receiver. `http_status` is 0 without one; `retry_after` is in seconds, 0: not given.

    `error` is untrusted text, empty on success.
    """

    http_status: int = 0
    error: str = ""
    retry_after: float = 0.0

    @property
    def delivered(self) -> bool:
        """Whether the receiver accepted the message."""
        return 200 <= self.http_status < 300

    @property
    def gone(self) -> bool:
        """Whether it wants no more messages, ever."""
        return self.http_status == _GONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When failed deliveries are tried again.

    Args:
        waits: Seconds before each further attempt.
        spread: The largest fraction by which a wait is lengthened at random, so that retries do not coincide.
    """

    waits: tuple[float, ...] = WAITS
    spread: float = 0.1

    def wait(self, attempt: int, reply: Reply, chance: Callable[[], float]) -> float | None:
        """Seconds to wait after a failed attempt (counted from 1); None where it was the last.

        A receiver that says when to come back is left alone until then, for six hours at most. `chance` gives a number
        from 0 to 1.
        """
        if attempt > len(self.waits):
            return None
        wait = self.waits[attempt - 1] * (1.0 + self.spread * chance())
        return max(wait, min(reply.retry_after, MAX_RETRY_AFTER_SECONDS))


def retry_after_seconds(header: str, now: datetime) -> float:
    """What a Retry-After header says (RFC 9110, 10.2.3), in seconds from now; 0 where it says nothing sensible."""
    text = header.strip()[:64]
    if text.isascii() and text.isdecimal():
        return float(int(text))
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        # The parser reads untrusted text, and does not document all of its exceptions.
        return 0.0
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - now).total_seconds())
