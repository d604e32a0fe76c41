"""Agents' seats: a fleet in which no tenant has more agents at work, or spends more, than its quota says."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar, cast

from swe_ai_fleet.domain.errand import (
    Assignment,
    Errand,
    ErrandKind,
)
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.orchestrator.quotas import Quotas
from swe_ai_fleet.ports import Fleet

LOOK_SECONDS = 1.0
"""After so long whoever waits looks whether the quota, or those who share it, are others."""

_SEATLESS = (ErrandKind.BASELINE, ErrandKind.CHECK, ErrandKind.EXAMINE, ErrandKind.OPERATE)

T = TypeVar("T")


class Seats:
    """A `Fleet`: each run waits until its tenant has a seat, and has no more tokens than its tenant has left.

    Inside one replica a tenant's quota of agents is kept exactly. Replicas that drive something of the same tenant
    share it evenly, each one seat at least, by what each knows of the others: for as long as the log takes to tell of a
    claim (some milliseconds) one more replica may count on seats that it has to give up.

    Args:
        fleet: Where the runs are carried out.
        quotas: What tenants may use.
        me: This replica.
        sharers: The replicas that drive something of a tenant now.
    """

    def __init__(
        self,
        fleet: Fleet,
        quotas: Quotas,
        *,
        me: str = "",
        sharers: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        self._fleet = fleet
        self._quotas = quotas
        self._me = me
        self._sharers = sharers
        self._lines: dict[str, deque[object]] = {}
        self._left = asyncio.Event()
        self.taken: Counter[str] = Counter()

    async def carry_out(self, errand: Errand[T]) -> T:
        """See `Fleet.carry_out`; checks and single calls of tools take no agent's seat.

        Raises ResourceExhausted where the tenant has no tokens left.
        """
        if errand.kind in _SEATLESS:
            return await self._fleet.carry_out(errand)
        async with self._seated(errand) as granted:
            return await self._fleet.carry_out(granted)

    @asynccontextmanager
    async def _seated(self, assignment: Errand[T]) -> AsyncGenerator[Errand[T]]:
        """The assignment with what it may spend, once there is a seat for it."""
        tenant = assignment.task.tenant
        await self._wait(tenant)
        self.taken[tenant] += 1
        try:
            yield await self._granted(assignment)
        finally:
            self.taken[tenant] -= 1
            self._changed()

    async def _wait(self, tenant: str) -> None:
        """Until it is this one's turn and there is a seat."""
        line = self._lines.setdefault(tenant, deque())
        ticket = object()
        line.append(ticket)
        try:
            while line[0] is not ticket or self.taken[tenant] >= self._seats(tenant):
                left = self._left
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await left.wait()
                except TimeoutError:
                    continue
        finally:
            line.remove(ticket)
            if not line:
                self._lines.pop(tenant, None)
            self._changed()

    def _seats(self, tenant: str) -> float:
        """How many agents of a tenant may work through this replica now."""
        most = self._quotas.rules(tenant).quota.agents
        if not most:
            return float("inf")
        sharers = sorted({*self._sharers(tenant), self._me})
        # With no seat at all, one could wait for ever for what it drives of an execution that another drives.
        return max(1, most // len(sharers) + (sharers.index(self._me) < most % len(sharers)))

    async def _granted(self, assignment: Errand[T]) -> Errand[T]:
        room = await self._quotas.storage_left(assignment.task.tenant)
        assignment = _bounded(assignment, room, self._parts(assignment))
        left = await self._quotas.check_tokens(assignment.task.tenant)
        if left is None:
            return assignment
        task = assignment.task
        if _resumes(assignment):
            # What a run spent before counts towards its own limit, so only the whole day's bounds it here.
            return replace(assignment, task=_limited(task, self._quotas.rules(task.tenant).quota.tokens_per_day))
        return replace(assignment, task=_limited(task, max(1, left // self._parts(assignment))))

    def _parts(self, errand: Errand[T]) -> int:
        """Those that work at the same time share what is left."""
        return max(self.taken[errand.task.tenant], errand.task.num_agents, 1)

    def _changed(self) -> None:
        left, self._left = self._left, asyncio.Event()
        left.set()


def _resumes(errand: Errand[object]) -> bool:
    return isinstance(errand, Assignment) and errand.resume


def _bounded(errand: Errand[T], room: int | None, parts: int) -> Errand[T]:
    """The errand with no larger checkpoints than there is room for: of a run there are two for a moment."""
    if room is None or not isinstance(errand, Assignment):
        return errand
    return cast("Errand[T]", replace(errand, checkpoint_bytes=room // (2 * parts)))


def _limited(task: Task, tokens: int) -> Task:
    """The task with no more tokens for one run."""
    limits = task.constraints.limits
    most = min(limits.max_tokens or tokens, tokens)
    return replace(task, constraints=replace(task.constraints, limits=replace(limits, max_tokens=most)))
