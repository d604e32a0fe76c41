"""Tools of a server: which are offered, and under which names and words.

A stranger's JSON schema is made fit to be shown to a model and to check arguments with.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from swe_ai_fleet.domain.json_values import is_list, is_mapping, is_object, mapping
from swe_ai_fleet.domain.tool import OperationSpec, Risk
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.mcp.server import McpServer

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
    copy = dict(mapping(_copy(schema, 0)))
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
    if is_list(node):
        return [_copy(part, depth + 1) for part in node]
    if not is_mapping(node):
        return node
    copy: dict[str, object] = {}
    for key, value in node.items():
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

    def _of(self, schema: object) -> int:
        if is_list(schema):
            return sum(self._of(part) for part in schema)
        if not is_object(schema):
            return 0
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
        node: object = self._root
        if not reference.startswith("#/"):
            raise UnfitSchemaError(f"its schema refers to {plain(reference, 80)!r}, outside itself")
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if not is_object(node) or name not in node:
                raise UnfitSchemaError(f"its schema refers to {plain(reference, 80)!r}, which it does not hold")
            node = node[name]
        return node


MAX_TOOLS = 128
"""Of one server; what it lists beyond is left out."""
MAX_LISTING_CHARS = 100_000
"""For all names, descriptions and schemas of one server: a model reads them with every call."""
MAX_DESCRIPTION_CHARS = 1_024
_NAME_CHARS = 64
_HASH_CHARS = 6
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTool:
    """A tool as its server describes it; `read_only` is what its annotations say (`readOnlyHint`)."""

    name: str
    description: str
    schema: Mapping[str, object]
    read_only: bool = False

    @property
    def fingerprint(self) -> str:
        """A digest of all that a model is told of it."""
        canonical = json.dumps([self.name, self.description, self.schema, self.read_only], sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A tool as agents see it, and the fingerprint of what it was made from."""

    tool: str
    spec: OperationSpec
    fingerprint: str


def offers(
    server: McpServer, listed: Sequence[ServerTool], *, taken: Collection[str], mask: SecretMask, hints: bool = False
) -> tuple[list[Offer], list[str]]:
    """The offered tools, and a note on each that an operator may miss. `taken` are names in use already.

    With `hints` a tool only reads where its server says so, too.
    """
    notes: list[str] = []
    wanted: dict[str, ServerTool] = {}
    for tool in listed:
        if server.offers(tool.name):
            wanted.setdefault(tool.name, tool)
    names = operation_names(server.name, wanted, taken=taken)
    offers_made: list[Offer] = []
    room = MAX_LISTING_CHARS
    for name, tool in wanted.items():
        if len(offers_made) == MAX_TOOLS:
            notes.append(f"{len(wanted) - MAX_TOOLS} tools more than {MAX_TOOLS} are left out")
            break
        try:
            spec = _spec(server, tool, names[name], mask, reads=server.only_reads(name) or (hints and tool.read_only))
        except UnfitSchemaError as error:
            notes.append(f"the tool {plain(name, _NAME_CHARS)!r} is left out: {error}")
            continue
        room -= len(spec.name) + len(spec.description) + len(json.dumps(spec.parameters))
        if room < 0:
            notes.append(
                f"its tools from {spec.name} on are left out: they take more than {MAX_LISTING_CHARS} characters"
            )
            break
        offers_made.append(Offer(tool=name, spec=spec, fingerprint=tool.fingerprint))
    if listed and not wanted:
        notes.append("none of its tools is allowed; name some in its list of tools")
    return offers_made, notes


def operation_names(server: str, tools: Collection[str], *, taken: Collection[str] = ()) -> dict[str, str]:
    """A name for each tool that a model's server takes; the same ones whatever order the tools come in.

    A name that is not plain or too long, or that another tool has, ends in a piece of its digest.
    """
    plainly = {tool: f"{server}_{_UNFIT.sub('_', tool)}" for tool in tools}
    exact = {f"{server}_{tool}" for tool in tools}
    names: dict[str, str] = {}
    for tool, name in plainly.items():
        clash = name in taken or (name != f"{server}_{tool}" and (name in exact or _shared(name, plainly)))
        if clash or len(name) > _NAME_CHARS:
            digest = hashlib.sha256(tool.encode()).hexdigest()[:_HASH_CHARS]
            name = f"{name[: _NAME_CHARS - _HASH_CHARS - 1]}_{digest}"
        names[tool] = name
    return names


def _shared(name: str, names: Mapping[str, str]) -> bool:
    return sum(other == name for other in names.values()) > 1


def _spec(server: McpServer, tool: ServerTool, name: str, mask: SecretMask, *, reads: bool) -> OperationSpec:
    cut = partial(plain, limit=MAX_DESCRIPTION_CHARS)
    description_given = cut(mask(tool.description))
    local = not server.url
    return OperationSpec(
        name=name,
        tool=server.name,
        operation=plain(tool.name, _NAME_CHARS),
        description=f"[The MCP server {server.name} says:] {description_given or 'nothing about this tool.'}",
        parameters=fit(tool.schema),
        read_only=reads,
        risk=Risk.MEDIUM,
        network=server.networked,
        locks=frozenset({"workspace"}) if local else frozenset({f"mcp:{server.name}"}),
        time_limit_seconds=server.time_limit_seconds,
        cache_seconds=server.cache_seconds if server.only_reads(tool.name) else 0.0,
    )
