"""What of a foreign agent's request may reach a model's server."""

from __future__ import annotations

import re
from collections.abc import Mapping

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import is_object, mapping, mappings, parse_json, string

# The operator's to say: whose turn it is, what may be kept or shared, what a call costs, where the server goes by
# itself, and code that it runs. Names are those of OpenAI, vLLM, SGLang, LiteLLM and OpenRouter.
_OPERATORS = frozenset(
    {
        "best_of", "cache_salt", "chat_template", "custom_llm_provider", "custom_logit_processor", "custom_params",
        "data_parallel_rank", "ec_transfer_params", "extra_body", "fallbacks", "keep_alive", "kv_transfer_params",
        "logits_processors", "models", "options", "plugins", "priority", "provider", "request_id", "rid", "route",
        "service_tier", "session_params", "store", "transforms", "use_beam_search", "vllm_xargs", "web_search_options",
    }
)  # fmt: skip
_PLACES = re.compile(r"(?:^|_)(?:urls?|hosts?|ports?|base|keys?|headers?|paths?|proxy|endpoint|room)$")
# Not those that a server would run by itself.
_TOOLS = ("function", "custom")
_WITH_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


def json_body(body: bytes) -> Mapping[str, object]:
    """The object in a request's body. Raises InvalidRequest."""
    try:
        fields = parse_json(body, finite=True)
    except ValueError as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from None
    if not is_object(fields):
        raise InvalidRequest("the body is not a JSON object")
    return fields


def screened(asked: Mapping[str, object]) -> dict[str, object]:
    """The fields of a chat completion that an agent may set; its values are nested no deeper than is gone through.

    Raises InvalidRequest for what is not served.
    """
    kept = {name: value for name, value in asked.items() if name not in _OPERATORS and _PLACES.search(name) is None}
    if kept.get("n") not in (None, 1):
        raise InvalidRequest("one answer to a request is served", field="n")
    for message in mappings(kept.get("messages")):
        _check_places(message)
    kept["tools"] = [tool for tool in mappings(kept.get("tools")) if tool.get("type") in _TOOLS]
    if not kept["tools"]:
        kept = {name: value for name, value in kept.items() if name not in _WITH_TOOLS}
    return kept


def _check_places(part: Mapping[str, object]) -> None:
    """Refuse what the server would have to fetch."""
    for name, value in part.items():
        if name.endswith("_url"):
            url = string(value) or string(mapping(value).get("url"))
            if not url.startswith("data:"):
                raise InvalidRequest("send pictures and files as data: URLs, nothing is fetched", field="messages")
            continue
        for inner in (mapping(value), *mappings(value)):
            _check_places(inner)
