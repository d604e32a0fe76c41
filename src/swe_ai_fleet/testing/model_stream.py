"""A scripted reply as a stream of server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aiohttp import web

from swe_ai_fleet.testing.script import Failure


def chunks_of(completion: Mapping[str, Any], payload: Mapping[str, Any], *, characters: int) -> list[bytes]:
    """The events of a completion, `characters` of text or arguments each, usage where the request asks for it."""
    choice = completion["choices"][0]
    head = {"id": completion["id"], "object": "chat.completion.chunk", "created": 0, "model": completion["model"]}
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in _deltas(choice["message"], characters)
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    options: dict[str, Any] = payload.get("stream_options") or {}
    if options.get("include_usage"):
        chunks.append({**head, "choices": [], "usage": completion["usage"]})
    return [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks] + [b"data: [DONE]\n\n"]


async def send_stream(request: web.Request, chunks: Sequence[bytes], breaks: Failure | None) -> web.StreamResponse:
    """Send the events, as far as the failure lets them."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for chunk in chunks[: breaks.after_chunks] if breaks is not None else chunks:
        await response.write(chunk)
    if breaks is None:
        return response
    if not breaks.drop:
        await response.write(b"data: %b\n\n" % _last_words(breaks))
    elif request.transport is not None:
        request.transport.close()
    return response


def _last_words(failure: Failure) -> bytes:
    if failure.body is not None:
        return failure.body if isinstance(failure.body, bytes) else failure.body.encode()
    error = {"message": failure.message, "type": "scripted", "code": failure.code or failure.status}
    return json.dumps({"error": error}).encode()


def _deltas(message: Mapping[str, Any], characters: int) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in _pieces(message["content"] or "", characters):
        yield {"content": piece}
    for index, call in enumerate(message.get("tool_calls", ())):
        function: dict[str, str] = call["function"]
        named = {"name": function["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, **call, "function": named}]}
        for piece in _pieces(function["arguments"], characters):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str, characters: int) -> Iterator[str]:
    for start in range(0, len(text), characters):
        yield text[start : start + characters]
