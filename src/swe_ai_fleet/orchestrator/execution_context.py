"""The context of a running execution: what its phases share, and the runs of its agents.

Runs are carried through pauses for people, hosts that die, and takeovers by another orchestrator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from swe_ai_fleet.domain.assignment import Assignment, CodingAssignment, RecordedAssignment
from swe_ai_fleet.domain.audit_chains import AuditChains
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Candidate
from swe_ai_fleet.domain.errors import AgentLost, Fenced, FleetError, Unavailable
from swe_ai_fleet.domain.event import AuditHeadSigned, ExecutionStatus, RunLost, RunReassigned
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.memory import WorkOutcome
from swe_ai_fleet.domain.task import PinnedRepository, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.approvals import Approvals
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

IN_PROCESS = frozenset({TaskKind.PLAN, TaskKind.CHAT})
"""Kinds whose models run in the orchestrator's process, not as agents of the fleet.

Their task id is that of a session, and each execution is an attempt of it.
"""
PAUSES = (0.0, 1.0, 4.0, 15.0)
"""Seconds before each further attempt at a run whose process was lost; after the last one the run counts as lost.

A lost node is detected after about twenty seconds; until then new processes may be placed on it.
"""
T = TypeVar("T")


@dataclass(kw_only=True)
class HeadSigning:
    """Signs the audit chains of one driven execution in its log. `chains` receives each event that is read."""

    signer: HeadSigner
    approvals: Approvals
    chains: AuditChains
    journal: Journal
    task: Task
    _signed: set[tuple[str, int, int]] = field(default_factory=set[tuple[str, int, int]])
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def sign(self, agent_id: str = "") -> None:
        """Sign the complete, unsigned chains of an agent, or of all agents.

        An inconsistent chain stays unsigned, so that a verification reports it. Raises Fenced, Unavailable.
        """
        await self.approvals.refresh()
        async with self._turn:
            for head in tuple(self.chains.unsigned(agent_id)):
                name = (head.agent_id, head.run, head.entries)
                if name not in self._signed:
                    await self.journal.append(AuditHeadSigned(head=self.signer.signed(head, self.task.execution_id)))
                    self._signed.add(name)


@dataclass(kw_only=True)
class AgentRuns:
    """The runs of one driven execution.

    Attributes:
        generation: The driver's generation, which is the minimum for each run.
        known: The state that an earlier driver left; nothing in it is done again.
        signing: Signs the head of a run's audit chain when the run ends; None: heads stay unsigned.
        pauses: Seconds before each further attempt.
        background: Text that every solving agent gets beside its task.
    """

    fleet: Fleet
    journal: Journal
    approvals: Approvals
    generation: int
    known: ExecutionState
    signing: HeadSigning | None = None
    pauses: Sequence[float] = PAUSES
    background: str = ""
    _generations: dict[str, int] = field(default_factory=dict[str, int])

    async def solve(self, assignment: CodingAssignment) -> Candidate:
        """Run an agent to its end; the run resumes from its log after the loss of a process.

        Raises AgentLost when its processes were lost too often, FleetErrors of the run.
        """
        agent_id = assignment.agent_id
        background = "\n\n".join(filter(None, (self.background, assignment.background)))
        assignment = replace(assignment, background=background)
        agent = self.known.agents.get(agent_id)
        # An earlier driver may have started a process since this one read the log, so the run must look there.
        resume = self.generation > 1 and (agent is None or agent.status != "lost")

        async def once(generation: int) -> Candidate:
            nonlocal resume
            while True:
                state = await self.approvals.settled(agent_id)
                if state.generation > self.generation:
                    raise Fenced("another orchestrator drives the execution")
                attempt = replace(assignment, generation=generation, resume=resume)
                # If this process is lost, the next one resumes from what it wrote.
                resume = True
                candidate = await self.fleet.run(attempt)
                if candidate.stop_reason is not StopReason.AWAITING_APPROVAL:
                    return candidate
                generation = self._next(agent_id)

        return await self._attempt(agent_id, once)

    async def check(self, assignment: Assignment[T]) -> T:
        """The evidence of an assignment; it is gathered again if the process is lost or unreachable.

        Raises AgentLost or Unavailable when there are no more attempts, FleetErrors of the work.
        """
        for pause in self.pauses:
            try:
                return await self.fleet.run(assignment)
            except (AgentLost, Unavailable):
                await asyncio.sleep(pause)
        return await self.fleet.run(assignment)

    async def run(self, assignment: RecordedAssignment[T]) -> T:
        """The result of any other assignment; it runs again if the process is lost or unreachable.

        Raises AgentLost or Unavailable when there are no more attempts, FleetErrors of the work.
        """
        return await self._attempt(
            assignment.agent_id, lambda generation: self.fleet.run(replace(assignment, generation=generation))
        )

    async def or_loss(self, agent_id: str, run: Awaitable[T]) -> T | FleetError:
        """The result of a run, or the error of a failed one, which is recorded as lost. Raises Fenced."""
        try:
            return await run
        except FleetError as error:
            return await self.lost(agent_id, error)

    async def lost(self, agent_id: str, error: FleetError) -> FleetError:
        """Record a failed run as lost and return its error. Raises it if it is Fenced."""
        if isinstance(error, Fenced):
            raise error
        await self.journal.append(RunLost(lost_agent_id=agent_id, reason=str(error)))
        return error

    async def _attempt(self, agent_id: str, call: Callable[[int], Awaitable[T]]) -> T:
        """The value of a call with the generation of its run; retried if the process is lost or unreachable.

        Raises AgentLost or Unavailable when there are no more attempts, and what the call raises.
        """
        agent = self.known.agents.get(agent_id)
        attempt = agent.attempt if agent else 1
        while True:
            try:
                value = await call(self._next(agent_id))
            except (AgentLost, Unavailable) as error:
                if attempt > len(self.pauses):
                    raise
                pause, attempt = self.pauses[attempt - 1], attempt + 1
                lost = RunReassigned(lost_agent_id=agent_id, reason=str(error), attempt=attempt)
                await self.journal.append(lost)
                await asyncio.sleep(pause)
            else:
                if self.signing is not None:
                    await self.signing.sign(agent_id)
                return value

    def _next(self, agent_id: str) -> int:
        """The next unused generation of a run."""
        agent = self.known.agents.get(agent_id)
        last = max(self._generations.get(agent_id, 0), agent.generation if agent else 0)
        self._generations[agent_id] = max(self.generation, last + 1)
        return self._generations[agent_id]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of the work on a task, before it is recorded."""

    status: ExecutionStatus
    winner_id: str = ""
    error: str = ""
    usage: Usage = field(default_factory=Usage)


class KindDrive(Protocol):
    """A running execution of a kind that an extension drives."""

    @property
    def waits(self) -> bool:
        """Whether it only waits for its child executions or for a person, and so takes no slot."""
        ...

    def steered(self) -> None:
        """Called when a control event arrives; the event itself is in the log."""
        ...

    async def run(self) -> Ending:
        """Run it to its end. Raises InvalidRequest, a FleetError that fails the execution, Fenced."""
        ...


class ChildExecutions(Protocol):
    """Executions that an execution starts: its subtasks, or the agents of a workflow's nodes."""

    async def begin(self, task: Task, repository: PinnedRepository) -> str:
        """Accept a task at its pinned commit; the execution's id, the same for the same task. Raises FleetError."""
        ...

    async def wait(self, tenant: str, execution_id: str) -> ExecutionState:
        """The state at the end of an execution, once it has ended. Raises NotFound, Unavailable."""
        ...

    async def cancel(self, tenant: str, execution_id: str, reason: str = "") -> ExecutionState:
        """Stop an execution and wait for its end. Raises NotFound, Unavailable."""
        ...


class KindDriver(Protocol):
    """Drives the executions of one kind; an extension provides it."""

    def drive(self, *, work: ExecutionContext) -> KindDrive:
        """The drive of an execution; work that ended under an earlier driver is not repeated."""
        ...

    async def ended(self, deps: ExecutionDeps, state: ExecutionState, ending: Ending) -> None:
        """Called with the end of an execution before it is recorded. Raises Fenced, Unavailable."""
        ...


class Workflows(KindDriver, Protocol):
    """Drives workflows."""

    def check(self, task: Task, *, profiles: Collection[str], max_agents: int, memory: bool) -> None:
        """Check that this installation can run a task's workflow with its inputs. Raises InvalidRequest."""
        ...


@dataclass(frozen=True, kw_only=True)
class ExecutionDeps:
    """What the drives of one orchestrator process share.

    Attributes:
        owner: The replica's name.
        pauses: Seconds before each further attempt at a run whose process was lost.
        context: Gathers what agents are told beside their task; None: nothing.
        memories: Stores what nodes of workflows are to remember.
        approval_timeout_seconds: How long people have to answer the questions of workflow nodes; 0: for ever.
        recipes: Stores what environment runs find out.
        outcomes: A tenant's ended work, by which scores of the verifier model are calibrated; None: none is asked.
        signer: Signs the heads of agents' audit chains; None: they stay unsigned.
        workflows: Runs workflows; None: there are none.
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
    outcomes: Callable[[str], Sequence[WorkOutcome]] | None = None
    workflows: Workflows | None = None


@dataclass(frozen=True, kw_only=True)
class ExecutionContext:
    """The objects that the phases of one running execution share.

    Attributes:
        runs: Runs agents and checks; has the execution's journal, and the state that an earlier driver left, of which
            nothing is done again.
        children: Starts the executions of its subtasks or nodes.
    """

    deps: ExecutionDeps
    runs: AgentRuns
    children: ChildExecutions

    @property
    def known(self) -> ExecutionState:
        """The state in its log when this drive began."""
        return self.runs.known

    @property
    def task(self) -> Task:
        """The task, with the settings of its council."""
        return self.known.task

    @property
    def repository(self) -> PinnedRepository:
        """The pinned repository."""
        return self.known.repository

    @property
    def journal(self) -> Journal:
        """The execution's own journal."""
        return self.runs.journal

    async def put(self, data: bytes, media_type: str) -> BlobRef:
        """Store content that belongs to the execution. Raises ResourceExhausted, Unavailable."""
        return await self.deps.blobs.put(self.task.tenant, self.task.execution_id, data, media_type)

    async def patch_of(self, candidate: Candidate) -> bytes:
        """The patch of a candidate; empty without one. Raises NotFound, Unavailable."""
        patch = candidate.artifacts.patch
        return await self.deps.blobs.get(patch) if patch is not None else b""
