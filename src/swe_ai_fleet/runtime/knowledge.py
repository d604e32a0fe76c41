"""The core's interface to the extension `knowledge`: context, memory and learning across executions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.memory import WorkOutcome
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.ports import ContextSource, Embedder, Memories, SecretMask

if TYPE_CHECKING:
    # Imported for types only, to spare programs the time.
    from swe_ai_fleet.adapters.jetstream import JetStream
    from swe_ai_fleet.settings import Settings

LIBRARY = Path("memory") / "library.db"
"""The long-term memory of programs, relative to a home."""


class ContextClient(Memories, ContextSource, Protocol):
    """A client of the context service."""

    @property
    def address(self) -> str: ...

    async def ping(self) -> None:
        """Check that the service works. Raises Unavailable."""
        ...

    async def record_outcome(self, outcome: WorkOutcome) -> WorkOutcome:
        """Store an outcome; returns it as stored. Raises InvalidRequest, Unavailable."""
        ...


class Knowledge(Protocol):
    """The parts of the extension for services, agent hosts and programs."""

    def connect(self, settings: Settings) -> AbstractAsyncContextManager[ContextClient]:
        """A client of the context service in the settings, until the context ends."""
        ...

    def outcomes(self, log: JetStream) -> AbstractAsyncContextManager[Callable[[str], Sequence[WorkOutcome]]]:
        """The outcomes of a tenant's ended executions, followed until the context ends. Raises Unavailable."""
        ...

    def library(self, settings: Settings, mask: SecretMask) -> AbstractAsyncContextManager[Memories]:
        """The memory of programs under a home, until the context ends. Raises Unavailable."""
        ...

    def embedder(self, settings: Settings) -> AbstractAsyncContextManager[Embedder | None]:
        """The embedder for searching memories by meaning; None: words only. Raises FleetError naming the setting."""
        ...


def installed() -> Knowledge | None:
    """The knowledge of this installation; None without the extension."""
    return next(iter(load_parts("knowledge")), None)


def required(field: str, hint: str) -> Knowledge:
    """The knowledge of this installation, for a setting or argument that needs it. Raises PreconditionFailed."""
    if (knowledge := installed()) is None:
        message = "this installation has no context, memory and learning: its extension `knowledge` was removed"
        raise PreconditionFailed(message, field=field, hint=hint)
    return knowledge


@asynccontextmanager
async def open_context_client(settings: Settings) -> AsyncGenerator[ContextClient | None]:
    """A client of the context service until the context ends; None where the settings have none.

    Raises PreconditionFailed where they have one, but the extension is missing.
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

    Raises PreconditionFailed with `field` where the extension is missing, and Unavailable.
    """
    async with required(field, "leave it out, or install the extension").library(settings, mask) as memories:
        yield memories
