"""What tests of memory share: an embedder that knows a few synonyms, stores to try, and the context service."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from swe_ai_fleet.domain.errors import ModelRejected, ModelUnavailable
from swe_ai_fleet.domain.memory import Memory, MemoryScope, Recollection
from swe_ai_fleet.extensions import load_parts
from swe_ai_fleet.settings import Settings

_DIMENSIONS = 512
_SYNONYMS = {"color": "colour", "hue": "colour", "favorite": "favourite", "automobile": "car", "beloved": "favourite"}


class WordEmbedder:
    """An `Embedder` whose texts mean the same that share words, or synonyms of them.

    Attributes:
        away: Whether it fails as a server does that is down.
        refuses: Texts that hold this are refused.
        embedded: How many texts it was given.
    """

    name = "words"

    def __init__(self) -> None:
        self.away = False
        self.refuses = ""
        self.embedded = 0

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        if self.away:
            raise ModelUnavailable("the embedder is away")
        if self.refuses and any(self.refuses in text for text in texts):
            raise ModelRejected("too long")
        self.embedded += len(texts)
        return [_vector(text) for text in texts]


def _vector(text: str) -> list[float]:
    vector = [0.0] * _DIMENSIONS
    for word in set(re.findall(r"\w+", text.lower())) - {"the", "a", "and", "is", "of", "her", "what"}:
        term = word.removesuffix("s")
        place = int.from_bytes(hashlib.sha256(_SYNONYMS.get(term, term).encode()).digest()[:4])
        vector[place % _DIMENSIONS] += 1.0
    length = sum(value * value for value in vector) ** 0.5
    return [value / length for value in vector] if length else [1.0, *vector[1:]]


@dataclass
class Kept:
    """Long-term memory by plain words."""

    memories: list[Memory] = field(default_factory=list)

    async def remember(self, memory: Memory) -> bool:
        self.memories.append(memory)
        return True

    async def recall(self, query: str, scope: MemoryScope, *, limit: int = 3) -> tuple[Recollection, ...]:
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
