"""The definitions in one file, and the names that it uses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

from .languages import LANGUAGES

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Query

MAX_DEFINITIONS = 2_000
MAX_REFERENCES = 5_000
MAX_NAME_CHARS = 100
MAX_SIGNATURE_CHARS = 160
_MAX_SIGNATURE_BYTES = 2_000
# All of a definition of these kinds is its signature; for other kinds without a body it is the first line.
_SIGNATURES = frozenset(
    {
        "abstract_method_signature", "function_declarator", "function_signature", "function_signature_item",
        "method_declaration", "method_signature",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SymbolDefinition:
    """A definition: its line from 1, its signature, and the index of the definition around it, -1 for none.

    `name` is empty for scopes such as an `impl` block.
    """

    name: str
    line: int
    parent: int
    signature: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTags:
    """The definitions in the order of a file, and the number of uses of each name."""

    definitions: tuple[SymbolDefinition, ...] = ()
    references: Mapping[str, int]


NOTHING = FileTags(references={})
"""The tags of a file that could not be parsed."""


def extract(language: str, source: bytes) -> FileTags:
    """Parse a file. Names and signatures are cut to a length, definitions and references to a number."""
    parser, query = _machine(language)
    tree = parser.parse(source)
    captured, names, uses = _captured(query, tree.root_node)
    definitions: list[SymbolDefinition] = []
    around: list[tuple[int, int, bool]] = []  # (end, index, whether it is a function) of enclosing definitions
    for node, name in sorted(captured, key=lambda pair: (pair[0].start_byte, -pair[0].end_byte)):
        while around and around[-1][0] <= node.start_byte:
            around.pop()
        if any(function for _, _, function in around):
            continue  # local to a function
        if len(definitions) == MAX_DEFINITIONS:
            break
        parent = around[-1][1] if around else -1
        around.append((node.end_byte, len(definitions), _is_function(node)))
        definitions.append(
            SymbolDefinition(
                name=_text(name)[:MAX_NAME_CHARS] if name is not None else "",
                line=node.start_point[0] + 1,
                parent=parent,
                signature=_signature(node, source),
            )
        )
    references: dict[str, int] = {}
    for node in uses:
        if node.start_byte in names:
            continue
        name = _text(node)[:MAX_NAME_CHARS]
        if name in references or len(references) < MAX_REFERENCES:
            references[name] = references.get(name, 0) + 1
    return FileTags(definitions=tuple(definitions), references=references)


def dump(tags: FileTags) -> str:
    """The tags as one line of JSON."""
    rows = [[tag.name, tag.line, tag.parent, tag.signature] for tag in tags.definitions]
    return json.dumps([rows, tags.references], ensure_ascii=False, separators=(",", ":"))


def load(text: str) -> FileTags | None:
    """The tags from `dump`'s output, None for any other text: the cache may have been written by others."""
    try:
        loaded: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match cast("list[object]", loaded) if isinstance(loaded, list) else []:
        case [list(), dict()] as both:
            rows, references = cast("tuple[list[object], dict[str, object]]", both)
        case _:
            return None
    if len(rows) > MAX_DEFINITIONS or len(references) > MAX_REFERENCES:
        return None
    definitions: list[SymbolDefinition] = []
    for index, row in enumerate(rows):
        match row:
            case [str() as name, int() as line, int() as parent, str() as signature] if (
                -1 <= parent < index and len(name) <= MAX_NAME_CHARS and len(signature) <= MAX_SIGNATURE_CHARS
            ):
                definitions.append(SymbolDefinition(name=name, line=line, parent=parent, signature=signature))
            case _:
                return None
    counts = {name: count for name, count in references.items() if isinstance(count, int) and 0 < count < 1 << 31}
    return FileTags(definitions=tuple(definitions), references=counts)


@cache
def _machine(language: str) -> tuple[Parser, Query]:
    # Imported late: only the parsing process loads grammars, and only those it needs.
    from tree_sitter import Language, Parser, Query

    entry = LANGUAGES[language]
    grammar = Language(cast("object", getattr(import_module(entry.module), entry.function)()))
    return Parser(grammar), Query(grammar, entry.query)


def _captured(query: Query, root: Node) -> tuple[list[tuple[Node, Node | None]], set[int], list[Node]]:
    """(definitions with their names, the positions of these names, references)."""
    from tree_sitter import QueryCursor

    captured: dict[tuple[int, int], tuple[Node, Node | None]] = {}
    names: set[int] = set()
    uses: list[Node] = []
    for _, captures in QueryCursor(query).matches(root):
        uses += captures.get("reference", ())
        for node in captures.get("scope", ()):
            captured.setdefault((node.start_byte, node.end_byte), (node, None))
        for node, name in zip(captures.get("definition", ()), captures.get("name", ()), strict=False):
            names.add(name.start_byte)
            captured[node.start_byte, node.end_byte] = (node, name)
    return list(captured.values()), names, uses


def _is_function(node: Node) -> bool:
    kind = node.type
    if kind in ("variable_declarator", "pair", "assignment_expression"):
        value = node.child_by_field_name("value") or node.child_by_field_name("right")
        kind = value.type if value is not None else ""
    return "function" in kind or "method" in kind or kind == "constructor_declaration"


def _signature(node: Node, source: bytes) -> str:
    start = source.rfind(b"\n", 0, node.start_byte) + 1
    if node.start_byte - start > _MAX_SIGNATURE_BYTES:
        start = node.start_byte
    body = _body(node)
    if body is not None:
        end = body.start_byte
    elif node.type in _SIGNATURES:
        end = node.end_byte
    else:
        end = source.find(b"\n", node.start_byte)
        end = len(source) if end < 0 else end
    text = source[start : min(end, start + _MAX_SIGNATURE_BYTES)].decode("utf-8", "replace")
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    line = line.replace("( ", "(").replace(", )", ")").replace(" )", ")").rstrip(" {:=")
    return line if len(line) <= MAX_SIGNATURE_CHARS else line[: MAX_SIGNATURE_CHARS - 1] + "\u2026"


def _body(node: Node) -> Node | None:
    value = node.child_by_field_name("value") or node.child_by_field_name("right")
    return node.child_by_field_name("body") or (value.child_by_field_name("body") if value is not None else None)


def _text(node: Node) -> str:
    return (node.text or b"")[: 4 * MAX_NAME_CHARS].decode("utf-8", "replace")
