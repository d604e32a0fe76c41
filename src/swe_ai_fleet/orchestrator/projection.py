"""The projection of all executions: a cache folded from the log, rebuilt whenever this process starts.

It tells which of them this process may drive: ownership stands in the log, being alive in a lease that the server ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime

from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.domain.event import (
    Event,
    ExecutionErased,
    ExecutionFinished,
    ExecutionStatus,
    NodeUpdated,
    StoredEvent,
)
from swe_ai_fleet.domain.execution import ExecutionState, advance
from swe_ai_fleet.domain.task import Role, TaskKind
from swe_ai_fleet.ports import EventLog

_LOOKS = 200
"""So often within the time that the log keeps events."""
_ERASED_KNOWN = 50_000


def over(state: ExecutionState) -> bool:
    """Whether nothing is left to be done: it has ended, and subscribers have been told."""
    return state.status.terminal and state.result_published


def claimable(state: ExecutionState, alive: Collection[str], me: str) -> bool:
    """Whether this replica may try to take an execution that it does not drive at the moment.

    Something is left to be done, and nobody else is at it: no owner stands in the log, or one whose lease is gone, or
    this replica itself (an earlier drive of its own met a fault). A replica that has lost its own lease takes nothing,
    since everybody else would take it away again.

    The answer may come from a state and a set that are out of date. That costs a refusal and never an execution: the
    claim is appended with the generation after `state.generation` behind the subject's last event, so of all who try
    one succeeds, and whoever drove before is fenced from that moment on. (Gray and Cheriton, Leases, SOSP 1989; the
    generation is a fencing token, as in Burrows, The Chubby Lock Service, OSDI 2006.)

    Args:
        state: The execution as far as this replica knows.
        alive: The replicas that hold a lease.
        me: This replica.
    """
    if over(state) or me not in alive:
        return False
    return state.owner == me or state.owner not in alive


class Projection:
    """Follows what executions say and are told. Steps of their agents are not in it: read the log for those.

    Args:
        log: What to follow.
        heard: Hears of each event that comes in after the start, once it is in here.
        kept_seconds: How long the log keeps events, 0 for ever. An execution that is over is forgotten when its first
            event is gone: a projection that is built anew would not know of it either.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        log: EventLog,
        heard: Callable[[StoredEvent], None] | None = None,
        *,
        kept_seconds: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._kept_seconds = kept_seconds
        self._clock = clock
        self._forgets_at = 0.0
        self._heard = heard
        self._open: dict[tuple[str, str], None] = {}
        self._states: dict[tuple[str, str], ExecutionState] = {}
        self._ends: dict[tuple[str, str], int] = {}
        self._erased: dict[tuple[str, str], None] = {}
        self._changed = asyncio.Condition()
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read what is stored, then follow in the background."""
        caught_up = asyncio.Event()
        self._follower = asyncio.create_task(self._follow(caught_up), name="projection")
        waiting = asyncio.create_task(caught_up.wait())
        await asyncio.wait([waiting, self._follower], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._follower.done():
            await self._follower

    async def stop(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)

    def accepted(self, event: Event) -> None:
        """Know of an execution at once, before its first event has come round through the log."""
        state = advance(None, StoredEvent(sequence=0, event=event))
        key = (event.tenant, event.execution_id)
        if state is not None and key not in self._states:
            self._states[key] = state
            self._open[key] = None

    def get(self, tenant: str, execution_id: str) -> ExecutionState | None:
        return self._states.get((tenant, execution_id))

    def end_sequence(self, tenant: str, execution_id: str) -> int:
        """The sequence of its `ExecutionFinished`, 0 while it goes on."""
        return self._ends.get((tenant, execution_id), 0)

    def erased(self, tenant: str) -> list[str]:
        """The executions of a tenant that were erased, the last 50,000 of all."""
        return [execution_id for name, execution_id in self._erased if name == tenant]

    def unfinished(self) -> list[ExecutionState]:
        """Executions that have not ended, or whose result subscribers may not have heard of."""
        return [self._states[key] for key in self._open]

    def awaiting_approval(self) -> set[str]:
        """The ids of the executions in which somebody waits for a person."""
        return {s.execution_id for s in self.unfinished() if s.status is ExecutionStatus.AWAITING_APPROVAL}

    def latest(self, tenant: str, task_id: str, kind: TaskKind | None) -> ExecutionState | None:
        """The execution of the task's highest attempt; of several kinds the one that started last."""
        found = [
            state
            for state in self._states.values()
            if state.task.tenant == tenant and state.task.task_id == task_id and kind in (None, state.task.kind)
        ]
        return max(found, key=lambda state: (state.task.attempt, state.started_at), default=None)

    def select(
        self,
        tenant: str,
        *,
        task_id: str = "",
        role: Role | None = None,
        statuses: frozenset[ExecutionStatus] = frozenset(),
        created_after: str = "",
        created_before: str = "",
    ) -> list[ExecutionState]:
        """The executions that fit, newest first. Times are ISO 8601, UTC; empty means any."""
        found = [
            state
            for state in self._states.values()
            if state.task.tenant == tenant
            and (not task_id or state.task.task_id == task_id)
            and (role is None or state.task.role is role)
            and (not statuses or state.status in statuses)
            and (not created_after or state.started_at >= created_after)
            and (not created_before or state.started_at < created_before)
        ]
        return sorted(found, key=lambda state: (state.started_at, state.execution_id), reverse=True)

    def everything(self) -> list[ExecutionState]:
        """Those of all tenants."""
        return list(self._states.values())

    def all(self, tenant: str) -> list[ExecutionState]:
        return [state for state in self._states.values() if state.task.tenant == tenant]

    async def finished(self, tenant: str, execution_id: str) -> ExecutionState:
        """Wait until an execution has ended; its state as far as its own events go."""
        key = (tenant, execution_id)
        async with self._changed:
            await self._changed.wait_for(lambda: key in self._ends or key in self._erased)
            state = self._states.get(key)
        if state is None:
            raise NotFound(f"no execution {execution_id[:64]!r}", field="execution_id")
        return state

    def _forget(self) -> None:
        """Let go of what is over and older than the log; looked at now and then, the oldest first."""
        now = self._clock()
        if not self._kept_seconds or now < self._forgets_at:
            return
        self._forgets_at = now + self._kept_seconds / _LOOKS
        gone: list[tuple[str, str]] = []
        for key, state in self._states.items():
            if datetime.fromisoformat(state.started_at).timestamp() > now - self._kept_seconds:
                break
            if key not in self._open:
                gone.append(key)
        for key in gone:
            del self._states[key]
            self._ends.pop(key, None)

    async def erase(self, stored: StoredEvent) -> None:
        """Forget an execution that is erased, and remember only that."""
        key = (stored.event.tenant, stored.event.execution_id)
        async with self._changed:
            for known in (self._states, self._open, self._ends):
                known.pop(key, None)
            self._erased[key] = None
            if len(self._erased) > _ERASED_KNOWN:
                del self._erased[next(iter(self._erased))]
            self._changed.notify_all()

    async def _follow(self, caught_up: asyncio.Event) -> None:
        async with aclosing(self._log.heads(follow=True)) as heads:
            async for stored in heads:
                if stored is None:
                    caught_up.set()
                    continue
                self._forget()
                key = (stored.event.tenant, stored.event.execution_id)
                state = advance(self._states.get(key), _light(stored))
                if isinstance(stored.event.body, ExecutionErased):
                    await self.erase(stored)
                elif state is not None:
                    self._states[key] = state = _slim(state)
                    if over(state):
                        self._open.pop(key, None)
                    else:
                        self._open[key] = None
                if isinstance(stored.event.body, ExecutionFinished):
                    async with self._changed:
                        self._ends[key] = stored.sequence
                        self._changed.notify_all()
                if caught_up.is_set() and self._heard is not None:
                    self._heard(stored)


def _light(stored: StoredEvent) -> StoredEvent:
    """An event without what a node was given and gave: a run may have thousands, and only its driver needs them."""
    body = stored.event.body
    if not isinstance(body, NodeUpdated):
        return stored
    return replace(stored, event=replace(stored.event, body=replace(body, inputs="", output="")))


def _slim(state: ExecutionState) -> ExecutionState:
    """An ended execution without the texts that the log has: states of thousands are kept in memory."""
    if not state.status.terminal or (state.context is None and state.output is None):
        return state
    context = state.context and GatheredContext(tokens=state.context.tokens, version=state.context.version)
    return replace(state, context=context, output=None)
