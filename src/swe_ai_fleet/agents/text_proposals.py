"""Proposals that a model wrote as text instead of calling `propose_approach`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.model_face import ModelFace
from swe_ai_fleet.agents.plan_session.proposals import opens_with_proposal
from swe_ai_fleet.domain.message import ModelReply, ModelRequest, ToolCall
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.tools.builtin.dialogue import PROPOSE

REPAIR = f"text taken as a call of {PROPOSE}"


@dataclass(frozen=True, kw_only=True)
class ProposingModel(ModelFace):
    """A `ChatModel` whose replies that call nothing and open with a proposal become a call of `propose_approach`.

    Args:
        model: Who replies.
        wanted: Whether a proposal is waited for; otherwise replies stay as they are.
    """

    model: ChatModel
    wanted: Callable[[], bool]

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The model's reply. Raises as it does."""
        reply = await self.model.reply(request)
        text = reply.message.content
        offered = any(spec.name == PROPOSE for spec in request.tools)
        whole = reply.finish_reason in ("stop", "tool_calls")
        if reply.message.tool_calls or not (offered and whole and self.wanted() and opens_with_proposal(text)):
            return reply
        call_id = uuid.uuid4().hex[:12]
        arguments = json.dumps({"approach": text, "reasoning": ""})
        call = ToolCall(call_id=call_id, model_call_id=call_id, name=PROPOSE, arguments=arguments)
        return replace(
            reply,
            message=replace(reply.message, content="", tool_calls=(call,)),
            finish_reason="tool_calls",
            repairs=(*reply.repairs, REPAIR),
        )
