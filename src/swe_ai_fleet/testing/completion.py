"""What a scripted turn looks like as the completion of an OpenAI-compatible server."""

from __future__ import annotations

import json
from typing import Any

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.testing.json_mode import held_to, schema_of
from swe_ai_fleet.testing.script import ScriptRequest, Turn

CHARACTERS_PER_TOKEN = 4


def completion_of(
    turn: Turn, asked: ScriptRequest, *, number: int, model: str, prompt: Usage, obeys_schemas: bool
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
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": counted.prompt_tokens,
            "completion_tokens": counted.completion_tokens,
            "total_tokens": counted.total_tokens,
            "prompt_tokens_details": {"cached_tokens": counted.cached_tokens},
        },
    }


def _tagged(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'
