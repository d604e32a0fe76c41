"""Tool calls that a model wrote as text, for servers and models without native ones."""

from __future__ import annotations

import json

from swe_ai_fleet.agents.tool_call_dialects import OPENING, DialectReader
from swe_ai_fleet.agents.tool_call_json import RawToolCall, decode

__all__ = ["RawToolCall", "parse", "render", "whole_arguments"]

_MOST_MARKS = 256
_MOST_WALKS = 8
_SMALL = 100_000
_THOUGHT_ENDS = ("</think>", "</thinking>")


def whole_arguments(arguments: str) -> bool:
    """Whether a call's arguments are one JSON object and nothing else."""
    value, end = decode(arguments, 0)
    return isinstance(value, dict) and not arguments[end:].strip()


def render(call: RawToolCall) -> str:
    """The call as text that `parse` reads back."""
    # Text that is no JSON object travels as a string: what the model wrote stays visible to it.
    arguments = call.arguments if whole_arguments(call.arguments) else json.dumps(call.arguments)
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {arguments}}}\n</tool_call>'


def parse(text: str, *, truncated: bool = False) -> tuple[str, tuple[RawToolCall, ...]]:
    """Take the calls out of a reply; never raises, and takes time that grows with the text's length only.

    Reads the notations of Hermes and Qwen (`<tool_call>` with JSON), Llama (`<function=name>{…}</function>`,
    `<|python_tag|>`), Qwen coder and MiniMax (`<parameter=key>`), Mistral (`[TOOL_CALLS]`), GLM (`<arg_key>`),
    DeepSeek and Kimi (special tokens), and a call in JSON that is the whole reply; never inside `<think>`. A missing
    closing tag is forgiven where the JSON is whole, unless the reply was `truncated`. Whatever is no call stays in
    the text.

    Returns: the text without the calls, and the calls in their order.
    """
    reader = DialectReader(text, truncated=truncated)
    kept: list[str] = []
    calls: list[RawToolCall] = []
    position, thought = 0, _unopened_thought(text)
    for _ in range(_MOST_MARKS):
        mark = OPENING.search(text, position)
        if mark is None or reader.walked > _MOST_WALKS * len(text) + _SMALL:
            break
        if mark["thought"]:
            closed = reader.find(f"</{mark['thought'][1:]}", mark.end())
            found, after = None, closed if closed >= 0 else len(text)
        else:
            found, after = reader.read(mark), mark.end()
        if found is not None and found.end <= thought:
            found, after = None, thought
        if found is None:
            kept.append(text[position:after])
            position = after
        else:
            kept.append(text[position : mark.start()])
            position = found.end
            calls += found.calls
    if calls:
        return ("".join(kept) + text[position:]).strip(), tuple(calls)
    start = _after_thought(text)
    whole = reader.whole(start)
    return (text[:start].strip(), whole) if whole else (text, ())


def _unopened_thought(text: str) -> int:
    """Where a thought ends whose opening tag stood in the prompt; 0 where there is none."""
    end = text.find("</think>")
    return 0 if end < 0 or "<think>" in text[:end] else end + len("</think>")


def _after_thought(text: str) -> int:
    return max(end + len(tag) if (end := text.rfind(tag)) >= 0 else 0 for tag in _THOUGHT_ENDS)
