"""Which executions this replica drives: what waits and nobody drives, fairly, as far as there is room."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog
from structlog.contextvars import bound_contextvars

from swe_ai_fleet.domain.event import (
    ApprovalAwaited,
    ApprovalResolved,
    CancelRequested,
    ExecutionStarted,
    ExecutionStatus,
    StoredEvent,
)
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import TaskKind
from swe_ai_fleet.orchestrator.drive import Drive
from swe_ai_fleet.orchestrator.execution_context import IN_PROCESS, KindDriver
from swe_ai_fleet.orchestrator.projection import Projection, claimable
from swe_ai_fleet.orchestrator.queue import Line, Passes, QueuedExecution, TenantTurns, in_order, weights
from swe_ai_fleet.orchestrator.quotas import Rules, no_rules
from swe_ai_fleet.ports import Replicas

POLL_SECONDS = 1.0
HEAD_START_SECONDS = 1.0
"""The replica that accepted an execution begins it, unless it has no room; the others leave it so long."""
AGAIN_SECONDS = 3.0
"""After a drive has ended, its execution is looked at again: by then the projection knows what the drive wrote.

Twice as long each time that it turns out not to be over.
"""
_MOST_DOUBLINGS = 6

_NEWS = (ExecutionStarted, CancelRequested, ApprovalAwaited, ApprovalResolved)
"""What may give the dispatcher something to do."""

_log = structlog.get_logger()


class Dispatcher:
    """Starts drives and hears of their ends. The log is the queue: nothing waits anywhere else.

    Args:
        max_executions: The most driven at once, those that wait for people or for their own subtasks aside.
    """

    def __init__(
        self,
        projection: Projection,
        replicas: Replicas,
        make: Callable[[ExecutionState], Drive],
        *,
        max_executions: int,
        rules: Rules = no_rules,
    ) -> None:
        self._projection = projection
        self._replicas = replicas
        self._make = make
        self._max_executions = max_executions
        self._rules = rules
        self._passes = Passes()
        self._drives: dict[str, tuple[Drive, asyncio.Task[None]]] = {}
        self._not_before: dict[str, float] = {}
        self._tries: dict[str, int] = {}
        self._served: dict[Line, float] = {}
        self._news = asyncio.Event()
        self._resting = False
        self._loop: asyncio.Task[None] | None = None
        self.drained: Callable[[], bool] = lambda: False
        """Whether nothing new is to be taken."""
        self.drivers: dict[TaskKind, KindDriver] = {}
        """What drives executions of some kinds here; those in process without one are left to others."""

    def start(self) -> None:
        """Begin to look for work."""
        self._loop = asyncio.create_task(self._look(), name="dispatcher")

    async def stop(self) -> None:
        """Stop driving; what is unfinished stays so in the log."""
        if self._loop is None:
            return
        self._loop.cancel()
        await asyncio.wait([self._loop])
        await asyncio.gather(*self.let_go(), return_exceptions=True)

    def let_go(self, kind: TaskKind | None = None) -> list[asyncio.Task[None]]:
        """Stop driving what is driven (of a kind), which any replica may take up again; what ends so."""
        running = [work for drive, work in self._drives.values() if kind in (None, drive.task.kind)]
        for work in running:
            work.cancel()
        return running

    def accepted(self, execution_id: str) -> None:
        """Something was accepted here: it is this replica's first."""
        self._not_before[execution_id] = 0.0
        self._news.set()

    def deliver(self, stored: StoredEvent) -> None:
        """Something was said of an execution; its drive hears it, if it is here."""
        driven = self._drives.get(stored.event.execution_id)
        if driven is not None:
            driven[0].handle(stored.event.body)
        if self._resting or isinstance(stored.event.body, _NEWS):
            self._news.set()

    def drive(self, tenant: str, execution_id: str) -> Drive | None:
        """The drive of an execution, where it is here."""
        drive, _ = self._drives.get(execution_id, (None, None))
        return drive if drive is not None and drive.task.tenant == tenant else None

    def queued(self) -> list[ExecutionState]:
        """What waits for somebody to drive it."""
        return [state for state in self._projection.unfinished() if not state.owner and not state.status.terminal]

    @property
    def at_work(self) -> int:
        """How many executions are driven here, those that wait for people or for their parts aside."""
        return len(self._busy())

    @property
    def driven(self) -> int:
        """How many executions are driven here now."""
        return len(self._drives)

    async def _look(self) -> None:
        while True:
            self._news.clear()
            try:
                self._take()
            except Exception:  # noqa: BLE001 - the edge of a background task
                # Without this loop nothing would be driven any more; what is at fault is looked at again in a moment.
                _log.exception("the dispatcher failed with an internal error")
            with suppress(TimeoutError):
                # What is unfinished may become free with time; without any, the next event wakes.
                self._resting = not self._projection.unfinished()
                async with asyncio.timeout(None if self._resting else POLL_SECONDS):
                    await self._news.wait()

    def _take(self) -> None:
        """Begin what may be begun now."""
        unfinished = self._projection.unfinished()
        self._forget({state.execution_id for state in unfinished})
        free = [state for state in unfinished if self._free(state)]
        waiting: dict[str, ExecutionState] = {}
        for state in free:
            # What only has to be ended, or told of, takes nobody's place.
            if state.cancel_requested or state.status.terminal:
                self._begin(state)
            elif not self.drained():
                waiting[state.execution_id] = state
        busy = self._busy()
        room = self._max_executions - len(busy)
        if room <= 0 or not waiting:
            return
        now = time.time()
        running = Counter((drive.task.tenant, drive.task.caller) for drive in busy)
        entries = [QueuedExecution.of(state) for state in waiting.values()]
        at_work = self._at_work(unfinished, busy)
        names = {entry.tenant for entry in entries}
        weighs = weights(names | at_work.keys(), lambda tenant: self._rules(tenant).quota.queue_share)
        turns = TenantTurns(at_work=at_work, weights=weighs, passes=self._passes.waiting(names))
        ordered = in_order(entries, running, now=now, served=self._served, tenants=turns)
        # What another replica began goes on first: its agents are at work, and would wait for a driver.
        ordered.sort(key=lambda execution: not waiting[execution.execution_id].owner)
        quotas = {tenant: self._rules(tenant).quota.agents for tenant in names}
        for execution in ordered:
            if room <= 0:
                return
            most = quotas[execution.tenant]
            state = waiting[execution.execution_id]
            full = most and at_work[execution.tenant] >= most and state.task.kind not in IN_PROCESS
            if full and not state.owner:
                continue
            room -= 1
            at_work[execution.tenant] += execution.agents
            self._passes.charge(execution.tenant, execution.agents, weighs[execution.tenant])
            self._served[execution.line] = now
            self._begin(waiting[execution.execution_id])

    def sharers(self, tenant: str) -> set[str]:
        """The replicas that drive something of a tenant, what waits for people aside, as far as is known here."""
        alive, asking = self._replicas.alive(), self._projection.awaiting_approval()
        return {
            state.owner
            for state in self._projection.unfinished()
            if state.task.tenant == tenant
            and state.owner in alive
            and not state.status.terminal
            and state.execution_id not in asking
        }

    def _at_work(self, unfinished: Sequence[ExecutionState], busy: Sequence[Drive]) -> Counter[str]:
        """By tenant, the agents of what is driven anywhere, what waits for people or for its parts aside."""
        counts: Counter[str] = Counter()
        for drive in busy:
            counts[drive.task.tenant] += max(1, drive.task.num_agents)
        asking, alive = self._projection.awaiting_approval(), self._replicas.alive()
        for state in unfinished:
            elsewhere = state.execution_id not in self._drives and state.owner in alive and not state.status.terminal
            # Its parts have places of their own, and what works in process is no agent.
            kind = state.task.kind
            apart = state.task.derive_subtasks or kind is TaskKind.WORKFLOW or kind in IN_PROCESS
            if elsewhere and state.execution_id not in asking and not apart:
                counts[state.task.tenant] += max(1, state.task.num_agents)
        return counts

    def _free(self, state: ExecutionState) -> bool:
        if state.task.kind in IN_PROCESS and not state.status.terminal:
            waits = state.status is ExecutionStatus.AWAITING_APPROVAL and not state.cancel_requested
            if waits or state.task.kind not in self.drivers:
                # There may be many that nobody decides about any more.
                return False
        execution_id, alive, now = state.execution_id, self._replicas.alive(), time.monotonic()
        if execution_id in self._drives or not claimable(state, alive, self._replicas.me):
            return False
        elsewhere = not state.owner and len(alive) > 1
        return self._not_before.setdefault(execution_id, now + elsewhere * HEAD_START_SECONDS) <= now

    def _forget(self, unfinished: set[str]) -> None:
        """Keep nothing of executions that are over; looked at only where there are many of them."""
        if len(self._not_before) > 2 * len(unfinished) + 1_000:
            self._not_before = {name: at for name, at in self._not_before.items() if name in unfinished}
            self._tries = {name: tries for name, tries in self._tries.items() if name in unfinished}

    def _busy(self) -> list[Drive]:
        """The drives that take a place."""
        waiting = self._projection.awaiting_approval()
        return [
            drive
            for execution_id, (drive, _) in self._drives.items()
            if execution_id not in waiting and not drive.waits
        ]

    def _begin(self, state: ExecutionState) -> None:
        execution_id, drive = state.execution_id, self._make(state)
        # Tasks and callbacks keep what is bound here for their log lines.
        with bound_contextvars(tenant=state.task.tenant, execution_id=execution_id):
            work = asyncio.create_task(drive.run(), name=f"execution {execution_id}")
            work.add_done_callback(lambda ended: self._ended(execution_id, ended))
        self._drives[execution_id] = (drive, work)

    def _ended(self, execution_id: str, work: asyncio.Task[None]) -> None:
        del self._drives[execution_id]
        fault = None if work.cancelled() else work.exception()
        if fault is not None:
            _log.error("an execution failed with an internal error", exc_info=fault)
        tries = self._tries.get(execution_id, 0)
        self._tries[execution_id] = tries + 1
        self._not_before[execution_id] = time.monotonic() + AGAIN_SECONDS * 2 ** min(tries, _MOST_DOUBLINGS)
        self._news.set()
