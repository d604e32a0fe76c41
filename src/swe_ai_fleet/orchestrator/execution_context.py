"""The context of a running execution: what its phases share, and how an execution starts others as its parts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.event import ExecutionStatus
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the work on a task ended, to be recorded."""

    status: ExecutionStatus
    winner_id: str = ""
    error: str = ""
    usage: Usage = field(default_factory=Usage)


class WorkflowDrive(Protocol):
    """One run of a workflow, or of a plan, under way."""

    @property
    def waits(self) -> bool:
        """Whether it only waits: for executions of its nodes, or for somebody to go on with it."""
        ...

    def steered(self) -> None:
        """Hear that somebody steered; what they said stands in the log."""
        ...

    async def run(self) -> Ending:
        """Run it to its ending. Raises InvalidRequest, FleetError for what ends it without one, Fenced."""
        ...


class Workflows(Protocol):
    """What runs workflows; an extension provides it."""

    def check(self, task: Task, *, profiles: Collection[str], max_agents: int, memory: bool) -> None:
        """Whether this installation can run a task's workflow with its inputs. Raises InvalidRequest."""
        ...

    def drive(self, *, work: ExecutionContext) -> WorkflowDrive:
        """A run of the workflow of an execution; nothing that ended under an earlier driver is done again."""
        ...


class Plans(Protocol):
    """What drives the plans of sessions."""

    def drive(self, *, work: ExecutionContext) -> WorkflowDrive:
        """The plan of an execution under way; nothing that ended under an earlier driver is done again."""
        ...

    async def ended(self, deps: ExecutionDeps, state: ExecutionState, ending: Ending) -> None:
        """Keep how a plan ends, and tell whoever learns from it. Raises Fenced, Unavailable."""
        ...


@dataclass(frozen=True, kw_only=True)
class ExecutionDeps:
    """What every drive of a process works with.

    `owner` is the replica's name; `context` knows what agents are told beside their task (None: nobody does); `pauses`
    are the seconds before each further attempt at a run that was lost. What nodes of workflows are to remember goes to
    `memories`; people have `approval_timeout_seconds` (0: for ever) for what nodes ask them. `recipes` takes what
    environment runs find out. `verifier` scores candidates; None: nobody does. `signer` signs where agents' audit
    chains stand; None: nobody does. `workflows` runs workflows; None: there are none.
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
    workflows: Workflows | None = None


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
