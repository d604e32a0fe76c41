"""Leases, claims and fences: whatever dies, sleeps or hears late, what was accepted ends once and is told once."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swe_ai_fleet.domain.event import (
    CandidateSubmitted,
    ExecutionFinished,
    ExecutionStarted,
    ResultPublished,
    ToolFinished,
    ToolStarted,
)
from swe_ai_fleet.domain.execution import fold
from swe_ai_fleet.orchestrator.leases import over
from tests.simulation.protocol import AGENTS, Replica, World

MOST_REPLICAS = 3
PATIENCE = 2_000
"""Rounds in which everything must have ended, once nothing more goes wrong."""


class Protocol(RuleBasedStateMachine):
    """Rules are what may happen next: a small step of some process, or a piece of bad luck."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.sound = True
        self.names = 0

    @initialize()
    def two_replicas(self) -> None:
        self._start()
        self._start()

    def _start(self) -> Replica:
        self.names += 1
        replica = Replica(self.world, f"replica-{self.names}")
        self.world.replicas[replica.name] = replica
        self.world.alive.add(replica.name)
        return replica

    def _replica(self, index: int) -> Replica:
        running = list(self.world.replicas.values())
        return running[index % len(running)]

    def _execution(self, index: int) -> str:
        return list(self.world.tasks)[index % len(self.world.tasks)]

    @rule(number=st.integers(0, 1))
    def accept(self, number: int) -> None:
        known = len(self.world.tasks)
        assert self.world.accept(number) == (len(self.world.tasks) > known)

    @precondition(lambda self: self.world.tasks)
    @rule(replica=st.integers(0, 2), execution=st.integers(0, 1), count=st.integers(1, 8), again=st.integers(0, 3))
    def hear(self, replica: int, execution: int, count: int, again: int) -> None:
        """Executions are heard in any order among each other, and some events twice."""
        self._replica(replica).deliver(self._execution(execution), count, again)

    @rule(replica=st.integers(0, 2))
    def look(self, replica: int) -> None:
        self._replica(replica).look()

    @rule(replica=st.integers(0, 2))
    def claim(self, replica: int) -> None:
        """A replica takes whatever it may, as far as it knows."""
        claimant = self._replica(replica)
        for name in self.world.tasks:
            if claimant.may_claim(name):
                claimant.claim(name)

    @precondition(lambda self: any(one.drives for one in self.world.replicas.values()))
    @rule(index=st.integers(0, 5), steps=st.integers(1, 6))
    def drive(self, index: int, steps: int) -> None:
        driving = [(one, name) for one in self.world.replicas.values() for name in one.drives]
        replica, name = driving[index % len(driving)]
        for _ in range(steps):
            if name in replica.drives:
                replica.step(name)

    @precondition(lambda self: any(not run.over for run in self.world.runs))
    @rule(index=st.integers(0, 5), steps=st.integers(1, 12))
    def run_on(self, index: int, steps: int) -> None:
        """An agent works, whether or not the orchestrator that sent it is still there."""
        working = [run for run in self.world.runs if not run.over]
        run = working[index % len(working)]
        for _ in range(steps):
            if not run.over:
                run.step()

    @precondition(lambda self: self.world.tasks)
    @rule(replica=st.integers(0, 2), execution=st.integers(0, 1), steps=st.integers(1, 60))
    def hurry(self, replica: int, execution: int, steps: int) -> None:
        """A replica that hears and sees everything gets on, its agents too: lucky days happen as well."""
        claimant, name = self._replica(replica), self._execution(execution)
        claimant.look()
        claimant.deliver(name)
        if claimant.may_claim(name):
            claimant.claim(name)
        for _ in range(steps):
            if name not in claimant.drives:
                break
            claimant.step(name)
            for run in self.world.runs:
                if run.execution_id == name and not run.over:
                    run.step()

    @precondition(lambda self: any(not run.over for run in self.world.runs))
    @rule(index=st.integers(0, 5))
    def lose_a_run(self, index: int) -> None:
        working = [run for run in self.world.runs if not run.over]
        working[index % len(working)].lost = True

    @rule(replica=st.integers(0, 2), noticed=st.booleans())
    def expire(self, replica: int, noticed: bool) -> None:
        """The server ends a lease while its holder only sleeps: it will go on as if nothing had been."""
        self.world.alive.discard(self._replica(replica).name)
        if noticed:
            for other in self.world.replicas.values():
                other.look()

    @rule(replica=st.integers(0, 2))
    def renew(self, replica: int) -> None:
        self.world.alive.add(self._replica(replica).name)

    @precondition(lambda self: self.world.replicas)
    @rule(replica=st.integers(0, 2), lease_too=st.booleans())
    def crash(self, replica: int, lease_too: bool) -> None:
        """A process is gone between any two of its steps. Its lease lasts a while longer, its agents go on."""
        gone = self._replica(replica)
        del self.world.replicas[gone.name]
        if lease_too:
            self.world.alive.discard(gone.name)
        if not self.world.replicas:
            self._start()

    @precondition(lambda self: len(self.world.replicas) < MOST_REPLICAS)
    @rule()
    def start(self) -> None:
        self._start()

    @precondition(lambda self: any(one.drives for one in self.world.replicas.values()))
    @rule(index=st.integers(0, 5))
    def fault(self, index: int) -> None:
        """A drive gives up (its last event may be stored, the answer never came); its replica goes on."""
        driving = [(one, name) for one in self.world.replicas.values() for name in one.drives]
        replica, name = driving[index % len(driving)]
        del replica.drives[name]

    @precondition(lambda self: any(over_or_ended(self.world, name) for name in self.world.tasks))
    @rule(execution=st.integers(0, 1))
    def publish_again(self, execution: int) -> None:
        """A publish whose answer got lost is sent once more, at any later time."""
        name = self._execution(execution)
        if over_or_ended(self.world, name) and self._published(name):
            assert not self.world.publish(name)

    @precondition(lambda self: self.world.tasks)
    @rule(execution=st.integers(0, 1))
    def cancel(self, execution: int) -> None:
        self.world.cancel(self._execution(execution))

    @invariant()
    def each_execution_ends_at_most_once(self) -> None:
        try:
            for name, history in self.world.history.items():
                seen = Counter(type(stored.event.body) for stored in history)
                assert seen[ExecutionStarted] == 1
                assert seen[ExecutionFinished] <= 1
                assert seen[ResultPublished] <= 1
                candidates = [
                    s.event.body.candidate.agent_id for s in history if isinstance(s.event.body, CandidateSubmitted)
                ]
                assert len(set(candidates)) == len(candidates)
                assert self._published(name) <= 1
            assert all(count == 1 for count in self.world.effects.values()), self.world.effects
        except AssertionError:
            self.sound = False
            raise

    def _every_call_is_closed(self, name: str) -> None:
        """Each call that began has one end in the log, be it that nobody knows how it ended."""
        bodies = [(stored.event.agent_id, stored.event.body) for stored in self.world.history[name]]
        begun = [(agent, body.entry.call_id) for agent, body in bodies if isinstance(body, ToolStarted)]
        ended = [(agent, body.entry.call_id) for agent, body in bodies if isinstance(body, ToolFinished)]
        assert sorted(begun) == sorted(ended) == sorted(set(begun))

    def _published(self, name: str) -> int:
        return sum(result.execution_id == name for result in self.world.log.results)

    def teardown(self) -> None:
        try:
            if self.sound:
                self._settle()
        finally:
            self.world.close()

    def _settle(self) -> None:
        """Nothing more goes wrong: everything accepted comes to its end."""
        world = self.world
        world.alive &= set(world.replicas)
        world.alive.update(world.replicas)
        for _ in range(PATIENCE):
            if all(over(world.state(name)) for name in world.tasks):
                break
            for replica in list(world.replicas.values()):
                for name in world.tasks:
                    replica.look()
                    replica.deliver(name)
                    if replica.may_claim(name):
                        replica.claim(name)
                    if name in replica.drives:
                        replica.step(name)
            for run in world.runs:
                if not run.over:
                    run.step()
        for name in world.tasks:
            state = world.state(name)
            assert over(state), f"{name} never ended: {state.status}, owner {state.owner}"
            assert self._published(name) == 1
            if not state.cancel_requested:
                assert set(state.candidates) == set(AGENTS)
                self._every_call_is_closed(name)
            for replica in world.replicas.values():
                replica.deliver(name)
                seen = replica.states[name]
                whole = fold(world.heads[name])
                assert seen == whole
        self.each_execution_ends_at_most_once()


def over_or_ended(world: World, name: str) -> bool:
    return any(isinstance(stored.event.body, ExecutionFinished) for stored in world.heads[name])


Protocol.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.filter_too_much],
)
TestProtocol = Protocol.TestCase
