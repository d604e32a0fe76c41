"""The sessions there are: found, kept, lent to one request at a time, and told of when they end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime

import structlog

from swe_ai_fleet.agents.plan_session.leases import SessionLeases
from swe_ai_fleet.agents.plan_session.outcomes import OutcomeListener, PlanOutcome
from swe_ai_fleet.agents.plan_session.session import PlanSession, SessionCard
from swe_ai_fleet.agents.plan_session.store import SessionStore
from swe_ai_fleet.domain.errors import FleetError, NotFound

_log = structlog.get_logger(__name__)


class SessionBook:
    """Where `PlanSessions` looks sessions up and writes them down.

    Args:
        store: Keeps them.
        leases: Who works on which.
        listener: Hears of each that ended; None: nobody does.
        clock: What time it is.
    """

    def __init__(
        self,
        store: SessionStore,
        leases: SessionLeases,
        listener: OutcomeListener | None,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._leases = leases
        self._listener = listener
        self._clock = clock

    def alone(self, session_id: str) -> AbstractAsyncContextManager[None]:
        """The session for one request; see `SessionLeases.hold`."""
        return self._leases.hold(session_id)

    async def find(self, session_id: str) -> PlanSession | None:
        """The session; None where there is none. Raises Unavailable."""
        return await self._store.get(session_id)

    async def known(self, session_id: str) -> PlanSession:
        """The session. Raises NotFound, Unavailable."""
        session = await self._store.get(session_id)
        if session is None:
            raise NotFound(f"there is no session {session_id[:100]!r}", field="session_id")
        return session

    async def listed(self) -> tuple[SessionCard, ...]:
        """The cards of all, the one that was put last first. Raises Unavailable."""
        return await self._store.listed()

    async def working(self, session_id: str) -> bool:
        """Whether a request of the session is being carried out now. Raises Unavailable."""
        return await self._leases.held(session_id)

    async def keep(self, session: PlanSession) -> PlanSession:
        """Write it down as its next revision. Raises PreconditionFailed, ResourceExhausted, Unavailable."""
        now = self._clock().isoformat()
        kept = replace(session, revision=session.revision + 1, started_at=session.started_at or now, updated_at=now)
        await self._store.put(kept)
        return kept

    async def tell(self, session: PlanSession) -> None:
        """Let the listener hear of a session that ended; that it could not is logged, and no fault."""
        if self._listener is None:
            return
        try:
            await self._listener.on_outcome(PlanOutcome.of(session))
        except FleetError as error:
            _log.warning("plan_session.outcome_not_heard", session=session.session_id, reason=error.message)
