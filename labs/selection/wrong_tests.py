"""Tests that demand a wrong behaviour, made of two right ones."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from labs.zoo.hiding import TestPlace

_Function = ast.FunctionDef


def add_wrong_test(root: Path, clean: Path, passing: list[TestPlace], failing: list[TestPlace]) -> bool:
    """Write a test that passes where one of `passing` passes and one of `failing` does not; whether it could be made.

    Only for Python, and of two plain functions of one module or methods of one class: no decorators. Without any
    `passing` it demands no more than that the other one fails, which the faulty commit does too.

    Args:
        root: The tree to write to.
        clean: The repository with all its tests.
        passing: Tests that the source of the test's author passes.
        failing: Tests that it fails.
    """
    for good, bad in product([*passing, None], failing):
        if not bad.file.endswith(".py") or (good is not None and good.file != bad.file):
            continue
        text = (clean / bad.file).read_text()
        found = dict(_functions(text))
        first, second = found.get(good.function) if good is not None else None, found.get(bad.function)
        if second is None or (good is not None and (first is None or first[0] != second[0])):
            continue
        owner, function = second
        test = ast.unparse(_joined(first[1] if first else None, function))
        path = root / bad.file
        rest = path.read_text() if path.exists() else ""
        if not rest:
            continue
        written = _into_class(rest, owner, test) if owner else f"{rest.rstrip()}\n\n\n{test}\n"
        if written:
            path.write_text(written)
            return True
    return False


def _functions(text: str) -> Iterator[tuple[str, tuple[str, _Function]]]:
    """Plain functions of a module and plain methods of its classes: name, class, function."""
    for node in ast.parse(text).body:
        owner, body = (node.name, node.body) if isinstance(node, ast.ClassDef) else ("", [node])
        for inner in body:
            if isinstance(inner, _Function) and not inner.decorator_list:
                yield inner.name, (owner, inner)


def _joined(first: _Function | None, second: _Function) -> _Function:
    """The first one's statements, then: the second one's must raise."""
    arguments = {one.arg: one for function in (first, second) if function for one in function.args.args}
    raises = ast.parse(
        "try:\n    pass\nexcept Exception:\n    return\nraise AssertionError('it is as it should be')"
    ).body
    assert isinstance(raises[0], ast.Try)
    raises[0].body = second.body
    made = ast.FunctionDef(
        name=f"{second.name}_as_it_is",
        args=ast.arguments(posonlyargs=[], args=list(arguments.values()), kwonlyargs=[], kw_defaults=[], defaults=[]),
        body=[*(first.body if first else []), *raises],
        decorator_list=[],
    )
    return ast.fix_missing_locations(made)


def _into_class(text: str, owner: str, method: str) -> str:
    """The text with a method more at the end of a class; empty where that class is not there any more."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name == owner:
            lines = text.splitlines()
            indent = " " * node.body[0].col_offset
            lines[node.end_lineno or len(lines) : node.end_lineno] = [
                "",
                *(indent + line for line in method.split("\n")),
            ]
            return "\n".join(lines) + "\n"
    return ""
