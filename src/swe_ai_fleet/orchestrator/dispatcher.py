"""The dispatcher: chooses the waiting executions that this replica drives, fairly, as far as it has room."""

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
"""How long the other replicas leave an execution to the one that accepted it."""
AGAIN_SECONDS = 3.0
"""The pause after a drive has ended before its execution is considered again: by then the projection has the drive's
events. It doubles each time that the execution has not ended.
"""
_MOST_DOUBLINGS = 6

_NEWS = (ExecutionStarted, CancelRequested, ApprovalAwaited, ApprovalResolved)
"""Events that may give the dispatcher work."""

_log = structlog.get_logger()


class Dispatcher:
    """Starts drives and restarts unfinished ones. The log is the queue: executions wait nowhere else.

    Args:
        make: Makes the drive of an execution.
        max_executions: The most drives at once, without those that wait for people or for their own subtasks.
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
        """Whether this replica must take no new executions."""
        self.drivers: dict[TaskKind, KindDriver] = {}
        """The drivers of kinds here; in-process kinds without a driver are left to other replicas."""

    def start(self) -> None:
        """Start to look for work."""
        self._loop = asyncio.create_task(self._look(), name="dispatcher")

    async def stop(self) -> None:
        """Stop all drives; their executions stay unfinished in the log."""
        if self._loop is None:
            return
        self._loop.cancel()
        await asyncio.wait([self._loop])
        await asyncio.gather(*self.let_go(), return_exceptions=True)

    def let_go(self, kind: TaskKind | None = None) -> list[asyncio.Task[None]]:
        """Cancel the drives (of a kind), whose executions any replica may resume; returns their tasks."""
        running = [work for drive, work in self._drives.values() if kind in (None, drive.task.kind)]
        for work in running:
            work.cancel()
        return running

    def accepted(self, execution_id: str) -> None:
        """Consider an execution that was accepted here without a head start for others."""
        self._not_before[execution_id] = 0.0
        self._news.set()

    def deliver(self, stored: StoredEvent) -> None:
        """Pass an event to the drive of its execution, if it is here."""
        driven = self._drives.get(stored.event.execution_id)
        if driven is not None:
            driven[0].handle(stored.event.body)
        if self._resting or isinstance(stored.event.body, _NEWS):
            self._news.set()

    def drive(self, tenant: str, execution_id: str) -> Drive | None:
        """The drive of an execution; None if it is not here."""
        drive, _ = self._drives.get(execution_id, (None, None))
        return drive if drive is not None and drive.task.tenant == tenant else None

    def queued(self) -> list[ExecutionState]:
        """The executions that wait for a driver."""
        return [state for state in self._projection.unfinished() if not state.owner and not state.status.terminal]

    @property
    def at_work(self) -> int:
        """The number of executions driven here, without those that wait for people or for their children."""
        return len(self._busy())

    @property
    def driven(self) -> int:
        """The number of executions driven here."""
        return len(self._drives)

    async def _look(self) -> None:
        while True:
            self._news.clear()
            try:
                self._take()
            except Exception:  # noqa: BLE001 - the edge of a background task
                # Without this loop no execution would be driven any more; the faulty one is tried again soon.
                _log.exception("the dispatcher failed with an internal error")
            with suppress(TimeoutError):
                # An unfinished execution may become free with time; if there is none, the next event wakes this loop.
                self._resting = not self._projection.unfinished()
                async with asyncio.timeout(None if self._resting else POLL_SECONDS):
                    await self._news.wait()

    def _take(self) -> None:
        """Start the drives that may start now."""
        unfinished = self._projection.unfinished()
        self._forget({state.execution_id for state in unfinished})
        free = [state for state in unfinished if self._free(state)]
        waiting: dict[str, ExecutionState] = {}
        for state in free:
            # An execution that only has to be ended or published takes no slot.
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
        # Executions that another replica began come first: their agents are running and would wait for a driver.
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
        """The replicas that drive executions of a tenant, without those that wait for people, as far as known here."""
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
        """The number of agents at work by tenant, on all replicas; executions that only wait do not count."""
        counts: Counter[str] = Counter()
        for drive in busy:
            counts[drive.task.tenant] += max(1, drive.task.num_agents)
        asking, alive = self._projection.awaiting_approval(), self._replicas.alive()
        for state in unfinished:
            elsewhere = state.execution_id not in self._drives and state.owner in alive and not state.status.terminal
            # Child executions have slots of their own, and in-process kinds have no agents.
            kind = state.task.kind
            apart = state.task.derive_subtasks or kind is TaskKind.WORKFLOW or kind in IN_PROCESS
            if elsewhere and state.execution_id not in asking and not apart:
                counts[state.task.tenant] += max(1, state.task.num_agents)
        return counts

    def _free(self, state: ExecutionState) -> bool:
        if state.task.kind in IN_PROCESS and not state.status.terminal:
            waits = state.status is ExecutionStatus.AWAITING_APPROVAL and not state.cancel_requested
            if waits or state.task.kind not in self.drivers:
                # Many of these may never be decided.
                return False
        execution_id, alive, now = state.execution_id, self._replicas.alive(), time.monotonic()
        if execution_id in self._drives or not claimable(state, alive, self._replicas.me):
            return False
        elsewhere = not state.owner and len(alive) > 1
        return self._not_before.setdefault(execution_id, now + elsewhere * HEAD_START_SECONDS) <= now

    def _forget(self, unfinished: set[str]) -> None:
        """Drop entries of ended executions once there are many."""
        if len(self._not_before) > 2 * len(unfinished) + 1_000:
            self._not_before = {name: at for name, at in self._not_before.items() if name in unfinished}
            self._tries = {name: tries for name, tries in self._tries.items() if name in unfinished}

    def _busy(self) -> list[Drive]:
        """The drives that take a slot."""
        waiting = self._projection.awaiting_approval()
        return [
            drive
            for execution_id, (drive, _) in self._drives.items()
            if execution_id not in waiting and not drive.waits
        ]

    def _begin(self, state: ExecutionState) -> None:
        execution_id, drive = state.execution_id, self._make(state)
        # Tasks and callbacks inherit the variables bound here for their log lines.
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
