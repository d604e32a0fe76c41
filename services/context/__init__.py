"""The process of the context service, which an extension serves."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from services.auth import Authenticator
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.orchestrator.quotas import Rules
from swe_ai_fleet.settings import Settings


class ContextServer(Protocol):
    """A running context service: its address, and the token that it requires."""

    @property
    def address(self) -> str: ...
    @property
    def token(self) -> str: ...


class OpenContext(Protocol):
    """Runs the context service on `settings.context_address` until the context ends."""

    def __call__(
        self,
        settings: Settings,
        log: JetStream,
        *,
        token: str,
        authenticator: Authenticator | None = None,
        rules: Rules | None = None,
    ) -> AbstractAsyncContextManager[ContextServer]:
        """Raises PreconditionFailed (an address or index that cannot be used), InvalidRequest, Unavailable.

        Args:
            settings: The address, the memory index, the budget of a context.
            log: The connection to NATS, with its streams created.
            token: The token that callers need, or with `authenticator` one of the tokens that it accepts.
            authenticator: Authenticates callers; None: `token` is the only token.
            rules: The rules of each tenant; None: only the fleet's own apply.
        """
        ...


def context_opener() -> OpenContext | None:
    """The function that runs the context service; None without its extension."""
    return next(iter(load_parts("context")), None)
