"""Who may come in to the gateway, from where, and how often; the page that everybody may see."""

from __future__ import annotations

from starlette.middleware import Middleware

from services.auth import Authenticator
from services.gateway.access.guard import CHECK_SECONDS, AuthMiddleware
from services.gateway.access.origins import Places, SecureAnswers
from services.gateway.access.sign_in import session_routes
from services.gateway.problems import BugMiddleware
from swe_ai_fleet.ports import KeyValue
from swe_ai_fleet.settings import Settings

__all__ = ["access_middleware", "session_routes"]


def access_middleware(
    settings: Settings,
    token: str | None,
    keys: KeyValue,
    authenticator: Authenticator | None = None,
    *,
    check_seconds: float = CHECK_SECONDS,
) -> list[Middleware]:
    """What stands before every room, the outermost first; `AuthMiddleware` has the arguments. Raises InvalidRequest."""
    return [
        Middleware(SecureAnswers),
        Middleware(BugMiddleware),
        Middleware(
            AuthMiddleware,
            places=Places(settings),
            per_minute=settings.http_requests_per_minute,
            token=token,
            keys=keys,
            authenticator=authenticator,
            check_seconds=check_seconds,
        ),
    ]
