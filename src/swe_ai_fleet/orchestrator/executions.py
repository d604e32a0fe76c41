"""Executions: accepted once, driven to an end, and told of by their events alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace

from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.domain.event import (
    EXECUTION_SUBJECT,
    CancelRequested,
    CandidateDelivered,
    ExecutionErased,
    ExecutionFinished,
    ExecutionStatus,
    ResultPublished,
    StoredEvent,
)
from swe_ai_fleet.domain.execution import ExecutionState, Fold
from swe_ai_fleet.domain.task import TaskKind
from swe_ai_fleet.orchestrator.acceptance import Acceptance, Room
from swe_ai_fleet.orchestrator.approvals import Decisions, control
from swe_ai_fleet.orchestrator.council_store import CouncilStore
from swe_ai_fleet.orchestrator.delivery import HandDeliveries
from swe_ai_fleet.orchestrator.dispatcher import Dispatcher
from swe_ai_fleet.orchestrator.drive import Drive
from swe_ai_fleet.orchestrator.execution_context import ExecutionDeps, KindDriver
from swe_ai_fleet.orchestrator.projection import Projection
from swe_ai_fleet.orchestrator.quotas import ConcurrencyLimiter, Quotas
from swe_ai_fleet.ports import Replicas
from swe_ai_fleet.snapshots import Snapshots
from swe_ai_fleet.tools.catalogue import ToolAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLoad:
    """The current load: executions `driven` by this replica, and `queued` for any of the live `replicas`.

    `oldest` is when the oldest queued one was accepted (ISO 8601; empty: none waits); `for_people` counts by tenant the
    executions that wait for a person.
    """

    driven: int
    queued: int
    oldest: str
    for_people: Mapping[str, int]
    room: Room
    replicas: tuple[str, ...]


class Executions:
    """Accepts tasks and drives executions. An async context: leaving it stops the drives, and loses nothing.

    Several of these may share one log: an execution can be watched, cancelled, approved and fetched through any of
    them, and one of them drives it at a time.

    Args:
        replicas: The replicas that share the log; None: this is the only one.
        access: The services that tools may use; a task that requests more is refused.
        priced: Whether models have prices; without them no task can be limited by cost.
        councils: The councils of roles; None: each task gets agents of its own.
        quotas: The quotas and rules of tenants.
        kept_seconds: How long the log keeps events, 0 for ever; see `Projection`.
        snapshots: Where the projection is saved; None: the log is read from its start.

    Attributes:
        submit, begin, enqueue: See `Acceptance`.
        check_tokens, check_storage: See `Quotas`.
        resolve, steer, carry_on: See `Decisions`.
        deliver: See `HandDeliveries`.
        dispatcher: Starts the drives of this replica.
    """

    def __init__(
        self,
        deps: ExecutionDeps,
        *,
        replicas: Replicas | None = None,
        room: Room | None = None,
        access: ToolAccess | None = None,
        profiles: Collection[str] = (),
        priced: bool = False,
        councils: CouncilStore | None = None,
        kept_seconds: float = 0.0,
        quotas: Quotas | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        def on_event(stored: StoredEvent) -> None:
            self.dispatcher.deliver(stored)

        self.projection = Projection(deps.log, on_event, kept_seconds=kept_seconds, snapshots=snapshots)
        self._quotas = quotas or Quotas()
        self.rules = self._quotas.rules
        self.fleet: ConcurrencyLimiter = ConcurrencyLimiter(
            fleet=deps.fleet, quotas=self._quotas, me=deps.owner, sharers=lambda tenant: self.dispatcher.sharers(tenant)
        )
        deps = replace(deps, fleet=self.fleet)
        self._log = deps.log
        self._room = room or Room()
        decisions = Decisions(self._log, self.get)
        hand_deliveries = HandDeliveries(log=self._log, blobs=deps.blobs, workspaces=deps.workspaces, get=self.get)
        self._replicas = replicas or OnlyReplica(deps.owner)
        self.dispatcher: Dispatcher = Dispatcher(
            self.projection,
            self._replicas,
            lambda state: Drive(deps, state, self, self.dispatcher.drivers.get(state.task.kind)),
            max_executions=self._room.executions,
            rules=self.rules,
        )
        if deps.workflows is not None:
            self.dispatcher.drivers[TaskKind.WORKFLOW] = deps.workflows
        self._acceptance = Acceptance(
            deps=deps,
            projection=self.projection,
            dispatcher=self.dispatcher,
            quotas=self._quotas,
            room=self._room,
            access=access or ToolAccess(),
            profiles=profiles,
            priced=priced,
            councils=councils,
            get=self.get,
        )
        acceptance = self._acceptance
        self.submit, self.begin, self.enqueue = acceptance.submit, acceptance.begin, acceptance.enqueue
        self.check_tokens, self.check_storage = self._quotas.check_tokens, self._quotas.check_storage
        self.resolve, self.steer, self.carry_on = decisions.resolve, decisions.steer, decisions.carry_on
        self.deliver = hand_deliveries.deliver

    async def __aenter__(self) -> Executions:
        await self.projection.start()
        self.dispatcher.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._acceptance.close()
        await self.dispatcher.stop()
        await self.projection.stop()

    @asynccontextmanager
    async def driving(self, kind: TaskKind, driver: KindDriver) -> AsyncGenerator[None]:
        """Drive a further kind of executions until the context ends; unfinished ones stay unfinished in the log."""
        self.dispatcher.drivers[kind] = driver
        try:
            yield
        finally:
            del self.dispatcher.drivers[kind]
            await asyncio.gather(*self.dispatcher.let_go(kind), return_exceptions=True)

    async def get(self, tenant: str, execution_id: str) -> ExecutionState:
        """The current state of an execution. Raises NotFound."""
        if (drive := self.dispatcher.drive(tenant, execution_id)) is not None:
            # The drive has read most of its events already.
            return await drive.state()
        state, tombstone = await self.stored(tenant, execution_id)
        if tombstone is not None and isinstance(erased := tombstone.event.body, ExecutionErased):
            raise NotFound(
                f"execution {execution_id} was erased on {tombstone.event.at[:10]} by {erased.by or 'a caller'}",
                field="execution_id",
                hint=f"the reason: {erased.reason[:200]!r}; `fleet audit verify {execution_id}` shows what is left",
            )
        if state is None:
            raise NotFound(f"no execution {execution_id[:64]!r}", field="execution_id")
        return state

    async def stored(self, tenant: str, execution_id: str) -> tuple[ExecutionState | None, StoredEvent | None]:
        """The state of an execution in the log, and the tombstone of an erased one; None for each that is not there."""
        folding, tombstone = Fold(), None
        async with aclosing(self._log.read(tenant, execution_id)) as events:
            async for stored in events:
                folding.take(stored)
                if isinstance(stored.event.body, ExecutionErased) and stored.event.agent_id == EXECUTION_SUBJECT:
                    tombstone = stored
        return folding.state, tombstone

    async def latest(self, tenant: str, task_id: str, kind: TaskKind | None = None) -> ExecutionState:
        """The current state of a task's highest attempt. Raises NotFound."""
        state = self.projection.latest(tenant, task_id, kind)
        if state is None:
            raise NotFound(f"no execution of task {task_id[:64]!r}", field="task_id")
        return await self.get(tenant, state.execution_id)

    async def wait(self, tenant: str, execution_id: str) -> ExecutionState:
        """Wait for the end of an execution and return its state. Cancelling the wait does not affect the execution."""
        await self.projection.finished(tenant, execution_id)
        return await self.get(tenant, execution_id)

    async def watch(self, tenant: str, execution_id: str, from_sequence: int = 0) -> AsyncGenerator[StoredEvent, None]:
        """Its events from a sequence number on, up to and with `ExecutionFinished`. Raises NotFound.

        Deliveries after the end of an ended execution follow; an erased one has only its tombstone.
        """
        state = self.projection.get(tenant, execution_id)
        if state is None:
            state, tombstone = await self.stored(tenant, execution_id)
            if tombstone is not None:
                if tombstone.sequence >= from_sequence:
                    yield tombstone
                return
            state = state or await self.get(tenant, execution_id)
        ended, over = self.projection.end_sequence(tenant, execution_id), state.status.terminal
        # Reading begins no later than the execution's own next event, so that no watcher can miss its end.
        start = min(from_sequence, state.last_sequence + 1)
        behind = over and start > (ended or state.last_sequence)
        events = self._log.read(tenant, execution_id, from_sequence=start, follow=not over)
        async with aclosing(events) as following:
            async for stored in following:
                body = stored.event.body
                if isinstance(body, ResultPublished) and not over:
                    return
                if stored.sequence >= from_sequence and (not behind or isinstance(body, CandidateDelivered)):
                    yield stored
                if isinstance(body, ExecutionFinished):
                    if not over:
                        return
                    behind = True

    async def cancel(self, tenant: str, execution_id: str, reason: str = "") -> ExecutionState:
        """Stop the agents and their processes and wait for the end. Finished work stays in the log.

        The request is stored first, so it holds even if no replica drives the execution now. An ended execution is
        returned unchanged. Raises NotFound, Unavailable.
        """
        # Its submission may still be in progress, by a caller that has left.
        await self._acceptance.settled(tenant, execution_id)
        state = await self.get(tenant, execution_id)
        if state.status.terminal:
            return state
        if not state.cancel_requested:
            await self._log.tell(control(state.task), CancelRequested(reason=reason))
        return await self.wait(tenant, execution_id)

    def load(self) -> FleetLoad:
        """The current load."""
        waiting = self.dispatcher.queued()
        return FleetLoad(
            driven=self.dispatcher.driven,
            queued=len(waiting),
            oldest=min((state.started_at for state in waiting), default=""),
            for_people=Counter(
                state.task.tenant
                for state in self.projection.unfinished()
                if state.status is ExecutionStatus.AWAITING_APPROVAL
            ),
            room=self._room,
            replicas=tuple(sorted(self._replicas.alive())),
        )


@dataclass(frozen=True, slots=True)
class OnlyReplica:
    """The `Replicas` of a process that shares its log with no other."""

    me: str

    def alive(self) -> tuple[str, ...]:
        """This process alone."""
        return (self.me,)
