"""An orchestrator replica on virtual time: what it has heard, and what it begins when it looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from labs.simulation.clock import Action
from swe_ai_fleet.domain.event import (
    ExecutionStarted,
    StoredEvent,
)
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.orchestrator.dispatcher import AGAIN_SECONDS, HEAD_START_SECONDS, POLL_SECONDS
from swe_ai_fleet.orchestrator.projection import claimable, over
from swe_ai_fleet.orchestrator.queue import Line, QueuedExecution, in_order

if TYPE_CHECKING:
    from labs.simulation.scale import World

RENEWALS = 10
"""How often a lease is renewed in the time that it lives."""
MANY = 4
"""Places from which on all that wait are put in order at once."""


class Replica:
    """One orchestrator process. It knows what it has heard, and does something whenever it looks."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.up = True
        self.asleep = False
        self.states: dict[str, ExecutionState] = {}
        self.waiting: dict[str, QueuedExecution] = {}
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

    def _chosen(self, free: list[QueuedExecution], alive: set[str], room: int) -> list[QueuedExecution]:
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
        chosen: list[QueuedExecution] = []
        while len(chosen) < room and (one := next(iter(in_order(free, running, now=now, served=served)), None)):
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
