"""Where sessions are kept between two requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

from swe_ai_fleet.agents.plan_session.session import PlanSession, SessionCard
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import PreconditionFailed


class SessionStore(Protocol):
    """Keeps sessions by their id."""

    async def get(self, session_id: str) -> PlanSession | None:
        """The session as it was put last; None for an unknown one."""
        ...

    async def put(self, session: PlanSession) -> None:
        """Keep it. Raises PreconditionFailed unless its revision is one more than that of the one kept (0: none)."""
        ...

    async def listed(self) -> tuple[SessionCard, ...]:
        """The cards of all, the one that was put last first."""
        ...


class SessionsInMemory:
    """A store that ends with its process.

    Args:
        most: So many sessions are kept; the one that was put longest ago goes first.
    """

    def __init__(self, *, most: int = 1000) -> None:
        self._most = most
        # As JSON, so that a session which can't be kept elsewhere can't be kept here either.
        self._kept: OrderedDict[str, tuple[int, bytes]] = OrderedDict()

    async def get(self, session_id: str) -> PlanSession | None:
        """The session as it was put last; None for an unknown one."""
        kept = self._kept.get(session_id)
        return from_json(PlanSession, kept[1]) if kept is not None else None

    async def put(self, session: PlanSession) -> None:
        """Keep it. Raises PreconditionFailed where somebody else put it meanwhile."""
        revision, _ = self._kept.get(session.session_id, (0, b""))
        if session.revision != revision + 1:
            raise changed_meanwhile()
        self._kept[session.session_id] = (session.revision, to_json(session))
        self._kept.move_to_end(session.session_id)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    async def listed(self) -> tuple[SessionCard, ...]:
        """The cards of all, the one that was put last first."""
        return newest_first(from_json(PlanSession, data).card for _, data in self._kept.values())


def changed_meanwhile() -> PreconditionFailed:
    """What a store says to whoever puts a session that is not the one it has."""
    return PreconditionFailed("the session was changed by somebody else meanwhile", hint="look at it again")


def newest_first(cards: Iterable[SessionCard]) -> tuple[SessionCard, ...]:
    """Cards in the order in which people look for them."""
    return tuple(sorted(cards, key=lambda card: (card.updated_at, card.session_id), reverse=True))
