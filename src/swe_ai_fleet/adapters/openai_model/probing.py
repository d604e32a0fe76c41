"""The probe of a model server: its models, and those of its features in which servers differ."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from swe_ai_fleet.adapters.openai_model.answers import ErrorAnswer, ReplyContext, read_reply
from swe_ai_fleet.adapters.openai_model.faults import ServerRefusal
from swe_ai_fleet.adapters.openai_model.streaming import BrokenStream, read_answer
from swe_ai_fleet.adapters.openai_model.tool_protocols import response_format
from swe_ai_fleet.domain.json_values import is_list, items, mapping, mappings, parse_json, string
from swe_ai_fleet.domain.message import ModelCapabilities, ToolProtocol

_LENGTHS = ("max_model_len", "context_length", "context_window", "max_context_length")
_PICTURES = frozenset({"image", "images", "vision", "multimodal"})
_LONGEST = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """A model in the server's list. `longest` is the context window in tokens, 0 if the server does not report it."""

    id: str
    owned_by: str = ""
    longest: int = 0
    images: bool = False


def read_models(body: bytes) -> list[ListedModel]:
    """The models in a server's list. Raises ValueError for another answer."""
    entries = mapping(parse_json(body)).get("data")
    if not is_list(entries):
        raise ValueError("no list of models")
    models: list[ListedModel] = []
    for fields in mappings(entries):
        if name := string(fields.get("id")):
            lengths = (fields.get(key) for key in _LENGTHS)
            longest = next((n for n in lengths if isinstance(n, int) and 0 < n < _LONGEST), 0)
            owned_by = string(fields.get("owned_by"))
            models.append(ListedModel(id=name, owned_by=owned_by, longest=longest, images=_takes_images(fields)))
    return models


def _takes_images(fields: Mapping[str, object]) -> bool:
    """Whether a model takes images, in the fields of OpenRouter, Mistral (`capabilities.vision`) and llama.cpp."""
    capabilities = fields.get("capabilities")
    declared = (mapping(fields, "architecture").get("input_modalities"), fields.get("input_modalities"), capabilities)
    words = {word for list_ in declared for word in items(list_) if isinstance(word, str)}
    return bool(words & _PICTURES) or mapping(capabilities).get("vision") is True


_OLD_LIMIT_FIELD = "max_tokens"
_NEW_LIMIT_FIELD = "max_completion_tokens"
_PROBE_TOKENS = 16
_JSON_PROBE_TOKENS = 48
_ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}
_VERDICT = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}

Ask = Callable[[bytes], Awaitable[ServerRefusal | bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The results of the probe; `limit_field` is the server's name of the limit of a completion."""

    capabilities: ModelCapabilities
    limit_field: str


def is_about_the_request(refusal: ServerRefusal) -> bool:
    """Whether the server refused the request's content, rather than its sender or its time."""
    if refusal.status in (400, 405, 422, 501):
        return not refusal.too_long
    # OpenRouter has no endpoint with tools (404), llama.cpp was started without them (500).
    return refusal.status in (404, 500) and refusal.names("tool", "response_format", "schema", "grammar")


async def probe_features(model: ListedModel, ask: Ask) -> Findings:
    """Probe with a strict tool and parallel calls; repeat without the features that a refusal names.

    The request is like those of agents (the model may call the tool or not), since some servers accept a forced call
    but cannot parse a free one. A server with tools is assumed to support schemas for replies as well, until it refuses
    one; a server without tools is asked for a reply with a schema. Raises the exceptions of `ask`.
    """
    native, strict, parallel, limit_field = True, True, True, _OLD_LIMIT_FIELD
    answer = await ask(_with_tool(model.id, limit_field))
    if isinstance(answer, ServerRefusal) and answer.names(_OLD_LIMIT_FIELD):
        limit_field = _NEW_LIMIT_FIELD
        answer = await ask(_with_tool(model.id, limit_field))
    if isinstance(answer, ServerRefusal) and answer.names("parallel"):
        parallel = False
        answer = await ask(_with_tool(model.id, limit_field, parallel=False))
    if isinstance(answer, ServerRefusal):
        strict = False
        # A refusal that names tools means all of them; another one may be about the field `strict`.
        about_strict = answer.names("strict") or not answer.names("tool")
        native = about_strict and isinstance(
            await ask(_with_tool(model.id, limit_field, strict=False, parallel=False)), bytes
        )
    if native:
        protocol = ToolProtocol.NATIVE
    else:
        parallel = True
        schema = response_format(_VERDICT, name="verdict")
        obeys = _obeys(await ask(_request(model.id, limit_field, _JSON_PROBE_TOKENS, response_format=schema)))
        protocol = ToolProtocol.JSON if obeys else ToolProtocol.TEXT
    capabilities = ModelCapabilities(
        model=model.id,
        max_model_len=model.longest,
        protocol=protocol,
        parallel_tools=parallel,
        strict_schemas=strict,
        structured_output=protocol is not ToolProtocol.TEXT,
        images=model.images,
        server=model.owned_by,
    )
    return Findings(capabilities=capabilities, limit_field=limit_field)


def _obeys(answer: ServerRefusal | bytes) -> bool:
    """Whether the reply follows the schema, or is the beginning of such a reply.

    An empty reply counts: a model with separate reasoning may have used up the tokens.
    """
    if isinstance(answer, ServerRefusal):
        return False
    context = ReplyContext(protocol=ToolProtocol.TEXT, tools_offered=False, raw=True)
    try:
        reply = read_reply(read_answer(answer, []), context, repairs=(), new_call_id=str, duration_ms=0)
    except (ValueError, ErrorAnswer, BrokenStream):
        return False
    text = "".join(reply.message.content.split())
    return any(whole.startswith(text) for whole in ('{"ok":true}', '{"ok":false}'))


def _with_tool(model: str, limit_field: str, *, strict: bool = True, parallel: bool = True) -> bytes:
    function: dict[str, object] = {"name": "answer", "description": "Give the answer.", "parameters": _ANSWER}
    if strict:
        function["strict"] = True
    extra: dict[str, object] = {"parallel_tool_calls": True} if parallel else {}
    return _request(model, limit_field, _PROBE_TOKENS, tools=[{"type": "function", "function": function}], **extra)


def _request(model: str, limit_field: str, tokens: int, **extra: object) -> bytes:
    messages = [{"role": "user", "content": "Say ok."}]
    return json.dumps({"model": model, "messages": messages, limit_field: tokens, **extra}).encode()
