"""Writes messages and tools as JSON; with native tools each message of a conversation is written once."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import ref

from swe_ai_fleet.adapters.openai_model.tool_protocols import (
    JSON_INSTRUCTIONS,
    TAGGED_INSTRUCTIONS,
    envelope_schema,
    response_format,
    show_envelope,
    show_tagged,
)
from swe_ai_fleet.domain.json_values import is_mapping, is_object, items, mapping, parse_json
from swe_ai_fleet.domain.message import (
    AssistantMessage,
    Message,
    Sampling,
    ToolCall,
    ToolMessage,
    ToolProtocol,
    UserMessage,
)
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.tool import FOR_PROGRAMS, OperationSpec

_CACHE_BYTES = 64 * 1024 * 1024
_CACHED_TOOL_SETS = 64
_Part = str | dict[str, object]
"""A text, or a picture in the server's form."""
_PLAIN = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NO_NAME_LETTER = re.compile(r"[^A-Za-z0-9_-]+")
_SHOW = {ToolProtocol.JSON: show_envelope, ToolProtocol.TEXT: show_tagged}
_MATTERS_OF_COURSE = (("minLength", 1), ("minItems", 1), ("minimum", 0), ("exclusiveMinimum", 0))
_INSTRUCTIONS = {ToolProtocol.JSON: JSON_INSTRUCTIONS, ToolProtocol.TEXT: TAGGED_INSTRUCTIONS}


@dataclass(slots=True)
class SentMessages:
    """A conversation's messages as JSON: the next request usually has the same ones and more.

    `ids` are the ids of calls on the wire by our own ids; `named` are the ids of all calls in the messages.
    """

    first: Callable[[], Message | None]
    rest: list[Message] = field(default_factory=list[Message])
    ids: dict[str, str] = field(default_factory=dict[str, str])
    taken: set[str] = field(default_factory=set[str])
    named: set[str] = field(default_factory=set[str])
    json: bytearray = field(default_factory=bytearray)

    def begins(self, messages: Sequence[Message]) -> bool:
        """Whether these messages begin with the same ones, and the others have calls of their own."""
        length = len(self.rest) + 1
        if self.first() is not messages[0] or self.rest != list(messages[1:length]):
            return False
        return not any(call.call_id in self.named for message in messages[length:] for call in _calls(message))

    def add(self, messages: Sequence[Message]) -> None:
        """Write further messages."""
        _name_calls(messages, self.ids, self.taken)
        for message in messages:
            if isinstance(message, ToolMessage):
                self.named.add(message.call_id)
                ids: tuple[str, ...] = (self.ids.get(message.call_id, message.call_id),)
            else:
                self.named.update(call.call_id for call in _calls(message))
                ids = tuple([self.ids[call.call_id] for call in _calls(message)])
            self.json += (b"," if self.json else b"") + dump_json(_as_wire(message, ids))


@dataclass(frozen=True, slots=True)
class _ToolSet:
    """Tools as JSON. It references the tools, so that their `id()`s are not reused."""

    specs: tuple[OperationSpec, ...]
    json: bytes


class WireWriter:
    """Writes request bodies. Messages are frozen, so with native tools each is written once, not once per call.

    The newest 64 MiB of all conversations' JSON are cached. `head` is the inside of a body's other
    fields, `response_format` another one of them.
    """

    def __init__(self, *, cache_bytes: int = _CACHE_BYTES) -> None:
        self._conversations: OrderedDict[int, SentMessages] = OrderedDict()
        self._cache_bytes = cache_bytes
        self._tools: OrderedDict[tuple[str, tuple[int, ...]], _ToolSet] = OrderedDict()

    def conversation(self, messages: Sequence[Message]) -> SentMessages:
        """The messages as JSON; only those that were not sent before are written now."""
        if not messages:
            return SentMessages(lambda: None)
        key = id(messages[0])
        conversation = self._conversations.pop(key, None)
        if conversation is None or not conversation.begins(messages):
            conversation = SentMessages(ref(messages[0], lambda _: self._conversations.pop(key, None)))
            conversation.add(messages)
        else:
            conversation.add(messages[len(conversation.rest) + 1 :])
        conversation.rest = list(messages[1:])
        self._conversations[key] = conversation
        while sum(len(cached.json) for cached in self._conversations.values()) > self._cache_bytes:
            self._conversations.popitem(last=False)
        return conversation

    def native(
        self,
        conversation: SentMessages,
        tools: Sequence[OperationSpec],
        *,
        head: bytes,
        strict: bool,
        response_format: bytes = b"",
    ) -> bytes:
        """The body of a request with native tools."""
        offered = b',"tools":%b' % self._native_tools(tools, strict) if tools else b""
        return b'{%b,"messages":[%b]%b%b}' % (head, conversation.json, offered, _format_field(response_format))

    def spoken(
        self,
        messages: Sequence[Message],
        tools: Sequence[OperationSpec],
        *,
        head: bytes,
        protocol: ToolProtocol,
        response_format: bytes = b"",
    ) -> bytes:
        """The body of a request that describes tools, calls and results as text."""
        names: dict[str, str] = {}
        turns: list[tuple[str, list[_Part]]] = [("system", [])]
        for message in messages:
            names.update((call.call_id, call.name) for call in _calls(message))
            role = "user" if isinstance(message, ToolMessage) else message.role
            # Some chat templates require alternating roles.
            if turns[-1][0] != role:
                turns.append((role, []))
            parts = turns[-1][1]
            if text := _spoken(message, names, protocol):
                parts.append(text)
            if isinstance(message, UserMessage):
                parts += _image_parts(message)
        if tools:
            lines = [json.dumps(_function(spec), ensure_ascii=False) for spec in tools]
            turns[0][1].append(_INSTRUCTIONS[protocol] + "\n".join(lines))
        elif not turns[0][1]:
            del turns[0]
        written = dump_json([{"role": role, "content": _content(parts)} for role, parts in turns])
        return b'{%b,"messages":%b%b}' % (head, written, _format_field(response_format))

    def envelope_format(self, tools: Sequence[OperationSpec], *, full: bool) -> bytes:
        """The `response_format` for a reply that is an envelope with calls of these tools."""

        def write(specs: tuple[OperationSpec, ...]) -> bytes:
            schema = envelope_schema(specs, full=full)
            return dump_json(response_format(schema, name="reply"))

        return self._tool_set("full" if full else "loose", tools, write)

    def _native_tools(self, tools: Sequence[OperationSpec], strict: bool) -> bytes:
        extra = {"strict": True} if strict else {}

        def write(specs: tuple[OperationSpec, ...]) -> bytes:
            return dump_json([{"type": "function", "function": {**_function(spec), **extra}} for spec in specs])

        return self._tool_set("strict" if strict else "plain", tools, write)

    def _tool_set(
        self, kind: str, tools: Sequence[OperationSpec], write: Callable[[tuple[OperationSpec, ...]], bytes]
    ) -> bytes:
        key = (kind, tuple(map(id, tools)))
        tool_set = self._tools.get(key)
        if tool_set is None:
            specs = tuple(tools)
            tool_set = self._tools[key] = _ToolSet(specs, write(specs))
            if len(self._tools) > _CACHED_TOOL_SETS:
                self._tools.popitem(last=False)
        return tool_set.json


def _name_calls(messages: Sequence[Message], ids: dict[str, str], taken: set[str]) -> None:
    """Choose each call's id on the wire: the model's id if it is unique in the conversation, else our own."""
    for message in messages:
        for call in _calls(message):
            wire = call.model_call_id if call.model_call_id not in taken else call.call_id
            ids[call.call_id] = wire = wire or call.call_id
            taken.add(wire)


def head_fields(model: str, sampling: Sampling, *, limit_field: str, more: Mapping[str, object] | None = None) -> bytes:
    """The fields other than messages and tools, as the inside of a JSON object."""
    optional = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        limit_field: sampling.max_tokens,
        "stop": list(sampling.stop) or None,
    }
    fields = {name: value for name, value in optional.items() if value is not None}
    return dump_json({**sampling.extra, "model": model, **fields, **(more or {})})[1:-1]


def dump_json(value: object) -> bytes:
    """The value as JSON on one line, in UTF-8."""
    return well_formed(_PLAIN.encode(value)).encode()


def _calls(message: Message) -> tuple[ToolCall, ...]:
    return message.tool_calls if isinstance(message, AssistantMessage) else ()


def _as_wire(message: Message, ids: tuple[str, ...]) -> dict[str, object]:
    if isinstance(message, ToolMessage):
        return {"role": "tool", "tool_call_id": ids[0], "content": message.content}
    if isinstance(message, UserMessage) and message.images:
        text: list[dict[str, object]] = [{"type": "text", "text": message.content}] if message.content else []
        return {"role": "user", "content": [*text, *_image_parts(message)]}
    if not isinstance(message, AssistantMessage) or not message.tool_calls:
        return {"role": message.role, "content": message.content}
    calls = [
        {"id": wire_id, "type": "function", "function": _sent_back(call)}
        for wire_id, call in zip(ids, message.tool_calls, strict=True)
    ]
    return {"role": "assistant", "content": message.content or None, "tool_calls": calls}


def _sent_back(call: ToolCall) -> dict[str, str]:
    """A model's call in a form that every server accepts: some check the letters of names, and chat templates parse
    arguments. Arguments that are no JSON object are put into one, so that the model still sees what it wrote."""
    name = call.name if _NAME.fullmatch(call.name) else _NO_NAME_LETTER.sub("_", call.name)[:64] or "unnamed"
    if _object(call.arguments, strict=True) is not None:
        return {"name": name, "arguments": call.arguments}
    fields = _object(call.arguments, strict=False) or {"unreadable": call.arguments}
    return {"name": name, "arguments": json.dumps(fields, ensure_ascii=False)}


def _object(arguments: str, *, strict: bool) -> dict[str, object] | None:
    try:
        value = parse_json(arguments, control_characters=not strict, finite=True)
    except ValueError:
        return None
    return value if is_object(value) else None


def _image_parts(message: UserMessage) -> list[dict[str, object]]:
    return [{"type": "image_url", "image_url": {"url": url}} for url in message.images]


def _function(spec: OperationSpec) -> dict[str, object]:
    parameters = dict(spec.parameters)
    if is_mapping(properties := parameters.get("properties")):
        properties_shown = {
            name: part for name, schema in properties.items() if (part := _schema_shown(schema)) is not None
        }
        parameters["properties"] = properties_shown
        # OpenAI's strict mode, which requires it, refuses schemas with optional properties anyway.
        if parameters.get("additionalProperties") is False and len(properties_shown) > len(
            items(parameters.get("required"))
        ):
            del parameters["additionalProperties"]
    return {"name": spec.name, "description": spec.description, "parameters": parameters}


def _schema_shown(schema: object) -> object:
    """A parameter's schema for the model, None for a parameter for programs only.

    It leaves out defaults that are null, empty, zero or false, and bounds that exclude empty or negative values, to
    spare tokens; arguments are checked against the full schema.
    """
    if not is_mapping(schema):
        return schema
    fields = dict(schema)
    if fields.get(FOR_PROGRAMS):
        return None
    if not fields.get("default", True):
        kinds = [kind for kind in items(fields.get("anyOf")) if kind != {"type": "null"}]
        if fields.pop("default") is None and len(kinds) == 1:
            fields = {**mapping(kinds[0]), **{name: value for name, value in fields.items() if name != "anyOf"}}
    return {name: value for name, value in fields.items() if (name, value) not in _MATTERS_OF_COURSE}


def _spoken(message: Message, names: Mapping[str, str], protocol: ToolProtocol) -> str:
    if isinstance(message, ToolMessage):
        return f"Result of {names.get(message.call_id) or 'the tool call'}:\n{message.content}"
    return _SHOW[protocol](message) if isinstance(message, AssistantMessage) else message.content


def _content(parts: Sequence[_Part]) -> object:
    """A message's content: texts joined, or a list of parts if there are pictures."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "\n\n".join(texts)
    content: list[dict[str, object]] = []
    for part in parts:
        if not isinstance(part, str):
            content.append(part)
        elif content and content[-1]["type"] == "text":
            content[-1]["text"] = f"{content[-1]['text']}\n\n{part}"
        else:
            content.append({"type": "text", "text": part})
    return content


def _format_field(response_format: bytes) -> bytes:
    return b',"response_format":%b' % response_format if response_format else b""
