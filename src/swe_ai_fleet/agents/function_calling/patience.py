"""Trying a model again where its server failed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from swe_ai_fleet.agents.model_face import ModelFace
from swe_ai_fleet.domain.errors import ModelUnavailable
from swe_ai_fleet.domain.message import ModelCapabilities, ModelReply, ModelRequest
from swe_ai_fleet.ports import ChatModel

RETRY_WAITS = (5.0, 10.0)
_JITTER = 0.1


class PatientModel(ModelFace):
    """A `ChatModel` whose calls are tried again after a wait each; the one behind it should not retry by itself.

    Args:
        model: What is called.
        waits: Seconds before each further try, so a call is tried once more often than there are waits; up to a tenth
            is added, lest all agents come back at the same moment.
        told: Hears of each try that failed and is followed by another.
    """

    def __init__(
        self, model: ChatModel, *, waits: Sequence[float] = RETRY_WAITS, told: Callable[[str], None] | None = None
    ) -> None:
        self.model = model
        self._waits = tuple(waits)
        self._told = told

    async def probe(self) -> ModelCapabilities:
        """As the model behind it, tried again. Raises ModelError."""
        for number, wait in enumerate(self._waits, start=1):
            try:
                return await self.model.probe()
            except ModelUnavailable as fault:
                await self._rest(number, wait, fault)
        return await self.model.probe()

    async def reply(self, request: ModelRequest) -> ModelReply:
        """As the model behind it, tried again. Raises ContextTooLong, ModelRejected, ModelUnavailable."""
        for number, wait in enumerate(self._waits, start=1):
            try:
                return await self.model.reply(request)
            except ModelUnavailable as fault:
                await self._rest(number, wait, fault)
        return await self.model.reply(request)

    async def _rest(self, number: int, wait: float, fault: ModelUnavailable) -> None:
        if self._told is not None:
            tries = len(self._waits) + 1
            self._told(f"the model call failed (try {number} of {tries}), the next one is in {wait:g} s: {fault}")
        await asyncio.sleep(wait * random.uniform(1.0, 1.0 + _JITTER))  # noqa: S311
