"""Tool calls that a model wrote as text, for servers and models without native ones."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, cast

_OPENING = re.compile(r"<think>|<tool_call>|<function=([^<>\s]{1,200})>")
_NAME = re.compile(r'"name"\s*:\s*"([^"\\\s]{1,200})"')
_DECODER = json.JSONDecoder()
# Each opening tag may cost a walk to the end of the text.
_MOST_TAGS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RawToolCall:
    """A call found in text. `arguments` is the text of its JSON value, well-formed or not."""

    name: str
    arguments: str


def render(call: RawToolCall) -> str:
    """The call as text that `parse` reads back."""
    arguments, end = _decode(call.arguments, 0)
    # Text that is no JSON object travels as a string: what the model wrote stays visible to it.
    whole = isinstance(arguments, dict) and not call.arguments[end:].strip()
    body = (
        f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments if whole else json.dumps(call.arguments)}}}'
    )
    return f"<tool_call>\n{body}\n</tool_call>"


def parse(text: str, *, truncated: bool = False) -> tuple[str, tuple[RawToolCall, ...]]:
    """Take the calls out of a reply; never raises.

    Reads `<tool_call>{"name": …, "arguments": {…}}</tool_call>` and `<function=name>{…}</function>`, not inside
    `<think>`. A missing closing tag is forgiven where the JSON is whole, unless the reply was `truncated`. Whatever
    is no call stays in the text.

    Returns: the text without the calls, and the calls in their order.
    """
    kept: list[str] = []
    calls: list[RawToolCall] = []
    position = 0
    for _ in range(_MOST_TAGS):
        tag = _OPENING.search(text, position)
        if tag is None:
            break
        found: tuple[int, list[RawToolCall]] | None
        if tag[0] == "<think>":
            closed = text.find("</think>", tag.end())
            found = None
            after = closed if closed >= 0 else len(text)
        elif tag[1]:
            found = _function(text, tag.end(), tag[1], truncated)
            after = tag.end()
        else:
            found = _tool_call(text, tag.end(), truncated)
            after = tag.end()
        if found is None:
            kept.append(text[position:after])
            position = after
        else:
            kept.append(text[position : tag.start()])
            position = found[0]
            calls += found[1]
    if not calls:
        return text, ()
    return ("".join(kept) + text[position:]).strip(), tuple(calls)


def _tool_call(text: str, start: int, truncated: bool) -> tuple[int, list[RawToolCall]] | None:
    nested = _OPENING.match(text, _skip_space(text, start))
    if nested is not None and nested[1]:
        found = _function(text, nested.end(), nested[1], truncated)
        return None if found is None else (_after_tag(text, found[0], "</tool_call>") or found[0], found[1])
    value, end = _decode(text, start)
    if value is not None:
        calls = _calls(value)
        closed = _after_tag(text, end, "</tool_call>")
        if calls is None or (closed is None and truncated):
            return None
        return closed or end, calls
    closing = text.find("</tool_call>", start)
    if closing < 0:
        return None
    body = text[start:closing].strip()
    # Broken JSON that names its tool is still a call: the tool's complaint is what helps the model.
    name = _NAME.search(body)
    return None if name is None else (closing + len("</tool_call>"), [RawToolCall(name=name[1], arguments=body)])


def _function(text: str, start: int, name: str, truncated: bool) -> tuple[int, list[RawToolCall]] | None:
    value, end = _decode(text, start)
    if value is not None:
        closed = _after_tag(text, end, "</function>")
        if closed is not None or (isinstance(value, dict) and not truncated):
            return closed or end, [RawToolCall(name=name, arguments=text[start:end].strip())]
    closing = text.find("</function>", start)
    if closing < 0:
        return None
    body = text[start:closing].strip()
    return closing + len("</function>"), [RawToolCall(name=name, arguments=body or "{}")]


def _calls(value: object) -> list[RawToolCall] | None:
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    calls: list[RawToolCall] = []
    for item in items:
        fields = cast("dict[str, object]", item) if isinstance(item, dict) else {}
        name = fields.get("name")
        if not isinstance(name, str) or not name:
            return None
        arguments = fields.get("arguments", fields.get("parameters"))
        if arguments is None:
            arguments = {}
        try:
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        except RecursionError:
            return None
        calls.append(RawToolCall(name=name, arguments=text))
    return calls or None


def _decode(text: str, start: int) -> tuple[Any, int]:
    try:
        # Reading JSON by its own rules lets an argument contain a closing tag.
        return _DECODER.raw_decode(text, _skip_space(text, start))
    except (ValueError, RecursionError):
        return None, start


def _skip_space(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start


def _after_tag(text: str, start: int, tag: str) -> int | None:
    start = _skip_space(text, start)
    return start + len(tag) if text.startswith(tag, start) else None
