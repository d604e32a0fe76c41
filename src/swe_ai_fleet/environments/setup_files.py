"""setup.py and setup.cfg, read as data: nothing of them is run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swe_ai_fleet.environments.repository_files import Table, items, table
from swe_ai_fleet.tools.tests.runners.values import parsed_ini

_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupConfig:
    """What setup.cfg declares."""

    name: str = ""
    install_requires: tuple[str, ...] = ()
    tests_require: tuple[str, ...] = ()
    setup_requires: str = ""
    extras: Mapping[str, object] = field(default_factory=dict[str, object])
    requires_python: str = ""
    classifiers: tuple[str, ...] = ()


def read_setup_config(text: str) -> SetupConfig:
    """What a setup.cfg declares, nothing where it cannot be parsed."""
    parser = parsed_ini(text)
    if parser is None:
        return SetupConfig()

    def lines(section: str, option: str) -> tuple[str, ...]:
        value = parser.get(section, option, fallback="") or ""
        return tuple(line.strip() for line in value.replace(";\n", "\n").splitlines() if line.strip())

    extras = "options.extras_require"
    return SetupConfig(
        name=parser.get("metadata", "name", fallback="") or "",
        install_requires=lines("options", "install_requires"),
        tests_require=lines("options", "tests_require"),
        setup_requires=" ".join(lines("options", "setup_requires")),
        extras={name: list(lines(extras, name)) for name in parser.options(extras)}
        if parser.has_section(extras)
        else {},
        requires_python=parser.get("options", "python_requires", fallback="") or "",
        classifiers=(*lines("metadata", "classifiers"), *lines("metadata", "classifier")),
    )


def read_setup_arguments(text: str) -> Table:
    """The arguments of `setup()` in a setup.py, as far as they can be read without running it."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    known: dict[str, object] = {}
    call: ast.Call | None = None
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _called(node.func) == "setup":
            call = node
    for statement in module.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            _learn(statement.targets[0], _value(statement.value, known), known)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            _learn(statement.target, _value(statement.value, known), known)
    if call is None:
        return {}
    found: dict[str, object] = {}
    for keyword in call.keywords:
        value = _value(keyword.value, known)
        found |= {keyword.arg: value} if keyword.arg else table(value)
    return found


def _called(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _learn(target: ast.expr, value: object, known: dict[str, object]) -> None:
    if isinstance(target, ast.Name):
        known[target.id] = value
    elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
        key = _value(target.slice, known)
        if isinstance(key, str):
            known[target.value.id] = {**table(known.get(target.value.id)), key: value}


def _value(node: ast.expr, known: Mapping[str, object], depth: int = 0) -> object:
    """What an expression stands for, None where only running it could tell."""
    if depth > _MAX_DEPTH:
        return None

    def inner(part: ast.expr) -> object:
        return _value(part, known, depth + 1)

    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return known.get(name)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return [value for part in parts for value in (_spread(part, inner))]
        case ast.Dict(keys=keys, values=values):
            pairs: dict[str, object] = {}
            for key, part in zip(keys, values, strict=True):
                value = inner(part)
                pairs |= table(value) if key is None else {str(inner(key)): value}
            return pairs
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = inner(left), inner(right)
            if isinstance(first, str) and isinstance(second, str):
                return first + second
            return [*items(first), *items(second)]
        case ast.Subscript(value=holder, slice=key):
            return table(inner(holder)).get(str(inner(key)))
        case ast.Call(func=function, args=parts, keywords=keywords) if _called(function) in (
            "dict",
            "list",
            "sorted",
            "set",
        ):
            if keywords:
                return {keyword.arg: inner(keyword.value) for keyword in keywords if keyword.arg}
            return inner(parts[0]) if parts else []
        case _:
            return None


def _spread(part: ast.expr, inner: Callable[[ast.expr], object]) -> list[object]:
    value = inner(part.value if isinstance(part, ast.Starred) else part)
    return items(value) if isinstance(part, ast.Starred) else [value]
