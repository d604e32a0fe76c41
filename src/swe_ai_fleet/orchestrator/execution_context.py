"""The context of a running execution: what its phases share, and how an execution starts others as its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import PinnedRepository, Task
from swe_ai_fleet.orchestrator.agent_runs import PAUSES, AgentRuns
from swe_ai_fleet.orchestrator.judging import Verifier
from swe_ai_fleet.orchestrator.recipes import Recipes
from swe_ai_fleet.ports import (
    BlobStore,
    ChatModel,
    ContextSource,
    EventLog,
    Fleet,
    HeadSigner,
    Journal,
    KnownRecipes,
    Memories,
    Repositories,
    ResultBus,
)


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
class ExecutionDeps:
    """What every drive of a process works with.

    `owner` is the replica's name; `context` knows what agents are told beside their task (None: nobody does); `pauses`
    are the seconds before each further attempt at a run that was lost. What nodes of workflows are to remember goes to
    `memories`; people have `approval_timeout_seconds` (0: for ever) for what nodes ask them. `recipes` takes what
    environment runs find out. `verifier` scores candidates; None: nobody does. `signer` signs where agents' audit
    chains stand; None: nobody does.
    """

    log: EventLog
    blobs: BlobStore
    results: ResultBus
    fleet: Fleet
    workspaces: Repositories
    model: ChatModel
    owner: str
    pauses: Sequence[float] = PAUSES
    context: ContextSource | None = None
    memories: Memories | None = None
    approval_timeout_seconds: float = 0.0
    recipes: KnownRecipes = field(default_factory=Recipes)
    signer: HeadSigner | None = None
    verifier: Verifier | None = None


@dataclass(frozen=True, kw_only=True)
class ExecutionContext:
    """What the phases of one running execution share.

    Attributes:
        deps: What every execution of this process works with.
        runs: Where agents and checks run; has the execution's journal, and what an earlier driver left: nothing in that
            is done again.
        parts: Where parts of it become executions of their own.
    """

    deps: ExecutionDeps
    runs: AgentRuns
    parts: Parts

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
