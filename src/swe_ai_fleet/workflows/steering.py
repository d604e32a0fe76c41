"""What people say to a run while it goes on: pause, step, continue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import BreakpointsSet


class Steering:
    """Holds nodes back before they begin, and lets them go.

    Made anew after a restart it is told again what was said (`apply`, in order). A step that names its node holds for
    that node whenever it comes, so it survives this; one without a name means those that are paused at that moment.

    Args:
        holding: Whether every node that has not begun is held back from the start.
    """

    def __init__(self, *, holding: bool = False) -> None:
        self.holding = holding
        self._let_go: set[str] = set()
        self._paused: dict[str, asyncio.Event] = {}

    @property
    def paused(self) -> tuple[str, ...]:
        """The ids of the nodes that wait now, in the order in which they came."""
        return tuple(self._paused)

    def pause(self) -> None:
        """Hold before every node that has not begun."""
        self.holding = True

    def step(self, node_id: str = "") -> None:
        """Let one node go, paused now or later; without an id all that are paused now. Then hold again."""
        self.holding = True
        for name in (node_id,) if node_id else self.paused:
            self._let_go.add(name)
            self._release(name)

    def proceed(self) -> None:
        """Let all go that are paused now, up to the next breakpoint."""
        self.holding = False
        for name in self.paused:
            self._release(name)

    def apply(self, said: BreakpointsSet) -> None:
        """Do what an event says. Raises InvalidRequest for an action that is none."""
        match said.action:
            case "pause":
                self.pause()
            case "step":
                self.step(said.node_id)
            case "continue":
                self.proceed()
            case _:
                raise InvalidRequest(
                    f"{said.action[:40]!r} is no action", field="action", hint="pause, step or continue"
                )

    async def wait(self, node_id: str, *, at_breakpoint: bool, told: Callable[[], Awaitable[None]]) -> None:
        """Wait until this node may begin; `told` is awaited first where it has to."""
        if node_id in self._let_go or not (self.holding or at_breakpoint):
            return
        # It counts as paused before that is told, so that nothing said meanwhile passes it by.
        released = self._paused.setdefault(node_id, asyncio.Event())
        try:
            await told()
            await released.wait()
        finally:
            self._paused.pop(node_id, None)

    def _release(self, node_id: str) -> None:
        if node_id in self._paused:
            self._paused[node_id].set()
