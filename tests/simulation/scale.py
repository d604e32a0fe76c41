"""Many executions on many nodes, driven by several replicas that come and go, on virtual time.

Real: the fold of what replicas hear, the rule of who may claim, the order of the queue, the refusal of what is too
much, the constants of the dispatcher. Modelled: the log (an append with compare-and-set, heard later by each replica),
leases, nodes, agents (steps of equal length), and the people who hand tasks in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Literal

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
from swe_ai_fleet.orchestrator.agent_runs import PAUSES
from swe_ai_fleet.orchestrator.dispatcher import AGAIN_SECONDS, HEAD_START_SECONDS, POLL_SECONDS
from swe_ai_fleet.orchestrator.executions import Room
from swe_ai_fleet.orchestrator.leases import claimable, over
from swe_ai_fleet.orchestrator.queue import Caller, Line, Waiting, check_room, in_order, next_up
from tests.simulation.clock import Action, Clock
from tests.simulation.nodes import Nodes, Run
from tests.simulation.workload import Arrival, workload

RENEWALS = 10
MANY = 4
REPOSITORY = PinnedRepository(tenant=DEFAULT_TENANT, location="/srv/app", commit="c" * 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is simulated. Times between failures are means, in hours."""

    seed: int = 20260101
    executions: int = 10_000
    nodes: int = 100
    places: int = 8
    replicas: int = 4
    driven: int = 120
    order: Literal["fair", "first come"] = "fair"
    take_overs: Literal["at once", "first", "in line"] = "first"
    lease_seconds: float = 15.0
    lag_seconds: float = 0.03
    node_hours: float = 20.0
    node_down_minutes: float = 10.0
    crash_hours: float = 0.75
    restart_seconds: float = 60.0
    sleep_hours: float = 1.5
    sleep_seconds: float = 40.0
    retry_seconds: float = 300.0


@dataclass(eq=False)
class Job:
    """An execution as the log has it, whatever anybody knows of it."""

    arrival: Arrival
    task: Task
    generation: int = 0
    owner: str = ""
    accepted_at: float = 0.0
    begun_at: float = -1.0
    finished_at: float = -1.0
    published: int = 0
    runs: list[Run] = field(default_factory=list[Run])
    lost_runs: int = 0
    orphaned_at: float = -1.0


@dataclass
class Tally:
    """What was measured."""

    jobs: list[Job] = field(default_factory=list[Job])
    refused: Counter[str] = field(default_factory=Counter[str])
    take_overs: list[float] = field(default_factory=list[float])
    crashes: int = 0
    sleeps: int = 0
    stale_claims: int = 0
    fenced: int = 0
    lost_runs: int = 0
    reassigned: int = 0
    samples: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])
    waiting: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))


class Replica:
    """One orchestrator process. It knows what it has heard, and does something whenever it looks."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.up = True
        self.asleep = False
        self.states: dict[str, ExecutionState] = {}
        self.waiting: dict[str, Waiting] = {}
        self.drives: dict[str, int] = {}
        self.not_before: dict[str, float] = {}
        self.served: dict[Line, float] = {}
        self.lease_ends = float("inf")
        self.phase = world.random.uniform(0, world.setup.lease_seconds / RENEWALS)
        self.heard_until = 0.0
        self.missed: list[Action] = []

    def hear(self, stored: StoredEvent) -> None:
        if not self.up:
            return
        name = stored.event.execution_id
        state = self.world.folded(self.states.get(name), stored)
        if over(state):
            self.states.pop(name, None)
            self.not_before.pop(name, None)
        else:
            self.states[name] = state
        if isinstance(stored.event.body, ExecutionStarted):
            self.waiting[name] = self.world.waiting_of(state)
            head_start = 0.0 if self.world.accepted_by[name] == self.name else HEAD_START_SECONDS
            self.not_before[name] = self.world.clock.now + head_start
        elif state.owner:
            self.waiting.pop(name, None)

    def look(self) -> None:
        """What the dispatcher does whenever its time has come."""
        if not self.up:
            return
        self.world.clock.after(POLL_SECONDS, self.look)
        if self.asleep:
            return
        world, now, alive = self.world, self.world.clock.now, self.world.alive(self)
        orphans = self._orphans(alive)
        room = world.setup.driven - len(self.drives)
        if world.setup.take_overs != "in line":
            for name in orphans if world.setup.take_overs == "at once" else orphans[: max(0, room)]:
                self.claim(name)
            orphans, room = [], world.setup.driven - len(self.drives)
        if room > 0 and (self.waiting or orphans):
            free = [*self.waiting.values(), *(world.waiting_of(self.states[name]) for name in orphans)]
            for one in self._chosen(free, alive, room):
                self.served[one.line] = now
                self.claim(one.execution_id)

    def _orphans(self, alive: set[str]) -> list[str]:
        """What somebody drove who seems to be gone."""
        owned = self.world.owned
        left = [name for owner, names in owned.items() if owner not in alive for name in names]
        return [name for name in left if name not in self.waiting and name in self.states and self._free(name, alive)]

    def _free(self, name: str, alive: set[str]) -> bool:
        return (
            name not in self.drives
            and self.not_before.get(name, 0.0) <= self.world.clock.now
            and claimable(self.states[name], alive, self.name)
        )

    def _chosen(self, free: list[Waiting], alive: set[str], room: int) -> list[Waiting]:
        """What to begin now. One at a time is the same as all in order, and cheaper where there is little room."""
        now, served = self.world.clock.now, dict(self.served)
        running = Counter(self.world.caller(name) for name in self.drives)
        if self.world.setup.order == "first come":
            free.sort(key=lambda one: one.accepted_at)
            return [one for one in free if self._free(one.execution_id, alive)][:room]
        if room > MANY:
            ordered = in_order(
                [one for one in free if self._free(one.execution_id, alive)], running, now=now, served=served
            )
            return ordered[:room]
        chosen: list[Waiting] = []
        while len(chosen) < room and (one := next_up(free, running, now=now, served=served)):
            free.remove(one)
            if self._free(one.execution_id, alive):
                chosen.append(one)
                running[one.by] += 1
                served[one.line] = now
        return chosen

    def claim(self, name: str) -> None:
        """Append the claim; the log refuses one that was made on old knowledge."""
        generation = self.states[name].generation + 1
        if not self.world.claim(name, generation, self):
            self.not_before[name] = self.world.clock.now + AGAIN_SECONDS
            return
        self.drives[name] = generation
        self.world.drive(name, generation, self)

    def drop(self, name: str) -> None:
        self.drives.pop(name, None)
        self.not_before[name] = self.world.clock.now + AGAIN_SECONDS

    def awake(self, action: Callable[[], None]) -> None:
        """Do something now, or on waking; never, once this process is gone."""
        if self.asleep:
            self.missed.append(action)
        elif self.up:
            action()


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

    def waiting_of(self, state: ExecutionState) -> Waiting:
        task = state.task
        return Waiting(
            execution_id=state.execution_id,
            tenant=task.tenant,
            caller=task.caller,
            priority=task.priority,
            accepted_at=self.jobs[state.execution_id].accepted_at,
        )

    # What people do

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

    # The log

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

    # An execution

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

    # Replicas, their leases, and what befalls them

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
