"""The context service as settings name it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from swe_ai_fleet.adapters.context_service import ContextServiceClient
from swe_ai_fleet.agents.sub_agents.memory import MemorySearch
from swe_ai_fleet.domain.memory import MemoryScope, task_namespaces
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.memory.searching import FleetMemory
from swe_ai_fleet.ports import Memories, SecretMask
from swe_ai_fleet.runtime.channels import channel_credentials, channel_tls, target
from swe_ai_fleet.settings import Settings


@asynccontextmanager
async def open_context_client(settings: Settings) -> AsyncGenerator[ContextServiceClient | None]:
    """A client of it until the context ends; None where settings name no context service."""
    if not settings.context_url:
        yield None
        return
    tls = channel_tls(settings, settings.context_url)
    async with ContextServiceClient(
        target(settings.context_url),
        settings.context_token,
        credentials=None if tls is None else channel_credentials(tls),
        server_name="" if tls is None else tls.name,
    ) as client:
        yield client


def remembering(memories: Memories, mask: SecretMask) -> Callable[[Task, MemorySearch], MemorySearch]:
    """What makes of a task and its repository's memory one that asks what the fleet remembers too."""

    def search(task: Task, repository: MemorySearch) -> MemorySearch:
        scope = MemoryScope(tenant=task.tenant, namespaces=task_namespaces(task))
        return FleetMemory(memories, scope, repository, mask=mask)

    return search
