"""Reading results whole where an answer is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from swe_ai_fleet.agents.function_calling.transcript import room, with_whole_results
from swe_ai_fleet.domain.errors import ContextTooLong
from swe_ai_fleet.domain.message import Message, ModelCapabilities, ModelReply, Sampling
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.ports import ChatModel


class WholeResults:
    """A `ChatModel` that, asked without tools and so for an answer, reads results as they were before they were cut.

    Args:
        model: What is called.
        results: Whole results by call id; may grow.
    """

    def __init__(self, model: ChatModel, results: Mapping[str, str]) -> None:
        self._model = model
        self._results = results

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
        if not tools and self._results:
            capabilities = await self._model.probe()
            whole = with_whole_results(messages, self._results, max_chars=room(capabilities))
            try:
                return await self._model.reply(whole, tools, sampling, schema=schema, on_delta=on_delta)
            except ContextTooLong:
                pass  # the estimate was wrong: what the history holds has fitted so far
        return await self._model.reply(messages, tools, sampling, schema=schema, on_delta=on_delta)
