"""Tool calls for servers without tools: as one JSON object that follows a schema, or as tagged text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from swe_ai_fleet.agents.tool_call_dialects import (
    RawToolCall,
    calls_in,
    decode,
    dumps,
    items_of,
    render,
    whole_arguments,
)
from swe_ai_fleet.domain.json_values import is_list, mapping
from swe_ai_fleet.domain.message import AssistantMessage
from swe_ai_fleet.domain.tool import OperationSpec

JSON_INSTRUCTIONS = """\
You can call tools. Answer with one JSON object and nothing else, exactly like this:
{"thought": "<what you think>", "tool_calls": [{"name": "<tool>", "arguments": {"<parameter>": "<value>"}}]}
You may list several calls; then stop and wait for the results. With an empty list you call nothing. \
The tools, as JSON schemas:
"""
_LONGEST_SCHEMA = 32_768
# So that a small model that thinks in circles still reaches its calls.
_LONGEST_THOUGHT = 4_000
_ENVELOPE_KEYS = frozenset({"thought", "tool_calls"})
TAGGED_INSTRUCTIONS = """\
You can call tools. To call one, write its name and its arguments as JSON between tags, exactly like this:
<tool_call>
{"name": "<tool>", "arguments": {"<parameter>": "<value>"}}
</tool_call>
You may write several calls one after the other; then stop and wait for the results. The tools, as JSON schemas:
"""
_THOUGHT_HEAD = re.compile(r'\s*+\{\s*+"thought"\s*+:\s*+"')
# Complete characters of a JSON string; an unpaired surrogate waits for its other half.
_WHOLE_CHARACTERS = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*+'
)
_LONGEST_HEAD = 64
_LONGEST_ESCAPE = 12


def envelope_schema(tools: Sequence[OperationSpec], *, full: bool) -> dict[str, object]:
    """The schema of a reply. With `full`, each tool's arguments must follow its parameters, if those are small enough
    and have no references; otherwise they must be an object."""
    parameters = [json.dumps(spec.parameters, ensure_ascii=False) for spec in tools]
    if full and sum(map(len, parameters)) <= _LONGEST_SCHEMA:
        # A reference would be resolved in the wrong document.
        kinds = [
            _call_schema([spec.name], {"type": "object"} if '"$ref"' in text else spec.parameters)
            for spec, text in zip(tools, parameters, strict=True)
        ]
        call: dict[str, object] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    else:
        call = _call_schema([spec.name for spec in tools], {"type": "object"})
    return _object(
        {"thought": {"type": "string", "maxLength": _LONGEST_THOUGHT}, "tool_calls": {"type": "array", "items": call}}
    )


def response_format(schema: Mapping[str, object], *, name: str) -> dict[str, object]:
    """The request field `response_format` for a reply that follows a schema."""
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}


def show_envelope(message: AssistantMessage) -> str:
    """An assistant message in the form of the JSON object."""
    calls = ", ".join(_show_call(call.name, call.arguments) for call in message.tool_calls)
    return f'{{"thought": {dumps(message.content)}, "tool_calls": [{calls}]}}'


def read_envelope(content: str) -> tuple[str, list[RawToolCall]] | None:
    """The thought and the calls in such an object; None for text without a complete one.

    A call without a name is kept, with an empty name, so that the model gets an error.
    """
    start = content.rfind("</think>")
    body = content[start + len("</think>") if start >= 0 else 0 :].strip()
    if body.startswith("```"):
        body = body[3:].removeprefix("json").lstrip()
    if not body.startswith("{"):
        return None
    value, end = decode(body, 0)
    envelope = mapping(value)
    listed = envelope.get("tool_calls")
    if not (is_list(listed) or (envelope and _ENVELOPE_KEYS.issuperset(envelope))):
        return None
    thought = envelope.get("thought")
    calls = [call for item in (items_of(listed) if listed else ()) for call in _one_call(item)]
    thoughts = thought if isinstance(thought, str) else "" if thought is None else dumps(thought)
    rest = body[end:].strip().removeprefix("```").strip()
    return "\n".join(part for part in (thoughts, rest) if part), calls


def _one_call(item: object) -> list[RawToolCall]:
    calls = calls_in(item) if mapping(item) else None
    return calls or [RawToolCall(name="", arguments=dumps(item))]


def _show_call(name: str, arguments: str) -> str:
    # Arguments that are no JSON object are shown as a string, so that the model sees what it wrote.
    text = arguments.strip() if whole_arguments(arguments) else dumps(arguments)
    return f'{{"name": {dumps(name)}, "arguments": {text}}}'


def _call_schema(names: list[str], arguments: Mapping[str, object]) -> dict[str, object]:
    return _object({"name": {"type": "string", "enum": names}, "arguments": arguments})


def _object(properties: Mapping[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def show_tagged(message: AssistantMessage) -> str:
    """An assistant message with its calls as tagged text."""
    calls = [render(RawToolCall(name=call.name, arguments=call.arguments)) for call in message.tool_calls]
    return "\n".join([message.content, *calls]).strip()


def follow_schema(schema: Mapping[str, object]) -> str:
    """The instruction for a reply that follows a schema, for servers without `response_format`."""
    text = json.dumps(schema, ensure_ascii=False)
    return f"Answer with one JSON value that follows this JSON schema, and with nothing else:\n{text}"


class ThoughtDeltas:
    """Takes a reply in the JSON protocol piece by piece, and passes on the text of its thought.

    A reply that does not begin like such an object is passed on unchanged.
    """

    def __init__(self, on_delta: Callable[[str], None]) -> None:
        self._on_delta = on_delta
        self._take: Callable[[str], None] = self._begin
        self._buffered = ""

    def __call__(self, text: str) -> None:
        """Take the next piece."""
        self._take(text)

    def _begin(self, text: str) -> None:
        self._buffered += text
        head = _THOUGHT_HEAD.match(self._buffered)
        if head is not None:
            text, self._buffered, self._take = self._buffered[head.end() :], "", self._continue
            self._continue(text)
        elif len(self._buffered) > _LONGEST_HEAD or self._buffered.lstrip()[:1] not in ("", "{"):
            self._take = self._on_delta
            self._on_delta(self._buffered)

    def _continue(self, text: str) -> None:
        text = self._buffered + text
        whole = _WHOLE_CHARACTERS.match(text)
        end = whole.end() if whole else 0
        self._buffered = text[end:]
        if self._buffered.startswith('"') or len(self._buffered) > _LONGEST_ESCAPE:
            self._take = _ignore
        try:
            delta: str = json.loads(f'"{text[:end]}"', strict=False)
        except ValueError:
            delta = text[:end]
        if delta:
            self._on_delta(delta.encode("utf-8", "replace").decode())


def _ignore(text: str) -> None:
    """Takes the rest after the thought: the calls."""
