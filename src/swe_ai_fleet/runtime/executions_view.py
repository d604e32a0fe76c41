"""The fleet for a chat or a plan session: its executions to look at, and a way to hand tasks in."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice

from swe_ai_fleet.domain.candidate import CheckResult
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import COUNCIL_ROUNDS, RepoRef, Task, TaskKind, UncommittedChanges
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.runtime.execution_tools import (
    CandidateSummary,
    CheckSummary,
    ExecutionDetail,
    ExecutionSummary,
    Proposal,
)

CALLER = "chat"
_DESCRIPTION_CHARS = 200
_SUMMARY_CHARS = 2_000
_MOST_FILES = 60
_MOST_CANDIDATES = 16
_PREFIX = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,28}")
_STATUSES = {
    "running": ExecutionStatus.IN_PROGRESS,
    "done": ExecutionStatus.COMPLETED,
    "waiting": ExecutionStatus.AWAITING_APPROVAL,
}


class ExecutionsView:
    """Executions as a chat sees them, and tasks from it; a `FleetView` and a `TaskStarter`.

    Args:
        executions: Where they are.
        tenant: Whose.
        caller: In whose name tasks are handed in where nobody knows who asks.
        by: Who asks now; empty where callers cannot be told apart.
    """

    def __init__(
        self, executions: Executions, *, tenant: str, caller: str = CALLER, by: Callable[[], str] = lambda: ""
    ) -> None:
        self._executions = executions
        self._tenant = tenant
        self._caller = caller
        self._by = by

    async def executions(self, *, status: str = "", limit: int = 10) -> Sequence[ExecutionSummary]:
        """The newest executions, of one status only where it is given. Raises InvalidRequest."""
        statuses: frozenset[ExecutionStatus] = frozenset()
        if status:
            named = _STATUSES.get(status)
            if named is None and status not in set(ExecutionStatus):
                known = ", ".join(ExecutionStatus)
                raise InvalidRequest(f"{status[:40]!r} is not a status; one of {known}", field="status")
            statuses = frozenset({named or ExecutionStatus(status)})
        states = self._executions.projection.select(self._tenant, statuses=statuses)
        return [_summary(state) for state in islice(states, limit)]

    async def execution(self, name: str) -> ExecutionDetail:
        """One by its id, the beginning of it, or its task's id. Raises NotFound, InvalidRequest."""
        return _detail(await self._find(name))

    async def start(self, proposal: Proposal, *, key: str) -> str:
        """Start a task that a person confirmed; its execution id. The same key again is the same execution.

        Raises InvalidRequest, PreconditionFailed, ModelError, ResourceExhausted, Unavailable.
        """
        task = Task(
            task_id=key,
            kind=TaskKind.ORCHESTRATE,
            description=proposal.description,
            repo=RepoRef(location=proposal.repository, ref=proposal.ref, uncommitted=UncommittedChanges.REFUSE),
            tenant=self._tenant,
            num_agents=proposal.agents,
            rounds=COUNCIL_ROUNDS,
            caller=proposal.by or self._by() or self._caller,
        )
        return (await self._executions.submit(task)).execution_id

    async def _find(self, name: str) -> ExecutionState:
        if not name or len(name) > 128:
            raise InvalidRequest("use the id of an execution", field="execution")
        if _PREFIX.fullmatch(name):
            fitting = self._executions.projection.starting_with(self._tenant, name)
            if len(fitting) > 1:
                raise InvalidRequest(f"{len(fitting)} executions have ids that start like this", field="execution")
            if fitting:
                return await self._executions.get(self._tenant, fitting.pop())
        try:
            return await self._executions.latest(self._tenant, name)
        except NotFound:
            raise NotFound(f"no execution or task {name[:64]!r}", field="execution") from None


def _summary(state: ExecutionState) -> ExecutionSummary:
    return ExecutionSummary(
        execution_id=state.execution_id,
        description=" ".join(state.task.description[: 4 * _DESCRIPTION_CHARS].split())[:_DESCRIPTION_CHARS],
        status=state.status.value,
        repository=state.task.repo.location,
        agents=state.task.num_agents,
        started_at=state.started_at[:19],
        finished_at=state.finished_at[:19],
    )


def _detail(state: ExecutionState) -> ExecutionDetail:
    winner = state.candidates.get(state.winner_id)
    report, best = state.reports.get(state.winner_id), state.best_report
    ranks = {ranked.candidate_id: ranked for ranked in state.ranking}
    candidates = sorted(
        state.candidates.values(),
        key=lambda candidate: ranks[candidate.candidate_id].rank if candidate.candidate_id in ranks else 10**6,
    )
    delivered = state.delivered
    return ExecutionDetail(
        execution=_summary(state),
        winner=state.winner_id,
        verdict=state.verdict or "",
        reasons=best.reasons if best else (),
        baseline=state.baseline.line if state.baseline else "",
        summary=winner.summary[:_SUMMARY_CHARS] if winner else "",
        branch=delivered.branch if delivered else "",
        error=state.error[:_SUMMARY_CHARS],
        checks=tuple(_check(result) for result in report.results) if report else (),
        files=winner.artifacts.files_changed[:_MOST_FILES] if winner else (),
        candidates=tuple(
            CandidateSummary(
                candidate_id=candidate.candidate_id,
                agent=candidate.author,
                rank=ranks[candidate.candidate_id].rank if candidate.candidate_id in ranks else 0,
                score=round(ranks[candidate.candidate_id].score, 3) if candidate.candidate_id in ranks else 0.0,
                verdict=state.reports[candidate.candidate_id].verdict_word
                if candidate.candidate_id in state.reports
                else "",
                lines_changed=candidate.artifacts.insertions + candidate.artifacts.deletions,
            )
            for candidate in candidates[:_MOST_CANDIDATES]
        ),
        waiting_for=tuple(
            " ".join(request.approach.split())[:_DESCRIPTION_CHARS] or request.approval_id for request in state.pending
        ),
    )


def _check(result: CheckResult) -> CheckSummary:
    outcome = "skipped" if result.skipped_reason else "passed" if result.passed else "failed"
    message = result.skipped_reason or result.message
    return CheckSummary(name=result.name, outcome=outcome, message=" ".join(message.split())[:_DESCRIPTION_CHARS])
