"""How a scripted server refuses and fails."""

from __future__ import annotations

from aiohttp import web

from swe_ai_fleet.testing.script import Failure


def refusal(status: int, message: str, *, code: str = "", param: str = "") -> web.Response:
    """An error as OpenAI's servers give it."""
    body = {"error": {"message": message, "type": "scripted", "param": param or None, "code": code or status}}
    return web.json_response(body, status=status)


def unauthorized() -> web.Response:
    """What callers without the key get."""
    return refusal(401, "Unauthorized")


def too_long(limit: int, tokens: int) -> web.Response:
    """A prompt that does not fit, in vLLM's words."""
    text = f"This model's maximum context length is {limit} tokens. However, your request has {tokens} input tokens."
    return refusal(400, text, param="input_tokens")


def fail(request: web.Request, failure: Failure) -> web.Response:
    """What a scripted failure says in place of an answer."""
    if failure.drop and request.transport is not None:
        request.transport.close()
    if failure.body is not None:
        body = failure.body if isinstance(failure.body, bytes) else failure.body.encode()
        response = web.Response(status=failure.status, body=body, content_type="application/json")
    else:
        response = refusal(failure.status, failure.message, code=failure.code, param=failure.param)
    if failure.retry_after_seconds is not None:
        response.headers["Retry-After"] = f"{failure.retry_after_seconds:g}"
    return response
