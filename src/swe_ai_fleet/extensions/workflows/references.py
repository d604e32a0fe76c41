"""References in texts and JSON: `${inputs.NAME}`, `${nodes.ID.output.FIELD[0]}`, `${item}`; `$${` is a plain `${`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import is_array, is_list, is_mapping
from swe_ai_fleet.domain.workflow import JsonValue, json_type

MAX_CHARS = 4_000_000
"""The most that the references in one value may expand to."""
MAX_DEPTH = 64
_MAX_PATH_CHARS = 500
_PART = re.compile(r"\.([A-Za-z0-9_-]+)|\[([0-9]{1,9})\]|\[\"([^\"\\]*)\"\]")
_ROOT = re.compile(r"[a-z]+")
_ROOTS = ("inputs", "nodes", "item", "index")
_NODE_FIELDS = ("output", "status", "error", "label")
_HINT = "${inputs.NAME}, ${nodes.ID.output.FIELD}, ${item} or ${index}; a plain ${ is written $${"


class BadReference(InvalidRequest):
    """A malformed reference, or one that names nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """`root` is inputs, nodes, item or index; `path` are keys and indices below it. `text` is as it was written."""

    root: str
    path: tuple[str | int, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeValue:
    """The result of a node that ended."""

    output: JsonValue = None
    status: str = ""
    error: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceScope:
    """The values that references can name. `has_item` says whether the node is within a map.

    `before` are the nodes that the node waited for; their outputs go to an agent without a query.
    """

    inputs: Mapping[str, JsonValue]
    nodes: Mapping[str, NodeValue] = field(default_factory=dict[str, NodeValue])
    item: JsonValue = None
    index: int = 0
    has_item: bool = False
    before: tuple[str, ...] = ()


def parsed(text: str) -> tuple[str | Reference, ...]:
    """A text as its plain parts and references. Raises BadReference for a malformed one."""
    parts: list[str | Reference] = []
    plain: list[str] = []
    at = 0
    while (start := text.find("${", at)) >= 0:
        if start > at and text[start - 1] == "$":
            plain.append(text[at : start - 1] + "${")
            at = start + 2
            continue
        end = text.find("}", start, start + _MAX_PATH_CHARS)
        if end < 0:
            raise BadReference(f"{text[start : start + 40]!r} has no closing brace", field="reference", hint=_HINT)
        plain.append(text[at:start])
        if joined := "".join(plain):
            parts.append(joined)
        plain = []
        parts.append(_reference(text[start + 2 : end].strip()))
        at = end + 1
    plain.append(text[at:])
    if joined := "".join(plain):
        parts.append(joined)
    return tuple(parts)


def references_in(value: JsonValue) -> Iterator[Reference]:
    """Every reference in a text, or in the texts of a JSON value. Raises BadReference."""
    waiting: list[Any] = [value]
    while waiting:
        match item := waiting.pop():
            case str(text):
                yield from (part for part in parsed(text) if isinstance(part, Reference))
            case _ if is_mapping(item):
                waiting.extend(reversed([*item.values()]))
            case _ if is_array(item):
                waiting.extend(reversed(item))
            case _:
                pass


def resolved(value: JsonValue, scope: ReferenceScope) -> JsonValue:
    """The value with its references replaced by the values that they name.

    A text that is one reference becomes the value named, of whatever type; within a longer text it becomes text:
    strings as they are, null as nothing, everything else as JSON.

    Raises:
        BadReference: A reference names nothing, or the result is longer than `MAX_CHARS`.
    """
    return _Resolution(scope).of(value, 0)


def resolved_text(text: str, scope: ReferenceScope) -> str:
    """As `resolved`, but always as text."""
    return as_text(resolved(text, scope))


def looked_up(reference: Reference, scope: ReferenceScope) -> JsonValue:
    """The value that a reference names. Raises BadReference saying which part of it is missing.

    The output of a skipped node, and every field of it, is null.
    """
    match reference:
        case Reference(root="inputs", path=(str(name), *rest)):
            if name not in scope.inputs:
                raise _missing(reference, f"there is no input {name!r}", scope.inputs)
            return _below(scope.inputs[name], rest, reference)
        case Reference(root="nodes", path=(str(name), part, *rest)):
            if name not in scope.nodes:
                raise _missing(reference, f"node {name!r} has no output yet", scope.nodes)
            node = scope.nodes[name]
            if part == "output":
                return None if node.status == "skipped" else _below(node.output, rest, reference)
            return _below(getattr(node, str(part)), rest, reference)
        case Reference(root="item"):
            _require_item(reference, scope)
            return _below(scope.item, reference.path, reference)
        case _:
            _require_item(reference, scope)
            return scope.index


def as_text(value: JsonValue) -> str:
    """A JSON value as part of a text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _Resolution:
    def __init__(self, scope: ReferenceScope) -> None:
        self._scope = scope
        self._left = MAX_CHARS

    def of(self, value: JsonValue, depth: int) -> JsonValue:
        if depth > MAX_DEPTH:
            raise BadReference(f"it is nested more than {MAX_DEPTH} levels deep", field="reference")
        match value:
            case str(text):
                return self._text(text)
            case _ if is_mapping(value):
                return {name: self.of(each, depth + 1) for name, each in value.items()}
            case _ if is_array(value):
                return [self.of(each, depth + 1) for each in value]
            case _:
                return value

    def _text(self, text: str) -> JsonValue:
        parts = parsed(text)
        if len(parts) == 1 and isinstance(parts[0], Reference):
            value = looked_up(parts[0], self._scope)
            self._charge(as_text(value))
            return value
        texts: list[str] = []
        for part in parts:
            texts.append(part if isinstance(part, str) else as_text(looked_up(part, self._scope)))
            self._charge(texts[-1])
        return "".join(texts)

    def _charge(self, text: str) -> None:
        self._left -= len(text)
        if self._left < 0:
            raise BadReference(
                f"with what is put in it is longer than {MAX_CHARS} characters",
                field="reference",
                hint="name a part of the output, or have a node sum it up",
            )


def _reference(text: str) -> Reference:
    root = _ROOT.match(text)
    path: list[str | int] = []
    at = root.end() if root else 0
    while at < len(text) and (part := _PART.match(text, at)):
        path.append(int(part[2]) if part[2] else part[1] or part[3] or "")
        at = part.end()
    if root is None or at < len(text) or not _is_valid(root[0], path):
        raise BadReference(f"${{{text[:80]}}} is not a reference", field="reference", hint=_HINT)
    return Reference(root=root[0], path=tuple(path), text=f"${{{text}}}")


def _is_valid(root: str, path: Sequence[str | int]) -> bool:
    match root:
        case "inputs":
            return bool(path) and isinstance(path[0], str)
        case "nodes":
            return len(path) > 1 and isinstance(path[0], str) and path[1] in _NODE_FIELDS
        case "index":
            return not path
        case _:
            return root in _ROOTS


def _below(value: JsonValue, path: Sequence[str | int], reference: Reference) -> JsonValue:
    for part in path:
        match value:
            case _ if is_mapping(value):
                if str(part) not in value:
                    raise _missing(reference, f"there is no {str(part)!r}", value)
                value = value[str(part)]
            case _ if is_list(value):
                number = _number(part)
                if number is None or number >= len(value):
                    raise _missing(reference, f"there is no [{part}] in a list of {len(value)}", ())
                value = value[number]
            case _:
                raise _missing(reference, f"a value of type {json_type(value)} has no {str(part)!r}", ())
    return value


def _number(part: str | int) -> int | None:
    if isinstance(part, int):
        return part
    return int(part) if part.isascii() and part.isdigit() and len(part) < 10 else None


def _require_item(reference: Reference, scope: ReferenceScope) -> None:
    if not scope.has_item:
        raise BadReference(f"{reference.text} names something only within a map", field="reference")


def _missing(reference: Reference, why: str, names: Iterable[str]) -> BadReference:
    existing = [name[:40] for name in names][:10]
    hint = f"there are: {', '.join(existing)}" if existing else ""
    return BadReference(f"{reference.text} refers to nothing: {why}", field="reference", hint=hint)
