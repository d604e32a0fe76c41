"""Plan sessions whose requests outlive the calls that made them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import structlog

from swe_ai_fleet.agents.plan_session import (
    Approved,
    AwaitingApproval,
    PlanFailed,
    PlanResult,
    PlanSession,
    PlanSessions,
    Rejected,
    SessionCard,
)
from swe_ai_fleet.domain.errors import FleetError, ResourceExhausted, Unavailable

R = TypeVar("R")
AT_ONCE = 32
_log = structlog.get_logger(__name__)


class PlanDesk:
    """Takes requests for plan sessions; an async context manager.

    Whoever asks may go away: the request goes on, and its session has what came of it. The same request again, while it
    is carried out here, waits for the same answer. Leaving the context ends what is still carried out.

    Args:
        sessions: Who carries requests out.
        at_once: So many at a time; more are refused.
    """

    def __init__(self, sessions: PlanSessions, *, at_once: int = AT_ONCE) -> None:
        self._sessions = sessions
        self._at_once = at_once
        self._running: dict[Hashable, asyncio.Task[Any]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def execute_plan(
        self,
        goal: str,
        selected_entities: Sequence[str] = (),
        session_id: str = "",
        *,
        repository: str = "",
        ref: str = "",
        by: str = "",
    ) -> AwaitingApproval | PlanFailed:
        """See `PlanSessions.execute_plan`. Raises ResourceExhausted too."""
        key = ("execute", goal, tuple(selected_entities), repository, ref, session_id or object())
        return await self._outliving(
            key,
            lambda: self._sessions.execute_plan(
                goal, selected_entities, session_id or None, repository=repository, ref=ref, by=by
            ),
        )

    async def approve(
        self, session_id: str, decision: str, adjustment: str = "", *, proposal: int = 0, by: str = ""
    ) -> Approved | AwaitingApproval | Rejected | PlanFailed:
        """See `PlanSessions.approve`. Raises ResourceExhausted too."""
        key = ("approve", session_id, decision, adjustment, proposal, by)
        return await self._outliving(
            key, lambda: self._sessions.approve(session_id, decision, adjustment, proposal=proposal, by=by)
        )

    async def continue_plan(self, session_id: str) -> PlanResult:
        """See `PlanSessions.continue_plan`. Raises ResourceExhausted too."""
        return await self._outliving(("continue", session_id), lambda: self._sessions.continue_plan(session_id))

    async def session(self, session_id: str) -> PlanSession:
        """A session as it stands. Raises NotFound, Unavailable."""
        return await self._sessions.session(session_id)

    async def working(self, session_id: str) -> bool:
        """Whether a request of it is being carried out now, here or elsewhere. Raises Unavailable."""
        return await self._sessions.working(session_id)

    async def sessions(self) -> tuple[SessionCard, ...]:
        """The cards of all, the one that was worked on last first. Raises Unavailable."""
        return await self._sessions.sessions()

    async def _outliving(self, key: Hashable, work: Callable[[], Awaitable[R]]) -> R:
        task = cast("asyncio.Task[R] | None", self._running.get(key))
        if task is None:
            if len(self._running) >= self._at_once:
                raise ResourceExhausted(f"{len(self._running)} plans are being worked on; try again in a moment")
            task = asyncio.ensure_future(_awaited(work))
            self._running[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and (caller := asyncio.current_task()) is not None and not caller.cancelling():
                raise Unavailable("the service is ending; look at the session when it is back") from None
            raise

    def _ended(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        self._running.pop(key, None)
        # Whoever waits has the fault too; without anybody it would be lost.
        if not task.cancelled() and (fault := task.exception()) is not None and not isinstance(fault, FleetError):
            _log.error("plan.request_failed", exc_info=fault)


class PlanDesks:
    """The desks of all tenants; an async context manager. No tenant reaches another's sessions.

    Args:
        make: Makes what carries out a tenant's requests.
    """

    def __init__(self, make: Callable[[str], PlanSessions]) -> None:
        self._make = make
        self._desks: dict[str, PlanDesk] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for desk in self._desks.values():
            await desk.__aexit__(kind, error, traceback)

    def of(self, tenant: str) -> PlanDesk:
        """The desk of a tenant."""
        if tenant not in self._desks:
            self._desks[tenant] = PlanDesk(self._make(tenant))
        return self._desks[tenant]


async def _awaited(work: Callable[[], Awaitable[R]]) -> R:
    return await work()
