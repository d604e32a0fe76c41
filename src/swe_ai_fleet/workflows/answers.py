"""What an agent's answer is to the nodes after it."""

from __future__ import annotations

import json
from typing import Any

from swe_ai_fleet.domain.workflow import JsonValue

_FENCE = "```"
_MOST_CHARS = 1_000_000


def answer_output(answer: str, **more: JsonValue) -> dict[str, JsonValue]:
    """The output of an agent node: `answer` is its text, `data` the JSON that the text is, else None.

    A text that is one fenced block of JSON counts as well. `more` is put beside them.
    """
    return {"answer": answer, "data": _data(answer), **more}


def _data(answer: str) -> JsonValue:
    text = answer.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE) and len(text) > 2 * len(_FENCE):
        opening, _, rest = text.partition("\n")
        text = rest.removesuffix(_FENCE).strip() if opening[len(_FENCE) :].strip().lower() in ("", "json") else text
    if len(text) > _MOST_CHARS or not text.startswith(("{", "[")):
        return None
    try:
        found: Any = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
