"""What a pool tells its operators."""

from __future__ import annotations

from dataclasses import dataclass

from swe_ai_fleet.adapters.model_pool.endpoint import Circuit
from swe_ai_fleet.adapters.model_pool.load import Load
from swe_ai_fleet.domain.text import counted


@dataclass(slots=True, kw_only=True)
class Counters:
    """Counted since the pool was opened.

    Attributes:
        admitted: calls that reached an endpoint, tries again included.
        waited: times a call had to wait for an endpoint.
        failed_over: calls that went to another endpoint after a fault.
        moved: agent runs that were bound to another endpoint.
        opened: circuits that opened.
        turned_away: calls that a server refused for overload.
        gave_up: calls that ended because no endpoint served them in time.
    """

    admitted: int = 0
    waited: int = 0
    failed_over: int = 0
    moved: int = 0
    opened: int = 0
    turned_away: int = 0
    gave_up: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """One member as this process sees it; `limit` is the most calls that it would let be under way.

    `load` is the server's own word, None where it gives none.
    """

    name: str
    circuit: Circuit
    in_flight: int
    limit: float
    sessions: int
    load: Load | None
    last_fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """All endpoints, and how many calls wait for one."""

    endpoints: tuple[MemberStatus, ...]
    waiting: int

    @property
    def summary(self) -> str:
        """A line for people: `2 of 3 endpoints up, 12 calls running, 0 waiting`."""
        up = sum(endpoint.circuit is not Circuit.OPEN for endpoint in self.endpoints)
        calls = counted(sum(endpoint.in_flight for endpoint in self.endpoints), "call")
        return f"{up} of {len(self.endpoints)} endpoints up, {calls} running, {self.waiting} waiting"
