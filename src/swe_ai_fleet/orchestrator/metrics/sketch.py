"""Quantiles of many durations in little memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import accumulate

RELATIVE_ERROR = 0.02
"""A quantile is off by at most this part of its value."""

LONGEST_MS = 30 * 86_400_000
"""What is longer counts as this long."""

_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GAMMA = math.log(_GAMMA)


class Sketch:
    """Counts durations in buckets whose widths grow with the value, so that quantiles have a bounded relative error.

    Sketches of parts, merged, are the sketch of the whole. At most 543 buckets; durations are whole milliseconds, 0
    has a bucket of its own.

    Source: Masson, Rim and Lee, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees",
    VLDB 2019. Without its collapsing of buckets, since the range of values is bounded here.
    """

    __slots__ = ("_counts", "_first", "count")

    def __init__(self) -> None:
        self.count = 0
        self._first = 0
        self._counts = array("Q")

    def add(self, duration_ms: float) -> None:
        """Count a duration; what is below 0 counts as 0."""
        bucket = _bucket(duration_ms)
        self._cover(bucket, bucket)
        self._counts[bucket - self._first] += 1
        self.count += 1

    def merge(self, other: Sketch) -> None:
        """Count everything that another sketch has counted."""
        if not other.count:
            return
        first, counts = other._first, other._counts
        self._cover(first, first + len(counts) - 1)
        offset = first - self._first
        mine = self._counts
        for place, number in enumerate(counts, start=offset):
            if number:
                mine[place] += number
        self.count += other.count

    def quantile(self, q: float) -> float:
        """The duration that a part `q` (0 to 1) of all does not exceed, in milliseconds; 0 where none was counted.

        It is within `RELATIVE_ERROR` of the value at index `floor(q * (count - 1))` of the sorted durations.
        """
        if not self.count:
            return 0.0
        rank, seen = math.floor(q * (self.count - 1)), 0
        for place, number in enumerate(self._counts):
            seen += number
            if seen > rank:
                return _middle(self._first + place)
        return _middle(self._first + len(self._counts) - 1)

    def histogram(self, bounds_ms: Sequence[float]) -> tuple[list[int], float]:
        """How many durations are at most as long as each of the (ascending) bounds, and the sum of all.

        In milliseconds. Both are off by what a quantile is off.
        """
        counts, total, place = [0] * len(bounds_ms), 0.0, 0
        for bucket, number in enumerate(self._counts, start=self._first):
            if not number:
                continue
            value = _middle(bucket)
            total += number * value
            while place < len(bounds_ms) and bounds_ms[place] < value:
                place += 1
            if place < len(bounds_ms):
                counts[place] += number
        return list(accumulate(counts)), total

    def _cover(self, first: int, last: int) -> None:
        """Have counts for these buckets."""
        if not self._counts:
            self._first = first
            self._counts = array("Q", bytes(8 * (last - first + 1)))
            return
        if first < self._first:
            self._counts = array("Q", bytes(8 * (self._first - first))) + self._counts
            self._first = first
        missing = last - (self._first + len(self._counts) - 1)
        if missing > 0:
            self._counts.extend(array("Q", bytes(8 * missing)))


def _bucket(duration_ms: float) -> int:
    """0 for nothing, else 1 more than the exponent of the smallest power of gamma that is not less."""
    if duration_ms < 1:
        return 0
    return 1 + max(0, math.ceil(math.log(min(duration_ms, LONGEST_MS)) / _LOG_GAMMA))


def _middle(bucket: int) -> float:
    """The value that is off by the same part at both ends of a bucket."""
    return 0.0 if bucket == 0 else 2 * _GAMMA ** (bucket - 1) / (_GAMMA + 1)
