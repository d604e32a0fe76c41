"""Older ways of declaring a Python project (Poetry, Pipenv, setup.py, setup.cfg), read as data without running them.

Dependencies of Poetry and Pipenv become PEP 508 lines.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

from packaging.version import InvalidVersion, Version

from swe_ai_fleet.domain.json_values import items, mapping, string, strings
from swe_ai_fleet.environments.repository_files import Table, parsed_python
from swe_ai_fleet.tools.tests.inventory import parsed_ini

_PLAIN = re.compile(r"[\d.*]+(?:[a-z]+\d*)?")
_BARE = re.compile(r"\d[\w.]*")
_COLLECTIONS = ("dict", "list", "sorted", "set")
_MAX_DEPTH = 32


def poetry_requirement(name: str, specification: object) -> str:
    """One dependency of Poetry's `pyproject.toml` or of a Pipfile as a PEP 508 line; empty for a path."""
    details = mapping(specification)
    text = specification if isinstance(specification, str) else string(details.get("version"))
    extras = ",".join(strings(details.get("extras")))
    line = f"{name}[{extras}]" if extras else name
    place = string(details.get("git"))
    if place:
        revision = next((string(details.get(key)) for key in ("rev", "tag", "branch", "ref") if details.get(key)), "")
        line += f" @ git+{place}{'@' + revision if revision else ''}"
    elif url := string(details.get("url")) or string(details.get("file")):
        line += f" @ {url}"
    elif details.get("path"):
        return ""
    else:
        line += version_specifier(text)
    markers = [string(details.get("markers"))]
    if python := string(details.get("python")):
        markers += [f"python_version {part}" for part in _python_parts(python)]
    marker = " and ".join(f"({part})" for part in markers if part)
    return f"{line} ; {marker}" if marker else line


def version_specifier(text: str) -> str:
    """A constraint of Poetry's as a PEP 440 specifier: `^1.2`, `~1.2`, `1.*`, `1.2`, comma-separated; else empty."""
    if "||" in text or "|" in text:
        return ""
    parts = [_part(part.strip()) for part in text.split(",")]
    return ",".join(part for part in parts if part)


def _part(text: str) -> str:
    if text in ("", "*"):
        return ""
    if text[0] in "^~" and text[:2] != "~=":
        return _range(text[1:].strip().lstrip("="), caret=text[0] == "^")
    if _PLAIN.fullmatch(text) and text[0].isdigit():
        return f"=={text}"
    return text.replace(" ", "")


def _range(text: str, *, caret: bool) -> str:
    try:
        numbers = list(Version(text).release)
    except InvalidVersion:
        return ""
    precision = len(numbers)
    # With a caret, the first number that is not zero must not change; with a tilde, the second.
    first = next((i for i, number in enumerate(numbers) if number), precision - 1)
    index = first if caret else min(1, precision - 1)
    upper = [*numbers[:index], numbers[index] + 1]
    return f">={text},<{'.'.join(map(str, upper))}"


def _python_parts(text: str) -> list[str]:
    parts: list[str] = []
    for piece in version_specifier(text).split(","):
        match = re.fullmatch(r"(>=|<=|==|!=|<|>|~=)\s*([\d.*]+)", piece)
        if match and _BARE.fullmatch(match[2]):
            parts.append(f'{match[1]} "{match[2].rstrip(".*")}"')
    return parts


def read_setup_config(text: str) -> Table:
    """The declarations of a setup.cfg by the names of `setup()`'s arguments; empty if it cannot be parsed."""
    parser = parsed_ini(text)
    if parser is None:
        return {}

    def lines(section: str, option: str) -> list[str]:
        value = parser.get(section, option, fallback="") or ""
        return [line.strip() for line in value.replace(";\n", "\n").splitlines() if line.strip()]

    extras = "options.extras_require"
    names = parser.options(extras) if parser.has_section(extras) else ()
    return {
        "name": parser.get("metadata", "name", fallback="") or "",
        **{option: lines("options", option) for option in ("install_requires", "tests_require", "setup_requires")},
        "extras_require": {name: lines(extras, name) for name in names},
        "python_requires": parser.get("options", "python_requires", fallback="") or "",
        "classifiers": [*lines("metadata", "classifiers"), *lines("metadata", "classifier")],
    }


def read_setup_arguments(text: str) -> Table:
    """The arguments of `setup()` in a setup.py, as far as they can be read without running it."""
    if (module := parsed_python(text)) is None:
        return {}
    names = literal_names(module)
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call) and _called(node.func) == "setup"]
    arguments: dict[str, object] = {}
    for keyword in calls[-1].keywords if calls else ():
        value = literal_value(keyword.value, names)
        arguments |= {keyword.arg: value} if keyword.arg else mapping(value)
    return arguments


def literal_names(module: ast.Module) -> dict[str, object]:
    """The values of a module's names, as far as they can be read without running it."""
    names: dict[str, object] = {}
    for statement in module.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            _assign(target, literal_value(statement.value, names), names)
    return names


def _called(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _assign(target: ast.expr, value: object, names: dict[str, object]) -> None:
    if isinstance(target, ast.Name):
        names[target.id] = value
    elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
        key = literal_value(target.slice, names)
        if isinstance(key, str):
            names[target.value.id] = {**mapping(names.get(target.value.id)), key: value}


def literal_value(node: ast.expr, names: Mapping[str, object], depth: int = 0) -> object:
    """The value of an expression; None if it must be run to be known."""
    if depth > _MAX_DEPTH:
        return None

    def inner(part: ast.expr) -> object:
        return literal_value(part, names, depth + 1)

    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names.get(name)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return [value for part in parts for value in (_spread(part, inner))]
        case ast.Dict(keys=keys, values=values):
            pairs: dict[str, object] = {}
            for key, part in zip(keys, values, strict=True):
                value = inner(part)
                pairs |= mapping(value) if key is None else {str(inner(key)): value}
            return pairs
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = inner(left), inner(right)
            if isinstance(first, str) and isinstance(second, str):
                return first + second
            return [*items(first), *items(second)]
        case ast.BinOp(op=ast.Div(), right=right):
            name = inner(right)
            return f"./{name}" if isinstance(name, str) else None  # a path below the top directory
        case ast.BoolOp(op=ast.Or(), values=[*_, default]):
            return inner(default)  # `session.posargs or ["tests"]`
        case ast.Subscript(value=holder, slice=key):
            return mapping(inner(holder)).get(str(inner(key)))
        case ast.Call(func=function, args=parts, keywords=keywords) if _called(function) in _COLLECTIONS:
            if keywords:
                return {keyword.arg: inner(keyword.value) for keyword in keywords if keyword.arg}
            return inner(parts[0]) if parts else []
        case _:
            return None


def _spread(part: ast.expr, inner: Callable[[ast.expr], object]) -> list[object]:
    value = inner(part.value if isinstance(part, ast.Starred) else part)
    return items(value) if isinstance(part, ast.Starred) else [value]
