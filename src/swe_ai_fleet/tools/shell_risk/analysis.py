"""Reads a command line with a real shell grammar and judges each command in it; what is not understood is risky."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import tree_sitter
import tree_sitter_bash

from swe_ai_fleet.tools.shell_risk.commands import SHELLS, command_risks, path_risk, places

MAX_CHARS = 16_384
MAX_DEPTH = 4
"""How deep `sh -c '…'` and its like are followed."""
_MAX_NODES = 20_000
_NETWORK_DEVICE = re.compile(r"/dev/(tcp|udp)/")
_HARMLESS_VARIABLE = re.compile(r"[a-z_][a-z0-9_]*|CI|DEBUG|LANG|LC_[A-Z]+|TZ|TERM|NO_COLOR|FORCE_COLOR|COLUMNS")
_DYNAMIC = frozenset(
    {
        "simple_expansion",
        "expansion",
        "command_substitution",
        "process_substitution",
        "arithmetic_expansion",
        "brace_expression",
    }
)
_WRITING = frozenset({">", ">>", ">|", "&>", "&>>", ">&", "<>"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a command. `text` is what the shell makes of it, None where that is known only when it runs."""

    text: str | None
    source: str


def shell_risks(command: str, *, depth: int = 0) -> tuple[str, ...]:
    """Why a command line should be looked at by a person; empty where all of it is known to be harmless.

    Judged are the commands as they are written, in whatever list, pipeline, loop, function or substitution they stand,
    and those given to `sh -c`, `xargs`, `env` and their like. A name, an option or a construct that is not known counts
    as a risk: the answer may be too careful, but a harmless verdict needs every part to be on a list.
    """
    if depth > MAX_DEPTH:
        return ("unknown: shells are nested too deeply",)
    if len(command) > MAX_CHARS or "\0" in command:
        return ("unknown: it is too long to judge, or holds a NUL",)
    source = command.encode("utf-8", "replace")
    tree = _parser().parse(source)
    if tree.root_node.has_error:
        return ("unknown: it cannot be read as shell",)
    reasons: dict[str, None] = {}
    if not _wholly_read(tree.root_node, source):
        return ("unknown: parts of it cannot be read as shell",)
    for count, node in enumerate(_nodes(tree.root_node)):
        if count > _MAX_NODES:
            return ("unknown: it is too long to judge",)
        for reason in _node_risks(node, source, depth):
            reasons[reason] = None
    return tuple(reasons)


def _wholly_read(root: tree_sitter.Node, source: bytes) -> bool:
    """Whether the grammar accounts for all of the text: nothing but space between its leaves, no line end in a word."""
    end = 0
    for node in _nodes(root):
        if node.children:
            continue
        gap = source[end : node.start_byte].replace(b"\\\n", b"")
        if gap.strip() or (node.type == "word" and b"\n" in source[node.start_byte : node.end_byte]):
            return False
        end = max(end, node.end_byte)
    return not source[end:].strip()


def _node_risks(node: tree_sitter.Node, source: bytes, depth: int) -> Iterator[str]:
    match node.type:
        case "command":
            words = _words(node, source)
            if words:
                yield from command_risks([word.text for word in words], lambda line: shell_risks(line, depth=depth + 1))
        case "pipeline":
            yield from _pipeline_risks(node, source)
        case "file_redirect":
            yield from _redirect_risks(node, source)
        case "variable_assignment":
            name = node.child_by_field_name("name")
            text = _source(name, source) if name is not None else ""
            if not _HARMLESS_VARIABLE.fullmatch(text):
                yield f"environment: it sets {text[:64]}"
        case "declaration_command" | "unset_command" | "test_operator":
            if node.type == "declaration_command" and node.children and node.children[0].type != "local":
                yield "environment: it declares variables for later commands"
        case "function_definition":
            yield "unknown: it defines a function"
        case _ if _NETWORK_DEVICE.search(_source(node, source)) and not node.children:
            yield "exfiltration: it opens a network connection"
        case _:
            pass


def _pipeline_risks(node: tree_sitter.Node, source: bytes) -> Iterator[str]:
    """What is fetched and goes straight into an interpreter."""
    names = [
        places(words[0].text or "")
        for part in node.named_children
        for words in [_words(_command_in(part), source)]
        if words
    ]
    fetches = [index for index, name in enumerate(names) if name in ("curl", "wget", "fetch", "http", "nc", "ncat")]
    if fetches and any(name in SHELLS for name in names[fetches[0] + 1 :]):
        yield "fetch-and-execute: what it downloads is run"


def _command_in(node: tree_sitter.Node) -> tree_sitter.Node:
    body = node.child_by_field_name("body") if node.type == "redirected_statement" else None
    return _command_in(body) if body is not None else node


def _redirect_risks(node: tree_sitter.Node, source: bytes) -> Iterator[str]:
    target = node.child_by_field_name("destination")
    sign = next((child.type for child in node.children if not child.is_named), "")
    if target is None or sign not in _WRITING:
        return
    word = _word(target, source)
    if word.text is None:
        yield "unknown: where it writes to is computed"
    elif not word.text.isdigit() and (risk := path_risk(word.text, writes=True)):
        yield risk


def _words(node: tree_sitter.Node, source: bytes) -> list[Word]:
    """The words of a command: its name and its arguments, without assignments and redirections."""
    if node.type != "command":
        return []
    kept = [child for child in node.named_children if child.type not in ("variable_assignment", "file_redirect")]
    return [_word(child, source) for child in kept if child.type not in ("heredoc_redirect", "herestring_redirect")]


def _word(node: tree_sitter.Node, source: bytes) -> Word:
    raw = _source(node, source)
    return Word(text=_static(node, source), source=raw)


def _static(node: tree_sitter.Node, source: bytes) -> str | None:
    """The value of a word that is the same whenever it runs, else None."""
    raw = _source(node, source)
    match node.type:
        case "command_name":
            return _static(node.named_children[0], source) if node.named_child_count == 1 else None
        case "word" | "number" | "test_operator" | "regex" | "extglob_pattern":
            if node.type == "word" and raw.startswith("~"):
                return raw
            return re.sub(r"\\(.)", r"\1", raw, flags=re.DOTALL)
        case "raw_string":
            return raw[1:-1]
        case "string":
            if any(child.type in _DYNAMIC for child in node.named_children):
                return None
            return re.sub(r'\\([$`"\\\n])', r"\1", raw[1:-1])
        case "concatenation":
            parts = [_static(child, source) for child in node.named_children]
            # Bare characters between the named parts (braces, signs) are not judged.
            if any(part is None for part in parts) or sum(len(_source(c, source)) for c in node.named_children) != len(
                raw
            ):
                return None
            return "".join(part for part in parts if part is not None)
        case _:
            return None


def _nodes(root: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _source(node: tree_sitter.Node, source: bytes) -> str:
    return source[node.start_byte : node.end_byte].decode("utf-8", "replace")


@cache
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
