"""What stands in front of a model."""

from __future__ import annotations

from swe_ai_fleet.domain.message import ModelCapabilities
from swe_ai_fleet.ports import ChatModel


class ModelFace:
    """A `ChatModel` in front of another, but for `reply`: what can be asked of the other beside that goes through."""

    model: ChatModel

    async def probe(self) -> ModelCapabilities:
        return await self.model.probe()

    async def ping(self) -> None:
        await self.model.ping()
