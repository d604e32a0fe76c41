"""Acceptance: checks a task and stores the first event of its execution, or refuses it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace

from swe_ai_fleet.agents.solving import check_tools
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.context import Phase
from swe_ai_fleet.domain.council import HARNESS, Council, is_harness
from swe_ai_fleet.domain.errors import AlreadyExists, InvalidRequest, NotFound
from swe_ai_fleet.domain.event import ExecutionStarted, Writer
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.memory import check_entities, check_namespaces
from swe_ai_fleet.domain.task import SCRATCH, PinnedRepository, Task, TaskKind
from swe_ai_fleet.orchestrator.council_store import CouncilStore, council_for
from swe_ai_fleet.orchestrator.councils import check_parameters, council_of, seated
from swe_ai_fleet.orchestrator.dispatcher import Dispatcher
from swe_ai_fleet.orchestrator.execution_context import IN_PROCESS, ExecutionDeps
from swe_ai_fleet.orchestrator.groundwork import NO_SERVICE
from swe_ai_fleet.orchestrator.projection import Projection
from swe_ai_fleet.orchestrator.queue import check_room
from swe_ai_fleet.orchestrator.quotas import Quotas
from swe_ai_fleet.tools.catalogue import ToolAccess

Store = Callable[[], Awaitable[None]]
"""Stores what a task refers to. Raises ResourceExhausted, Unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The answer to a task submitted. `existed` says that the same request had been accepted before."""

    execution_id: str
    existed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The limits of a replica. It drives `executions` at once; others wait.

    At most `queued` executions may wait, and `queued_per_caller` of one caller; further ones are refused. A task may
    request at most `agents`.
    """

    agents: int = 300
    executions: int = 200
    queued: int = 10_000
    queued_per_caller: int = 2_000


_Accepting = dict[tuple[str, str], tuple[Task, asyncio.Task[Submission]]]


@dataclass(kw_only=True)
class Acceptance:
    """Accepts each task once, whichever replica receives it.

    Attributes:
        priced: Whether models have prices.
        councils: The councils of roles; None: each task gets agents of its own.
    """

    deps: ExecutionDeps
    projection: Projection
    dispatcher: Dispatcher
    quotas: Quotas
    room: Room
    access: ToolAccess
    profiles: Collection[str]
    priced: bool
    councils: CouncilStore | None
    get: Callable[[str, str], Awaitable[ExecutionState]]
    _accepting: _Accepting = field(default_factory=lambda: _Accepting())

    async def close(self) -> None:
        """Wait until the tasks that are being accepted are stored."""
        await asyncio.gather(*(work for _, work in self._accepting.values()), return_exceptions=True)

    async def settled(self, tenant: str, execution_id: str) -> None:
        """Wait until an execution is no longer being accepted."""
        while (accepting := self._accepting.get((tenant, execution_id))) is not None:
            await asyncio.wait([accepting[1]])

    async def submit(self, task: Task, *, store: Store | None = None) -> Submission:
        """Accept a task: validated, its repository pinned, its first event durable when this returns.

        A repeated task returns its existing execution. If the tenant's rules require more approvals than the caller
        asked for, the rules apply. Raises InvalidRequest, PreconditionFailed,
        Unavailable and ModelError (naming the field), AlreadyExists for other content under the same id,
        ResourceExhausted. `store` stores the content that the task refers to; it is not called for a refused one.
        """
        requested = _as_logged(task)
        task = self._ruled(requested)
        task.validated(max_agents=self.room.agents)
        self._check(task)
        earlier = self.projection.get(task.tenant, task.execution_id)
        if earlier is not None:
            return _same(earlier, requested)
        self._check_room(task)
        await self.quotas.check_log()
        await self.quotas.check_tokens(task.tenant)
        await self.quotas.check_storage(task.tenant, 1 + sum(patch.patch.size for patch in task.patches))
        council = await self._council(task)
        pinging = asyncio.ensure_future(self.deps.model.ping()) if task.kind is not TaskKind.JUDGE else None
        try:
            repository = await self.deps.workspaces.pin(task.tenant, task.repo)
            task = replace(task, environment=await self.deps.workspaces.pin_image(task.tenant, task.environment))
            if pinging is not None:
                await pinging
        finally:
            if pinging is not None:
                pinging.cancel()
                await asyncio.gather(pinging, return_exceptions=True)
        # Other tasks may have been accepted meanwhile.
        self._check_room(task)
        if store is not None:
            await store()
        return await self._accepted(task, repository, council, requested)

    async def begin(self, task: Task, repository: PinnedRepository) -> str:
        """Accept a child of a running execution, which starts from a pinned commit; returns the id of its execution.

        A repeated child is the same execution. There is always room for it, since its parent has a slot. Raises
        InvalidRequest, AlreadyExists, Unavailable.
        """
        requested, task = task, self._ruled(task)
        self._check(task.validated(max_agents=self.room.agents))
        known = self.projection.get(task.tenant, task.execution_id)
        if known is not None:
            return _same(known, requested).execution_id
        return (await self._accepted(task, repository, await self._council(task), requested)).execution_id

    async def enqueue(self, task: Task) -> str:
        """Accept a task of an in-process kind; returns its execution's id. A repeated task is the same execution.

        Raises AlreadyExists for a different task with the same id, ResourceExhausted, Unavailable.
        """
        self._check_room(task)
        await self.quotas.check_log()
        unread = PinnedRepository(tenant=task.tenant, location=task.repo.location, commit="")
        return (await self._accepted(task, unread, None, task)).execution_id

    def _ruled(self, task: Task) -> Task:
        """A task with the rules of its tenant applied."""
        rules = self.quotas.rules(task.tenant)
        model_patience = rules.model_patience_seconds
        task = replace(task, approval=rules.approval_for(task.approval), model_patience_seconds=model_patience)
        if rules.require_verified and not task.constraints.require_verified:
            task = replace(task, constraints=replace(task.constraints, require_verified=True))
        if not task.repo.location.strip():
            task = replace(task, repo=replace(task.repo, location=rules.default_repository))
        return task

    async def _council(self, task: Task) -> Council | None:
        """The council of a task; a workflow itself has none. Raises InvalidRequest if it cannot work on the task."""
        if task.kind in (TaskKind.WORKFLOW, TaskKind.JUDGE):
            return None
        if self.councils is not None:
            council = await council_for(task, self.councils)
        else:
            council = council_of(task, None, ()) if task.seats else None
        self._check(seated(task, council).validated(max_agents=self.room.agents))
        allowed = self.quotas.rules(task.tenant).harnesses
        for number, member in enumerate(council.members if council is not None and allowed is not None else ()):
            if is_harness(member.endpoint) and member.endpoint.removeprefix(HARNESS) not in (allowed or ()):
                raise InvalidRequest(
                    f"tenant {task.tenant} may not use the harness {member.endpoint!r}",
                    field=f"seats[{number}]" if task.seats else "role",
                    hint=f"the operator names it in the access file, [tenants.{task.tenant}] harnesses",
                )
        return council

    async def _accepted(
        self, task: Task, repository: PinnedRepository, council: Council | None, requested: Task
    ) -> Submission:
        name = task.tenant, task.execution_id
        await self.settled(*name)
        # If the caller disconnects while the event is being stored, the execution must still be announced.
        accepting = asyncio.create_task(
            self._accept(task, repository, council, requested), name=f"accept {task.execution_id}"
        )
        self._accepting[name] = task, accepting
        accepting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(accepting)

    def _check_room(self, task: Task) -> None:
        """Check that a task may wait; one that already waits may. Raises ResourceExhausted."""
        # A task whose first event is being stored waits as well; the dispatcher may already count it.
        queued = {(state.task.tenant, state.execution_id): state.task for state in self.dispatcher.queued()}
        queued |= {name: waiting for name, (waiting, _) in self._accepting.items()}
        if (task.tenant, task.execution_id) in queued:
            return
        queued_by_caller = Counter(waiting.caller for waiting in queued.values() if waiting.tenant == task.tenant)
        self.quotas.check_queued(task.tenant, queued_by_caller.total())
        check_room(
            len(queued),
            queued_by_caller[task.caller],
            max_queued=self.room.queued,
            max_queued_per_caller=self.room.queued_per_caller,
            queued_of_tenant=queued_by_caller.total(),
            tenants=len({task.tenant, *(name for name, _ in queued)}),
        )

    def _check(self, task: Task) -> None:
        """Check that this installation has what a task requests. Raises InvalidRequest naming the field."""
        check_tools(task, self.access)
        check_context(task, there=self.deps.context is not None)
        check_parameters(task.custom_params)
        self._check_workflow(task)
        for profile in task.profiles:
            if profile not in self.profiles:
                configured = ", ".join(sorted(self.profiles)) or "none is configured"
                raise InvalidRequest(
                    f"there is no model profile {profile[:64]!r}", field="model_profile", hint=configured
                )
        costs = {"max_cost": task.constraints.limits.max_cost, "total_max_cost": task.constraints.totals.max_cost}
        for name, cost in costs.items():
            if cost and not self.priced:
                raise InvalidRequest(
                    "no model has a price", field=f"constraints.{name}", hint="leave it out, or limit max_tokens"
                )

    def _check_workflow(self, task: Task) -> None:
        if (task.kind is TaskKind.WORKFLOW) != (task.workflow is not None):
            raise InvalidRequest("only a workflow run has a workflow, and it must have one", field="workflow")
        if task.kind is TaskKind.ORCHESTRATE and task.repo.location == SCRATCH:
            hint = "name another one"
            raise InvalidRequest("nothing can be delivered to an empty repository", field="repo", hint=hint)
        if task.workflow is None:
            return
        if self.deps.workflows is None:
            raise InvalidRequest("workflows are not available in this fleet", field="workflow")
        self.deps.workflows.check(
            task, profiles=self.profiles, max_agents=self.room.agents, memory=self.deps.context is not None
        )

    async def _accept(
        self, task: Task, repository: PinnedRepository, council: Council | None, requested: Task
    ) -> Submission:
        """The one publish that accepts a task; a concurrent second one finds the event of the first.

        The task is stored with the settings of its council; the fingerprint of the request identifies a repeated one.
        """
        writer = Writer(tenant=task.tenant, execution_id=task.execution_id, task_id=task.task_id, generation=0)
        started = ExecutionStarted(
            task=task if task.kind in IN_PROCESS else seated(task, council),
            repository=repository,
            fingerprint=requested.fingerprint(),
            council=council,
            asked_approval=requested.approval if requested.approval is not task.approval else None,
        )
        try:
            async with self.deps.log.journal(writer, fresh=True) as journal:
                event = await journal.append(started)
        except AlreadyExists:
            try:
                return _same(await self.get(task.tenant, task.execution_id), requested)
            except NotFound as erased:
                hint = "choose another task_id, or a higher attempt (`fleet run --attempt 2`) to run it again"
                raise AlreadyExists(f"task {task.task_id!r}: {erased.message}", field="task_id", hint=hint) from erased
        finally:
            del self._accepting[task.tenant, task.execution_id]
        self.projection.accepted(event)
        self.dispatcher.accepted(task.execution_id)
        return Submission(execution_id=task.execution_id, existed=False)


def _same(earlier: ExecutionState, task: Task) -> Submission:
    if earlier.fingerprint != task.fingerprint():
        raise AlreadyExists(
            f"task {task.task_id!r} exists with different content",
            field="task_id",
            hint="choose another task_id, or a higher attempt (`fleet run --attempt 2`) to run it again",
        )
    return Submission(execution_id=task.execution_id, existed=True)


def _as_logged(task: Task) -> Task:
    """The task of a workflow as it is read from the log, so that every driver makes the same tasks of its nodes.

    Without a repository it gets an empty one. Other tasks are unchanged.
    """
    if task.kind is not TaskKind.WORKFLOW:
        return task
    if not task.repo.location.strip():
        task = replace(task, repo=replace(task.repo, location=SCRATCH))
    return from_json(Task, to_json(task))


def check_context(task: Task, *, there: bool) -> None:
    """Check that a task can have the context and memory that it requests. Raises InvalidRequest naming the field."""
    if (task.memory.read or task.memory.write) and not there:
        raise InvalidRequest("memory is not available", field="memory", hint=f"leave it out: {NO_SERVICE}")
    check_namespaces(task.memory.namespaces, field="memory.namespaces")
    check_entities(task.memory.entities, field="memory.entities")
    if task.memory.entities and not task.memory.read:
        raise InvalidRequest(
            "entities are given but memory.read is not set",
            field="memory.read",
            hint="set memory.read, or leave entities out",
        )
    if task.memory.namespaces and not (task.memory.read or task.memory.write):
        raise InvalidRequest("namespaces are given but neither read nor write is set", field="memory.read")
    if task.context_options.phase and task.context_options.phase not in list(Phase):
        raise InvalidRequest(
            f"there is no phase {task.context_options.phase[:64]!r}",
            field="context_options.phase",
            hint=f"one of {', '.join(Phase)}",
        )
