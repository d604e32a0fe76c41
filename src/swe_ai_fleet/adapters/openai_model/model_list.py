"""What a server says about the models it has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from swe_ai_fleet.agents.tool_call_json import fields_of

_LENGTHS = ("max_model_len", "context_length", "context_window", "max_context_length")
_PICTURES = frozenset({"image", "images", "vision", "multimodal"})
_LONGEST = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """One entry of the list. `longest` is the context window in tokens, 0 where the server does not say."""

    id: str
    owned_by: str = ""
    longest: int = 0
    images: bool = False


def read_models(body: bytes) -> list[ListedModel]:
    """The models a server lists. Raises ValueError for anything else."""
    try:
        listed: object = json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    entries = fields_of(listed).get("data")
    if not isinstance(entries, list):
        raise ValueError("no list of models")
    models: list[ListedModel] = []
    for entry in cast("list[object]", entries):
        fields = fields_of(entry)
        name, owner = fields.get("id"), fields.get("owned_by")
        if isinstance(name, str) and name:
            lengths = (fields.get(key) for key in _LENGTHS)
            longest = next((n for n in lengths if isinstance(n, int) and 0 < n < _LONGEST), 0)
            owned_by = owner if isinstance(owner, str) else ""
            models.append(ListedModel(id=name, owned_by=owned_by, longest=longest, images=_takes_images(fields)))
    return models


def _takes_images(fields: Mapping[str, object]) -> bool:
    """By what OpenRouter (`architecture.input_modalities`), Mistral (`capabilities.vision`) and llama.cpp say."""
    capabilities = fields.get("capabilities")
    said = [fields_of(fields.get("architecture")).get("input_modalities"), fields.get("input_modalities"), capabilities]
    words = [word for list_ in said if isinstance(list_, list) for word in cast("list[object]", list_)]
    flags = fields_of(capabilities)
    return any(word in _PICTURES for word in words if isinstance(word, str)) or flags.get("vision") is True
