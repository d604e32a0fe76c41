"""Agent runs carried through pauses for people, hosts that die, and takeovers by another orchestrator.

The driver recomputes the audit chains of the agents itself, and signs their heads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from swe_ai_fleet.domain.assignment import Assignment, CodingAssignment, RecordedAssignment
from swe_ai_fleet.domain.audit_chains import AuditChains
from swe_ai_fleet.domain.candidate import Candidate
from swe_ai_fleet.domain.errors import AgentLost, Fenced, Unavailable
from swe_ai_fleet.domain.event import AuditHeadSigned, RunReassigned
from swe_ai_fleet.domain.execution import AgentProgress, ExecutionState
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.approvals import Approvals
from swe_ai_fleet.ports import Fleet, HeadSigner, Journal

PAUSES = (0.0, 1.0, 4.0, 15.0)
"""Seconds before each further attempt at a run whose process was lost; after the last one the run counts as lost.

A node that is gone is found out after some twenty seconds, and until then other processes may be put on it.
"""
T = TypeVar("T")


@dataclass(kw_only=True)
class HeadSigning:
    """Signs chains of one driven execution into its log.

    Args:
        signer: Holds the key.
        approvals: Reads the log.
        chains: Hear of each event that is read.
        journal: The execution's own.
        execution_id: Which.
    """

    signer: HeadSigner
    approvals: Approvals
    chains: AuditChains
    journal: Journal
    execution_id: str
    _told: set[tuple[str, int, int]] = field(default_factory=set[tuple[str, int, int]])
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def sign(self, agent_id: str = "") -> None:
        """Sign what is whole and not signed of an agent's chains, or of everybody's.

        A chain that does not fit is left unsigned, for whoever verifies it to find. Raises Fenced, Unavailable.
        """
        await self.approvals.refresh()
        async with self._turn:
            for head in tuple(self.chains.unsigned(agent_id)):
                name = (head.agent_id, head.run, head.entries)
                if name not in self._told:
                    await self.journal.append(AuditHeadSigned(head=self.signer.signed(head, self.execution_id)))
                    self._told.add(name)


@dataclass(kw_only=True)
class AgentRuns:
    """The runs of one driven execution.

    Args:
        fleet: Where they run.
        journal: The execution's own.
        approvals: What they wait for.
        generation: The driver's; that of each run is no lower.
        known: What an earlier driver left; nothing in it is done again.
        signing: Signs where a run's audit chain stands at its end; None: nobody does.
        pauses: Seconds before each further attempt.
        background: What every agent that solves is told beside its task.
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
        """One run to its end. It goes on from its log wherever an earlier process left it.

        Raises AgentLost when too many processes were lost under it, FleetErrors of the run.
        """
        agent_id = assignment.agent_id
        background = "\n\n".join(filter(None, (self.background, assignment.background)))
        assignment = replace(assignment, background=background)
        agent = self._agent(agent_id)
        # A process that an earlier driver sent may have begun since this one read the log: only the log knows.
        resume = self.generation > 1 and (agent is None or agent.status != "lost")

        async def once(generation: int) -> Candidate:
            nonlocal resume
            while True:
                state = await self.approvals.settled(agent_id)
                if state.generation > self.generation:
                    raise Fenced("another orchestrator drives the execution")
                attempt = replace(assignment, generation=generation, resume=resume)
                # Whatever becomes of this process, the next one finds what it wrote.
                resume = True
                candidate = await self.fleet.run(attempt)
                if candidate.stop_reason is not StopReason.AWAITING_APPROVAL:
                    return candidate
                generation = self._next(agent_id)

        return await self._attempt(agent_id, once)

    async def check(self, assignment: Assignment[T]) -> T:
        """Evidence, gathered again where the process that gathered it is lost or cut off.

        Raises AgentLost or Unavailable when there are no more attempts, FleetErrors of the work.
        """
        for pause in self.pauses:
            try:
                return await self.fleet.run(assignment)
            except (AgentLost, Unavailable):
                await asyncio.sleep(pause)
        return await self.fleet.run(assignment)

    async def run(self, assignment: RecordedAssignment[T]) -> T:
        """What any other assignment gives, carried out again where its process is lost or cut off.

        Raises AgentLost or Unavailable when there are no more attempts, FleetErrors of the work.
        """
        return await self._attempt(
            assignment.agent_id, lambda generation: self.fleet.run(replace(assignment, generation=generation))
        )

    async def _attempt(self, agent_id: str, call: Callable[[int], Awaitable[T]]) -> T:
        """The value of a call that takes the generation of its run, tried again where its process is lost or cut off.

        Raises AgentLost or Unavailable when there are no more attempts, and what the call raises.
        """
        agent = self._agent(agent_id)
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
        """A generation that no process of this run has had."""
        agent = self._agent(agent_id)
        last = max(self._generations.get(agent_id, 0), agent.generation if agent else 0)
        self._generations[agent_id] = max(self.generation, last + 1)
        return self._generations[agent_id]

    def _agent(self, agent_id: str) -> AgentProgress | None:
        return self.known.agents.get(agent_id)
