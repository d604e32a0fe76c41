"""Plans split on request, without an execution: the planner's own run in the log is all that is kept of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.deriving import STRATEGIES
from swe_ai_fleet.agents.recorded_run import concluded, read_run
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.assignment import DeriveAssignment
from swe_ai_fleet.domain.errors import AgentLost, Fenced, InvalidRequest, ResourceExhausted, Unavailable
from swe_ai_fleet.domain.subtask import Derivation
from swe_ai_fleet.domain.task import (
    DEFAULT_TENANT,
    MAX_DESCRIPTION_BYTES,
    PinnedRepository,
    RepoRef,
    Role,
    Task,
    TaskKind,
)
from swe_ai_fleet.orchestrator.queue import full_for
from swe_ai_fleet.orchestrator.run_names import PLANNER
from swe_ai_fleet.ports import EventLog, Fleet, WorkspaceProvider

ATTEMPTS = 3
MAX_AT_ONCE = 32
MAX_NAME_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Something to be split. `case_id` and `plan_id` are the caller's own names for it; the planner reads `context`."""

    description: str
    case_id: str = ""
    plan_id: str = ""
    roles: tuple[Role, ...] = ()
    strategy: str = "auto"
    repo: RepoRef | None = None
    tenant: str = DEFAULT_TENANT
    context: str = ""

    def checked(self) -> Plan:
        """This plan, if it can be split. Raises InvalidRequest naming the field."""
        if not self.description.strip():
            raise InvalidRequest("the task description is empty", field="task_description")
        if len(self.description.encode()) > MAX_DESCRIPTION_BYTES:
            raise InvalidRequest(
                "the task description is too long", field="task_description", hint=f"at most {MAX_DESCRIPTION_BYTES}"
            )
        for name, text in (("case_id", self.case_id), ("plan_id", self.plan_id)):
            if len(text) > MAX_NAME_CHARS:
                raise InvalidRequest(f"{name} is too long", field=name, hint=f"at most {MAX_NAME_CHARS} characters")
        if self.strategy not in STRATEGIES:
            hint = f"one of {', '.join(STRATEGIES)}"
            raise InvalidRequest(f"unknown strategy {self.strategy[:64]!r}", field="strategy", hint=hint)
        return self

    def task(self, commit: str) -> Task:
        """The task that stands for it; the same plan about the same commit is the same task."""
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
    """Splits plans. An async context: leaving it ends the planners at work.

    The same plan about the same commit is split once; asked again, the answer comes from the log. A planner goes on
    without its caller, who may come back for what it said. Where `MAX_AT_ONCE` are at work, a tenant that has less than
    an even part of them is still let in.

    Args:
        fleet: Has the planners.
        log: Has what they said.
        workspaces: Pins repositories.
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

    async def derive(self, plan: Plan) -> Derivation:
        """Its subtasks, dependencies first.

        Raises InvalidRequest (nothing to split, or no sound split was found), PreconditionFailed, Unavailable,
        ResourceExhausted (too many at once), ModelError, AgentLost.
        """
        plan.checked()
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
        """Whether one more plan of a tenant may be split now. Raises ResourceExhausted."""
        at_work = Counter(name for name, _ in self._deriving)
        tenants = len({tenant, *at_work})
        if full_for(at_work.total(), at_work[tenant], most=MAX_AT_ONCE, tenants=tenants):
            raise ResourceExhausted(f"{at_work.total()} plans are being split", hint="try again later")

    async def _derive(self, plan: Plan, task: Task, pinned: PinnedRepository | None) -> Derivation:
        earlier = await read_run(self._log, task.tenant, task.execution_id, PLANNER)
        if (known := concluded(earlier, Derivation)) is not None:
            return known
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
