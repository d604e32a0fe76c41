"""The context of a running execution: what its phases share, and how an execution starts others as its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import PinnedRepository, Task
from swe_ai_fleet.orchestrator.agent_runs import AgentRuns
from swe_ai_fleet.orchestrator.judging import Verifier
from swe_ai_fleet.ports import BlobStore, Journal, KnownRecipes, Repositories


class Parts(Protocol):
    """Executions that are parts of others."""

    async def begin(self, task: Task, repository: PinnedRepository) -> str:
        """Accept a part, to start from a commit that is pinned already; its execution's id. Raises FleetError."""
        ...

    async def wait(self, tenant: str, execution_id: str) -> ExecutionState:
        """The whole state of an execution once it has ended. Raises FleetError."""
        ...

    async def cancel(self, tenant: str, execution_id: str, reason: str = "") -> ExecutionState:
        """Cancel an execution and wait for its end. Raises FleetError."""
        ...


@dataclass(frozen=True, kw_only=True)
class ExecutionContext:
    """What the phases of one running execution share.

    Attributes:
        runs: Where agents and checks run; has the execution's journal, and what an earlier driver left: nothing in that
            is done again.
        parts: Where parts of it become executions of their own.
        workspaces: Merges and delivers.
        blobs: Has patches and bundles, takes what is too long for an event.
        recipes: Takes what environment runs find out.
        verifier: Scores candidates; None: nobody does.
    """

    runs: AgentRuns
    parts: Parts
    workspaces: Repositories
    blobs: BlobStore
    recipes: KnownRecipes
    verifier: Verifier | None = None

    @property
    def known(self) -> ExecutionState:
        """What its log held when this drive began."""
        return self.runs.known

    @property
    def task(self) -> Task:
        """What is to be done, as its council does it."""
        return self.known.task

    @property
    def repository(self) -> PinnedRepository:
        """Where it begins."""
        return self.known.repository

    @property
    def journal(self) -> Journal:
        """The execution's own."""
        return self.runs.journal
