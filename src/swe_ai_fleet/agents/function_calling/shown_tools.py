"""What a model is shown in place of the tools there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from swe_ai_fleet.domain.message import Message, ModelCapabilities, ModelReply, Sampling
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.ports import ChatModel


class ShownTools:
    """A `ChatModel` that is offered some tools under another description, or not at all.

    Args:
        model: What is called.
        instead: By a tool's name, what stands in its place; None: nothing does.
    """

    def __init__(self, model: ChatModel, instead: Mapping[str, OperationSpec | None]) -> None:
        self._model = model
        self._instead = dict(instead)

    async def probe(self) -> ModelCapabilities:
        """As the model behind it. Raises ModelError."""
        return await self._model.probe()

    async def ping(self) -> None:
        """As the model behind it. Raises ModelUnavailable, ModelRejected."""
        await self._model.ping()

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[OperationSpec],
        sampling: Sampling,
        *,
        schema: Mapping[str, object] | None = None,
        on_delta: Callable[[str], None] | None = None,
    ) -> ModelReply:
        """As the model behind it. Raises ContextTooLong, ModelRejected, ModelUnavailable."""
        offered = tuple(shown for tool in tools if (shown := self._instead.get(tool.name, tool)) is not None)
        return await self._model.reply(messages, offered, sampling, schema=schema, on_delta=on_delta)
