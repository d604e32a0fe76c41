"""The machines that agents run on: places for runs, and failures that cost the step that was under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from labs.simulation.clock import Action, Clock

STEP_SECONDS = 15.0
"""How long a model takes for a reply and the tools for its calls: what is lost at most with a process."""
RESTORE_SECONDS = 5.0
"""A clone, its checkpoint and the log of the run, before it goes on elsewhere."""
NOTICED_SECONDS = 20.0
"""A node that is gone is found out after so long."""


@dataclass(eq=False)
class Run:
    """One agent run: so many steps, of which the log has `done`. `heard` is told of its end or its loss.

    `begun_at` is when it first had a place.
    """

    steps: int
    heard: Callable[[bool], None]
    done: int = 0
    attempt: int = 1
    begun_at: float = -1.0
    over: bool = False
    process: Process | None = None
    queued: bool = False


@dataclass(eq=False)
class Process:
    """A run on a node. What it did since `begun` counts in whole steps."""

    node: Node
    begun: float
    end: list[Action]

    def steps(self, now: float) -> int:
        return max(0, int((now - self.begun) / STEP_SECONDS + 1e-6))


@dataclass(eq=False)
class Node:
    """One machine; `since` is when its number of busy places last changed."""

    places: int
    runs: dict[Run, None] = field(default_factory=dict[Run, None])
    up: bool = True


class Nodes:
    """All machines, and the runs that wait for a place in the order in which they came."""

    def __init__(self, clock: Clock, random: Random, *, count: int, places: int) -> None:
        self._clock = clock
        self._random = random
        self.nodes = [Node(places=places) for _ in range(count)]
        self._free = [node for node in self.nodes for _ in range(places)]
        self._waiting: deque[Run] = deque()
        self.failures = 0
        self.worked_seconds = 0.0
        self.lost_seconds = 0.0
        self.busy = 0
        self.capacity = count * places

    def begin(self, run: Run) -> None:
        """Put a run on a node, now or when there is a place."""
        run.queued = True
        self._waiting.append(run)
        self._place()

    def withdraw(self, run: Run) -> None:
        """Fence a run's process, or take it out of the queue: it goes on in another process from its last step."""
        run.queued = False
        if run.process is not None:
            self._stop(run)

    def fail(self, minutes_down: float) -> None:
        """One node is gone at once, with everything on it."""
        node = self._random.choice(self.nodes)
        if not node.up:
            return
        self.failures += 1
        node.up = False
        for run in list(node.runs):
            self._stop(run)
            self._clock.after(NOTICED_SECONDS, lambda run=run: None if run.over else run.heard(False))
        self._free = [free for free in self._free if free is not node]
        self._clock.after(minutes_down * 60, lambda: self._back(node))

    def _back(self, node: Node) -> None:
        node.up = True
        self._free.extend([node] * node.places)
        self._place()

    def _place(self) -> None:
        while self._waiting and self._free:
            run = self._waiting.popleft()
            if not run.queued:
                continue
            run.queued = False
            # Any free place: swap it to the end, so that taking it costs nothing.
            index = self._random.randrange(len(self._free))
            self._free[index], self._free[-1] = self._free[-1], self._free[index]
            node = self._free.pop()
            pause = RESTORE_SECONDS if run.attempt > 1 or run.done else 0.0
            self.lost_seconds += pause
            begun = self._clock.now + pause
            if run.begun_at < 0:
                run.begun_at = self._clock.now
            end = self._clock.at(begun + (run.steps - run.done) * STEP_SECONDS, lambda run=run: self._end(run))
            run.process = Process(node=node, begun=begun, end=end)
            node.runs[run] = None
            self.busy += 1

    def _end(self, run: Run) -> None:
        run.over = True
        self._stop(run)
        run.heard(True)

    def _stop(self, run: Run) -> None:
        process = run.process
        assert process is not None
        now = self._clock.now
        steps = min(process.steps(now), run.steps - run.done)
        worked = max(0.0, now - process.begun)
        self.worked_seconds += worked
        self.lost_seconds += worked - steps * STEP_SECONDS
        run.done += steps
        run.process = None
        process.end.clear()
        del process.node.runs[run]
        self.busy -= 1
        if process.node.up:
            self._free.append(process.node)
            self._place()
