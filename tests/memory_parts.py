"""What tests of memory share: long-term memory in a list, and the context service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from swe_ai_fleet.domain.memory import Memory, MemoryScope, Recollection
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.settings import Settings


@dataclass
class Kept:
    """Long-term memory by plain words."""

    memories: list[Memory] = field(default_factory=list)
    asked: list[tuple[str, MemoryScope, int]] = field(default_factory=list)

    async def remember(self, memory: Memory) -> bool:
        self.memories.append(memory)
        return True

    async def recall(self, query: str, scope: MemoryScope, *, limit: int = 3) -> tuple[Recollection, ...]:
        self.asked.append((query, scope, limit))
        words = {word for word in query.lower().split() if len(word) > 3}
        found = [
            one
            for one in self.memories
            if one.namespace in scope.namespaces and words & set(one.text.lower().rstrip(".").split())
        ]
        return tuple(Recollection(memory=one, score=1.0) for one in found[:limit])

    async def forget(self, scope: MemoryScope, memory_ids: Sequence[str] = ()) -> int:
        return 0


@asynccontextmanager
async def context_service(
    settings: Settings, log: Any, *, token: str, **access: Any
) -> AsyncGenerator[tuple[Any, Any]]:
    """A running context service and a client of it; None both without the extension."""
    for open_context, knowledge in zip(load_parts("context"), load_parts("knowledge"), strict=True):
        async with open_context(settings, log, token=token, **access) as running:
            named = settings.model_copy(update={"context_url": running.address, "context_token": token})
            async with knowledge.connect(named) as client:
                yield running, client
        return
    yield None, None
