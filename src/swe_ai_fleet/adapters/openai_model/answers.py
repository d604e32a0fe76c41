"""What comes back from the server, checked as far as we read it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from swe_ai_fleet.agents import raw_tool_calls
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.message import AssistantMessage, FinishReason, ModelReply, ToolCall

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    arguments: str | dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    function: _Function
    id: str | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    text: str | None = None


@dataclass(frozen=True, slots=True)
class _Message:
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None


@dataclass(frozen=True, slots=True)
class _Choice:
    message: _Message
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class _PromptDetails:
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _Usage:
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


@dataclass(frozen=True, slots=True)
class _Completion:
    choices: list[_Choice]
    usage: _Usage | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One entry of the list of models; the three lengths are what servers call the same thing."""

    id: str
    owned_by: str | None = None
    max_model_len: int | None = None
    context_length: int | None = None
    context_window: int | None = None

    @property
    def longest(self) -> int:
        """The context window in tokens, 0 where the server does not say."""
        return self.max_model_len or self.context_length or self.context_window or 0


@dataclass(frozen=True, slots=True)
class _ModelList:
    data: list[ListedModel]


@cache
def _completions() -> TypeAdapter[_Completion]:
    return TypeAdapter(_Completion)


@cache
def _model_lists() -> TypeAdapter[_ModelList]:
    return TypeAdapter(_ModelList)


def read_models(body: bytes) -> list[ListedModel]:
    """The models a server lists. Raises ValueError for anything else."""
    return _model_lists().validate_json(body).data


def read_reply(
    body: bytes, *, taken: Sequence[str], tools_offered: bool, new_call_id: Callable[[], str], duration_ms: int
) -> ModelReply:
    """The reply in a completion. Raises ValueError where the body is none.

    `taken` are the wire ids that the conversation already uses: a model id among them gives way to ours.
    """
    completion = _completions().validate_json(body)
    if not completion.choices:
        raise ValueError("a completion without choices")
    choice = completion.choices[0]
    content = _text(choice.message.content)
    finish: FinishReason = _FINISH_REASONS.get(choice.finish_reason or "", "other")
    found = [(call.id or "", call.function.name, _arguments(call)) for call in choice.message.tool_calls or ()]
    if not found and tools_offered:
        content, raw = raw_tool_calls.parse(content, truncated=finish == "length")
        found = [("", call.name, call.arguments) for call in raw]
    if found and finish == "stop":
        finish = "tool_calls"
    used = set(taken)
    calls: list[ToolCall] = []
    for model_id, name, arguments in found:
        call_id = new_call_id()
        wire_id = model_id if model_id and model_id not in used else call_id
        used.add(wire_id)
        calls.append(ToolCall(call_id=call_id, model_call_id=wire_id, name=name, arguments=arguments))
    return ModelReply(
        message=AssistantMessage(content=content, tool_calls=tuple(calls)),
        finish_reason=finish,
        usage=_spent(completion.usage or _Usage(), duration_ms),
        model=completion.model or "",
    )


def _text(content: str | list[_Part] | None) -> str:
    if isinstance(content, list):
        return "".join(part.text or "" for part in content)
    return content or ""


def _arguments(call: _Call) -> str:
    arguments = call.function.arguments
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def _spent(usage: _Usage, duration_ms: int) -> Usage:
    details = usage.prompt_tokens_details or _PromptDetails()
    return Usage(
        prompt_tokens=usage.prompt_tokens or 0,
        completion_tokens=usage.completion_tokens or 0,
        cached_tokens=details.cached_tokens or 0,
        model_calls=1,
        duration_ms=duration_ms,
    )
