"""Virtual time: what is to happen, in the order in which it would."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Clock:
    """A discrete-event loop. Seconds pass as fast as they can be computed, and the same way every time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._agenda: list[tuple[float, int, list[Action]]] = []
        self._number = 0

    def at(self, when: float, action: Action) -> list[Action]:
        """Let something happen at a time; emptying the list that this returns calls it off."""
        self._number += 1
        entry = [action]
        heapq.heappush(self._agenda, (max(when, self.now), self._number, entry))
        return entry

    def after(self, seconds: float, action: Action) -> list[Action]:
        return self.at(self.now + seconds, action)

    def run(self, going_on: Callable[[], bool]) -> None:
        """Let everything happen, as long as there is something and it goes on."""
        while self._agenda and going_on():
            self.now, _, entry = heapq.heappop(self._agenda)
            for action in entry:
                action()
