"""The calculator: evaluates arithmetic expressions without executing them as code.

Only the syntax and functions listed here are allowed, and the size of numbers is bounded.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from swe_ai_fleet.domain.json_values import mapping, parsed
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.tools.base_tool import LocalTool, ToolParameter, presented
from swe_ai_fleet.tools.definition import ToolFailure

MAX_CHARS = 1_000
MAX_DEPTH = 60
MAX_DIGITS = 4_000
_MAX_BITS = int(MAX_DIGITS * math.log2(10))
_MAX_FACTORIAL = 1_000
_MAX_CHOICE = 10_000
_MAX_PLACES = 300
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "\u2212": "-", "\u00a0": " ", "\u202f": " "})  # noqa: RUF001

Number = int | float


def evaluate(expression: str) -> Number:
    """The value of an arithmetic expression, an int, a float or a bool.

    The cost of each step is checked first, so the time is bounded. Raises ToolFailure with the problem and a hint.
    """
    if not expression.strip():
        raise ToolFailure("the expression is empty; write one, as '2 * (3 + 4)'")
    if len(expression) > MAX_CHARS:
        raise ToolFailure(f"the expression has {len(expression)} characters; at most {MAX_CHARS} are allowed")
    try:
        tree = parsed(ast.parse, expression.translate(_SIGNS).strip(), mode="eval")
        return _checked(_value(tree.body, 0))
    except SyntaxError as error:
        raise ToolFailure(f"{_shortened(expression)} is not an arithmetic expression: {error.msg}") from None
    except ZeroDivisionError:
        raise ToolFailure("division by zero") from None
    except OverflowError:
        raise ToolFailure("a number is too large") from None
    except (TypeError, ValueError) as error:
        raise ToolFailure(f"{_shortened(expression)} cannot be computed: {error}") from None


def _value(node: ast.expr, depth: int) -> Number:
    if depth > MAX_DEPTH:
        raise ToolFailure(f"the expression is nested more than {MAX_DEPTH} levels deep; split it")
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return _checked(cast("Number", node.value))
        case ast.BinOp():
            return _chain(node, depth)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
            value = _value(node.operand, depth + 1)
            return -value if isinstance(node.op, ast.USub) else +value
        case ast.Compare():
            return _comparison(node, depth)
        case ast.Name():
            return _constant(node.id)
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return _call(name, _arguments(node.args, depth))
        case _:
            raise ToolFailure(_not_arithmetic(node))


def _chain(node: ast.BinOp, depth: int) -> Number:
    """The value of `a + b - c …`, which the parser nests to the left, from left to right without recursion."""
    steps: list[tuple[ast.operator, ast.expr]] = []
    first: ast.expr = node
    while isinstance(first, ast.BinOp):
        steps.append((first.op, first.right))
        first = first.left
    value = _value(first, depth + 1)
    for symbol, right in reversed(steps):
        work = _OPERATORS.get(type(symbol))
        if work is None:
            hint = "for powers write **" if isinstance(symbol, ast.BitXor) else f"there are: {_SYMBOLS}"
            raise ToolFailure(f"the operator {type(symbol).__name__} is not arithmetic; {hint}")
        value = _checked(work(value, _value(right, depth + 1)))
    return value


def _comparison(node: ast.Compare, depth: int) -> bool:
    left = _value(node.left, depth + 1)
    holds = True
    for symbol, operand in zip(node.ops, node.comparators, strict=True):
        work = _COMPARISONS.get(type(symbol))
        if work is None:
            raise ToolFailure("of comparisons there are: < <= > >= == !=")
        right = _value(operand, depth + 1)
        holds, left = holds and work(left, right), right
    return holds


def _constant(name: str) -> float:
    if name not in CONSTANTS:
        raise ToolFailure(f"there is no {name[:64]!r}; there are: {', '.join((*CONSTANTS, *FUNCTIONS))}")
    return CONSTANTS[name]


def _arguments(nodes: list[ast.expr], depth: int) -> list[Number]:
    """The numeric arguments of a function; a list counts as its items."""
    numbers: list[Number] = []
    for node in nodes:
        parts = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
        numbers += [_value(part, depth + 1) for part in parts]
    return numbers


def _call(name: str, arguments: list[Number]) -> Number:
    function = FUNCTIONS.get(name)
    if function is None:
        raise ToolFailure(f"there is no function {name[:64]!r}; there are: {', '.join(FUNCTIONS)}")
    try:
        return _checked(function(*arguments))
    except TypeError as error:
        raise ToolFailure(f"{name}: {error}") from None
    except ValueError as error:
        raise ToolFailure(f"{name}{tuple(arguments)!r:.100}: {error}") from None


def _checked(value: Any) -> Number:
    if isinstance(value, complex):
        raise ToolFailure("the result is not a real number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ToolFailure("the result is not a finite number")
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise _too_large()
    return cast("Number", value)


def _power(base: Number, exponent: Number) -> Any:
    # The length of the result, and so the time, is known beforehand.
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1:
        if exponent < 0:
            return 1 / _power(base, -exponent)
        if (base.bit_length() - 1) * exponent > _MAX_BITS:
            raise _too_large()
    return base**exponent


def _factorial(number: Number) -> int:
    if number > _MAX_FACTORIAL:
        raise ToolFailure(f"factorial goes up to {_MAX_FACTORIAL}")
    return math.factorial(_whole(number))


def _choosing(work: Callable[[int, int], int]) -> Callable[[Number, Number], int]:
    def choose(total: Number, taken: Number) -> int:
        if total > _MAX_CHOICE:
            raise ToolFailure(f"that many to choose from are too many; at most {_MAX_CHOICE}")
        return work(_whole(total), _whole(taken))

    return choose


def _rounded(number: Number, places: Number = 0) -> Number:
    if abs(places) > _MAX_PLACES:
        raise ToolFailure(f"round goes to at most {_MAX_PLACES} places")
    return round(number, _whole(places)) if places else round(number)


def _mean(*numbers: Number) -> float:
    if not numbers:
        raise ValueError("it takes at least one number")
    return math.fsum(numbers) / len(numbers)


def _sum(*numbers: Number) -> Number:
    return sum(numbers)


def _lcm(*numbers: Number) -> int:
    multiple = 1
    for number in numbers:
        multiple = int(_checked(math.lcm(multiple, _whole(number))))
    return multiple


def _whole(number: Number) -> int:
    if isinstance(number, float) and not float(number).is_integer():
        raise ValueError("it takes whole numbers")
    return int(number)


def _too_large() -> ToolFailure:
    return ToolFailure(f"the number would have more than {MAX_DIGITS} digits")


def _shortened(expression: str) -> str:
    return repr(expression if len(expression) <= 80 else expression[:77] + "...")


def _not_arithmetic(node: ast.expr) -> str:
    if isinstance(node, ast.Tuple):
        return "a comma separates arguments of a function; write 1000, not 1,000"
    kind = type(node.value).__name__ if isinstance(node, ast.Constant) else type(node).__name__
    return f"{kind} is not arithmetic; there are numbers, {_SYMBOLS}, comparisons, {', '.join(FUNCTIONS)}"


_SYMBOLS = "+ - * / // % **"
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, other: left / other,
    ast.FloorDiv: lambda left, other: left // other,
    ast.Mod: lambda left, other: left % other,
    ast.Pow: _power,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs, "round": _rounded, "min": min, "max": max, "sum": _sum, "mean": _mean, "pow": _power,
    "sqrt": math.sqrt, "cbrt": math.cbrt, "isqrt": math.isqrt, "hypot": math.hypot,
    "exp": math.exp, "log": math.log, "ln": math.log, "log2": math.log2, "log10": math.log10,
    "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "factorial": _factorial, "comb": _choosing(math.comb),
    "perm": _choosing(math.perm), "gcd": math.gcd, "lcm": _lcm,
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "asin": math.asin, "acos": math.acos, "atan": math.atan,
    "atan2": math.atan2, "sinh": math.sinh, "cosh": math.cosh, "tanh": math.tanh, "degrees": math.degrees,
    "radians": math.radians,
}  # fmt: skip
"""The functions that an expression may call."""


class Calculator(LocalTool):
    """`calculator(expression) -> {result, expression}`."""

    name = "calculator"
    description = (
        "Compute an arithmetic expression exactly.\n\n"
        "It knows + - * / // % **, comparisons, functions such as sqrt, log, sin, round, min, max, mean, factorial, "
        "comb, gcd, and pi and e."
    )
    parameters = (ToolParameter("expression", "string", "What to compute, as '2 * (3 + 4) ** 2'."),)
    time_limit_seconds = 5.0

    async def execute(self, expression: str) -> dict[str, object]:
        return {"result": evaluate(expression), "expression": expression}

    def present(self, value: object) -> ToolResult:
        fields = mapping(value)
        text = f"{fields['expression']} = {fields['result']}"
        return replace(presented(self.name, value), content=text)
