"""What the core is given: the client of the context service, outcomes of executions, the memory of programs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.outcome import OUTCOMES_BUCKET, Outcome
from swe_ai_fleet.extensions.knowledge.client import ContextServiceClient
from swe_ai_fleet.extensions.knowledge.embedding import settings_embedder
from swe_ai_fleet.extensions.knowledge.tracker import LearningTracker
from swe_ai_fleet.ports import Embedder, Memories, SecretMask
from swe_ai_fleet.runtime.channels import channel_credentials, channel_tls, target
from swe_ai_fleet.settings import Settings


class FleetKnowledge:
    """Context, memory and learning for the core; see `runtime.knowledge.Knowledge`."""

    @asynccontextmanager
    async def connect(self, settings: Settings) -> AsyncGenerator[ContextServiceClient]:
        tls = channel_tls(settings, settings.context_url)
        async with ContextServiceClient(
            target(settings.context_url),
            settings.context_token,
            credentials=None if tls is None else channel_credentials(tls),
            server_name="" if tls is None else tls.name,
        ) as client:
            yield client

    @asynccontextmanager
    async def outcomes(self, log: JetStream) -> AsyncGenerator[Callable[[str], Sequence[Outcome]]]:
        async with LearningTracker(await log.bucket(OUTCOMES_BUCKET)) as tracker:
            yield tracker.outcomes

    @asynccontextmanager
    async def library(self, settings: Settings, mask: SecretMask) -> AsyncGenerator[Memories]:
        # SQLite is loaded where a program's memory is opened.
        from swe_ai_fleet.extensions.knowledge.manager import open_library_memory

        async with open_library_memory(settings, mask) as memories:
            yield memories

    def embedder(self, settings: Settings) -> AbstractAsyncContextManager[Embedder | None]:
        return settings_embedder(settings)


KNOWLEDGE = FleetKnowledge()
