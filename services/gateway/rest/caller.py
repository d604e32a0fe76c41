"""On whose behalf a request is carried out."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks.

    Attributes:
        token: What they show; empty: nothing.
        name: How they call themselves; empty: not at all.
    """

    token: str = field(repr=False)
    name: str = ""


def caller_of(request: Request) -> Caller:
    """Whoever the access middleware found; without it, whoever the request's own header names."""
    token: str | None = getattr(request.state, "token", None)
    if token is None:
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        token = shown.strip() if scheme.lower() == "bearer" else ""
    return Caller(token=token, name=getattr(request.state, "caller", "") or "")
