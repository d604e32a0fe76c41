"""Tool calls for servers that take no tools: as one JSON object that a schema constrains, or as tagged text."""

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
# A small model that thinks in circles comes to its calls all the same.
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
# Whole characters of a JSON string; half a surrogate pair waits for the other half.
_WHOLE_CHARACTERS = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*+'
)
_LONGEST_HEAD = 64
_LONGEST_ESCAPE = 12


def envelope_schema(tools: Sequence[OperationSpec], *, full: bool) -> dict[str, object]:
    """The schema of a reply. With `full` each tool's arguments are held to its parameters, where those are small
    enough and stand on their own; else to being an object."""
    parameters = [json.dumps(spec.parameters, ensure_ascii=False) for spec in tools]
    if full and sum(map(len, parameters)) <= _LONGEST_SCHEMA:
        # A reference would point into the wrong document from here.
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
    """The request field that holds a reply to a schema."""
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}


def show_envelope(message: AssistantMessage) -> str:
    """A message of the model's as the object that it was, or would have been."""
    calls = ", ".join(_show_call(call.name, call.arguments) for call in message.tool_calls)
    return f'{{"thought": {dumps(message.content)}, "tool_calls": [{calls}]}}'


def read_envelope(content: str) -> tuple[str, list[RawToolCall]] | None:
    """The thought and the calls of such an object; None where the text holds none, or not the whole of it.

    A call without a name is kept, with an empty one, so that the model can be told.
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
    # Text that is no JSON object travels as a string: what the model wrote stays visible to it.
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
    """A message of the model's with its calls as text."""
    calls = [render(RawToolCall(name=call.name, arguments=call.arguments)) for call in message.tool_calls]
    return "\n".join([message.content, *calls]).strip()


def follow_schema(schema: Mapping[str, object]) -> str:
    """How to ask for a reply that follows a schema where the server cannot be told."""
    text = json.dumps(schema, ensure_ascii=False)
    return f"Answer with one JSON value that follows this JSON schema, and with nothing else:\n{text}"


class ThoughtDeltas:
    """Hears a reply in the JSON protocol piece by piece and passes on the text of its thought.

    A reply that does not begin like one of that protocol is passed on as it is.
    """

    def __init__(self, on_delta: Callable[[str], None]) -> None:
        self._on_delta = on_delta
        self._hear: Callable[[str], None] = self._begin
        self._held = ""

    def __call__(self, text: str) -> None:
        """Take the next piece."""
        self._hear(text)

    def _begin(self, text: str) -> None:
        self._held += text
        head = _THOUGHT_HEAD.match(self._held)
        if head is not None:
            text, self._held, self._hear = self._held[head.end() :], "", self._go_on
            self._go_on(text)
        elif len(self._held) > _LONGEST_HEAD or self._held.lstrip()[:1] not in ("", "{"):
            self._hear = self._on_delta
            self._on_delta(self._held)

    def _go_on(self, text: str) -> None:
        text = self._held + text
        whole = _WHOLE_CHARACTERS.match(text)
        end = whole.end() if whole else 0
        self._held = text[end:]
        if self._held.startswith('"') or len(self._held) > _LONGEST_ESCAPE:
            self._hear = _ignore
        try:
            delta: str = json.loads(f'"{text[:end]}"', strict=False)
        except ValueError:
            delta = text[:end]
        if delta:
            self._on_delta(delta.encode("utf-8", "replace").decode())


def _ignore(text: str) -> None:
    """What follows the thought is calls."""
