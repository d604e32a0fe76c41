"""On whose behalf a request is carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from starlette.requests import HTTPConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks.

    Attributes:
        token: What the services behind are shown; empty: nothing.
        name: How they call themselves; empty: not at all.
    """

    token: str = field(repr=False)
    name: str = ""


def caller_of(connection: HTTPConnection) -> Caller:
    """Whom the access middleware admitted; without it, whoever the request's own header names."""
    state: dict[str, Any] = connection.scope.get("state") or {}
    token: str | None = state.get("token")
    if token is None:
        scheme, _, shown = connection.headers.get("authorization", "").partition(" ")
        token = shown.strip() if scheme.lower() == "bearer" else ""
    return Caller(token=token, name=state.get("caller") or "")
