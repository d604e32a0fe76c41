"""What a scripted turn looks like as the completion of an OpenAI-compatible server."""

from __future__ import annotations

import json
import re
from typing import Any

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.testing.json_mode import held_to, schema_of
from swe_ai_fleet.testing.script import ScriptRequest, Turn

CHARACTERS_PER_TOKEN = 4
MOST_LOGPROBS = 20


def completion_of(
    turn: Turn,
    asked: ScriptRequest,
    *,
    number: int,
    model: str,
    prompt: Usage,
    obeys_schemas: bool,
    gives_logprobs: bool,
) -> dict[str, Any]:
    """The answer to the request with that number: calls native where tools are offered, held to a schema where the
    request has one and the server obeys it, else as text. `prompt` is what the prompt is estimated at."""
    calls = [
        (name, arguments if isinstance(arguments, str) else json.dumps(arguments))
        for name, arguments in turn.tool_calls
    ]
    written = len(turn.content) + sum(len(name) + len(arguments) for name, arguments in calls)
    counted = turn.usage or prompt + Usage(completion_tokens=max(1, written // CHARACTERS_PER_TOKEN))
    message: dict[str, Any] = {"role": "assistant", "content": turn.content or None}
    schema = schema_of(asked.payload) if obeys_schemas else None
    if schema is not None:
        message["content"] = held_to(schema, turn.content, calls)
    elif calls and asked.payload.get("tools"):
        ids = turn.call_ids or tuple(f"call_{asked.turn}_{index}" for index in range(len(calls)))
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, (name, arguments) in zip(ids, calls, strict=True)
        ]
    elif calls:
        message["content"] = "\n".join([turn.content, *(_tagged(name, text) for name, text in calls)]).strip()
    finish = turn.finish_reason or ("tool_calls" if message.get("tool_calls") else "stop")
    logprobs = None
    if gives_logprobs and asked.payload.get("logprobs") and message["content"]:
        logprobs = _logprobs(turn, message["content"], asked.payload.get("top_logprobs") or 0)
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": counted.prompt_tokens,
            "completion_tokens": counted.completion_tokens,
            "total_tokens": counted.total_tokens,
            "prompt_tokens_details": {"cached_tokens": counted.cached_tokens},
        },
    }


def _logprobs(turn: Turn, content: str, alternatives: int) -> dict[str, Any]:
    """The log-probabilities of a text's words, of which the turn says what else the first one could have been."""
    words = re.findall(r"\s*\S+\s*\Z|\s*\S+", content)
    tokens = [_token(word, 0.0) for word in words]
    for token in tokens:
        token["top_logprobs"] = [dict(token)] if alternatives else []
    if turn.top_logprobs and tokens:
        likely = sorted(turn.top_logprobs.items(), key=lambda one: -one[1])[:alternatives]
        tokens[0]["logprob"] = turn.top_logprobs.get(words[0], likely[0][1] if likely else 0.0)
        tokens[0]["top_logprobs"] = [_token(token, logprob) for token, logprob in likely]
    return {"content": tokens, "refusal": None}


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _tagged(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'
