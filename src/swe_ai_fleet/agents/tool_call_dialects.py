"""Parsing tool calls that open models write as text: JSON values, and the notations of model families."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from swe_ai_fleet.domain.json_values import is_list, mapping, parse_json_at

_SPACE = re.compile(r"\s*+")
_NAME_KEYS = ("name", "tool_name", "tool", "function")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_BESIDES = frozenset({*_NAME_KEYS, "id", "type"})
_BARE_KEYS = frozenset({"name", "arguments", "parameters", "id", "type"})
OPENING = re.compile(
    r"(?P<thought><think(?:ing)?>)"
    r"|(?P<wrapper><[|\uff5c]tool[\u2581_]calls(?:_section)?[\u2581_]begin[|\uff5c]>|<minimax:tool_call>)"
    r"|(?P<tag><(?:tool_?calls?|function_?calls?)>)"
    r"|(?P<function><function(?:=| name=)\"?(?P<named>[^<>\"\s]{1,200})\"?>)"
    r"|(?P<invoke><invoke name=\"?(?P<invoked>[^<>\"\s]{1,200})\"?>)"
    r"|(?P<python><\|python_tag\|>)"
    r"|(?P<bracket>\[TOOL_CALLS\])"
    r"|(?P<special><[|\uff5c]tool[\u2581_]call[\u2581_]begin[|\uff5c]>)"
)
# All possessive: endless white space must not be scanned twice.
_CLOSING = re.compile(
    r"(?:\s*+(?:</(?:tool_?calls?|function_?calls?|function|invoke|minimax:tool_call)>"
    r"|<[|\uff5c](?:tool[\u2581_]calls?(?:_section)?[\u2581_]end|eom_id|eot_id|im_end)[|\uff5c]>))++"
)
_AND = re.compile(r"\s*+;?\s*+(?=\{)")
_NAMED = re.compile(
    r"\s*+(?:function<[|\uff5c]tool[\u2581_]sep[|\uff5c]>)?+(?:functions\.)?+(?P<name>[A-Za-z_][\w.\-]{0,199}+)(?::\d{1,6})?+\s*+"
    r"(?:\[CALL_ID\]\w{1,64}+)?+(?:\[ARGS\]|<[|\uff5c]tool[\u2581_]sep[|\uff5c]>|<\|tool_call_argument_begin\|>)?+\s*+"
    r"(?P<fence>```(?:json)?+\s*+)?+(?=\{)"
)
_PARAMETER = re.compile(r"\s*+<parameter(?:=| name=)\"?([^<>\"\s]{1,200}+)\"?>")
_AFTER_PARAMETER = re.compile(r"\s*+(?:<parameter[= ]|</(?:function|invoke|tool_call)>|\Z)")
_KEYED = re.compile(r"\n*+([A-Za-z_][\w.\-]{0,199}+)\n*+(?=<arg_key>|</tool_call>)")
_KEY = re.compile(r"\s*+<arg_key>([^<>]{1,200}+)</arg_key>\s*+<arg_value>")
_NAME = re.compile(r"""["']name["']\s*+:\s*+["']([^"'\\\s]{1,200})["']""")
_ARGUMENTS = re.compile(r"""["'](?:arguments|parameters)["']\s*+:\s*+""")
_MOST_MARKS = 256
_MOST_SCANS = 8
_SMALL = 100_000
_THOUGHT_ENDS = ("</think>", "</thinking>")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawToolCall:
    """A call found in text. `arguments` is the text of its JSON value, well-formed or not."""

    name: str
    arguments: str


def decode(text: str, start: int) -> tuple[object, int]:
    """The JSON value at a position and its end, by JSON's own rules, so that an argument may contain a closing tag. If
    there is none: None, and minus the position of the error."""
    space = _SPACE.match(text, start)
    begin = space.end() if space else start
    try:
        return parse_json_at(text, begin)
    except json.JSONDecodeError as error:
        return None, -error.pos
    except ValueError:
        return None, -begin


def calls_in(value: object) -> list[RawToolCall] | None:
    """The calls in a JSON value, in any of the usual shapes; None if it is none."""
    calls: list[RawToolCall] = []
    for item in items_of(value):
        fields = mapping(item)
        fields = mapping(fields.get("function")) or fields
        names = (fields.get(key) for key in _NAME_KEYS)
        name = next((name for name in names if isinstance(name, str) and name), "")
        if not name:
            return None
        rest = {key: other for key, other in fields.items() if key not in _BESIDES}
        arguments = next((fields[key] for key in _ARGUMENT_KEYS if key in fields), rest)
        text = arguments if isinstance(arguments, str) else dumps({} if arguments is None else arguments)
        calls.append(RawToolCall(name=name, arguments=text))
    return calls or None


def is_call(value: object) -> bool:
    """Whether a JSON value without a mark around it is certainly a tool call."""
    for item in items_of(value):
        fields = mapping(item)
        arguments = fields.get("arguments", fields.get("parameters"))
        if not _BARE_KEYS.issuperset(fields) or not isinstance(fields.get("name"), str):
            return False
        if not isinstance(arguments, dict):
            return False
    return True


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def items_of(value: object) -> list[object]:
    return value if is_list(value) else [value]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCalls:
    """Calls that end at `end`, closing marks included; no calls if the mark only wraps others."""

    end: int
    calls: tuple[RawToolCall, ...] = ()


class DialectReader:
    """Reads calls from one text. `scanned` counts the characters read, so that the caller can limit the work."""

    def __init__(self, text: str, *, truncated: bool = False) -> None:
        self.scanned = 0
        self._text = text
        self._truncated = truncated
        self._absent: dict[str, int] = {}

    def read(self, mark: re.Match[str]) -> ParsedCalls | None:
        """The calls of the notation that a match of `OPENING` begins; None if there is none."""
        start = mark.end()
        inner = self._skip(start)
        readers: dict[str, Callable[[], ParsedCalls | None]] = {
            "wrapper": lambda: ParsedCalls(end=inner) if OPENING.match(self._text, inner) else None,
            "tag": lambda: self._tag(start),
            "function": lambda: self._function(start, mark["named"], "</function>"),
            "invoke": lambda: self._function(start, mark["invoked"], "</invoke>"),
            "python": lambda: self._python_tag(start),
            "bracket": lambda: self._bracket(start),
            "special": lambda: self._named_call(start),
        }
        return readers[mark.lastgroup or ""]()

    def whole(self, start: int) -> tuple[RawToolCall, ...]:
        """The calls, if the text from `start` on is one JSON value with calls, in a code block or not."""
        body = self._text[start:].strip()
        if body.startswith("```") and body.endswith("```") and len(body) > 6:
            body = body[3:-3].removeprefix("json").removeprefix("tool_call").strip()
        if not body.startswith(("{", "[")):
            return ()
        value, end = decode(body, 0)
        return tuple(calls_in(value) or ()) if end == len(body) and is_call(value) else ()

    def find(self, tag: str, start: int) -> int:
        """The next position of a tag, or -1. A missing tag is searched for once."""
        if start >= self._absent.get(tag, len(self._text) + 1):
            return -1
        at = self._text.find(tag, start)
        self.scanned += (len(self._text) if at < 0 else at) - start
        if at < 0:
            self._absent[tag] = start
        return at

    def _tag(self, start: int) -> ParsedCalls | None:
        inner = OPENING.match(self._text, self._skip(start))
        if inner is not None and inner.lastgroup in ("function", "invoke"):
            return self.read(inner)
        if inner is not None:
            return None if inner["thought"] else ParsedCalls(end=inner.start())
        value, end = self._decode(start)
        if value is not None:
            calls = calls_in(value)
            return None if calls is None else self._closed(end, calls)
        named = self._named_call(start) or self._keyed(start)
        return named if named is not None else self._broken(start)

    def _function(self, start: int, name: str, closing: str) -> ParsedCalls | None:
        if _PARAMETER.match(self._text, start):
            return self._parameters(start, name, closing)
        value, end = self._decode(start)
        if value is not None:
            closed = _CLOSING.match(self._text, end)
            if closed or (isinstance(value, dict) and not self._truncated):
                call = RawToolCall(name=name, arguments=self._text[start:end].strip())
                return ParsedCalls(end=closed.end() if closed else end, calls=(call,))
        at = self.find(closing, start)
        if at < 0:
            return None
        body = self._text[start:at].strip()
        return self._closed(at, [RawToolCall(name=name, arguments=body or "{}")])

    def _parameters(self, start: int, name: str, closing: str) -> ParsedCalls | None:
        values: dict[str, str] = {}
        position = start
        while (parameter := _PARAMETER.match(self._text, position)) is not None:
            end = self.find("</parameter>", parameter.end())
            # The content of a file may contain the closing tag; the right one is followed by a tag.
            while end >= 0 and not _AFTER_PARAMETER.match(self._text, end + len("</parameter>")):
                end = self.find("</parameter>", end + 1)
            position = end + len("</parameter>")
            if end < 0:
                end = position = self.find(closing, parameter.end())
            if end < 0:
                return None
            values[parameter[1]] = _unpadded(self._text[parameter.end() : end])
        return self._closed(position, [RawToolCall(name=name, arguments=dumps(values))])

    def _keyed(self, start: int) -> ParsedCalls | None:
        named = _KEYED.match(self._text, start)
        if named is None:
            return None
        values: dict[str, str] = {}
        position = named.end()
        while (key := _KEY.match(self._text, position)) is not None:
            end = self.find("</arg_value>", key.end())
            if end < 0:
                return None
            values[key[1].strip()] = _unpadded(self._text[key.end() : end])
            position = end + len("</arg_value>")
        return self._closed(position, [RawToolCall(name=named[1], arguments=dumps(values))])

    def _python_tag(self, start: int) -> ParsedCalls | None:
        calls: list[RawToolCall] = []
        following: re.Match[str] | None = _AND.match(self._text, start)
        while following is not None:
            value, end = self._decode(following.end())
            calls_found = calls_in(value)
            if calls_found is None:
                break
            calls += calls_found
            start = end
            following = _AND.match(self._text, end)
        return self._ended(start, calls) if calls else None

    def _bracket(self, start: int) -> ParsedCalls | None:
        value, end = self._decode(start)
        if value is None:
            return self._named_call(start)
        calls = calls_in(value)
        return None if calls is None else self._ended(end, calls)

    def _named_call(self, start: int) -> ParsedCalls | None:
        named = _NAMED.match(self._text, start)
        if named is None:
            return None
        value, end = self._decode(named.end())
        if value is None:
            return None
        if named["fence"]:
            fence = self._skip(end)
            closed = end if not self._text.startswith("```", fence) else fence + 3
        else:
            closed = end
        return self._ended(closed, [RawToolCall(name=named["name"], arguments=self._text[named.end() : end])])

    def _broken(self, start: int) -> ParsedCalls | None:
        """Invalid JSON that names its tool is still a call: the tool's error message helps the model."""
        at = self.find("</tool_call>", start)
        if at < 0:
            return None
        body = self._text[start:at].strip()
        name = _NAME.search(body)
        if name is None:
            return None
        arguments, tail = body, _ARGUMENTS.search(body)
        if tail is not None:
            _, end = decode(body, tail.end())
            arguments = body[tail.end() : end] if end > tail.end() else body[tail.end() :].removesuffix("}").strip()
        return self._closed(at, [RawToolCall(name=name[1], arguments=arguments)])

    def _closed(self, end: int, calls: list[RawToolCall]) -> ParsedCalls | None:
        """The calls and their closing marks, which may be missing unless the text was cut off."""
        ended = self._ended(end, calls)
        return None if self._truncated and ended.end == end else ended

    def _ended(self, end: int, calls: list[RawToolCall]) -> ParsedCalls:
        """The calls of a notation that ends with its JSON."""
        closing = _CLOSING.match(self._text, end)
        return ParsedCalls(end=closing.end() if closing else end, calls=tuple(calls))

    def _decode(self, start: int) -> tuple[object, int]:
        value, end = decode(self._text, start)
        self.scanned += abs(end) - start
        return value, (end if value is not None else start)

    def _skip(self, start: int) -> int:
        space = _SPACE.match(self._text, start)
        return space.end() if space else start


def _unpadded(value: str) -> str:
    value = value.removeprefix("\r").removeprefix("\n")
    return value.removesuffix("\n").removesuffix("\r")


def whole_arguments(arguments: str) -> bool:
    """Whether a call's arguments are one JSON object and nothing else."""
    value, end = decode(arguments, 0)
    return isinstance(value, dict) and not arguments[end:].strip()


def render(call: RawToolCall) -> str:
    """The call as text that `parse` reads back."""
    # Text that is no JSON object is sent as a string, so that the model sees what it wrote.
    arguments = call.arguments if whole_arguments(call.arguments) else json.dumps(call.arguments)
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {arguments}}}\n</tool_call>'


def parse(text: str, *, truncated: bool = False) -> tuple[str, tuple[RawToolCall, ...]]:
    """Take the calls out of a reply. Never raises; the time is linear in the text's length.

    Reads the notations of Hermes and Qwen (`<tool_call>` with JSON), Llama (`<function=name>{…}</function>`,
    `<|python_tag|>`), Qwen coder and MiniMax (`<parameter=key>`), Mistral (`[TOOL_CALLS]`), GLM (`<arg_key>`),
    DeepSeek and Kimi (special tokens), and a reply that is one call in JSON; never inside `<think>`. A closing tag may
    be missing after complete JSON, unless the reply was `truncated`. Anything else stays in the text.

    Returns: the text without the calls, and the calls in their order.
    """
    reader = DialectReader(text, truncated=truncated)
    lines: list[str] = []
    calls: list[RawToolCall] = []
    # If the opening tag of the reasoning was in the prompt, the reply has only the closing tag.
    end = text.find("</think>")
    position, thought = 0, 0 if end < 0 or "<think>" in text[:end] else end + len("</think>")
    for _ in range(_MOST_MARKS):
        mark = OPENING.search(text, position)
        if mark is None or reader.scanned > _MOST_SCANS * len(text) + _SMALL:
            break
        if mark["thought"]:
            closed = reader.find(f"</{mark['thought'][1:]}", mark.end())
            call_found, after = None, closed if closed >= 0 else len(text)
        else:
            call_found, after = reader.read(mark), mark.end()
        if call_found is not None and call_found.end <= thought:
            call_found, after = None, thought
        if call_found is None:
            lines.append(text[position:after])
            position = after
        else:
            lines.append(text[position : mark.start()])
            position = call_found.end
            calls += call_found.calls
    if calls:
        return ("".join(lines) + text[position:]).strip(), tuple(calls)
    start = _after_thought(text)
    whole = reader.whole(start)
    return (text[:start].strip(), whole) if whole else (text, ())


def without_calls(text: str) -> str:
    """The text without its calls, cut before the first unreadable one."""
    text = parse(text)[0]
    mark = OPENING.search(text, _after_thought(text))
    return (text if mark is None or mark["thought"] else text[: mark.start()]).strip()


def _after_thought(text: str) -> int:
    return max(end + len(tag) if (end := text.rfind(tag)) >= 0 else 0 for tag in _THOUGHT_ENDS)
