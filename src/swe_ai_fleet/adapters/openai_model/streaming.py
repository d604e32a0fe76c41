"""Assembles a completion from the events of its stream, and reads JSON that is not quite valid."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic_core import from_json

from swe_ai_fleet.adapters.openai_model.answers import as_text
from swe_ai_fleet.domain.json_values import items, mapping, mappings, parse_json, parsed, with_texts
from swe_ai_fleet.domain.text import well_formed

_MOST_DIGITS = 300
_SPACE = re.compile(r"[\s\ufeff]*+")
_LONGEST_STREAM = 64 * 1024 * 1024
_LONGEST_NAME = 1024
_QUOTED = 2000
_LEGACY_CALL = -1


def read_json(body: bytes, repairs: list[str]) -> object:
    """The JSON value of a body; the repairs it needed are added to `repairs`.

    Invalid UTF-8 and unpaired surrogates become replacement characters; control characters in strings and text after
    the value are accepted. Raises ValueError where there is no value.
    """
    with suppress(ValueError):
        return from_json(body)
    value = read_loosely(body, repairs)
    repaired = with_texts(value, well_formed)
    if repaired != value:
        repairs.append("half a surrogate pair replaced")
    return repaired


def read_loosely(body: bytes, repairs: list[str]) -> object:
    """As `read_json`, but with unpaired surrogates: in a stream the other half may come in the next event."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = body.decode(errors="replace")
        repairs.append("invalid UTF-8 replaced")
    start = _SPACE.match(text)
    value, end = parsed(_DECODER.raw_decode, text, start.end() if start else 0)
    if text[end:].strip():
        repairs.append("text after the answer's JSON ignored")
    if _has_control_characters(text):
        repairs.append("control characters in the answer's JSON accepted")
    return value


def _integer(digits: str) -> int:
    # int() raises for very long numbers, which mean nothing here.
    return int(digits) if len(digits) <= _MOST_DIGITS else 0


def _has_control_characters(text: str) -> bool:
    try:
        parse_json(text)
    except ValueError as error:
        return "control character" in str(error)
    return False


_DECODER = json.JSONDecoder(strict=False, parse_int=_integer)


class BrokenStream(Exception):
    """The stream ended before the reply was complete."""


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])


class StreamedCompletion:
    """Reads the chunks of an answer and assembles their completion.

    The bytes are server-sent events (the "event stream" of the HTML standard) or, from a server that does not
    stream, one JSON body. Time and memory are linear in their number; more than 64 MiB are refused.

    Args:
        on_delta: gets the text as it comes in; if the server does not stream, all of it at the end.
    """

    def __init__(self, on_delta: Callable[[str], None] | None = None) -> None:
        self.repairs: list[str] = []
        self._on_delta = on_delta
        self.beginning = b""
        self._size = 0
        self._line: list[bytes] = []
        self._event: list[bytes] = []
        self._plain: list[bytes] | None = None
        self._started = self._done = False
        self._error: object = None
        self._content: list[str] = []
        self._surrogate = ""
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._choice_seen = False
        self._finish: object = None
        self._usage: object = None
        self._model: object = None
        self._prompt_token_ids: object = None
        self._token_ids: list[object] = []
        self._logprobs: list[object] = []

    @property
    def is_plain(self) -> bool:
        """Whether the answer is a single JSON body, not a stream."""
        return self._plain is not None

    @property
    def failed(self) -> bool:
        """Whether the stream contained an error."""
        return self._error is not None

    def take(self, chunk: bytes) -> bool:
        """Read a chunk; returns whether the answer is complete. Raises ValueError for one that is too long."""
        self._size += len(chunk)
        if len(self.beginning) < _QUOTED:
            self.beginning += chunk[:_QUOTED]
        if self._size > _LONGEST_STREAM:
            raise ValueError("the stream is too long")
        if not self._started and chunk.strip():
            self._started = True
            if chunk.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
                self._plain = []
        if self._plain is not None:
            self._plain.append(chunk)
            return False
        first, *others = chunk.split(b"\n")
        self._line.append(first)
        for line in others:
            self._read_line(b"".join(self._line))
            self._line = [line]
            if self._done:
                return True
        return False

    def completion(self) -> object:
        """The completion in the form of a reply without streaming.

        Raises BrokenStream where the end of the reply is missing, ValueError for another kind of answer.
        """
        if self._plain is not None:
            value = read_json(b"".join(self._plain), self.repairs)
            first = next(iter(items(mapping(value).get("choices"))), None)
            self._say(as_text(mapping(first, "message").get("content")))
            return value
        if not self._done:
            self._read_line(b"".join(self._line))
            self._read_line(b"")
        if self._error is not None:
            return {"error": self._error}
        if not self._choice_seen and not self._done:
            raise BrokenStream if self._started else ValueError("an empty answer")
        if self._finish is None and not self._done:
            raise BrokenStream
        message = {
            "content": self._repaired("".join(self._content)),
            "tool_calls": [self._call(call) for call in self._calls],
        }
        choice = {
            "message": message,
            "finish_reason": self._finish,
            "token_ids": self._token_ids or None,
            "logprobs": {"content": self._logprobs},
        }
        return {
            "choices": [choice] if self._choice_seen else [],
            "usage": self._usage,
            "model": self._model,
            "prompt_token_ids": self._prompt_token_ids,
        }

    def _read_line(self, line: bytes) -> None:
        line = line.rstrip(b"\r")
        if not line:
            if len(self._event) > 1:
                self._dispatch(b"\n".join(self._event))
            elif self._event:
                self.repairs.append("an event that is not JSON ignored")
            self._event.clear()
            return
        if line.startswith(b"data:"):
            line = line[5:].strip()
        elif not line.startswith(b"{"):
            return
        if line == b"[DONE]":
            self._done = True
        elif line and not self._dispatch(line, whole=False):
            self._event.append(line)

    def _dispatch(self, data: bytes, *, whole: bool = True) -> bool:
        """Read an event; returns whether it was one. If not `whole`, it may continue in the next line."""
        try:
            event: object = from_json(data)
        except ValueError:
            event = self._loosely(data)
        fields = mapping(event)
        if not fields:
            if whole:
                self.repairs.append("an event that is not JSON ignored")
            return False
        if error := fields.get("error"):
            self._error, self._done = error, True
            return True
        self._usage = fields.get("usage") or self._usage
        self._model = self._model or fields.get("model")
        self._prompt_token_ids = fields.get("prompt_token_ids") or self._prompt_token_ids
        for choice in mappings(fields.get("choices")):
            if choice.get("index") in (0, None):
                self._choice_seen = True
                self._finish = choice.get("finish_reason") or self._finish
                self._add(choice)
        return True

    def _loosely(self, data: bytes) -> object:
        repairs: list[str] = []
        try:
            event = read_loosely(data, repairs)
        except ValueError:
            return None
        if mapping(event):
            self.repairs += repairs
        return event

    def _add(self, fields: Mapping[str, object]) -> None:
        self._token_ids += items(fields.get("token_ids"))
        self._logprobs += items(mapping(fields, "logprobs").get("content"))
        delta = mapping(fields, "delta") or ({} if self._content else mapping(fields, "message"))
        if text := as_text(delta.get("content")) or as_text(delta.get("refusal")) or as_text(fields.get("text")):
            self._content.append(text)
            self._say(text)
        listed = delta.get("tool_calls")
        for part in items(listed) or ([listed] if listed else []):
            self._add_call(mapping(part))
        if old := delta.get("function_call"):
            self._add_call({"index": _LEGACY_CALL, "function": old})

    def _add_call(self, fields: Mapping[str, object]) -> None:
        function = mapping(fields, "function") or fields
        name, arguments, index = function.get("name"), function.get("arguments"), fields.get("index")
        wire_id = fields.get("id")
        call_id = str(wire_id) if isinstance(wire_id, str | int) else ""
        name = name if isinstance(name, str) else ""
        call = self._call_of(index if isinstance(index, int) else None, call_id, name)
        if call_id and not call.id:
            call.id = call_id
            self._by_id[call_id] = call
        # Some servers repeat the whole name with each fragment of the arguments.
        if name != call.name and len(call.name) < _LONGEST_NAME:
            call.name += name
        if isinstance(arguments, str):
            call.arguments.append(arguments)
        elif arguments is not None:
            call.arguments.append(json.dumps(arguments, ensure_ascii=False))

    def _call_of(self, index: int | None, call_id: str, name: str) -> _Call:
        """The call that a fragment belongs to: by its index, by its id, else the last one."""
        if index is not None:
            match = self._by_index.get(index)
            if match is not None and not _begins_another(match, call_id, name):
                return match
        elif call_id:
            match = self._by_id.get(call_id)
            if match is not None:
                return match
        elif self._calls and not name:
            return self._calls[-1]
        call = _Call()
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _call(self, call: _Call) -> dict[str, object]:
        arguments = self._repaired("".join(call.arguments)) if call.arguments else None
        return {"id": call.id, "function": {"name": self._repaired(call.name), "arguments": arguments}}

    def _repaired(self, text: str) -> str:
        repaired = well_formed(text)
        if "\ufffd" in repaired and repaired.count("\ufffd") > text.count("\ufffd"):
            self.repairs.append("half a surrogate pair replaced")
        return repaired

    def _say(self, text: str) -> None:
        if self._on_delta is None or not text:
            return
        text = self._surrogate + text
        self._surrogate = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        if complete := well_formed(text.removesuffix(self._surrogate)):
            self._on_delta(complete)


def read_answer(body: bytes, repairs: list[str]) -> object:
    """The completion in an answer, even if the server streams unasked. Raises as `StreamedCompletion.completion`."""
    if not body.startswith(b"{") and body.lstrip().startswith((b"data:", b":", b"event:")):
        stream = StreamedCompletion()
        stream.take(body)
        completion = stream.completion()
        repairs += stream.repairs
        return completion
    return read_json(body, repairs)


def _begins_another(call: _Call, call_id: str, name: str) -> bool:
    """Whether a fragment with a known index begins another call: some servers give all calls the same index."""
    if not name:
        return False
    if call_id and call.id:
        return call_id != call.id
    return name != call.name and bool(call.arguments)
