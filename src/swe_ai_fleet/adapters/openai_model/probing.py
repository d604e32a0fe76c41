"""Which of the things servers differ in this one can do."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swe_ai_fleet.adapters.openai_model.answers import ListedModel
from swe_ai_fleet.adapters.openai_model.faults import Refusal
from swe_ai_fleet.domain.message import ModelCapabilities, ToolProtocol

_OLD_LIMIT_FIELD = "max_tokens"
_NEW_LIMIT_FIELD = "max_completion_tokens"
_PROBE_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the probe found; `limit_field` is what the server calls the longest completion."""

    capabilities: ModelCapabilities
    limit_field: str


def is_about_the_request(refusal: Refusal) -> bool:
    """Whether the server refused what was asked for, rather than who asked or the moment."""
    if refusal.status in (400, 405, 422, 501):
        return not refusal.too_long
    # OpenRouter has no endpoint with tools (404), llama.cpp was started without them (500).
    return refusal.status in (404, 500) and _names(refusal, "tool")


async def find_out(model: ListedModel, ask: Callable[[bytes], Awaitable[Refusal | None]]) -> Findings:
    """Ask with a strict tool; leave out what the refusal names and ask once more.

    The request is the kind that agents send (the model is free to call or not), as servers take a forced call even
    where they cannot read a free one. Raises what `ask` raises.
    """
    native, strict, limit_field = True, True, _OLD_LIMIT_FIELD
    refusal = await ask(_body(model.id, strict=True, limit_field=limit_field))
    if refusal is not None and _names(refusal, _OLD_LIMIT_FIELD):
        limit_field = _NEW_LIMIT_FIELD
        refusal = await ask(_body(model.id, strict=True, limit_field=limit_field))
    if refusal is not None:
        strict = False
        # One that names tools means all of them; any other may be about the one unusual field.
        about_strict = _names(refusal, "strict") or not _names(refusal, "tool")
        native = about_strict and not await ask(_body(model.id, strict=False, limit_field=limit_field))
    capabilities = ModelCapabilities(
        model=model.id,
        max_model_len=model.longest,
        protocol=ToolProtocol.NATIVE if native else ToolProtocol.TEXT,
        strict_schemas=strict,
        server=model.owned_by or "",
    )
    return Findings(capabilities=capabilities, limit_field=limit_field)


def _names(refusal: Refusal, *words: str) -> bool:
    said = f"{refusal.message} {refusal.param}".lower()
    return any(word in said for word in words)


def _body(model: str, *, strict: bool, limit_field: str) -> bytes:
    function: dict[str, object] = {
        "name": "answer",
        "description": "Give the answer.",
        "parameters": {
            "type": "object",
            "properties": {"answer": {"type": "string"}},
            "required": ["answer"],
            "additionalProperties": False,
        },
    }
    if strict:
        function["strict"] = True
    request = {
        "model": model,
        "messages": [{"role": "user", "content": "Say ok."}],
        "tools": [{"type": "function", "function": function}],
        limit_field: _PROBE_TOKENS,
    }
    return json.dumps(request).encode()
