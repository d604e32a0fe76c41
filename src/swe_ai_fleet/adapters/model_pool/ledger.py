"""The fleet's limits on model calls, and the ledger of their leases to hosts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

_LEASE_SECONDS = 5.0
_BURST_SECONDS = 10.0
_SHORTEST_AGAIN_SECONDS = 0.05
_AGAIN_SECONDS_PER_HOST = 0.01
_LONGEST_AGAIN_SECONDS = 5.0
_LONGEST_DRY_SECONDS = 1.0
_LEASE_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CallQuota:
    """The limits of a whole fleet: concurrent calls, and tokens (prompt and completion) a minute; 0 means no limit."""

    max_in_flight: int = 0
    tokens_per_minute: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one host holds and needs. Counts are totals, not changes, so that a repeated request does no harm.

    Attributes:
        epoch: the id of the ledger that answered this host last; empty before the first answer.
        slots: the concurrent calls that its lease allows.
        head: the tokens that its first waiting call lacks.
        returned: granted tokens that it does not need.
    """

    host: str
    epoch: str = ""
    slots: int = 0
    using: int = 0
    waiting: int = 0
    spare: int = 0
    tokens: int = 0
    head: int = 0
    returned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A lease. `slots` is the host's limit of concurrent calls, `tokens` are added to those it has.

    It ends after `lease_seconds`; a host that needs more asks again after `again_seconds`. `contended`: others wait.
    """

    epoch: str
    slots: int
    tokens: int
    lease_seconds: float
    again_seconds: float
    contended: bool = False


class Ledger(Protocol):
    """The leases of all hosts in the fleet."""

    async def renew(self, demand: Demand, quota: CallQuota) -> Grant:
        """Replace a host's lease. Raises Unavailable; then the old lease remains until it ends."""
        ...


@dataclass(slots=True, kw_only=True)
class _Lease:
    """A host's lease. `held` counts against the limit: its slots, or its running calls if those are more.

    `hungry_since` and `thirsty_since` are the times since when it has waited for a slot and for tokens.
    """

    need: int
    waiting: bool
    hungry_since: float
    thirsty_since: float
    head: int
    held: int
    ends_at: float


class MemoryLedger:
    """A `Ledger` in memory: for a whole fleet inside a Ray actor, elsewhere for one process.

    Calls are shared by max-min fairness (D. Bertsekas, R. Gallager, "Data Networks", 6.5): a host that needs less than
    an equal share gets all it needs. An indivisible remainder goes in turn to the hosts that have waited longest.
    Running calls are never revoked; a host with more than its share starts none until it is below.
    Tokens come from a bucket that fills continuously and holds 10 seconds' worth; a grant may leave it in debt by the
    size of one call, so that a call larger than the bucket is served, too.

    A ledger that gets a request with another ledger's epoch has succeeded that one. For the duration of one lease it
    then grants no host more calls than it had before.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, lease_seconds: float = _LEASE_SECONDS) -> None:
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._epoch = uuid.uuid4().hex
        self._born = clock()
        self._successor = False
        self._leases: dict[str, _Lease] = {}
        self._level: float | None = None
        self._filled_at = self._born

    async def renew(self, demand: Demand, quota: CallQuota) -> Grant:
        now = self._clock()
        self._leases = {host: lease for host, lease in self._leases.items() if lease.ends_at > now}
        if demand.epoch not in ("", self._epoch) and not self._successor:
            self._successor, self._level = True, 0.0
        before = self._leases.pop(demand.host, None)
        lease = _Lease(
            need=demand.using + demand.waiting,
            waiting=demand.waiting > 0,
            hungry_since=before.hungry_since if before and before.waiting else now,
            thirsty_since=before.thirsty_since if before and before.head else now,
            head=demand.head,
            held=demand.using,
            ends_at=0.0,
        )
        empty = not (demand.using or demand.waiting or demand.spare or demand.tokens)
        if not empty:
            self._leases[demand.host] = lease
        tokens, dry_seconds = self._pour(demand, lease, quota, now)
        slots = self._slots(demand, lease, quota, now)
        lease.held = max(slots, demand.using)
        if slots > demand.using:
            lease.hungry_since = now
        again = min(_LONGEST_AGAIN_SECONDS, max(_SHORTEST_AGAIN_SECONDS, _AGAIN_SECONDS_PER_HOST * len(self._leases)))
        again = max(again, min(dry_seconds, _LONGEST_DRY_SECONDS))
        seconds = max(self._lease_seconds, _LEASE_ROUNDS * again)
        lease.ends_at = now + seconds
        return Grant(
            epoch=self._epoch,
            slots=slots,
            tokens=tokens,
            lease_seconds=seconds,
            again_seconds=again,
            contended=any(
                other.waiting and other.need > other.held for host, other in self._leases.items() if host != demand.host
            ),
        )

    @property
    def held(self) -> Mapping[str, int]:
        """The calls of each host that count against the limit."""
        return {host: lease.held for host, lease in self._leases.items()}

    def _slots(self, demand: Demand, lease: _Lease, quota: CallQuota, now: float) -> int:
        if not quota.max_in_flight:
            return 0
        others = sum(other.held for host, other in self._leases.items() if host != demand.host)
        room = max(0, quota.max_in_flight - others)
        if self._successor and now - self._born < self._lease_seconds:
            return min(lease.need, max(demand.using, demand.slots), room)
        granted = min(self._fair_share(demand.host, lease, quota.max_in_flight), room)
        unclaimed = quota.max_in_flight - sum(other.need for other in self._leases.values())
        return granted + max(0, min(demand.spare, room - granted, unclaimed))

    def _fair_share(self, host: str, lease: _Lease, capacity: int) -> int:
        """A host's max-min fair share of the calls, at most what it needs."""
        remaining, level = capacity, 0
        needs = sorted(other.need for other in self._leases.values())
        for index, need in enumerate(needs):
            level = remaining // (len(needs) - index)
            if need > level:
                break
            remaining -= need
        else:
            return lease.need
        if lease.need <= level:
            return lease.need
        hungry = [other for other in self._leases.values() if other.need > level]
        extra = remaining - level * len(hungry) - sum(other.held > level for other in hungry if other is not lease)
        # Reserved for hosts that have waited longer, even if their requests come a moment later.
        ahead = sum(
            (other.hungry_since, name) < (lease.hungry_since, host)
            for name, other in self._leases.items()
            if other.need > level and other.held <= level and other is not lease
        )
        return level + (ahead < extra)

    def _pour(self, demand: Demand, lease: _Lease, quota: CallQuota, now: float) -> tuple[int, float]:
        """Take tokens for a host from the bucket: (their number, seconds until there are some if it is 0).

        Hosts whose calls have waited longer come first.
        """
        if not quota.tokens_per_minute:
            return 0, 0.0
        rate = quota.tokens_per_minute / 60
        burst = rate * _BURST_SECONDS
        level = burst if self._level is None else self._level
        level = min(burst, level + rate * (now - self._filled_at) + demand.returned)
        poured, dry_seconds = 0, 0.0
        thirsty = [other for other in self._leases.values() if other.head and other is not lease]
        ahead = sum(other.head for other in thirsty if other.thirsty_since < lease.thirsty_since or not demand.head)
        if demand.tokens and level > ahead:
            poured = min(demand.tokens, max(demand.head, int((level - ahead) / (len(thirsty) + 1))))
            lease.thirsty_since = now
        elif demand.tokens:
            dry_seconds = (ahead - level) / rate
        self._level, self._filled_at = level - poured, now
        return poured, dry_seconds
