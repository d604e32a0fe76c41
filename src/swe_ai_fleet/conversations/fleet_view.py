"""The fleet's interface for chats: executions to look at, and the submission of a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from swe_ai_fleet.conversations.session import Proposal


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
