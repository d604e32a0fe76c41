"""The gRPC services of extensions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

from services.grpc_server import Service
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.extensions import load_parts
from swe_ai_fleet.orchestrator.executions import Executions
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


OpenService = Callable[[ServiceDeps], AbstractAsyncContextManager[Service]]
"""Opens a service until the context ends."""


@asynccontextmanager
async def open_services(served: ServiceDeps) -> AsyncGenerator[Sequence[Service]]:
    """The services of all extensions, until the context ends."""
    openers: list[OpenService] = load_parts("services")
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opener(served)) for opener in openers]
