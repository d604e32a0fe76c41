"""Plans split on request, and planning events of other systems that start work here, once however often they arrive.

A plan that is split on request is not an execution: only the planner's own run is in the log.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace

from swe_ai_fleet.agents.deriving import STRATEGIES
from swe_ai_fleet.agents.recorded_run import concluded, read_run
from swe_ai_fleet.codec import from_json, to_json, to_plain
from swe_ai_fleet.domain.assignment import DeriveAssignment
from swe_ai_fleet.domain.errors import AgentLost, AlreadyExists, Fenced, InvalidRequest, ResourceExhausted, Unavailable
from swe_ai_fleet.domain.event import ExecutionFinished, SubtasksDerived
from swe_ai_fleet.domain.subtask import Derivation
from swe_ai_fleet.domain.task import (
    COUNCIL_ROUNDS,
    DEFAULT_TENANT,
    Constraints,
    PinnedRepository,
    RepoRef,
    Role,
    Task,
    TaskKind,
    check_description,
)
from swe_ai_fleet.domain.text import check_identifier, check_length
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.orchestrator.queue import full_for
from swe_ai_fleet.orchestrator.runs import PLANNER
from swe_ai_fleet.orchestrator.subtasks import SUBTASK_ROLES
from swe_ai_fleet.ports import EventLog, Fleet, KeyValue, WorkspaceProvider

ATTEMPTS = 3
MAX_AT_ONCE = 32
MAX_NAME_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivationRequest:
    """A plan to split. `case_id` and `plan_id` are the caller's own names for it; the planner reads `context`."""

    description: str
    case_id: str = ""
    plan_id: str = ""
    roles: tuple[Role, ...] = ()
    strategy: str = "auto"
    repo: RepoRef | None = None
    tenant: str = DEFAULT_TENANT
    context: str = ""

    def check(self) -> None:
        """Raises InvalidRequest for a plan that cannot be split, naming the field."""
        check_description(self.description)
        check_length(self.case_id, MAX_NAME_CHARS, field="case_id")
        check_length(self.plan_id, MAX_NAME_CHARS, field="plan_id")
        if self.strategy not in STRATEGIES:
            hint = f"one of {', '.join(STRATEGIES)}"
            raise InvalidRequest(f"unknown strategy {self.strategy[:64]!r}", field="strategy", hint=hint)

    def task(self, commit: str) -> Task:
        """The task of its planner; the same plan about the same commit is the same task."""
        content = json.dumps([to_plain(self), commit], sort_keys=True).encode()
        return Task(
            task_id=f"derive-{hashlib.sha256(content).hexdigest()[:40]}",
            tenant=self.tenant,
            kind=TaskKind.DELIBERATE,
            description=self.description,
            repo=self.repo or RepoRef(location=""),
            context=self.context,
            case_id=self.case_id,
            plan_id=self.plan_id,
        )


class Derivations:
    """Splits plans. An async context: leaving it cancels the running planners.

    The same plan about the same commit is split once; a second request is answered from the log. A planner continues
    without its caller, who may ask again for the result. Where `MAX_AT_ONCE` planners run, a tenant with less than an
    equal share of them may still start one.
    """

    def __init__(self, *, fleet: Fleet, log: EventLog, workspaces: WorkspaceProvider) -> None:
        self._fleet = fleet
        self._log = log
        self._workspaces = workspaces
        self._deriving: dict[tuple[str, str], asyncio.Task[Derivation]] = {}

    async def __aenter__(self) -> Derivations:
        return self

    async def __aexit__(self, *exc: object) -> None:
        deriving = list(self._deriving.values())
        for work in deriving:
            work.cancel()
        await asyncio.gather(*deriving, return_exceptions=True)

    async def derive(self, plan: DerivationRequest) -> Derivation:
        """The subtasks of a plan, dependencies first.

        Raises InvalidRequest (nothing to split, or no valid split was found), PreconditionFailed, Unavailable,
        ResourceExhausted (too many at once), ModelError, AgentLost.
        """
        plan.check()
        pinned = await self._workspaces.pin(plan.tenant, plan.repo) if plan.repo is not None else None
        task = plan.task(pinned.commit if pinned is not None else "")
        name = task.tenant, task.execution_id
        if name not in self._deriving:
            self._check_room(task.tenant)
            work = asyncio.create_task(self._derive(plan, task, pinned), name=f"derive {task.execution_id}")
            self._deriving[name] = work
            work.add_done_callback(lambda _: self._deriving.pop(name, None))
            work.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._deriving[name])

    def _check_room(self, tenant: str) -> None:
        """Check that one more plan of a tenant may be split now. Raises ResourceExhausted."""
        running = Counter(name for name, _ in self._deriving)
        tenants = len({tenant, *running})
        if full_for(running.total(), running[tenant], most=MAX_AT_ONCE, tenants=tenants):
            raise ResourceExhausted(f"{running.total()} plans are being split", hint="try again later")

    async def _derive(self, plan: DerivationRequest, task: Task, pinned: PinnedRepository | None) -> Derivation:
        earlier = await read_run(self._log, task.tenant, task.execution_id, PLANNER)
        if (derivation := concluded(earlier, Derivation)) is not None:
            return derivation
        assignment = DeriveAssignment(
            execution_id=task.execution_id,
            agent_id=PLANNER,
            task=task,
            repository=pinned,
            roles=plan.roles,
            strategy=plan.strategy,
            generation=earlier.generation + 1,
        )
        try:
            return await self._attempt(assignment)
        except Fenced as error:
            raise Unavailable("another orchestrator is splitting this plan", hint="try again") from error
        finally:
            if pinned is not None:
                await self._workspaces.release(task.execution_id)

    async def _attempt(self, assignment: DeriveAssignment) -> Derivation:
        for number in range(ATTEMPTS - 1):
            with suppress(AgentLost):
                return await self._fleet.run(replace(assignment, generation=assignment.generation + number))
        return await self._fleet.run(replace(assignment, generation=assignment.generation + ATTEMPTS - 1))


EVENT_TYPES = ("plan.approved", "story.approved", "task.created")
"""The types of event that start work."""
CALLER = "planning"
"""The caller of tasks from planning events without one."""
MAX_EVENT_ID_CHARS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningEvent:
    """An event about a plan, a story or a task of another system.

    Args:
        event_id: The sender's id; a second event with it is the same one.
        event_type: Such as `plan.approved`; see `EVENT_TYPES`.
        case_id: This and the next three are the sender's own names, stored with the task.
        repo: The repository of the work; required with `dispatch`.
        roles: Roles that subtasks may have; empty: all.
        dispatch: Whether the subtasks are run, or only derived.
        caller: The sender, who is the caller of the resulting task; empty: `CALLER`.
    """

    event_id: str
    event_type: str
    description: str
    case_id: str = ""
    story_id: str = ""
    plan_id: str = ""
    task_id: str = ""
    repo: RepoRef | None = None
    roles: tuple[Role, ...] = ()
    payload: Mapping[str, object] = field(default_factory=dict[str, object])
    dispatch: bool = False
    tenant: str = DEFAULT_TENANT
    caller: str = ""

    def check(self) -> None:
        """Raises InvalidRequest for an invalid event, naming the field and the way out."""
        check_identifier(self.event_id, field="event_id")
        check_length(self.event_id, MAX_EVENT_ID_CHARS, field="event_id")
        if not self.event_type:
            raise InvalidRequest("no event type given", field="event_type", hint=f"such as {EVENT_TYPES[0]}")
        if self.leads_to_work:
            self.plan().check()

    @property
    def leads_to_work(self) -> bool:
        return self.event_type in EVENT_TYPES

    @property
    def key(self) -> str:
        """Its key in the store."""
        return f"event.{self.tenant}.{self.event_id}"

    def fingerprint(self) -> str:
        """SHA-256 of the content without the caller: equal for a repeated event."""
        content = {name: value for name, value in json.loads(to_json(self)).items() if name != "caller"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def task(self) -> Task:
        """The task of a dispatched event: `event-<event_id>`, split before it is run."""
        return Task(
            task_id=f"event-{self.event_id}",
            tenant=self.tenant,
            kind=TaskKind.ORCHESTRATE,
            description=self.description,
            repo=self.repo or RepoRef(location=""),
            context=self._context(),
            constraints=Constraints(metadata={SUBTASK_ROLES: ",".join(self.roles)} if self.roles else {}),
            num_agents=0,
            rounds=COUNCIL_ROUNDS,
            case_id=self.case_id,
            story_id=self.story_id,
            plan_id=self.plan_id,
            caller=self.caller or CALLER,
            derive_subtasks=True,
        )

    def plan(self) -> DerivationRequest:
        """The plan to split where nothing is dispatched."""
        return DerivationRequest(
            description=self.description,
            case_id=self.case_id,
            plan_id=self.plan_id,
            roles=self.roles,
            repo=self.repo,
            tenant=self.tenant,
            context=self._context(),
        )

    def _context(self) -> str:
        """The context for planner and agents, always the same text."""
        names = {"case": self.case_id, "story": self.story_id, "plan": self.plan_id, "task": self.task_id}
        lines = [f"This follows from the event {self.event_type}."]
        lines += [f"{name}: {value}" for name, value in names.items() if value]
        if self.payload:
            lines += ["", "The event's own fields:", json.dumps(self.payload, sort_keys=True, indent=1)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningOutcome:
    """The result of an event. Not `accepted`: it starts no work, and `message` says why.

    `derivation` is None while the planner of a dispatched event is still working.
    """

    accepted: bool
    message: str = ""
    derivation: Derivation | None = None
    execution_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """The stored record of an accepted event."""

    fingerprint: str
    outcome: PlanningOutcome


class PlanningEvents:
    """Processes planning events.

    A dispatched event becomes one orchestration, which derives its subtasks itself, so that a lost process costs
    nothing; without dispatch only the planner runs. A repeated event, by its id, gets the first one's answer. `store`
    has the accepted events of all replicas.
    """

    def __init__(self, *, executions: Executions, derivations: Derivations, store: KeyValue) -> None:
        self._executions = executions
        self._derivations = derivations
        self._store = store

    async def process(self, event: PlanningEvent, *, timeout: float | None = None) -> PlanningOutcome:
        """Accept an event, or repeat the answer to one that was accepted before.

        Args:
            timeout: Seconds to wait for the subtasks of a dispatched event; None: no limit. After that the answer
                comes without subtasks; sending the event again gets them.

        Raises:
            InvalidRequest, PreconditionFailed, ResourceExhausted, Unavailable, ModelError: As for a submitted task;
                the event was not accepted. Without dispatch also AgentLost, and InvalidRequest where no valid split
                was found.
            AlreadyExists: A different event was accepted under this id.
        """
        event.check()
        stored = await self._store.get(event.key)
        if stored is not None:
            earlier = from_json(_Taken, stored.value)
            _check_same(event, earlier.fingerprint)
            outcome = earlier.outcome
        elif not event.leads_to_work:
            return PlanningOutcome(
                accepted=False, message=f"unsupported type of event; supported types: {', '.join(EVENT_TYPES)}"
            )
        elif event.dispatch:
            outcome = await self._dispatched(event)
        else:
            derivation = await self._derivations.derive(event.plan())
            outcome = await self._remembered(event, PlanningOutcome(accepted=True, derivation=derivation))
        if outcome.execution_id:
            return await self._with_subtasks(event, outcome, timeout)
        return outcome

    async def _dispatched(self, event: PlanningEvent) -> PlanningOutcome:
        try:
            submission = await self._executions.submit(event.task())
        except AlreadyExists as fault:
            raise _taken_otherwise(event) from fault
        # If the process dies before this is written, nothing is lost: the task's id comes from the event's.
        return await self._remembered(event, PlanningOutcome(accepted=True, execution_id=submission.execution_id))

    async def _remembered(self, event: PlanningEvent, outcome: PlanningOutcome) -> PlanningOutcome:
        """Store the outcome; returns that of another replica if its write came first."""
        record = _Taken(fingerprint=event.fingerprint(), outcome=outcome)
        try:
            await self._store.put(event.key, to_json(record), revision=0)
        except Fenced:
            stored = await self._store.get(event.key)
            if stored is None:
                raise
            record = from_json(_Taken, stored.value)
            _check_same(event, record.fingerprint)
        return record.outcome

    async def _with_subtasks(
        self, event: PlanningEvent, outcome: PlanningOutcome, timeout: float | None
    ) -> PlanningOutcome:
        watching = aclosing(self._executions.watch(event.tenant, outcome.execution_id))
        try:
            async with asyncio.timeout(timeout), watching as events:
                async for stored in events:
                    match stored.event.body:
                        case SubtasksDerived(derivation=derivation):
                            return replace(outcome, derivation=derivation)
                        case ExecutionFinished(status=status, error=error):
                            return replace(outcome, message=f"the execution ended without subtasks: {error or status}")
                        case _:
                            pass
        except TimeoutError:
            message = "the planner is still working; send the same event again to get the subtasks"
            return replace(outcome, message=message)
        return outcome


def _check_same(event: PlanningEvent, fingerprint: str) -> None:
    if fingerprint != event.fingerprint():
        raise _taken_otherwise(event)


def _taken_otherwise(event: PlanningEvent) -> AlreadyExists:
    return AlreadyExists(
        f"another event was accepted under the id {event.event_id!r}",
        field="event_id",
        hint="use a new id for each event",
    )
