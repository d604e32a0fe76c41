"""Many executions on many nodes, driven by several replicas that come and go, on virtual time.

Real: the fold of what replicas hear, the rule of who may claim, the order of the queue, the refusal of what is too
much, the constants of the dispatcher. Modelled: the log (an append with compare-and-set, heard later by each replica),
leases, nodes, agents (steps of equal length), and the people who hand tasks in.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from random import Random

from labs.simulation.clock import Action, Clock
from labs.simulation.dispatching import RENEWALS, Replica
from labs.simulation.ledger import Job, Setup, Tally
from labs.simulation.nodes import Nodes, Run
from labs.simulation.workload import Arrival, workload
from swe_ai_fleet.domain.errors import ResourceExhausted
from swe_ai_fleet.domain.event import (
    EventBody,
    ExecutionClaimed,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    ResultPublished,
    StoredEvent,
    Writer,
)
from swe_ai_fleet.domain.execution import ExecutionState, advance
from swe_ai_fleet.domain.task import DEFAULT_TENANT, PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.orchestrator.dispatcher import POLL_SECONDS
from swe_ai_fleet.orchestrator.execution_context import PAUSES
from swe_ai_fleet.orchestrator.executions import Room
from swe_ai_fleet.orchestrator.queue import Caller, QueuedExecution, check_room

REPOSITORY = PinnedRepository(tenant=DEFAULT_TENANT, location="/srv/app", commit="c" * 40)


class World:
    """The log, the nodes, the replicas, and what goes wrong."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.random = Random(setup.seed)
        self.bad_luck = Random(setup.seed + 1)
        self.clock = Clock()
        self.tally = Tally()
        self.nodes = Nodes(self.clock, Random(setup.seed + 2), count=setup.nodes, places=setup.places)
        self.jobs: dict[str, Job] = {}
        self.accepted_by: dict[str, str] = {}
        self.owned: dict[str, dict[str, None]] = {}
        self.replicas: list[Replica] = []
        self.room = Room()
        self.queued: Counter[str] = Counter()
        self.unfinished = 0
        self._truth: dict[str, ExecutionState] = {}
        self._folded: dict[int, tuple[ExecutionState | None, ExecutionState]] = {}
        self._sequence = 0
        self._names = 0
        arrivals = workload(self.random, setup.executions)
        self.to_come = len(arrivals)
        for number, arrival in enumerate(arrivals):
            self.clock.at(arrival.at, lambda number=number, arrival=arrival: self.hand_in(number, arrival))

    def run(self) -> Tally:
        for _ in range(self.setup.replicas):
            self.start()
        self._next_node_failure()
        self._sample()
        self.clock.run(lambda: self.to_come > 0 or self.unfinished > 0)
        self.tally.jobs = list(self.jobs.values())
        return self.tally

    def caller(self, name: str) -> Caller:
        task = self.jobs[name].task
        return task.tenant, task.caller

    def waiting_of(self, state: ExecutionState) -> QueuedExecution:
        task = state.task
        return QueuedExecution(
            execution_id=state.execution_id,
            tenant=task.tenant,
            caller=task.caller,
            priority=task.priority,
            accepted_at=self.jobs[state.execution_id].accepted_at,
        )

    def hand_in(self, number: int, arrival: Arrival) -> None:
        try:
            check_room(
                sum(self.queued.values()),
                self.queued[arrival.caller],
                max_queued=self.room.queued,
                max_queued_per_caller=self.room.queued_per_caller,
            )
        except ResourceExhausted:
            self.tally.refused[arrival.caller] += 1
            self.clock.after(self.setup.retry_seconds, lambda: self.hand_in(number, arrival))
            return
        task = Task(
            task_id=f"task-{number}",
            kind=TaskKind.DELIBERATE,
            description="d",
            repo=RepoRef(location="/srv/app"),
            caller=arrival.caller,
            priority=arrival.priority,
        )
        name = task.execution_id
        up = [replica for replica in self.replicas if replica.up and not replica.asleep]
        self.accepted_by[name] = self.random.choice(up).name if up else ""
        self.jobs[name] = Job(arrival=arrival, task=task, accepted_at=self.clock.now)
        self.to_come -= 1
        self.unfinished += 1
        self._queued(arrival.caller, 1)
        self._say(name, ExecutionStarted(task=task, repository=REPOSITORY, fingerprint=name))

    def _queued(self, caller: str, change: int) -> None:
        self.queued[caller] += change
        self.tally.waiting[caller].append((self.clock.now, self.queued[caller]))

    def _say(self, name: str, body: EventBody) -> None:
        """Append, and let each replica hear of it a little later, in order."""
        job = self.jobs[name]
        self._sequence += 1
        writer = Writer(tenant=job.task.tenant, execution_id=name, task_id=job.task.task_id, generation=job.generation)
        at = datetime.fromtimestamp(self.clock.now, UTC).isoformat()
        stored = StoredEvent(sequence=self._sequence, event=writer.event(body, ordinal=1, at=at))
        before = self._truth.get(name)
        self._truth[name] = self.folded(before, stored)
        self._folded[self._sequence] = before, self._truth[name]
        self._folded.pop(self._sequence - 2000, None)
        for replica in self.replicas:
            if replica.up:
                lag = self.random.expovariate(1 / self.setup.lag_seconds)
                replica.heard_until = max(replica.heard_until, self.clock.now + lag)
                self.clock.at(
                    replica.heard_until,
                    lambda replica=replica: replica.awake(lambda: replica.hear(stored)),
                )

    def folded(self, before: ExecutionState | None, stored: StoredEvent) -> ExecutionState:
        """What `advance` says; asked once for all the replicas that know the same."""
        known = self._folded.get(stored.sequence)
        if known is not None and known[0] is before:
            return known[1]
        after = advance(before, stored)
        assert after is not None
        return after

    def claim(self, name: str, generation: int, replica: Replica) -> bool:
        job = self.jobs[name]
        if generation <= job.generation:
            self.tally.stale_claims += 1
            return False
        if job.begun_at < 0:
            job.begun_at = self.clock.now
            self._queued(job.arrival.caller, -1)
        elif job.orphaned_at >= 0:
            self.tally.take_overs.append(self.clock.now - job.orphaned_at)
        job.orphaned_at = -1.0
        self._disown(name)
        job.generation, job.owner = generation, replica.name
        self.owned.setdefault(replica.name, {})[name] = None
        self._say(name, ExecutionClaimed(generation=generation, owner=replica.name))
        return True

    def _disown(self, name: str) -> None:
        owner = self.jobs[name].owner
        if owner:
            del self.owned[owner][name]
            if not self.owned[owner]:
                del self.owned[owner]

    def drive(self, name: str, generation: int, replica: Replica) -> None:
        """Begin its runs, or go on with those that an earlier driver began: from their last step."""
        job = self.jobs[name]
        if not job.runs:
            job.runs = [Run(steps=steps, heard=lambda _: None) for steps in job.arrival.steps]
        for run in job.runs:
            run.heard = lambda ended, run=run: replica.awake(lambda: self.ran(name, generation, replica, run, ended))
            if not run.over:
                if generation > 1:
                    self.nodes.withdraw(run)
                self.nodes.begin(run)
        self._conclude(name, generation, replica)

    def ran(self, name: str, generation: int, replica: Replica, run: Run, ended: bool) -> None:
        """A run has ended, or its process is lost."""
        job = self.jobs[name]
        if generation != job.generation:
            self.tally.fenced += 1
            replica.drop(name)
            return
        if not ended and not run.over and run.process is None and not run.queued:
            if run.attempt > len(PAUSES):
                run.over = True
                self.tally.lost_runs += 1
            else:
                self.tally.reassigned += 1
                pause, run.attempt = PAUSES[run.attempt - 1], run.attempt + 1
                self.clock.after(pause, lambda: replica.awake(lambda: self._again(name, generation, run)))
                return
        self._conclude(name, generation, replica)

    def _again(self, name: str, generation: int, run: Run) -> None:
        if self.jobs[name].generation == generation and run.process is None and not run.queued and not run.over:
            self.nodes.begin(run)

    def _conclude(self, name: str, generation: int, replica: Replica) -> None:
        job = self.jobs[name]
        if all(run.over for run in job.runs):
            seconds = job.arrival.check_seconds
            self.clock.after(seconds, lambda: replica.awake(lambda: self._finish(name, generation, replica)))

    def _finish(self, name: str, generation: int, replica: Replica) -> None:
        job = self.jobs[name]
        replica.drop(name)
        if generation != job.generation or job.finished_at >= 0:
            self.tally.fenced += generation != job.generation
            return
        job.finished_at = self.clock.now
        job.published += 1
        self.unfinished -= 1
        self._disown(name)
        self._say(name, ExecutionFinished(status=ExecutionStatus.COMPLETED))
        self._say(name, ResultPublished())

    def alive(self, observer: Replica) -> set[str]:
        """Who holds a lease as far as a replica knows: it asks ten times in a lease's life and waits a third longer."""
        grace = self.setup.lease_seconds / 3 + observer.phase
        return {one.name for one in self.replicas if self.clock.now < one.lease_ends + grace}

    def start(self) -> None:
        self._names += 1
        replica = Replica(self, f"replica-{self._names}")
        # It reads the log before it does anything.
        for name, job in self.jobs.items():
            if job.finished_at < 0:
                replica.states[name] = self._truth[name]
                if not job.owner:
                    replica.waiting[name] = self.waiting_of(replica.states[name])
        self.replicas = [one for one in self.replicas if one.up or one.lease_ends + 60 > self.clock.now]
        self.replicas.append(replica)
        self.clock.after(self.random.uniform(0, POLL_SECONDS), replica.look)
        self._later(self.setup.crash_hours, lambda: self._crash(replica))
        self._later(self.setup.sleep_hours, lambda: self._sleep(replica))

    def _later(self, mean_hours: float, action: Action) -> None:
        self.clock.after(self.bad_luck.expovariate(1 / (mean_hours * 3600)), action)

    def _lapse(self, replica: Replica) -> None:
        """Nobody renews its lease from now on."""
        renewed = self.bad_luck.uniform(0, self.setup.lease_seconds / RENEWALS)
        replica.lease_ends = self.clock.now + self.setup.lease_seconds - renewed
        for name in replica.drives:
            if self.jobs[name].generation == replica.drives[name]:
                self.jobs[name].orphaned_at = self.clock.now

    def _crash(self, replica: Replica) -> None:
        if not replica.up:
            return
        self.tally.crashes += 1
        if not replica.asleep:
            self._lapse(replica)
        replica.up = False
        replica.missed.clear()
        self.clock.after(self.setup.restart_seconds, self.start)

    def _sleep(self, replica: Replica) -> None:
        """The process stands still, and goes on later as if nothing had been."""
        if not replica.up:
            return
        self.tally.sleeps += 1
        self._lapse(replica)
        replica.asleep = True
        self.clock.after(self.bad_luck.expovariate(1 / self.setup.sleep_seconds), lambda: self._wake(replica))

    def _wake(self, replica: Replica) -> None:
        if not replica.up:
            return
        replica.asleep = False
        replica.lease_ends = float("inf")
        for name, generation in replica.drives.items():
            if self.jobs[name].generation == generation:
                self.jobs[name].orphaned_at = -1.0
        missed, replica.missed = replica.missed, []
        for action in missed:
            action()
        self._later(self.setup.sleep_hours, lambda: self._sleep(replica))

    def _next_node_failure(self) -> None:
        def fail() -> None:
            self.nodes.fail(self.setup.node_down_minutes)
            self._next_node_failure()

        self._later(self.setup.node_hours / self.setup.nodes, fail)

    def _sample(self) -> None:
        self.tally.samples.append((self.clock.now, sum(self.queued.values()), self.nodes.busy))
        self.clock.after(60.0, self._sample)
