"""Tools for models that list and show executions and start tasks, and their implementation over the fleet's own.

Chats and plan sessions have these tools.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.candidate import Candidate, CheckResult, RankedCandidate
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.json_values import mapping, mappings
from swe_ai_fleet.domain.task import COUNCIL_ROUNDS, RepoRef, Task, TaskKind, UncommittedChanges
from swe_ai_fleet.domain.tool import Risk, ToolResult
from swe_ai_fleet.tools.base_tool import BaseTool, ToolParameter, presented
from swe_ai_fleet.tools.definition import ToolFailure

if TYPE_CHECKING:
    from swe_ai_fleet.orchestrator.executions import Executions

MAX_LISTED = 20
_MAX_DESCRIPTION_CHARS = 20_000
_MAX_NAME_CHARS = 300
_MAX_AGENTS = 64
_SUBMIT_SECONDS = 120.0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSummary:
    """An execution in one line; `description` is the beginning of the task. Times are ISO 8601, UTC."""

    execution_id: str
    description: str
    status: str
    repository: str = ""
    agents: int = 0
    started_at: str = ""
    finished_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSummary:
    """A check of the winner: passed, failed or skipped."""

    name: str
    outcome: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSummary:
    """A candidate: its rank (1 the best, 0 none yet) and verdict (verified, unverified, refuted; empty: none yet)."""

    candidate_id: str
    agent: str
    rank: int = 0
    score: float = 0.0
    verdict: str = ""
    lines_changed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionDetail:
    """The state of an execution: its winner, the checks, the changed files, the branch.

    `verdict` and its `reasons` are the winner's, or the best candidate's without a winner; `baseline` is the test
    result of the untouched commit.
    """

    execution: ExecutionSummary
    winner: str = ""
    verdict: str = ""
    reasons: tuple[str, ...] = ()
    baseline: str = ""
    summary: str = ""
    branch: str = ""
    error: str = ""
    checks: tuple[CheckSummary, ...] = ()
    files: tuple[str, ...] = ()
    candidates: tuple[CandidateSummary, ...] = ()
    waiting_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A task that starts once a person confirms it, and the turn that proposed it.

    `key` is the idempotency key of its start, so that a retry starts no second task. `by` is the task's caller; empty
    where callers are not distinguished.
    """

    description: str
    repository: str
    ref: str = ""
    agents: int = 0
    turn: int = 0
    key: str = ""
    by: str = ""


class FleetView(Protocol):
    """Shows the executions of the fleet."""

    async def executions(self, *, status: str = "", limit: int = 10) -> Sequence[ExecutionSummary]:
        """The newest executions, with a `status` only those. Raises InvalidRequest, Unavailable."""
        ...

    async def execution(self, name: str) -> ExecutionDetail:
        """An execution by its id, a prefix of it, or its task's id. Raises NotFound, InvalidRequest, Unavailable."""
        ...


class TaskStarter(Protocol):
    """Submits tasks."""

    async def start(self, proposal: Proposal, *, key: str) -> str:
        """Start a task that a person confirmed; returns its execution id. The same key is the same execution.

        Raises InvalidRequest, PreconditionFailed, ResourceExhausted, Unavailable.
        """
        ...


class _LookingTool(BaseTool):
    read_only = True
    risk = Risk.LOW
    network = False
    locks = frozenset[str]()

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet


class ListExecutions(_LookingTool):
    """`list_executions(status="", limit=10) -> {executions: [...]}`, the newest first."""

    name = "list_executions"
    description = "List what the fleet works on or has worked on, the newest first."
    parameters = (
        ToolParameter("status", "string", "Only those: pending, running, completed, failed, ...", required=False),
        ToolParameter("limit", "integer", f"How many, at most {MAX_LISTED}.", required=False, default=10),
    )

    async def execute(self, status: str = "", limit: int = 10) -> dict[str, object]:
        """The executions. Raises FleetError."""
        if not 1 <= limit <= MAX_LISTED:
            raise ToolFailure(f"limit is {limit}; it goes from 1 to {MAX_LISTED}")
        executions = await self._fleet.executions(status=status.strip().lower(), limit=limit)
        return {"executions": [_plain(execution) for execution in executions]}

    def present(self, value: object) -> ToolResult:
        records = mappings(mapping(value)["executions"])
        lines = [
            f"{number}. {record['execution_id']}  {record['status']}  {record['description']}"
            for number, record in enumerate(records, start=1)
        ]
        return replace(presented(self.name, value), content="\n".join(lines) or "There are none.")


class ShowExecution(_LookingTool):
    """`show_execution(execution) -> {execution, winner, checks, files, candidates, ...}`."""

    name = "show_execution"
    description = (
        "Show one execution: its status, winner, verdict, checks, changed files, branch and what it waits for."
    )
    parameters = (ToolParameter("execution", "string", "Its id, or its task's id."),)

    async def execute(self, execution: str) -> dict[str, object]:
        """Its details. Raises FleetError."""
        detail = await self._fleet.execution(execution.strip())
        fields = {key: part for key, part in _plain(detail).items() if part not in ("", [], ())}
        return {**mapping(fields.pop("execution")), **fields}


def _plain(value: ExecutionSummary | ExecutionDetail) -> dict[str, object]:
    return dict(mapping(to_plain(value)))


class StartTask(BaseTool):
    """`start_task(description, repository, ref="", agents=0) -> {execution_id, status}`.

    The same task in the same session is the same execution, so that a plan that is executed again starts nothing
    twice.

    Args:
        by: The caller who set the goal of the plan, and so submits the task; empty: unknown.
    """

    name = "start_task"
    description = (
        "Have the fleet carry out a coding task: several agents solve it in clones of their own, the best result is "
        "put on a branch. Gives the execution's id at once; show_execution tells how it goes."
    )
    parameters = (
        ToolParameter("description", "string", "What is to be done, complete in itself."),
        ToolParameter("repository", "string", "Path or URL of the repository."),
        ToolParameter("ref", "string", "Branch, tag or commit to start from.", required=False),
        ToolParameter("agents", "integer", "How many agents solve it.", required=False),
    )
    risk = Risk.HIGH
    network = False
    locks = frozenset({"fleet"})
    time_limit_seconds = _SUBMIT_SECONDS
    late_note = "list_executions says whether it was started"

    def __init__(self, starter: TaskStarter, session_id: str, by: str = "") -> None:
        self._starter = starter
        self._by = by
        self._session_id = session_id

    async def execute(self, description: str, repository: str, ref: str = "", agents: int = 0) -> dict[str, object]:
        """The started execution. Raises ToolFailure for an invalid task, and where it cannot be started."""
        description, repository, ref = description.strip(), repository.strip(), ref.strip()
        if not description or not repository:
            raise ToolFailure("a task has a description and a repository")
        for name, text, limit in (
            ("description", description, _MAX_DESCRIPTION_CHARS),
            ("repository", repository, _MAX_NAME_CHARS),
            ("ref", ref, _MAX_NAME_CHARS),
        ):
            if len(text) > limit:
                raise ToolFailure(f"the {name} is too long; at most {limit} characters")
        if not 0 <= agents <= _MAX_AGENTS:
            raise ToolFailure(f"agents goes from 1 to {_MAX_AGENTS}; leave it out for the usual number")
        proposal = Proposal(description=description, repository=repository, ref=ref, agents=agents, by=self._by)
        words = "\x1f".join((self._session_id, description, repository, ref, str(agents)))
        key = f"plan-{hashlib.sha256(words.encode('utf-8', 'replace')).hexdigest()[:32]}"
        execution_id = await self._starter.start(proposal, key=key)
        return {"execution_id": execution_id, "status": "started"}


class ExecutionsView:
    """The fleet's executions for a chat or a plan; a `FleetView` and a `TaskStarter`.

    Args:
        caller: The caller of tasks whose proposal names none.
    """

    def __init__(self, executions: Executions, *, tenant: str, caller: str = CALLER) -> None:
        self._executions = executions
        self._tenant = tenant
        self._caller = caller

    async def executions(self, *, status: str = "", limit: int = 10) -> Sequence[ExecutionSummary]:
        statuses: frozenset[ExecutionStatus] = frozenset()
        if status:
            named = _STATUSES.get(status)
            if named is None and status not in set(ExecutionStatus):
                allowed = ", ".join(ExecutionStatus)
                raise InvalidRequest(f"{status[:40]!r} is not a status; one of {allowed}", field="status")
            statuses = frozenset({named or ExecutionStatus(status)})
        states = self._executions.projection.select(self._tenant, statuses=statuses)
        # Who asks in a chat means what it is about, not its own messages.
        others = (state for state in states if state.task.kind is not TaskKind.CHAT)
        return [_summary(state) for state in islice(others, limit)]

    async def execution(self, name: str) -> ExecutionDetail:
        return _detail(await self._find(name))

    async def start(self, proposal: Proposal, *, key: str) -> str:
        task = Task(
            task_id=key,
            kind=TaskKind.ORCHESTRATE,
            description=proposal.description,
            repo=RepoRef(location=proposal.repository, ref=proposal.ref, uncommitted=UncommittedChanges.REFUSE),
            tenant=self._tenant,
            num_agents=proposal.agents,
            rounds=COUNCIL_ROUNDS,
            caller=proposal.by or self._caller,
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
    candidates = [
        _candidate(state, candidate, ranks.get(candidate.candidate_id)) for candidate in state.candidates.values()
    ]
    candidates.sort(key=lambda candidate: candidate.rank or 10**6)
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
        candidates=tuple(candidates[:_MOST_CANDIDATES]),
        waiting_for=tuple(
            " ".join(request.approach.split())[:_DESCRIPTION_CHARS] or request.approval_id for request in state.pending
        ),
    )


def _candidate(state: ExecutionState, candidate: Candidate, ranked: RankedCandidate | None) -> CandidateSummary:
    report = state.reports.get(candidate.candidate_id)
    return CandidateSummary(
        candidate_id=candidate.candidate_id,
        agent=candidate.author,
        rank=ranked.rank if ranked else 0,
        score=round(ranked.score, 3) if ranked else 0.0,
        verdict=report.verdict_word if report else "",
        lines_changed=candidate.artifacts.insertions + candidate.artifacts.deletions,
    )


def _check(result: CheckResult) -> CheckSummary:
    outcome = "skipped" if result.skipped_reason else "passed" if result.passed else "failed"
    message = result.skipped_reason or result.message
    return CheckSummary(name=result.name, outcome=outcome, message=" ".join(message.split())[:_DESCRIPTION_CHARS])
