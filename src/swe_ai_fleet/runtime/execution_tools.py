"""Executions as a model is shown them, the tools that show them, and tasks that it proposes.

Chats and plan sessions have these tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.json_values import mapping, mappings
from swe_ai_fleet.domain.tool import Risk, ToolResult
from swe_ai_fleet.tools.base_tool import BaseTool, ToolParameter, presented
from swe_ai_fleet.tools.definition import ToolFailure

MAX_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSummary:
    """An execution in a line; `description` is the task, cut. Times are ISO 8601, UTC."""

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

    `verdict` and its `reasons` are the winner's, or those of the best where nobody won; `baseline` is the test
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
    """A task that starts once the person confirms it, and the turn that proposed it.

    `key` is the idempotency key of its start: a retry uses it again, so the task is started once. `by` is who has it
    started, where that is somebody else than the person who confirms it.
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
        """The newest executions, of one status only where it is given. Raises InvalidRequest, Unavailable."""
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


class ListExecutions(BaseTool):
    """`list_executions(status="", limit=10) -> {executions: [...]}`, the newest first."""

    name = "list_executions"
    description = "List what the fleet works on or has worked on, the newest first."
    parameters = (
        ToolParameter("status", "string", "Only those: pending, running, completed, failed, ...", required=False),
        ToolParameter("limit", "integer", f"How many, at most {MAX_LISTED}.", required=False, default=10),
    )
    read_only = True
    risk = Risk.LOW
    network = False
    locks = frozenset[str]()

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet

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


class ShowExecution(BaseTool):
    """`show_execution(execution) -> {execution, winner, checks, files, candidates, ...}`."""

    name = "show_execution"
    description = (
        "Show one execution: its status, winner, verdict, checks, changed files, branch and what it waits for."
    )
    parameters = (ToolParameter("execution", "string", "Its id, or its task's id."),)
    read_only = True
    risk = Risk.LOW
    network = False
    locks = frozenset[str]()

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet

    async def execute(self, execution: str) -> dict[str, object]:
        """Its details. Raises FleetError."""
        detail = await self._fleet.execution(execution.strip())
        fields = {key: part for key, part in _plain(detail).items() if part not in ("", [], ())}
        return {**mapping(fields.pop("execution")), **fields}


def _plain(value: ExecutionSummary | ExecutionDetail) -> dict[str, object]:
    return dict(mapping(to_plain(value)))
