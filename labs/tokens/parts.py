"""What a request to a model is made of, in characters.

Tools count as the JSON that they are sent as, messages by their texts, calls by names and arguments: what a model
reads, without the punctuation of the protocol.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

SYSTEM, TOOLS, MAP, CONTRIBUTORS, TASK, OPENING = "system", "tools", "map", "contributors", "task", "opening"
SAID, CALLS, REMARKS = "assistant text", "tool calls", "remarks"
OBSERVED = "observed: "
"""What begins the name of a tool's observations."""

ORDER = (SYSTEM, TOOLS, OPENING, MAP, CONTRIBUTORS, TASK, SAID, CALLS, REMARKS)
"""Parts as they are shown; observations follow by tool."""

_MAP = re.compile(r"^[^\n]+\n```\n.*?^```\n", re.MULTILINE | re.DOTALL)
_CONTRIBUTORS = re.compile(r"^[^\n]*\bcontributors\b[^\n]*\n.*\Z", re.MULTILINE | re.DOTALL)
_TASK = "# Task\n"


def parts_of(body: Mapping[str, Any], task: str) -> dict[str, int]:
    """Characters by part of a request. `task` is the task's text as it was handed in.

    `opening` is what the first message of the user has beside the repository's map, the files for contributors and the
    task; `remarks` are messages that the fleet puts in later. The figures add up to all that is sent.
    """
    counts = {TOOLS: len(json.dumps(body["tools"], ensure_ascii=False)) if body.get("tools") else 0}
    names: dict[str, str] = {}

    def count(part: str, characters: int) -> None:
        counts[part] = counts.get(part, 0) + characters

    for message in body["messages"]:
        text = _text(message.get("content"))
        match message["role"]:
            case "system":
                count(SYSTEM, len(text))
            case "assistant":
                count(SAID, len(text))
                for call in message.get("tool_calls") or ():
                    function = call["function"]
                    names[call["id"]] = function["name"]
                    count(CALLS, len(function["name"]) + len(function["arguments"]))
            case "tool":
                count(OBSERVED + names.get(message["tool_call_id"], "?"), len(text))
            case _ if not names:
                for part, characters in _opening(text, task).items():
                    count(part, characters)
            case _:
                count(REMARKS, len(text))
    return counts


def observations(body: Mapping[str, Any]) -> list[str]:
    """What stands behind the last reply in a request: an observation for each of its calls."""
    found: list[str] = []
    for message in reversed(body["messages"]):
        if message["role"] == "assistant":
            break
        if message["role"] == "tool":
            found.insert(0, _text(message.get("content")))
    return found


def _opening(text: str, task: str) -> dict[str, int]:
    before, _, behind = text.partition(_TASK)
    told = len(task) if task in behind else 0
    rules = _CONTRIBUTORS.search(before)
    mapped = _MAP.search(before[: rules.start()] if rules else before)
    shares = {MAP: len(mapped[0]) if mapped else 0, CONTRIBUTORS: len(rules[0]) if rules else 0, TASK: told}
    return shares | {OPENING: len(text) - sum(shares.values())}


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    return json.dumps(content, ensure_ascii=False) if content else ""
