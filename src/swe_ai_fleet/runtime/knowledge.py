"""Knowledge that outlasts an execution: what the core asks of the extension that has context, memory and learning."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.memory import WorkOutcome
from swe_ai_fleet.extensions import load_parts
from swe_ai_fleet.ports import ContextSource, Embedder, Memories, SecretMask

if TYPE_CHECKING:
    # Programs load neither.
    from swe_ai_fleet.adapters.jetstream import JetStream
    from swe_ai_fleet.agents.plan_session.session import PlanOutcome
    from swe_ai_fleet.settings import Settings

LIBRARY = Path("memory") / "library.db"
"""Below a home, the long-term memory of programs."""


class ContextClient(Memories, ContextSource, Protocol):
    """The context service, as the fleet calls it."""

    @property
    def address(self) -> str: ...

    async def ping(self) -> None:
        """Whether the service can do its work now. Raises Unavailable."""
        ...

    async def record_plan(self, outcome: PlanOutcome, *, tenant: str) -> None:
        """Keep how a plan session went. Raises InvalidRequest, Unavailable."""
        ...


class Knowledge(Protocol):
    """What the extension provides to processes that serve or run agents, and to programs."""

    def connect(self, settings: Settings) -> AbstractAsyncContextManager[ContextClient]:
        """A client of the context service that settings name, until the context ends."""
        ...

    def outcomes(self, log: JetStream) -> AbstractAsyncContextManager[Callable[[str], Sequence[WorkOutcome]]]:
        """The outcomes of a tenant's ended executions, followed until the context ends. Raises Unavailable."""
        ...

    def library(self, settings: Settings, mask: SecretMask) -> AbstractAsyncContextManager[Memories]:
        """The memory that programs keep under a home, until the context ends. Raises Unavailable."""
        ...

    def embedder(self, settings: Settings) -> AbstractAsyncContextManager[Embedder | None]:
        """What memories are found by meaning with; None: by words alone. Raises FleetError, naming the setting."""
        ...


def installed() -> Knowledge | None:
    """The knowledge of this installation; None without the extension."""
    return next(iter(load_parts("knowledge")), None)


def required(field: str, hint: str) -> Knowledge:
    """The knowledge of this installation, for a setting or an argument that asks for it. Raises PreconditionFailed."""
    if (knowledge := installed()) is None:
        message = "this installation has no context, memory and learning: its extension `knowledge` was removed"
        raise PreconditionFailed(message, field=field, hint=hint)
    return knowledge


@asynccontextmanager
async def open_context_client(settings: Settings) -> AsyncGenerator[ContextClient | None]:
    """A client of the context service until the context ends; None where settings name none.

    Raises PreconditionFailed where they name one that nothing here can call.
    """
    if not settings.context_url:
        yield None
        return
    knowledge = required("context_url", "leave it empty, or install the extension")
    async with knowledge.connect(settings) as client:
        yield client


@asynccontextmanager
async def open_library_memory(settings: Settings, mask: SecretMask, *, field: str) -> AsyncGenerator[Memories]:
    """The memory of programs under a home, until the context ends.

    Raises PreconditionFailed with `field`, where nothing here remembers, and Unavailable.
    """
    async with required(field, "leave it out, or install the extension").library(settings, mask) as memories:
        yield memories
