"""Executions: accepted once, driven to an end, and told of by their events alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from swe_ai_fleet.domain.approval import ApprovalResolution
from swe_ai_fleet.domain.council import Council
from swe_ai_fleet.domain.errors import AlreadyExists, InvalidRequest, NotFound, PermissionDenied, PreconditionFailed
from swe_ai_fleet.domain.event import (
    ApprovalRefused,
    ApprovalResolved,
    CancelRequested,
    ExecutionFinished,
    ExecutionStarted,
    ResultPublished,
    StoredEvent,
    Writer,
)
from swe_ai_fleet.domain.execution import ExecutionState, advance
from swe_ai_fleet.domain.task import PinnedRepository, Task, TaskKind
from swe_ai_fleet.orchestrator.approvals import check_approver, check_resolution, check_same, chosen, control
from swe_ai_fleet.orchestrator.background import check_context
from swe_ai_fleet.orchestrator.council_book import CouncilBook, council_for
from swe_ai_fleet.orchestrator.councils import seated
from swe_ai_fleet.orchestrator.dispatcher import Dispatcher
from swe_ai_fleet.orchestrator.drive import Drive, Surroundings
from swe_ai_fleet.orchestrator.projection import Projection
from swe_ai_fleet.orchestrator.queue import check_room
from swe_ai_fleet.orchestrator.quotas import Quotas
from swe_ai_fleet.orchestrator.seats import Seats
from swe_ai_fleet.orchestrator.steering import words
from swe_ai_fleet.orchestrator.workflow_tasks import check_workflow, normalised
from swe_ai_fleet.ports import Replicas
from swe_ai_fleet.tools.access import ToolAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The answer to a task handed in. `existed` says that the same request had been accepted before."""

    execution_id: str
    existed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How much may be going on. `executions` are driven at once by this replica, others wait.

    `queued` may wait in all, `queued_per_caller` of one caller; what is more is refused. `agents` is the most that one
    task may ask for.
    """

    agents: int = 300
    executions: int = 200
    queued: int = 10_000
    queued_per_caller: int = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What goes on: executions `driven` by this replica, `queued` for any of the `replicas` that are alive."""

    driven: int
    queued: int
    room: Room
    replicas: tuple[str, ...]


class Executions:
    """Accepts tasks and drives executions. An async context: leaving it stops driving, and loses nothing.

    Several of these may share one log: whatever was accepted by one can be watched, cancelled, approved and fetched
    through any, and is driven by one of them at a time.

    Args:
        surroundings: What executions work with.
        replicas: The others that share the log; None: there are none.
        room: How much may be going on.
        access: What tools may use; a task that asks for more is refused.
        profiles: The model profiles there are.
        priced: Whether models have prices; without them no task can be limited by cost.
        councils: Those of roles; None: agents are made for each task.
        quotas: What tenants may use, and what holds for them whatever their callers ask for.
        kept_seconds: How long the log keeps events, 0 for ever; see `Projection`.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        *,
        replicas: Replicas | None = None,
        room: Room | None = None,
        access: ToolAccess | None = None,
        profiles: Collection[str] = (),
        priced: bool = False,
        councils: CouncilBook | None = None,
        kept_seconds: float = 0.0,
        quotas: Quotas | None = None,
    ) -> None:
        self.projection = Projection(surroundings.log, self._heard, kept_seconds=kept_seconds)
        self._quotas = quotas or Quotas()
        self.fleet = Seats(surroundings.fleet, self._quotas, me=surroundings.owner, sharers=self._sharers)
        surroundings = replace(surroundings, fleet=self.fleet)
        self._with = surroundings
        self._log = surroundings.log
        self._room = room or Room()
        self._access = access or ToolAccess()
        self._profiles = frozenset(profiles)
        self._priced = priced
        self._councils = councils
        self._accepting: dict[tuple[str, str], asyncio.Task[Submission]] = {}
        self._deciding = asyncio.Lock()
        self._replicas = replicas or OnlyReplica(surroundings.owner)
        self._dispatcher = Dispatcher(
            self.projection,
            self._replicas,
            lambda state: Drive(surroundings, state, self),
            max_executions=self._room.executions,
            rules=self._quotas.rules,
        )

    async def __aenter__(self) -> Executions:
        await self.projection.start()
        self._dispatcher.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*self._accepting.values(), return_exceptions=True)
        await self._dispatcher.stop()
        await self.projection.stop()

    async def submit(self, task: Task) -> Submission:
        """Accept a task: validated, its repository pinned, its first event durable when this returns.

        The same task again gives the execution that runs or has finished. Where the tenant's rules have people approve
        of more than the caller asked for, the rules hold. Raises InvalidRequest, PreconditionFailed,
        Unavailable and ModelError (naming the field), AlreadyExists for other content under the same id,
        ResourceExhausted.
        """
        asked = normalised(task)
        task = self._ruled(asked)
        task.validated(max_agents=self._room.agents)
        self._check(task)
        known = self.projection.get(task.tenant, task.execution_id)
        if known is not None:
            return _same(known, asked)
        self._check_room(task)
        await self._quotas.check_tokens(task.tenant)
        council = await self._council(task)
        repository = await self._with.workspaces.pin(task.tenant, task.repo)
        await self._with.model.ping()
        return await self._accepted(task, repository, council, asked)

    async def check_tokens(self, tenant: str) -> None:
        """Whether a tenant may have models work for it today. Raises ResourceExhausted, Unavailable."""
        await self._quotas.check_tokens(tenant)

    def _ruled(self, task: Task) -> Task:
        """A task as the rules of its tenant have it carried out."""
        return replace(task, approval=self._quotas.rules(task.tenant).approval_for(task.approval))

    async def _council(self, task: Task) -> Council | None:
        """Who will work on a task; nobody on a workflow itself. Raises InvalidRequest where they cannot."""
        if task.kind is TaskKind.WORKFLOW:
            return None
        council = await council_for(task, self._councils) if self._councils is not None else None
        self._check(seated(task, council).validated(max_agents=self._room.agents))
        return council

    async def _accepted(
        self, task: Task, repository: PinnedRepository, council: Council | None, asked: Task
    ) -> Submission:
        name = task.tenant, task.execution_id
        while name in self._accepting:
            await asyncio.wait([self._accepting[name]])
        # A caller that goes away while the event is being stored must not leave an execution that nobody knows of.
        accepting = asyncio.create_task(
            self._accept(task, repository, council, asked), name=f"accept {task.execution_id}"
        )
        self._accepting[name] = accepting
        accepting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(accepting)

    async def begin(self, task: Task, repository: PinnedRepository) -> str:
        """Accept a part of an execution that is under way, to start from a pinned commit; its execution's id.

        The same part again is the same execution. There is always room for it, since its whole has its place. Raises
        InvalidRequest, AlreadyExists, Unavailable.
        """
        asked, task = task, self._ruled(task)
        self._check(task.validated(max_agents=self._room.agents))
        known = self.projection.get(task.tenant, task.execution_id)
        if known is not None:
            return _same(known, asked).execution_id
        return (await self._accepted(task, repository, await self._council(task), asked)).execution_id

    def _check_room(self, task: Task) -> None:
        """Whether one more may wait. Raises ResourceExhausted."""
        queued = self._dispatcher.queued()
        mine = Counter(state.task.caller for state in queued if state.task.tenant == task.tenant)
        self._quotas.check_queued(task.tenant, mine.total())
        check_room(
            len(queued),
            mine[task.caller],
            max_queued=self._room.queued,
            max_queued_per_caller=self._room.queued_per_caller,
            queued_of_tenant=mine.total(),
            tenants=len({task.tenant, *(state.task.tenant for state in queued)}),
        )

    def _check(self, task: Task) -> None:
        """Whether this installation has what a task asks for. Raises InvalidRequest naming the field."""
        self._access.check(task.constraints)
        check_context(task, there=self._with.context is not None)
        check_workflow(
            task, profiles=self._profiles, max_agents=self._room.agents, memory=self._with.context is not None
        )
        for profile in task.profiles:
            if profile not in self._profiles:
                known = ", ".join(sorted(self._profiles)) or "none is configured"
                raise InvalidRequest(f"there is no model profile {profile[:64]!r}", field="model_profile", hint=known)
        costs = {"max_cost": task.constraints.limits.max_cost, "total_max_cost": task.constraints.totals.max_cost}
        for name, cost in costs.items():
            if cost and not self._priced:
                raise InvalidRequest(
                    "no model has a price here", field=f"constraints.{name}", hint="leave it out, or limit tokens"
                )

    async def _accept(
        self, task: Task, repository: PinnedRepository, council: Council | None, asked: Task
    ) -> Submission:
        """The one publish that accepts; whoever comes second finds the first one's event.

        The task is stored as its council carries it out; what was asked for tells a repeated request.
        """
        writer = Writer(tenant=task.tenant, execution_id=task.execution_id, task_id=task.task_id, generation=0)
        started = ExecutionStarted(
            task=seated(task, council),
            repository=repository,
            fingerprint=asked.fingerprint(),
            council=council,
            asked_approval=asked.approval if asked.approval is not task.approval else None,
        )
        try:
            async with self._log.journal(writer, fresh=True) as journal:
                event = await journal.append(started)
        except AlreadyExists:
            return _same(await self.get(task.tenant, task.execution_id), asked)
        finally:
            del self._accepting[task.tenant, task.execution_id]
        self.projection.accepted(event)
        self._dispatcher.accepted(task.execution_id)
        return Submission(execution_id=task.execution_id, existed=False)

    async def get(self, tenant: str, execution_id: str) -> ExecutionState:
        """An execution as its events tell it now. Raises NotFound."""
        state: ExecutionState | None = None
        async with aclosing(self._log.read(tenant, execution_id)) as events:
            async for stored in events:
                state = advance(state, stored)
        if state is None:
            raise NotFound(f"no execution {execution_id[:64]!r}", field="execution_id")
        return state

    async def latest(self, tenant: str, task_id: str, kind: TaskKind | None = None) -> ExecutionState:
        """The whole state of the execution of a task's highest attempt. Raises NotFound."""
        known = self.projection.latest(tenant, task_id, kind)
        if known is None:
            raise NotFound(f"no execution of task {task_id[:64]!r}", field="task_id")
        return await self.get(tenant, known.execution_id)

    async def wait(self, tenant: str, execution_id: str) -> ExecutionState:
        """Wait for the end and return the whole state. Giving up waiting does nothing to the execution."""
        await self.projection.finished(tenant, execution_id)
        return await self.get(tenant, execution_id)

    async def watch(self, tenant: str, execution_id: str, from_sequence: int = 0) -> AsyncGenerator[StoredEvent, None]:
        """Its events from a sequence number on, up to and with `ExecutionFinished`. Raises NotFound."""
        known = self.projection.get(tenant, execution_id) or await self.get(tenant, execution_id)
        ended = self.projection.end_sequence(tenant, execution_id)
        if (ended and from_sequence > ended) or (known.status.terminal and from_sequence > known.last_sequence):
            return
        # Reading begins no later than the execution's own next event, so that no watcher can miss its end.
        start = min(from_sequence, known.last_sequence + 1)
        events = self._log.read(tenant, execution_id, from_sequence=start, follow=True)
        async with aclosing(events) as following:
            async for stored in following:
                if isinstance(stored.event.body, ResultPublished):
                    return
                if stored.sequence >= from_sequence:
                    yield stored
                if isinstance(stored.event.body, ExecutionFinished):
                    return

    async def cancel(self, tenant: str, execution_id: str, reason: str = "") -> ExecutionState:
        """Stop the agents and their processes and wait until they are. What was done stays in the log.

        The wish is durable before anything is waited for, so it holds even if nobody drives the execution now. One
        that has ended is returned as it is. Raises NotFound, Unavailable.
        """
        if (accepting := self._accepting.get((tenant, execution_id))) is not None:
            # Whoever handed it in may be gone already, and it would go on for nobody.
            await asyncio.wait([accepting])
        state = await self.get(tenant, execution_id)
        if state.status.terminal:
            return state
        if not state.cancel_requested:
            await self._log.tell(control(state.task), CancelRequested(reason=reason))
        return await self.wait(tenant, execution_id)

    async def resolve(
        self, tenant: str, execution_id: str, resolution: ApprovalResolution, *, by: str = ""
    ) -> ExecutionState:
        """Answer what an execution waits for; the decision is durable when this returns, and the agent goes on.

        Without an `approval_id` the only request that waits is meant. The same answer again changes nothing. `by` is
        who authenticated, where callers can be told apart: nobody lets through what they handed in. Raises
        InvalidRequest, NotFound, AlreadyExists (it was decided otherwise), PreconditionFailed, PermissionDenied.
        """
        check_resolution(resolution)
        request = chosen(await self.get(tenant, execution_id), resolution.approval_id)
        resolution = replace(resolution, approval_id=request.approval_id, at=datetime.now(UTC).isoformat())
        async with self._deciding:
            state = await self.get(tenant, execution_id)
            await self._check_approver(state, resolution, by)
            known = state.resolutions.get(request.approval_id)
            if known is None:
                if state.status.terminal:
                    raise PreconditionFailed(f"the execution has ended: {state.status}", field="execution_id")
                await self._log.tell(control(state.task), ApprovalResolved(resolution=resolution))
                state = await self.get(tenant, execution_id)
                # Of several replicas that hear decisions at once, the first in the log is the one that decided.
                known = state.resolutions.get(request.approval_id, resolution)
        check_same(known, resolution)
        return state

    async def _check_approver(self, state: ExecutionState, resolution: ApprovalResolution, by: str) -> None:
        """Refuse a decision about what one handed in oneself, and record that. Raises PermissionDenied."""
        try:
            check_approver(state, resolution, by)
        except PermissionDenied:
            if not state.status.terminal and (resolution.approval_id, by) not in state.refused:
                refused = ApprovalRefused(approval_id=resolution.approval_id, decision=resolution.decision, caller=by)
                await self._log.tell(control(state.task), refused)
            raise

    async def steer(
        self, tenant: str, execution_id: str, action: str, node_id: str = "", *, by: str = ""
    ) -> ExecutionState:
        """Pause a workflow, let paused nodes go one by one, or have it continue; durable when this returns.

        The same again changes nothing. Raises InvalidRequest, NotFound, PreconditionFailed.
        """
        async with self._deciding:
            state = await self.get(tenant, execution_id)
            for word in words(state, action, node_id, by=by):
                await self._log.tell(control(state.task), word)
        return await self.get(tenant, execution_id)

    def load(self) -> Load:
        """What goes on now."""
        waiting = self._dispatcher.queued()
        return Load(
            driven=self._dispatcher.driven,
            queued=len(waiting),
            room=self._room,
            replicas=tuple(sorted(self._replicas.alive())),
        )

    def _sharers(self, tenant: str) -> set[str]:
        return self._dispatcher.sharers(tenant)

    def _heard(self, stored: StoredEvent) -> None:
        self._dispatcher.heard(stored)


@dataclass(frozen=True, slots=True)
class OnlyReplica:
    """A `Replicas` of one that shares its log with nobody."""

    me: str

    def alive(self) -> tuple[str, ...]:
        """This one."""
        return (self.me,)


def _same(known: ExecutionState, task: Task) -> Submission:
    if known.fingerprint != task.fingerprint():
        raise AlreadyExists(
            f"task {task.task_id!r} exists with other content",
            field="task_id",
            hint="choose another task_id, or a higher attempt to run it again",
        )
    return Submission(execution_id=task.execution_id, existed=True)
