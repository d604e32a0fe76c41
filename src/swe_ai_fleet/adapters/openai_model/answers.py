"""Reads completions of all shapes that servers send into a `ModelReply`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from swe_ai_fleet.adapters.openai_model.faults import ServerRefusal
from swe_ai_fleet.adapters.openai_model.tool_protocols import read_envelope
from swe_ai_fleet.agents import tool_call_dialects
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.json_values import is_list, is_object, items, mapping
from swe_ai_fleet.domain.message import (
    AssistantMessage,
    FinishReason,
    ModelReply,
    SampledTokens,
    ToolCall,
    ToolProtocol,
)

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}
_MOST_TOKENS = 10**9
_MOST_REPAIRS = 16
_LONGEST_ID = 256
_MOST_ALTERNATIVES = 20
_LONGEST_TOKEN = 64
_LEAST_LOGPROB = -1e6


class ErrorAnswer(Exception):
    """The server answered with an error in a successful HTTP response."""

    def __init__(self, refusal: ServerRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyContext:
    """The part of a request that is needed to read its reply.

    `taken` are the wire ids that the conversation already uses: a call with one of them gets a new id.
    `raw` keeps the text as it is, for a reply that follows a caller's schema.
    """

    protocol: ToolProtocol
    tools_offered: bool
    taken: Sequence[str] = ()
    raw: bool = False


@dataclass(frozen=True, slots=True)
class _ParsedCall:
    name: str
    arguments: str
    id: str = ""


def read_reply(
    completion: object,
    context: ReplyContext,
    *,
    repairs: Sequence[str],
    new_call_id: Callable[[], str],
    duration_ms: int,
) -> ModelReply:
    """The reply in a completion. Raises ValueError for a malformed one, ErrorAnswer for an error in its place.

    `repairs` are the repairs made before; those made here are added to them in the reply.
    """
    fields = mapping(completion)
    choice = _choice(fields)
    message = mapping(choice, "message") or mapping(choice, "delta") or {"content": choice.get("text")}
    content = as_text(message.get("content")) or as_text(message.get("refusal"))
    reason = choice.get("finish_reason")
    finish: FinishReason = _FINISH_REASONS.get(reason.lower(), "other") if isinstance(reason, str) else "other"
    repaired = list(repairs)
    parsed_calls = _native_calls(message, repaired)
    if not parsed_calls and not context.raw:
        content, parsed_calls = _calls_in_text(content, context, finish == "length", repaired)
    if parsed_calls and finish in ("stop", "other"):
        finish = "tool_calls"
    used = set(context.taken)
    calls: list[ToolCall] = []
    for call in parsed_calls:
        call_id = new_call_id()
        wire_id = call.id if call.id and call.id not in used else call_id
        used.add(wire_id)
        calls.append(ToolCall(call_id=call_id, model_call_id=wire_id, name=call.name, arguments=call.arguments))
    model = fields.get("model")
    return ModelReply(
        message=AssistantMessage(content=content, tool_calls=tuple(calls)),
        finish_reason=finish,
        usage=_spent(mapping(fields, "usage"), duration_ms),
        model=model if isinstance(model, str) else "",
        repairs=tuple(dict.fromkeys(repaired))[:_MOST_REPAIRS],
        top_logprobs=_first_tokens(mapping(choice, "logprobs")),
    )


def _choice(completion: Mapping[str, object]) -> Mapping[str, object]:
    for choice in items(completion.get("choices")):
        fields = mapping(choice)
        if any(isinstance(fields.get(key), dict) for key in ("message", "delta")) or isinstance(
            fields.get("text"), str
        ):
            return fields
    if error := completion.get("error"):
        raise ErrorAnswer(ServerRefusal.inside(error))
    raise ValueError("a completion without choices")


def _first_tokens(logprobs: Mapping[str, object]) -> tuple[tuple[str, float], ...]:
    """The likely first tokens with their log-probabilities; empty where the server sent none that are well-formed."""
    tokens: list[tuple[str, float]] = []
    first = mapping(next(iter(items(logprobs.get("content"))), None))
    for alternative in map(mapping, items(first.get("top_logprobs"))[:_MOST_ALTERNATIVES]):
        token, logprob = alternative.get("token"), alternative.get("logprob")
        if isinstance(token, str) and _is_logprob(logprob):
            tokens.append((token[:_LONGEST_TOKEN], min(0.0, float(logprob))))
    return tuple(tokens)


def read_tokens(completion: object, repairs: list[str]) -> SampledTokens | None:
    """The token ids in a completion, with a log-probability for each or for none; None without both lists of ids.

    Log-probabilities that cannot be matched to the tokens one by one are left out, and `repairs` say so.
    """
    fields = mapping(completion)
    choice = mapping(next(iter(items(fields.get("choices"))), None))
    prompt, written = _token_ids(fields.get("prompt_token_ids")), _token_ids(choice.get("token_ids"))
    if prompt is None or written is None:
        return None
    listed = [mapping(token).get("logprob") for token in items(mapping(choice, "logprobs").get("content"))]
    logprobs = [min(0.0, float(value)) for value in listed if _is_logprob(value)]
    if len(logprobs) != len(written):
        if listed:
            repairs.append(f"{len(logprobs)} log-probabilities for {len(written)} tokens left out")
        logprobs.clear()
    return SampledTokens(prompt_token_ids=prompt, completion_token_ids=written, logprobs=tuple(logprobs))


def _token_ids(value: object) -> tuple[int, ...] | None:
    if not is_list(value):
        return None
    numbers = tuple(number for number in value if type(number) is int and 0 <= number < _MOST_TOKENS)
    return numbers if len(numbers) == len(value) else None


def _is_logprob(value: object) -> TypeGuard[float | int]:
    return isinstance(value, float | int) and not isinstance(value, bool) and _LEAST_LOGPROB < value < 1


def _native_calls(message: Mapping[str, object], repairs: list[str]) -> list[_ParsedCall]:
    listed = message.get("tool_calls")
    calls = items(listed) or ([listed] if listed else [])
    if not calls and (old := message.get("function_call")):
        calls = [{"function": old}]
        repairs.append("a legacy function_call was read as a tool call")
    return [_native_call(call, number, repairs) for number, call in enumerate(calls, 1) if call is not None]


def _native_call(call: object, number: int, repairs: list[str]) -> _ParsedCall:
    fields = mapping(call)
    function = mapping(fields, "function") or fields
    name, model_id = function.get("name"), fields.get("id")
    if not isinstance(name, str) or not name:
        repairs.append(f"call {number} has no name")
        name = ""
    arguments = function.get("arguments")
    if arguments is None and not name:
        arguments = call
    elif arguments is None:
        arguments = function.get("input", function.get("parameters"))
    if arguments is None:
        text = "{}"
    elif isinstance(arguments, str):
        text = arguments
    else:
        text = json.dumps(arguments, ensure_ascii=False)
        repairs.append(f"call {number} has its arguments as JSON instead of text")
    call_id = str(model_id) if isinstance(model_id, str | int) else ""
    return _ParsedCall(name=name, arguments=text, id=call_id if len(call_id) <= _LONGEST_ID else "")


def _calls_in_text(
    content: str, context: ReplyContext, truncated: bool, repairs: list[str]
) -> tuple[str, list[_ParsedCall]]:
    if context.protocol is ToolProtocol.JSON:
        envelope = read_envelope(content)
        if envelope is not None:
            content, calls = envelope
            return content, [_ParsedCall(call.name, call.arguments) for call in calls] if context.tools_offered else []
    if not context.tools_offered:
        return content, []
    content, raw = tool_call_dialects.parse(content, truncated=truncated)
    if raw and context.protocol is not ToolProtocol.TEXT:
        repairs.append("tool calls read from the reply's text")
    return content, [_ParsedCall(call.name, call.arguments) for call in raw]


def _spent(usage: Mapping[str, object], duration_ms: int) -> Usage:
    prompt = _tokens(usage.get("prompt_tokens"))
    cached = _tokens(mapping(usage, "prompt_tokens_details").get("cached_tokens"))
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=_tokens(usage.get("completion_tokens")),
        cached_tokens=min(cached, prompt),
        model_calls=1,
        duration_ms=duration_ms,
    )


def _tokens(count: object) -> int:
    if isinstance(count, float) and count.is_integer():
        count = int(count)
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 < count < _MOST_TOKENS else 0


def as_text(content: object) -> str:
    """The text of a message's content, which some servers send in parts; thoughts among the parts are left out."""
    if isinstance(content, str):
        return content
    if is_list(content):
        return "".join(as_text(part) for part in content if not isinstance(part, list))
    if not is_object(content):
        return "" if content is None else json.dumps(content)
    if content.get("type") in ("thinking", "reasoning"):
        return ""
    text = content.get("text", content.get("value"))
    return as_text(text) if isinstance(text, str) or is_object(text) else ""
