"""Vectors of texts from an embedder that may be away: then there are none, and words do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import structlog

from swe_ai_fleet.domain.errors import ModelError, ModelRejected
from swe_ai_fleet.domain.memory import Memory
from swe_ai_fleet.ports import Embedder

MAX_EMBEDDED_CHARS = 2_000
"""So much of a text is embedded; models read a few hundred tokens."""
EMBEDDED_AT_ONCE = 8
"""Few, so that somebody who asks meanwhile does not wait for long."""
_SHORT_CHARS = 400
_SECONDS = 5.0
_BATCH_SECONDS = 300.0
_PAUSE_SECONDS = 10.0
_REMEMBERED = 256
_HARMLESS = "memory"

_log = structlog.get_logger(__name__)


class Meaning:
    """What an `Embedder` says, within limits of size and time.

    Args:
        embedder: Whom to ask; None: there are no vectors.
        seconds: Longest wait of somebody who waits for an answer. After a failure nobody is made to wait for a while.
    """

    def __init__(self, embedder: Embedder | None, *, seconds: float = _SECONDS) -> None:
        self._embedder = embedder
        self._seconds = seconds
        self._away_until = 0.0
        self._fresh: dict[str, Sequence[float]] = {}

    @property
    def space(self) -> str:
        """The name of the vectors' space; empty: there are none."""
        return self._embedder.name if self._embedder is not None else ""

    async def of(self, text: str) -> Sequence[float]:
        """The vector of a text for somebody who waits; empty where there is none now."""
        if self._embedder is None or time.monotonic() < self._away_until:
            return ()
        for chars in (MAX_EMBEDDED_CHARS, _SHORT_CHARS):
            try:
                (vector,) = await self._ask([text[:chars]], self._seconds)
                return vector
            except ModelRejected as refusal:
                _log.warning("memory.not_embedded", chars=chars, reason=refusal.message)
            except ModelError as error:
                self._away_until = time.monotonic() + _PAUSE_SECONDS
                _log.warning("memory.embedder_away", reason=error.message)
                break
        return ()

    async def of_memory(self, memory: Memory) -> Sequence[float]:
        """The vector of a memory about to be kept; it is not asked for again soon."""
        vector = await self.of(memory.text)
        if len(vector):
            self._fresh[memory.memory_id] = vector
            while len(self._fresh) > _REMEMBERED:
                del self._fresh[next(iter(self._fresh))]
        return vector

    def fresh(self, memory: Memory) -> Sequence[float]:
        """The vector of a memory that `of_memory` was asked about, once; empty where there is none."""
        return self._fresh.pop(memory.memory_id, ())

    async def of_all(self, memories: Sequence[Memory]) -> Mapping[str, Sequence[float]]:
        """Vectors by memory id. Those that the embedder will not take are missing. Raises ModelError where it is away.

        One that takes nothing at all is set up wrongly, and counts as away.
        """
        if not memories:
            return {}
        try:
            vectors = await self._ask([one.text for one in memories])
            found = {one.memory_id: vector for one, vector in zip(memories, vectors, strict=True)}
        except ModelRejected as refusal:
            found = await self._one_by_one(memories)
            if not found:
                _log.warning("memory.embedder_refuses", reason=refusal.message)
                await self._ask([_HARMLESS])
        self._away_until = 0.0
        return found

    async def _one_by_one(self, memories: Sequence[Memory]) -> dict[str, Sequence[float]]:
        found: dict[str, Sequence[float]] = {}
        for one in memories:
            for chars in (MAX_EMBEDDED_CHARS, _SHORT_CHARS):
                try:
                    (found[one.memory_id],) = await self._ask([one.text[:chars]])
                    break
                except ModelRejected as refusal:
                    _log.warning("memory.not_embedded", memory_id=one.memory_id, chars=chars, reason=refusal.message)
        return found

    async def _ask(self, texts: Sequence[str], seconds: float = _BATCH_SECONDS) -> Sequence[Sequence[float]]:
        if self._embedder is None:
            return ()
        try:
            async with asyncio.timeout(seconds):
                vectors = await self._embedder.embed([text[:MAX_EMBEDDED_CHARS] for text in texts])
        except TimeoutError:
            raise ModelError(f"no embedding within {seconds:g} seconds") from None
        if len(vectors) != len(texts):
            raise ModelError(f"the embedder gave {len(vectors)} vectors for {len(texts)} texts")
        return vectors
