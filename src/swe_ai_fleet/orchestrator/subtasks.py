"""Subtasks: a task is split, each part deliberated and merged, the whole checked and delivered.

Each part is a task of its own, with its own context, totals and checks.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.assignment import CheckAssignment, DeriveAssignment
from swe_ai_fleet.domain.budget import Totals, Usage
from swe_ai_fleet.domain.candidate import CheckReport, Verdict
from swe_ai_fleet.domain.errors import Fenced, FleetError
from swe_ai_fleet.domain.event import (
    ChecksFinished,
    ChecksStarted,
    ExecutionStatus,
    SubtaskEnded,
    SubtasksDerived,
    SubtaskStarted,
    WinnerDelivered,
)
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.subtask import (
    JOINT,
    SKIPPED,
    Derivation,
    Subtask,
    SubtaskOutcome,
    check_graph,
    doomed,
    needs_all_others,
    ready,
)
from swe_ai_fleet.domain.task import MAX_PRIORITY, Delivery, PinnedRepository, Role, Task, TaskKind
from swe_ai_fleet.domain.text import one_line
from swe_ai_fleet.orchestrator.deliberation import stands
from swe_ai_fleet.orchestrator.delivery import Delivering, Integration, spent_on_merges
from swe_ai_fleet.orchestrator.execution_context import Ending, ExecutionContext
from swe_ai_fleet.orchestrator.runs import PLANNER, TaskSpending
from swe_ai_fleet.tools.policy import path_allowed
from swe_ai_fleet.tools.truncation import beginning

PLANNER_SHARE = 4
"""A planner may spend at most one part in this many of a task's totals."""
_MAX_ID_CHARS = 128
_WILDCARD = re.compile(r"[*?\[]")
_MAX_CONTEXT_CHARS = 200_000
_MAX_WHOLE_CHARS = 8_000
_MAX_OTHER_CHARS = 300


def planner_task(task: Task) -> Task:
    """The task with the limits of its planner."""
    limits = task.constraints.totals.share(task.constraints.limits, parts=PLANNER_SHARE)
    return replace(task, constraints=replace(task.constraints, limits=limits))


def child_task(parent: Task, subtask: Subtask, derivation: Derivation) -> Task:
    """The task of a subtask; the same parent and derivation always make the same one.

    Its totals are an equal part of what the planner left of the parent's; one part is reserved for merging. The
    parent's own checks and rubric are about the whole: they apply to a subtask only if it comes after all the others;
    otherwise the repository's own tests do.
    """
    constraints, parts = parent.constraints, len(derivation.subtasks) + 1
    whole = needs_all_others(subtask, derivation.subtasks)
    return replace(
        parent,
        task_id=child_task_id(parent.task_id, subtask.subtask_id, derivation.joint),
        kind=TaskKind.DELIBERATE,
        description=subtask.description,
        role=subtask.role,
        context=_context(parent, subtask, derivation, whole=whole),
        constraints=replace(
            constraints,
            rubric=constraints.rubric if whole else "",
            checks=constraints.checks if whole else (),
            require_verified=constraints.require_verified and whole,
            totals=part(constraints.totals, derivation.usage, parts, least=parent.num_agents),
            allowed_paths=_paths(subtask.allowed_paths, constraints.allowed_paths),
        ),
        delivery=Delivery(),
        # Parts of a running task go before waiting tasks.
        priority=min(MAX_PRIORITY, parent.priority + 1),
        derive_subtasks=False,
        # The outcome of the whole is remembered once, at its end.
        memory=replace(parent.memory, write=False, namespaces=parent.memory.namespaces if parent.memory.read else ()),
        parent_execution_id=parent.execution_id,
    )


def child_task_id(task_id: str, subtask_id: str, joint: str = JOINT) -> str:
    """`<task_id>--<subtask_id>`; a task id that is too long is cut and gets a digest."""
    if joint == "." and subtask_id == "lock":
        subtask_id = "lock_"  # no id may end in `.lock`
    room = _MAX_ID_CHARS - len(subtask_id) - len(joint)
    if len(task_id) > room:
        digest = hashlib.sha256(task_id.encode()).hexdigest()[:12]
        task_id = f"{task_id[: room - len(digest) - 1]}-{digest}"
    return f"{task_id}{joint}{subtask_id}"


def part(totals: Totals, spent: Usage, parts: int, *, least: int) -> Totals:
    """One of `parts` equal parts of what is left of totals, but at least `least` tokens and calls."""
    return Totals(
        max_tokens=max(least, (totals.max_tokens - spent.total_tokens) // parts) if totals.max_tokens else 0,
        max_tool_calls=max(least, totals.max_tool_calls // parts) if totals.max_tool_calls else 0,
        max_cost=max(1e-9, (totals.max_cost - spent.cost) / parts) if totals.max_cost else 0.0,
    )


def _context(parent: Task, subtask: Subtask, derivation: Derivation, *, whole: bool) -> str:
    """The parent's context, and the place of the subtask in the whole."""
    after, before = _reach(derivation, up=False), _reach(derivation, up=True)
    name = subtask.subtask_id
    others: list[str] = []
    for other in derivation.subtasks:
        if other.subtask_id == name:
            continue
        when = "another agent does it at the same time"
        if other.subtask_id in before[name]:
            when = "done, you start from its result"
        elif other.subtask_id in after[name]:
            when = "comes after yours"
        others.append(f"- {other.subtask_id} ({when}): {one_line(other.description, _MAX_OTHER_CHARS)}")
    parts = [
        beginning(parent.context, _MAX_CONTEXT_CHARS),
        f"Your task is a part of this one:\n{beginning(parent.description, _MAX_WHOLE_CHARS)}",
        f"The other parts, which are not yours to do:\n{chr(10).join(others)}" if others else "",
    ]
    if not whole and parent.constraints.checks:
        checks = "\n".join(f"- {check.command[:_MAX_OTHER_CHARS]}" for check in parent.constraints.checks)
        parts.append(f"When all parts are done, these must pass:\n{checks}")
    return "\n\n".join(part for part in parts if part.strip())


def _reach(derivation: Derivation, *, up: bool) -> Mapping[str, set[str]]:
    """For each subtask, all subtasks that it depends on (`up`), or all that depend on it."""
    reach: dict[str, set[str]] = {subtask.subtask_id: set() for subtask in derivation.subtasks}
    # Dependencies come first in a derivation.
    for subtask in derivation.subtasks:
        for name in subtask.dependencies:
            reach[subtask.subtask_id] |= {name} | reach[name]
    if up:
        return reach
    return {name: {other for other, dependencies in reach.items() if name in dependencies} for name in reach}


def _paths(requested: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    """The planner's paths that the task allows; the task's own where none are left."""
    if not allowed:
        return requested
    return tuple(path for path in requested if _within(path, allowed)) or allowed


def _within(path: str, allowed: tuple[str, ...]) -> bool:
    """Whether everything that a glob matches is certainly allowed."""
    if path in allowed:
        return True
    if not _WILDCARD.search(path):
        return path_allowed(path, allowed)
    roots = (glob.rstrip("/*") for glob in allowed)
    return any(not root or (not _WILDCARD.search(root) and path.startswith(f"{root}/")) for root in roots)


SUBTASK_ROLES = "subtask_roles"
"""The key in a task's metadata for the roles that its subtasks may have, separated by commas."""
WHOLE = "integration"
"""The candidate id of the evidence about the integration branch."""
MAX_REASON_CHARS = 500


@dataclass(kw_only=True)
class SplitTask:
    """One orchestration in parts.

    Every subtask is an execution of its own. It starts from the integration branch at the moment when all of its
    dependencies are merged; the branch may have more than those. Its winner is merged onto the current branch, one
    merge at a time. If a subtask fails, those that depend on it are skipped, and no others.

    Results of an earlier driver are reused.
    """

    work: ExecutionContext
    _started: set[str] = field(default_factory=set[str])
    _merging: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._outcomes = dict(self.work.known.subtask_outcomes)

    async def run(self) -> Ending:
        """Run it. Only the whole is delivered; a part of it stays on the integration branch.

        Raises InvalidRequest where the task cannot be split, FleetError, Fenced.
        """
        derivation = await self._derivation()
        integration = self._integration(derivation)
        async with asyncio.TaskGroup() as group:
            await self._advance(derivation, integration, group)
        usage = (
            sum((outcome.usage for outcome in self._outcomes.values()), derivation.usage) + integration.spending.usage
        )
        if failed := self._failed(derivation):
            return Ending(status=ExecutionStatus.FAILED, error=failed, usage=usage)
        return await self._delivered(integration, usage)

    async def _derivation(self) -> Derivation:
        if self.work.known.derivation is not None:
            return self.work.known.derivation
        assignment = DeriveAssignment(
            execution_id=self.work.task.execution_id,
            agent_id=PLANNER,
            task=planner_task(self.work.task),
            repository=self.work.repository,
            roles=roles_of(self.work.task),
        )
        derivation = await self.work.runs.run(assignment)
        derivation = replace(derivation, subtasks=check_graph(derivation.subtasks, assignment.roles))
        await self.work.journal.append(SubtasksDerived(derivation=derivation))
        return derivation

    def _integration(self, derivation: Derivation) -> Integration:
        constraints = self.work.task.constraints
        totals = part(
            constraints.totals, derivation.usage, len(derivation.subtasks) + 1, least=self.work.task.num_agents
        )
        task = replace(self.work.task, constraints=replace(constraints, totals=totals))
        return Integration(
            work=self.work,
            head=self.work.known.integration or self.work.repository,
            spending=TaskSpending(task=task, usage=spent_on_merges(self.work.known)),
        )

    async def _advance(self, derivation: Derivation, integration: Integration, group: asyncio.TaskGroup) -> None:
        """Start the subtasks that are ready, and skip those that can never start."""
        for subtask, causes in doomed(derivation.subtasks, self._outcomes):
            error = f"it depends on {', '.join(causes)}"
            outcome = SubtaskOutcome(subtask_id=subtask.subtask_id, status=SKIPPED, error=error)
            self._outcomes[subtask.subtask_id] = outcome
            await self.work.journal.append(SubtaskEnded(outcome=outcome))
        for subtask in ready(derivation.subtasks, self._outcomes, self._started):
            self._started.add(subtask.subtask_id)
            group.create_task(self._run_subtask(subtask, derivation, integration, group))

    async def _run_subtask(
        self, subtask: Subtask, derivation: Derivation, integration: Integration, group: asyncio.TaskGroup
    ) -> None:
        child = child_task(self.work.task, subtask, derivation)
        outcome = SubtaskOutcome(
            subtask_id=subtask.subtask_id, execution_id=child.execution_id, status=ExecutionStatus.FAILED
        )
        try:
            state = await self._solved(subtask, child, integration.head)
            outcome = replace(outcome, status=state.status, usage=state.usage, error=state.error[:MAX_REASON_CHARS])
            if state.status is ExecutionStatus.COMPLETED:
                await self._merge(outcome, child, state, integration)
            else:
                await self._end(outcome)
        except Fenced:
            raise
        except FleetError as error:
            await self._end(replace(outcome, error=str(error)[:MAX_REASON_CHARS]))
        await self._advance(derivation, integration, group)

    async def _solved(self, subtask: Subtask, child: Task, base: PinnedRepository) -> ExecutionState:
        """The final state of a subtask's own execution. If it was started before, it keeps the base of that time."""
        if subtask.subtask_id not in self.work.known.subtask_executions:
            started = SubtaskStarted(
                subtask_id=subtask.subtask_id, execution_id=child.execution_id, base_commit=base.commit
            )
            await self.work.journal.append(started)
        return await self.work.children.wait(child.tenant, await self.work.children.begin(child, base))

    async def _merge(
        self, outcome: SubtaskOutcome, child: Task, state: ExecutionState, integration: Integration
    ) -> None:
        async with self._merging:
            merged = await integration.merge(child, state, outcome.subtask_id)
            if isinstance(merged, str):
                await self._end(replace(outcome, error=merged[:MAX_REASON_CHARS]))
                return
            # No subtask may start from a commit that is not in the log.
            await self._end(replace(outcome, commit_sha=merged.commit, error=""), merged)
            integration.head = merged

    async def _end(self, outcome: SubtaskOutcome, head: PinnedRepository | None = None) -> None:
        await self.work.journal.append(SubtaskEnded(outcome=outcome, repository=head))
        self._outcomes[outcome.subtask_id] = outcome

    def _failed(self, derivation: Derivation) -> str:
        """The failed and skipped subtasks, in words; empty where every subtask is merged."""
        failed = [self._outcomes[subtask.subtask_id] for subtask in derivation.subtasks]
        reasons = [
            f"{outcome.subtask_id} ({outcome.error or outcome.status})"
            for outcome in failed
            if not outcome.merged and outcome.status != SKIPPED
        ]
        skipped = [outcome.subtask_id for outcome in failed if outcome.status == SKIPPED]
        parts = (
            f"subtasks failed: {'; '.join(reasons)}" if reasons else "",
            f"skipped: {', '.join(skipped)}" if skipped else "",
        )
        return "; ".join(part for part in parts if part)

    async def _delivered(self, integration: Integration, usage: Usage) -> Ending:
        if integration.head.commit == self.work.repository.commit:
            return Ending(status=ExecutionStatus.FAILED, error="the subtasks together have no changes", usage=usage)
        report = await self._checked(integration.head)
        if not stands(report):
            failed = "; ".join(result.name for result in report.failed)
            error = f"every subtask passed, but together they do not: {failed}"
            return Ending(status=ExecutionStatus.FAILED, error=error, usage=usage)
        if self.work.task.constraints.require_verified and report.verdict is not Verdict.VERIFIED:
            error = f"together the subtasks are not verified: {'; '.join(report.reasons)}"
            return Ending(status=ExecutionStatus.NO_WINNER, error=error, usage=usage)
        if self.work.known.delivered is None:
            delivered = await Delivering(work=self.work).publish(integration.head)
            await self.work.journal.append(WinnerDelivered(delivered=delivered, report=report))
        return Ending(status=ExecutionStatus.COMPLETED, usage=usage)

    async def _checked(self, head: PinnedRepository) -> CheckReport:
        """The checks of the whole, on the integration branch, compared with the base commit."""
        if (whole_report := self.work.known.reports.get(WHOLE)) is not None:
            return whole_report
        checks = "; ".join(check.command for check in self.work.task.constraints.checks)
        await self.work.journal.append(ChecksStarted(candidate_id=WHOLE, command=checks))
        report = await self.work.runs.check(
            CheckAssignment(
                execution_id=self.work.task.execution_id,
                candidate_id=WHOLE,
                task=self.work.task,
                repository=head,
                baseline=self.work.repository,
            )
        )
        await self.work.journal.append(ChecksFinished(report=report))
        return report


def roles_of(task: Task) -> tuple[Role, ...]:
    """The roles that a task's subtasks may have; empty: all. Raises InvalidRequest."""
    named = task.constraints.metadata.get(SUBTASK_ROLES, "")
    return tuple(dict.fromkeys(Role.parse(name) for name in named.split(",") if name.strip()))
