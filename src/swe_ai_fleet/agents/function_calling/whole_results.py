"""Reading results whole where an answer is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from swe_ai_fleet.agents.function_calling.transcript import room, with_whole_results
from swe_ai_fleet.agents.model_face import ModelFace
from swe_ai_fleet.domain.errors import ContextTooLong
from swe_ai_fleet.domain.message import ModelReply, ModelRequest
from swe_ai_fleet.ports import ChatModel


class WholeResults(ModelFace):
    """A `ChatModel` that, asked without tools and so for an answer, reads results as they were before they were cut.

    Args:
        model: What is called.
        results: Whole results by call id; may grow.
    """

    def __init__(self, model: ChatModel, results: Mapping[str, str]) -> None:
        self.model = model
        self._results = results

    async def reply(self, request: ModelRequest) -> ModelReply:
        """As the model behind it. Raises ContextTooLong, ModelRejected, ModelUnavailable."""
        if not request.tools and self._results:
            capabilities = await self.model.probe()
            whole = with_whole_results(request.messages, self._results, max_chars=room(capabilities))
            try:
                return await self.model.reply(replace(request, messages=whole))
            except ContextTooLong:
                pass  # the estimate was wrong: what the history holds has fitted so far
        return await self.model.reply(request)
