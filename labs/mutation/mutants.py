"""Mutants of a module: its syntax tree with one small change in the body of a function."""

from __future__ import annotations
import __future__

import ast
import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change. `function` is the outermost function's qualified name; `change` is told as text, without its line."""

    function: str
    line: int
    change: str
    code: CodeType


def mutants(source: str, filename: str) -> Iterator[Mutant]:
    """Every mutant of a module's functions; defaults, decorators and what stands outside functions stay."""
    for path, function in _functions(ast.parse(source).body, ""):
        function.decorator_list = []
        for node in [node for statement in function.body for node in ast.walk(statement)]:
            for before, change, after in _changes(node):
                kept = dict(node.__dict__)
                change()
                code = _compiled(path, function, filename)
                node.__dict__.clear()
                node.__dict__.update(kept)
                line = getattr(node, "lineno", function.lineno)
                yield Mutant(function=path, line=line, change=f"{before} -> {after}", code=code)


def _compiled(path: str, function: ast.stmt, filename: str) -> CodeType:
    """The code of a function as it is where it stands: a method inside its class."""
    *classes, name = path.split(".")
    for outer in reversed(classes):
        function = ast.ClassDef(name=outer, bases=[], keywords=[], body=[function], decorator_list=[])
    tree = ast.fix_missing_locations(ast.Module(body=[function], type_ignores=[]))
    code = compile(tree, filename, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    for part in (*classes, name):
        code = next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == part)
    return code


def _functions(body: list[ast.stmt], within: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{within}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{within}{node.name}", node


def _text(node: ast.AST) -> str:
    text = ast.unparse(node) if not isinstance(node, ast.match_case) else f"case {ast.unparse(node.pattern)}"
    return " ".join(text.split())[:100]


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[], None], str]]:
    """What can be changed at a node: its text, a function that changes it in place, what it becomes."""

    def put(name: str, value: object, after: str) -> tuple[str, Callable[[], None], str]:
        return _text(node), lambda: setattr(node, name, value), after

    match node:
        case ast.Compare(ops=[first, *rest]):
            for other in _COMPARISONS[type(first)]:
                changed = copy.copy(node)
                changed.ops = [other(), *rest]
                yield put("ops", changed.ops, _text(changed))
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            changed = ast.BinOp(left=node.left, op=_OPERATORS[type(op)](), right=node.right)
            yield put("op", changed.op, _text(changed))
        case ast.AugAssign(op=op) if type(op) in _OPERATORS:
            yield put("op", _OPERATORS[type(op)](), f"with {_OPERATORS[type(op)].__name__}")
        case ast.Constant(value=bool() as value):
            yield put("value", not value, repr(not value))
        case ast.Constant(value=int() | float() as value):
            yield put("value", value + 1, repr(value + 1))
        case ast.Constant(value=str() as value) if _WORD.fullmatch(value):
            yield put("value", "mutant", "'mutant'")
        case ast.Call(func=ast.Name(id=name)) if name in _TWINS:
            yield put("func", ast.Name(id=_TWINS[name], ctx=ast.Load()), _TWINS[name])
        case _:
            pass
    match node:
        case ast.Call(keywords=keywords):
            for one in keywords:
                if one.arg is not None:
                    yield put("keywords", [other for other in keywords if other is not one], f"without {one.arg}")
        case ast.Return(value=value) if value is not None and not _is_empty(value):
            yield put("value", ast.Constant(value=None), "return None")
        case ast.Match(cases=cases) if len(cases) > 1:
            for case in cases:
                others = [other for other in cases if other is not case]
                yield f"match: {_text(case)}", (lambda kept=others: setattr(node, "cases", kept)), "no such case"
        case ast.comprehension(ifs=[_, *_]):
            yield _text(node), lambda: setattr(node, "ifs", []), "without if"
        case ast.ExceptHandler() if not (len(node.body) == 1 and isinstance(node.body[0], ast.Raise)):
            caught = f"except {_text(node.type) if node.type else ''}"
            yield caught, lambda: setattr(node, "body", [ast.Raise()]), "raised again"
        case _:
            pass
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            for at, item in enumerate(value):
                for other in _instead(item):
                    replaced = [*value[:at], other, *value[at + 1 :]]
                    yield _text(item), (lambda name=name, new=replaced: setattr(node, name, new)), _text(other)
        elif isinstance(value, ast.AST):
            for other in _instead(value, test=name == "test"):
                yield _text(value), (lambda name=name, new=other: setattr(node, name, new)), _text(other)


def _instead(node: object, *, test: bool = False) -> Iterator[ast.AST]:
    """What may stand in a node's place."""
    match node:
        case ast.BoolOp(op=op, values=values):
            for dropped in values:
                kept = [one for one in values if one is not dropped]
                yield kept[0] if len(kept) == 1 else ast.BoolOp(op=op, values=kept)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.IfExp(body=body, orelse=orelse):
            yield body
            yield orelse
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Continue() | ast.Break() | ast.Delete():
            yield ast.Pass()
        case ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield ast.Pass()
        case ast.Name() | ast.Call() | ast.Attribute() if test:
            yield ast.UnaryOp(op=ast.Not(), operand=node)
        case _:
            pass


def _is_empty(node: ast.expr) -> bool:
    return (isinstance(node, ast.Constant) and not node.value) or (isinstance(node, ast.Tuple) and not node.elts)
