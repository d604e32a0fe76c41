"""On whose behalf a request is carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from starlette.requests import HTTPConnection

from services.auth import bearer
from services.gateway.access.credentials import Visitor
from swe_ai_fleet.domain.access import SOLE, AccessRole, Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks.

    Attributes:
        token: What the services behind are shown; empty: nothing.
        name: How they are called, or where one token is everybody's call themselves; empty: not at all.
        principal: Who they are.
    """

    token: str = field(repr=False)
    name: str = ""
    principal: Principal = SOLE

    @property
    def tenant(self) -> str:
        """Whose executions and memories they reach."""
        return self.principal.tenant


def caller_of(connection: HTTPConnection) -> Caller:
    """Whom the access middleware admitted; without it, whoever the request's own header names."""
    state: dict[str, Any] = connection.scope.get("state") or {}
    token: str | None = state.get("token")
    if token is None:
        token = bearer(connection.headers.getlist("authorization")) or ""
    visitor: Visitor | None = state.get("visitor")
    who = visitor.principal if visitor else SOLE
    named = state.get("caller") or ""
    # Services name whom they call for; others are who they are.
    name = named or who.name if who.may(AccessRole.SERVICE) else who.name
    return Caller(token=token, name=name, principal=who)
