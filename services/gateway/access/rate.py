"""How many requests a client may send: a token bucket for each, in bounded memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from math import ceil

MOST_CLIENTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a client has left after a request.

    Attributes:
        admitted: Whether the request may go on.
        remaining: Requests it may send at once.
        seconds: Until the bucket is full again or, for one that is not admitted, until the next may come.
    """

    admitted: bool
    remaining: int
    seconds: int


class Buckets:
    """A bucket for each client that holds `per_minute` requests and fills at that rate.

    Of more than `most` clients those that were heard of longest ago are forgotten: they start with a full bucket.
    """

    def __init__(
        self, per_minute: int, *, most: int = MOST_CLIENTS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.per_minute = per_minute
        self._rate = per_minute / 60.0
        self._most = most
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> Allowance:
        """Count a request of a client."""
        level = self._level(client)
        admitted = level >= 1.0
        self._store(client, level - 1.0 if admitted else level)
        if not admitted:
            return Allowance(admitted=False, remaining=0, seconds=ceil((1.0 - level) / self._rate))
        left = level - 1.0
        return Allowance(admitted=True, remaining=int(left), seconds=ceil((self.per_minute - left) / self._rate))

    def look(self, client: str) -> Allowance:
        """What a client has, without counting anything."""
        level = self._level(client)
        seconds = ceil(max(0.0, 1.0 - level) / self._rate)
        return Allowance(admitted=level >= 1.0, remaining=int(level), seconds=seconds)

    def __len__(self) -> int:
        return len(self._levels)

    def _level(self, client: str) -> float:
        level, at = self._levels.get(client, (float(self.per_minute), self._clock()))
        return min(float(self.per_minute), level + (self._clock() - at) * self._rate)

    def _store(self, client: str, level: float) -> None:
        self._levels[client] = (level, self._clock())
        self._levels.move_to_end(client)
        if len(self._levels) > self._most:
            self._levels.popitem(last=False)


def peer(address: str) -> str:
    """The client behind an address: of IPv6 the network of 64 bits, since one client has all of them."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or IPv6Address(int(parsed) >> 64 << 64))
    return address
