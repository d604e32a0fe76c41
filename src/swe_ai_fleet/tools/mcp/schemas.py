"""Making a stranger's JSON schema fit to be shown to a model and to check arguments with."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import Any, cast

MAX_SCHEMA_CHARS = 16_384
MAX_DEPTH = 24
MAX_COST = 5_000
_MAX_REFERENCES = 100
_TEXT_CHARS = 400
# Below these the keys are names that the author chose, and below those there are values, not schemas.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES = frozenset({"enum", "const", "default", "examples", "required"})
# Identifiers change what a reference means. The others make a check take time exponential in the depth.
_DROPPED = frozenset({"$id", "$schema", "$comment", "$anchor", "unevaluatedProperties", "unevaluatedItems"})
_REFUSED = ("$dynamicRef", "$recursiveRef")


class UnfitSchemaError(ValueError):
    """A schema that is not to be used; the message says why."""


def fit(schema: Mapping[str, object]) -> dict[str, object]:
    """A copy whose texts are clean and short, which refers to itself only, and which is cheap to check with.

    A reference in a circle becomes "anything": the server checks its arguments again. Raises UnfitSchemaError.
    """
    copy = cast("dict[str, object]", _copy(schema, 0))
    size = len(json.dumps(copy))
    if size > MAX_SCHEMA_CHARS:
        raise UnfitSchemaError(f"its schema has {size} characters, more than {MAX_SCHEMA_CHARS}")
    cost = _Costs(copy).of_all()
    if cost > MAX_COST:
        raise UnfitSchemaError("its schema unfolds to more than anybody can check")
    return copy


def plain(text: str, limit: int) -> str:
    """A stranger's text without characters that a reader cannot see, cut to `limit` characters."""
    seen = "".join(
        character for character in text[: 4 * limit] if character in "\n\t" or unicodedata.category(character)[0] != "C"
    ).strip()
    return seen if len(seen) <= limit else seen[: limit - 4].rstrip() + " ..."


def _copy(node: object, depth: int, *, named: bool = False) -> object:
    if depth > MAX_DEPTH:
        raise UnfitSchemaError(f"its schema is nested more than {MAX_DEPTH} deep")
    if isinstance(node, list):
        return [_copy(part, depth + 1) for part in cast("list[object]", node)]
    if not isinstance(node, Mapping):
        return node
    copy: dict[str, object] = {}
    for key, value in cast("Mapping[str, object]", node).items():
        if named:
            copy[key] = _copy(value, depth + 1)
        elif key in _REFUSED:
            raise UnfitSchemaError(f"its schema uses {key}")
        elif key in ("description", "title") and isinstance(value, str):
            copy[key] = plain(value, _TEXT_CHARS)
        elif key in _VALUES:
            copy[key] = value
        elif key not in _DROPPED:
            copy[key] = _copy(value, depth + 1, named=key in _NAMED)
    return copy


class _Costs:
    """How many subschemas a check can meet, references followed."""

    def __init__(self, root: dict[str, object]) -> None:
        self._root = root
        self._known: dict[str, int] = {}
        self._open: set[str] = {"#"}

    def of_all(self) -> int:
        return self._of(self._root)

    def _of(self, node: object) -> int:
        if isinstance(node, list):
            return sum(self._of(part) for part in cast("list[object]", node))
        if not isinstance(node, dict):
            return 0
        schema = cast("dict[str, object]", node)
        # Bounded, so that the sums stay small numbers.
        total = min(MAX_COST + 1, 1 + sum(self._of(part) for part in list(schema.values())))
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return total
        if reference in self._open:
            del schema["$ref"]
            return total
        return total + self._of_target(reference)

    def _of_target(self, reference: str) -> int:
        if reference not in self._known:
            if len(self._known) + len(self._open) > _MAX_REFERENCES:
                raise UnfitSchemaError("its schema has too many references")
            self._open.add(reference)
            self._known[reference] = self._of(self._target(reference))
            self._open.discard(reference)
        return self._known[reference]

    def _target(self, reference: str) -> object:
        found: Any = self._root
        if not reference.startswith("#/"):
            raise UnfitSchemaError(f"its schema refers to {plain(reference, 80)!r}, outside itself")
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise UnfitSchemaError(f"its schema refers to {plain(reference, 80)!r}, which it does not hold")
            found = cast("Any", found[name])
        return found
