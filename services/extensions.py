"""The context service, which an extension provides."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from services.auth import Authenticator
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.extensions import load_parts
from swe_ai_fleet.orchestrator.quotas import Rules
from swe_ai_fleet.settings import Settings


class ContextServer(Protocol):
    """A context service that serves: where, and which token it asks for."""

    @property
    def address(self) -> str: ...
    @property
    def token(self) -> str: ...


class OpenContext(Protocol):
    """Serves the context service on `settings.context_address` until the context ends."""

    def __call__(
        self,
        settings: Settings,
        log: JetStream,
        *,
        token: str,
        authenticator: Authenticator | None = None,
        rules: Rules | None = None,
    ) -> AbstractAsyncContextManager[ContextServer]:
        """Raises PreconditionFailed (an address, an index that cannot be used), InvalidRequest, Unavailable.

        Args:
            settings: Where to listen, the memory index, the budget of a context.
            log: The connection to NATS, its streams made.
            token: What callers must show, or with `authenticator` one of the tokens that it takes.
            authenticator: Authenticates callers; None: there is one token.
            rules: The rules of each tenant; None: there are none beyond those of the fleet.
        """
        ...


def context_opener() -> OpenContext | None:
    """What serves the context service; None without its extension."""
    return next(iter(load_parts("context")), None)
