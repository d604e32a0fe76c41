"""Workflow documents: YAML read as JSON values with their line numbers, and faults with theirs.

The core schema of YAML 1.2: `yes` and `no` are strings. Refused: values that JSON lacks, aliases (a small file could
expand without end by them), duplicate keys, and documents that are too large or too deep.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.text import utf8
from swe_ai_fleet.domain.workflow import JsonValue

_MAX_LISTED_FAULTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowFault:
    """One fault. `line` counts from 1, 0 without a file; `node` is the id of its node, empty outside of nodes."""

    message: str
    line: int = 0
    node: str = ""
    hint: str = ""
    file: str = ""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line or "") if part)
        parts = (place, f"node {self.node}" if self.node else "", self.message)
        line = ": ".join(part for part in parts if part)
        return f"{line} ({self.hint})" if self.hint else line


class InvalidWorkflow(InvalidRequest):
    """A workflow that cannot run; `faults` holds every fault, in the order of the lines."""

    def __init__(self, faults: Sequence[WorkflowFault]) -> None:
        self.faults = tuple(faults)
        lines = [str(fault) for fault in self.faults[:_MAX_LISTED_FAULTS]]
        left = len(self.faults) - len(lines)
        super().__init__("\n".join([*lines, f"and {left} more"] if left else lines), field="workflow")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.faults,)


MAX_BYTES = 256 * 1024
MAX_DEPTH = 24
MAX_VALUES = 20_000
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}|0x[0-9a-fA-F]{1,15}|0o[0-7]{1,20}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]{1,30}|[0-9]{1,30}(?:\.[0-9]{0,30})?)(?:[eE][-+]?[0-9]{1,3})?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: Mapping[str, JsonValue] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip

DocumentPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A fault at a path in a document; `line` 0: the line of that path."""

    path: DocumentPath
    message: str
    hint: str = ""
    line: int = 0


@dataclass(slots=True, kw_only=True)
class Document:
    """The content of a file: its value, the line of each path in it, and the faults of its YAML."""

    value: JsonValue = None
    lines: dict[DocumentPath, int] = field(default_factory=dict[DocumentPath, int])
    problems: list[Problem] = field(default_factory=list[Problem])

    def line(self, path: DocumentPath) -> int:
        """The line of a path, or of the nearest path above it that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


class _Unreadable(Exception):
    """Stops reading; the problem is already recorded."""


def read_document(text: str | bytes) -> Document:
    """Read one YAML document. Faults are in its `problems`; the value is then incomplete."""
    document = Document()
    size = len(utf8(text)) if isinstance(text, str) else len(text)
    if size > MAX_BYTES:
        document.problems.append(Problem(path=(), message=f"it has {size} bytes, at most {MAX_BYTES} are read", line=1))
        return document
    try:
        plain = text if isinstance(text, str) else text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1 if isinstance(text, bytes) else 1
        document.problems.append(Problem(path=(), message="it is not UTF-8", line=line))
        return document
    with suppress(_Unreadable):
        _Reader(document).read(plain)
    return document


class _Reader:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._count = 0

    def read(self, text: str) -> None:
        import yaml

        # The time of the C parser is linear in the size; libyaml is in every wheel.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        events: Iterator[Any] = iter(yaml.parse(text, Loader=loader))
        try:
            self._whole(events)
        except (yaml.MarkedYAMLError, yaml.reader.ReaderError) as error:
            mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
            reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
            line = mark.line + 1 if mark else text[: getattr(error, "position", 0) or 0].count("\n") + 1
            raise self._unreadable((), f"invalid YAML: {reason}", line) from error

    def _whole(self, events: Iterator[Any]) -> None:
        import yaml

        begun = False
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if begun:
                    raise self._unreadable((), "it holds more than one document", _line(event))
                begun = True
            elif isinstance(event, yaml.NodeEvent):
                self._document.value = self._value(event, events, ())

    def _value(self, event: Any, events: Iterator[Any], path: DocumentPath) -> JsonValue:
        import yaml

        self._count += 1
        self._document.lines.setdefault(path, _line(event))
        if isinstance(event, yaml.AliasEvent):
            self._problem(path, f"the alias *{event.anchor} is not supported", _line(event), "write it out")
            return None
        if self._count > MAX_VALUES or len(path) > MAX_DEPTH:
            most = f"{MAX_DEPTH} levels" if len(path) > MAX_DEPTH else f"{MAX_VALUES} values"
            raise self._unreadable(path[:4], f"it holds more than {most}", _line(event))
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(event, events, path)
        return self._mapping(event, events, path)

    def _sequence(self, event: Any, events: Iterator[Any], path: DocumentPath) -> JsonValue:
        import yaml

        self._tagged(event, path, "tag:yaml.org,2002:seq")
        items: list[JsonValue] = []
        while not isinstance(each := next(events), yaml.SequenceEndEvent):
            items.append(self._value(each, events, (*path, len(items))))
        return items

    def _mapping(self, event: Any, events: Iterator[Any], path: DocumentPath) -> JsonValue:
        import yaml

        self._tagged(event, path, "tag:yaml.org,2002:map")
        fields: dict[str, JsonValue] = {}
        while not isinstance(key := next(events), yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent):
                raise self._unreadable(path, "a key must be a string", _line(key))
            name = str(key.value)
            place = (*path, name)
            if name in fields:
                self._problem(place, f"the key {name[:60]!r} is given twice", _line(key), "remove one of them")
                self._value(next(events), events, (*place, "again"))
                continue
            self._document.lines[place] = _line(key)
            fields[name] = self._value(next(events), events, place)
        return fields

    def _scalar(self, event: Any, path: DocumentPath) -> JsonValue:
        text = str(event.value)
        if event.tag is not None:
            if event.tag != "tag:yaml.org,2002:str":
                self._problem(path, f"the tag {event.tag[:60]} is not supported", _line(event), "leave it out")
            return text
        if not event.implicit[0]:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text):
            return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
        if _FLOAT.fullmatch(text):
            return self._number(text, event, path)
        if _NO_NUMBER.fullmatch(text):
            self._problem(path, f"{text} is not a number in JSON", _line(event))
        return text

    def _number(self, text: str, event: Any, path: DocumentPath) -> JsonValue:
        number = float(text)
        if number in (float("inf"), float("-inf")):
            self._problem(path, f"{text[:40]} is too large a number", _line(event))
        return number

    def _tagged(self, event: Any, path: DocumentPath, usual: str) -> None:
        if event.tag not in (None, usual):
            self._problem(path, f"the tag {event.tag[:60]} is not supported", _line(event), "leave it out")

    def _problem(self, path: DocumentPath, message: str, line: int, hint: str = "") -> None:
        self._document.problems.append(Problem(path=path, message=message, line=line, hint=hint))

    def _unreadable(self, path: DocumentPath, message: str, line: int) -> _Unreadable:
        self._problem(path, message, line)
        return _Unreadable(message)


def _line(event: Any) -> int:
    return event.start_mark.line + 1
