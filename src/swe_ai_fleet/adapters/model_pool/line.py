"""The line of calls that wait: whose turn it is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

QUANTUM_TOKENS = 16_000
_EVERY = 16
"""Of a tenant's turns each sixteenth goes to the call that has waited longest."""


class Session(Protocol):
    """What is known of the agent run behind a call. `attained`: tokens of service that it has had."""

    tenant: str
    priority: int
    attained: int
    started: float


class Waiting(Protocol):
    """A call in line. `order` grows with each call that comes; `session` is None for a call that is all there is."""

    @property
    def order(self) -> int: ...

    @property
    def session(self) -> Session | None: ...


_C = TypeVar("_C", bound=Waiting)


class Line(Generic[_C]):
    """Calls that wait, in the order in which they are to go.

    Tenants take turns. Of one tenant's calls those of a higher priority go first, and of these the one whose session
    has had the least service, in tokens: least attained service, or foreground-background (M. Nuyens, A. Wierman, "The
    Foreground-Background queue: A survey", 2008), which needs no guess of how long a session will be. It has levels
    (multi-level feedback: L. Kleinrock, "Queueing Systems" II, 4.7), each twice as wide as the one before, since a
    session that gives way loses its prompt in the server's cache: within a level the session that began first goes
    first and keeps its cache warm. Each sixteenth turn of a tenant goes to its call that came first, so that with `n`
    calls before it no call waits for more than `16 n` of its tenant's turns.

    Args:
        quantum: tokens of service that make up the lowest level; 0: first come, first served.
    """

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._calls: dict[int, _C] = {}
        self._turns: dict[str, int] = {}
        self._served: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self):
        return iter(self._calls.values())

    def add(self, call: _C) -> None:
        """Let a call wait."""
        self._calls[call.order] = call

    def remove(self, call: _C) -> None:
        """A call waits no more; it has had no turn."""
        self._calls.pop(call.order, None)

    def first(self, may: Callable[[_C], bool] | None = None) -> _C | None:
        """The call whose turn it is, of those that may go; None where none may."""
        calls = self._calls.values()
        return min(calls if may is None else filter(may, calls), key=self._rank, default=None)

    def take(self, call: _C) -> None:
        """Give a call its turn."""
        self.remove(call)
        if not self._quantum:
            return
        tenant = call.session.tenant if call.session else ""
        self._served[tenant] += 1
        self._turns.pop(tenant, None)
        self._turns[tenant] = self._served.total()

    def _rank(self, call: _C) -> tuple[float, ...]:
        if not self._quantum:
            return (call.order,)
        session = call.session
        tenant = session.tenant if session else ""
        turn = self._turns.get(tenant, 0)
        if session is None:
            return (turn, 0, 0, 0, call.order)
        if self._served[tenant] % _EVERY == _EVERY - 1:
            return (turn, -math.inf, 0, 0, call.order)
        level = (session.attained // self._quantum).bit_length()
        return (turn, -session.priority, level, session.started, call.order)
