"""Our messages and tools as the JSON that goes out."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from swe_ai_fleet.agents.raw_tool_calls import RawToolCall, render
from swe_ai_fleet.domain.message import AssistantMessage, Message, Sampling, SystemMessage, ToolCall, ToolMessage
from swe_ai_fleet.domain.tool import OperationSpec

_CACHE_BYTES = 64 * 1024 * 1024
_CACHED_TOOL_SETS = 32

_TEXT_TOOLS = """\
You can call tools. To call one, write its name and its arguments as JSON between tags, exactly like this:
<tool_call>
{"name": "<tool>", "arguments": {"<parameter>": "<value>"}}
</tool_call>
You may write several calls one after the other; then stop and wait for the results. The tools, as JSON schemas:
"""


@dataclass(frozen=True, slots=True)
class _Written:
    """One message as JSON. It holds the message, so that its id cannot pass to another one meanwhile."""

    message: Message
    ids: tuple[str, ...]
    json: bytes


@dataclass(frozen=True, slots=True)
class _ToolSet:
    specs: tuple[OperationSpec, ...]
    strict: bytes
    plain: bytes
    text: str


class WireWriter:
    """Writes request bodies. Messages are frozen, so each is turned into JSON once, not once per call.

    The newest 64 MiB of JSON are kept, whoever's conversation they belong to.
    """

    def __init__(self, *, cache_bytes: int = _CACHE_BYTES) -> None:
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        self._messages: OrderedDict[int, _Written] = OrderedDict()
        self._tools: OrderedDict[tuple[int, ...], _ToolSet] = OrderedDict()

    def native(
        self,
        messages: Sequence[Message],
        tools: Sequence[OperationSpec],
        *,
        head: bytes,
        wire_ids: dict[str, str],
        strict: bool,
    ) -> bytes:
        """The body of a request with native tools; `head` is the inside of its other fields."""
        written = b",".join([self._message(message, wire_ids) for message in messages])
        if not tools:
            return b'{%b,"messages":[%b]}' % (head, written)
        tool_set = self._tool_set(tools)
        offered = tool_set.strict if strict else tool_set.plain
        return b'{%b,"messages":[%b],"tools":%b}' % (head, written, offered)

    def text(self, messages: Sequence[Message], tools: Sequence[OperationSpec], *, head: bytes) -> bytes:
        """The body of a request that describes the tools in words and shows calls and results as text."""
        names = {call.call_id: call.name for message in messages for call in _calls(message)}
        plain: list[dict[str, str]] = [{"role": "system", "content": ""}]
        for message in messages:
            role, content = _as_text(message, names)
            # Some chat templates insist on turns that alternate.
            if plain[-1]["role"] == role:
                plain[-1]["content"] += ("\n\n" if plain[-1]["content"] else "") + content
            else:
                plain.append({"role": role, "content": content})
        if tools:
            system = plain[0]["content"]
            plain[0]["content"] = (system + "\n\n" if system else "") + self._tool_set(tools).text
        elif not plain[0]["content"]:
            del plain[0]
        return b'{%b,"messages":%b}' % (head, _dumps(plain))

    def _message(self, message: Message, wire_ids: dict[str, str]) -> bytes:
        if isinstance(message, ToolMessage):
            ids: tuple[str, ...] = (wire_ids.get(message.call_id, message.call_id),)
        else:
            ids = tuple([wire_ids[call.call_id] for call in _calls(message)])
        key = id(message)
        written = self._messages.get(key)
        if written is not None and written.message is message and written.ids == ids:
            self._messages.move_to_end(key)
            return written.json
        written = _Written(message, ids, _dumps(_as_wire(message, ids)))
        self._forget(key)
        self._messages[key] = written
        self._cached_bytes += len(written.json)
        while self._cached_bytes > self._cache_bytes:
            self._forget(next(iter(self._messages)))
        return written.json

    def _forget(self, key: int) -> None:
        written = self._messages.pop(key, None)
        if written is not None:
            self._cached_bytes -= len(written.json)

    def _tool_set(self, tools: Sequence[OperationSpec]) -> _ToolSet:
        key = tuple(map(id, tools))
        tool_set = self._tools.get(key)
        if tool_set is None:
            specs = tuple(tools)
            functions = [
                {"name": spec.name, "description": spec.description, "parameters": spec.parameters} for spec in specs
            ]
            tool_set = self._tools[key] = _ToolSet(
                specs=specs,
                strict=_dumps([{"type": "function", "function": {**one, "strict": True}} for one in functions]),
                plain=_dumps([{"type": "function", "function": one} for one in functions]),
                text=_TEXT_TOOLS + "\n".join(json.dumps(one, ensure_ascii=False) for one in functions),
            )
            if len(self._tools) > _CACHED_TOOL_SETS:
                self._tools.popitem(last=False)
        return tool_set


def wire_ids(messages: Sequence[Message]) -> dict[str, str]:
    """The id each call goes out with, by our own: the model's where it has one that no earlier call has."""
    ids: dict[str, str] = {}
    taken: set[str] = set()
    for message in messages:
        for call in _calls(message):
            wire = call.model_call_id if call.model_call_id not in taken else call.call_id
            ids[call.call_id] = wire = wire or call.call_id
            taken.add(wire)
    return ids


def head_fields(model: str, sampling: Sampling, *, limit_field: str) -> bytes:
    """The fields beside messages and tools, as the inside of a JSON object."""
    fields: dict[str, object] = {"model": model}
    if sampling.temperature is not None:
        fields["temperature"] = sampling.temperature
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    if sampling.max_tokens is not None:
        fields[limit_field] = sampling.max_tokens
    return _dumps(fields)[1:-1]


def _calls(message: Message) -> tuple[ToolCall, ...]:
    return message.tool_calls if isinstance(message, AssistantMessage) else ()


def _as_wire(message: Message, ids: tuple[str, ...]) -> dict[str, object]:
    if isinstance(message, ToolMessage):
        return {"role": "tool", "tool_call_id": ids[0], "content": message.content}
    if not isinstance(message, AssistantMessage) or not message.tool_calls:
        return {"role": message.role, "content": message.content}
    calls = [
        {"id": wire_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for wire_id, call in zip(ids, message.tool_calls, strict=True)
    ]
    return {"role": "assistant", "content": message.content or None, "tool_calls": calls}


def _as_text(message: Message, names: dict[str, str]) -> tuple[str, str]:
    if isinstance(message, ToolMessage):
        return "user", f"Result of {names.get(message.call_id, 'the tool call')}:\n{message.content}"
    if isinstance(message, AssistantMessage):
        calls = [render(RawToolCall(name=call.name, arguments=call.arguments)) for call in message.tool_calls]
        return "assistant", "\n".join([message.content, *calls]).strip()
    return ("system" if isinstance(message, SystemMessage) else "user"), message.content


def _dumps(value: object) -> bytes:
    # A model can write half a surrogate pair; no UTF-8 can carry that, and no server would take it.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
