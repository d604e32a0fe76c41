"""A model whose text is passed on while it comes in, where somebody watches."""

from __future__ import annotations

from dataclasses import replace

from swe_ai_fleet.agents.model_face import ModelFace
from swe_ai_fleet.domain.live import TextDelta
from swe_ai_fleet.domain.message import ModelReply, ModelRequest
from swe_ai_fleet.ports import ChatModel, LiveText
from swe_ai_fleet.tools.secrets import Secrets


class WatchedModel(ModelFace):
    """A `ChatModel` that streams for watchers of its execution; unwatched it is the model itself.

    Args:
        model: Who answers.
        live: Where watchers are.
        tenant: Whose execution it is.
        execution_id: What is watched.
        agent_id: Who is spoken to.
        secrets: What watchers must not see.
    """

    def __init__(
        self,
        model: ChatModel,
        live: LiveText,
        *,
        tenant: str,
        execution_id: str,
        agent_id: str,
        secrets: Secrets,
    ) -> None:
        self.model = model
        self._live = live
        self._tenant, self._execution_id, self._agent_id = tenant, execution_id, agent_id
        self._secrets = secrets

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The model's reply, its text told to watchers as it comes. Raises as the model does."""
        if request.on_delta is not None or not self._live.wanted(self._tenant, self._execution_id):
            return await self.model.reply(request)
        masked, begins = self._secrets.stream(), True

        def tell(text: str) -> None:
            nonlocal begins
            if text or begins:
                delta = TextDelta(agent_id=self._agent_id, text=text, begins=begins)
                self._live.say(self._tenant, self._execution_id, delta)
                begins = False

        def hear(text: str) -> None:
            tell(masked.feed(text))

        reply = await self.model.reply(replace(request, on_delta=hear))
        tell(masked.finish())
        return reply
