"""Orchestrator replicas and agent runs over the log in memory, one small step at a time, so that anything can come
between two of them.

The log, the folds, the rule of who may claim are the real ones. What is modelled is who acts when: a replica sees the
log and the others' leases as late as it likes, stops for good or for a while at any point, and its agents go on
without it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate
from swe_ai_fleet.domain.errors import AlreadyExists, Fenced
from swe_ai_fleet.domain.event import (
    CONTROL_SUBJECT,
    EXECUTION_SUBJECT,
    CancelRequested,
    CandidatesRanked,
    CandidateSubmitted,
    EventBody,
    ExecutionClaimed,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    ResultPublished,
    RunClaimed,
    RunReassigned,
    StoredEvent,
    Writer,
)
from swe_ai_fleet.domain.execution import ExecutionState, advance, fold
from swe_ai_fleet.domain.task import DEFAULT_TENANT, PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.leases import claimable, over
from swe_ai_fleet.testing.memory_log import MemoryJournal, MemoryLog
from tests.simulation.agent_process import Run

AGENTS = ("agent-dev-1", "agent-dev-2")
REPOSITORY = PinnedRepository(tenant=DEFAULT_TENANT, location="/srv/app", commit="c" * 40)
T = TypeVar("T")


def a_task(number: int) -> Task:
    return Task(task_id=f"task-{number}", kind=TaskKind.DELIBERATE, description="d", repo=RepoRef(location="/srv/app"))


class World:
    """The log with everything in it decoded once, the leases that the server holds, and what was done to workspaces."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.loop = asyncio.new_event_loop()
        self.tasks: dict[str, Task] = {}
        self.history: dict[str, list[StoredEvent]] = {}
        self.heads: dict[str, list[StoredEvent]] = {}
        self.alive: set[str] = set()
        self.replicas: dict[str, Replica] = {}
        self.runs: list[Run] = []
        self.effects: Counter[tuple[str, str, str]] = Counter()
        self._places: dict[tuple[str, str], tuple[int, int]] = {}

    def close(self) -> None:
        self.loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self.loop.run_until_complete(work)
        finally:
            self._hear()

    def writer(self, execution_id: str, agent_id: str = EXECUTION_SUBJECT, *, generation: int) -> Writer:
        task = self.tasks[execution_id]
        return Writer(
            tenant=task.tenant,
            execution_id=execution_id,
            task_id=task.task_id,
            agent_id=agent_id,
            generation=generation,
        )

    def journal(self, writer: Writer, *, fresh: bool = False) -> MemoryJournal:
        return MemoryJournal(self.log, writer, fresh=fresh)

    def state(self, execution_id: str) -> ExecutionState:
        """The whole state now, of everything in the log."""
        state = fold(self.history[execution_id])
        assert state is not None
        return state

    def publish(self, execution_id: str) -> bool:
        task = self.tasks[execution_id]
        return self.do(
            self.log.publish(
                tenant=task.tenant, task_id=task.task_id, execution_id=execution_id, agent_id="", payload=b"{}"
            )
        )

    def cancel(self, execution_id: str) -> None:
        """As any replica does it: without owning anything."""
        self.do(
            self.log.tell(self.writer(execution_id, CONTROL_SUBJECT, generation=1), CancelRequested(reason="enough"))
        )

    def accept(self, number: int) -> bool:
        """Accept a task; False where it was before."""
        task = a_task(number)
        name = task.execution_id
        self.tasks[name] = task
        self.history.setdefault(name, [])
        self.heads.setdefault(name, [])
        started = ExecutionStarted(task=task, repository=REPOSITORY, fingerprint=task.fingerprint())
        journal = self.journal(self.writer(name, generation=0), fresh=True)
        try:
            self.do(journal.append(started))
        except AlreadyExists:
            return False
        return True

    def _hear(self) -> None:
        """Decode what is new, and check what holds for every event the moment it is stored."""
        for name, known in self.history.items():
            start = known[-1].sequence + 1 if known else 0
            for stored in self.loop.run_until_complete(self._new(name, start)):
                known.append(stored)
                if stored.event.agent_id in (EXECUTION_SUBJECT, CONTROL_SUBJECT):
                    self.heads[name].append(stored)
                self._check(stored)

    async def _new(self, name: str, start: int) -> list[StoredEvent]:
        return [stored async for stored in self.log.read(DEFAULT_TENANT, name, from_sequence=start)]

    def _check(self, stored: StoredEvent) -> None:
        """Events of a subject are ordered by generation, then without a gap by ordinal: nobody writes after a claim
        of a higher generation."""
        event = stored.event
        *_, generation, ordinal = event.id.split("/")
        subject = (event.execution_id, event.agent_id)
        last = self._places.get(subject, (-1, 0))
        place = (int(generation), int(ordinal))
        expected = (last[0], last[1] + 1) if place[0] == last[0] else (place[0], 1)
        assert place > last, f"{event.id} stands behind {last}"
        assert place == expected, f"{event.id} leaves a gap behind {last}"
        self._places[subject] = place
        if isinstance(event.body, ExecutionClaimed | RunClaimed):
            assert event.body.generation == place[0]


class Drive:
    """A replica at one execution, from its claim to the published result."""

    def __init__(self, replica: Replica, execution_id: str, generation: int) -> None:
        self._replica = replica
        self._world = replica.world
        self._name = execution_id
        self._generation = generation
        self._steps = self._work()

    def step(self) -> bool:
        """One step; False once this drive is over, whatever ended it."""
        try:
            next(self._steps)
        except (StopIteration, Fenced):
            return False
        return True

    def _work(self) -> Iterator[None]:
        world, name = self._world, self._name
        journal = world.journal(world.writer(name, generation=self._generation))
        yield
        self._say(journal, ExecutionClaimed(generation=self._generation, owner=self._replica.name))
        yield
        # What this replica knew when it claimed may have been old; from the claim on nobody else writes.
        known = world.state(name)
        if over(known):
            return
        if not known.status.terminal:
            status = ExecutionStatus.COMPLETED
            for agent_id in AGENTS:
                known = world.state(name)
                if known.cancel_requested:
                    status = ExecutionStatus.CANCELLED
                    break
                if agent_id not in known.candidates:
                    yield from self._run(journal, known, agent_id)
                    self._say(journal, CandidateSubmitted(candidate=_candidate(agent_id)))
                    yield
            if status is ExecutionStatus.COMPLETED:
                self._say(journal, CandidatesRanked(ranking=(), winner_id=AGENTS[0]))
                yield
            self._say(journal, ExecutionFinished(status=status))
            yield
        world.publish(name)
        yield
        self._say(journal, ResultPublished())

    def _say(self, journal: MemoryJournal, body: EventBody) -> None:
        self._world.do(journal.append(body))

    def _run(self, journal: MemoryJournal, known: ExecutionState, agent_id: str) -> Iterator[None]:
        """The run to its end, in another process whenever one is lost."""
        agent = known.agents.get(agent_id)
        # Whoever drove before may have sent an agent of whom nothing is in the log yet: it is asked for at the claim.
        generation, attempt, resume = self._generation, 1, self._generation > 1
        if agent is not None:
            generation, attempt = max(generation, agent.generation + 1), agent.attempt
        while True:
            run = Run(self._world, self._name, agent_id, generation, resume)
            self._world.runs.append(run)
            while not run.over:
                yield
            if run.done:
                return
            if run.fenced:
                raise Fenced("another process has the run")
            generation, attempt, resume = generation + 1, attempt + 1, True
            self._say(journal, RunReassigned(lost_agent_id=agent_id, reason="lost", attempt=attempt))
            yield


def _candidate(agent_id: str) -> Candidate:
    return Candidate(
        candidate_id=agent_id,
        agent_id=agent_id,
        role=Role.DEV,
        summary="done",
        stop_reason=StopReason.FINAL_ANSWER,
        artifacts=Artifacts(),
        usage=Usage(),
        audit_head="",
        submitted_at="",
    )


@dataclass(eq=False)
class Replica:
    """One orchestrator process. What it knows of the log and of the others may be old."""

    world: World
    name: str
    states: dict[str, ExecutionState | None] = field(default_factory=dict[str, "ExecutionState | None"])
    alive_seen: set[str] = field(default_factory=set[str])
    drives: dict[str, Drive] = field(default_factory=dict[str, Drive])
    _places: Counter[str] = field(default_factory=Counter[str])

    def look(self) -> None:
        """See who holds a lease now."""
        self.alive_seen = set(self.world.alive)

    def deliver(self, execution_id: str, count: int = 10**9, again: int = 0) -> None:
        """Hear the next events of an execution, after some of the last ones once more."""
        heads = self.world.heads[execution_id]
        place = self._places[execution_id]
        for stored in heads[max(0, place - again) : place + count]:
            before = self.states.get(execution_id)
            after = advance(before, stored)
            if before is not None and stored.sequence <= before.last_sequence:
                assert after == before
            self.states[execution_id] = after
        self._places[execution_id] = min(len(heads), place + count)

    def may_claim(self, execution_id: str) -> bool:
        state = self.states.get(execution_id)
        return state is not None and execution_id not in self.drives and claimable(state, self.alive_seen, self.name)

    def claim(self, execution_id: str) -> None:
        """Begin to drive. What it knows decides the generation, and the log whether that is good enough."""
        state = self.states[execution_id]
        assert state is not None
        self.drives[execution_id] = Drive(self, execution_id, state.generation + 1)

    def step(self, execution_id: str) -> None:
        if not self.drives[execution_id].step():
            del self.drives[execution_id]
