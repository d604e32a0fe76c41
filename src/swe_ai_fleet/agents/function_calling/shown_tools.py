"""What a model is shown in place of the tools there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from swe_ai_fleet.agents.model_face import ModelFace
from swe_ai_fleet.domain.message import ModelReply, ModelRequest
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.ports import ChatModel


class ShownTools(ModelFace):
    """A `ChatModel` that is offered some tools under another description, or not at all.

    Args:
        model: What is called.
        instead: By a tool's name, what stands in its place; None: nothing does.
    """

    def __init__(self, model: ChatModel, instead: Mapping[str, OperationSpec | None]) -> None:
        self.model = model
        self._instead = dict(instead)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """As the model behind it. Raises ContextTooLong, ModelRejected, ModelUnavailable."""
        offered = tuple(shown for tool in request.tools if (shown := self._instead.get(tool.name, tool)) is not None)
        return await self.model.reply(replace(request, tools=offered))
