"""The gRPC services of extensions, and the context service of one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

from services.auth import Authenticator
from services.grpc_server import Service
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.extensions import load_parts
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.orchestrator.quotas import Rules
from swe_ai_fleet.ports import Memories
from swe_ai_fleet.runtime.spending import Spending
from swe_ai_fleet.settings import Settings


class ServiceDeps(Protocol):
    """What an extension's service is made of; the orchestrator's `Stack` has it."""

    @property
    def settings(self) -> Settings: ...
    @property
    def log(self) -> JetStream: ...
    @property
    def executions(self) -> Executions: ...
    @property
    def context(self) -> Memories | None: ...
    @property
    def spending(self) -> Spending: ...


class RunningContext(Protocol):
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
    ) -> AbstractAsyncContextManager[RunningContext]:
        """Raises PreconditionFailed (an address, an index that cannot be used), InvalidRequest, Unavailable.

        Args:
            settings: Where to listen, the memory index, the budget of a context.
            log: The connection to NATS, its streams made.
            token: What callers must show, or with `authenticator` one of the tokens that it takes.
            authenticator: Authenticates callers; None: there is one token.
            rules: The rules of each tenant; None: there are none beyond those of the fleet.
        """
        ...


OpenService = Callable[[ServiceDeps], AbstractAsyncContextManager[Service]]
"""Opens a service until the context ends."""


@asynccontextmanager
async def open_services(served: ServiceDeps) -> AsyncGenerator[Sequence[Service]]:
    """The services of all extensions, until the context ends."""
    openers: list[OpenService] = load_parts("services")
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opener(served)) for opener in openers]


def context_opener() -> OpenContext | None:
    """What serves the context service; None without its extension."""
    return next(iter(load_parts("context")), None)
