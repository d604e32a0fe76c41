"""The calculator: what it works out, what it refuses, and that it refuses at once."""

from __future__ import annotations

import math
import time

from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.tools import BuiltinTools
from tests.tables import table


async def calculated(expression: str) -> ToolResult:
    """What the calculator gives, which stands in the audit as it was given."""
    kit = BuiltinTools(names=["calculator"])
    result = await kit.call("calculator", {"expression": expression})
    entry = kit.pipeline.trail.entries[-1]
    assert (entry.operation, entry.outcome) == ("calculator", result.outcome)
    return result


@table(
    ("expression", "value"),
    [
        ("2 * (3 + 4) ** 2", 98), ("7 // 2 - -3 % 2", 2), ("2 ** 3 ** 2", 512), ("-2 ** 2", -4), ("2 ** -2", 0.25),
        ("10 / 4", 2.5), ("1_000 + 0x10", 1016), ("sqrt(16) + abs(-2)", 6.0), ("mean(1, 2, 3, 4)", 2.5),
        ("sum([])", 0), ("factorial(20)", math.factorial(20)), ("log(e) + cos(pi)", 0.0), ("1 > 2 < 3", False),
        ("2 ** 10000 % 1000", 376), ("+".join(["1"] * 500), 500),
    ],
)  # fmt: skip
async def test_values(expression: str, value: float) -> None:
    result = await calculated(expression)
    assert dict(result.metadata) == {"result": value, "expression": expression}
    assert type(result.metadata["result"]) is type(value)
    assert result.content == f"{expression} = {value}"


BOMBS = [
    "9**9**9", "9**9**9**9**9", "10**10**8", "(-10)**10**8", "10**-10**8", "pow(9, pow(9, 9))", "2**13287*2**13287",
    "(2**13000)**100", "factorial(10**8)", "factorial(factorial(20))", "factorial(1e300)", "comb(10**9, 5*10**8)",
    "perm(10**9, 10**8)", "perm(10000, 10000)", "round(5, -10**9)", "round(5.5, 10**9)", "'1'*10**10", "[0]*10**10",
    "b'1'*10**10", "'%1000000000d' % 1", "f'{1:1000000000}'", "(" * 100_000 + "1" + ")" * 100_000,
    "(" * 450 + "1" + ")" * 450, "-" * 990 + "1", "abs(" * 180 + "1" + ")" * 180, "1" * 100_000, "9" * 10_000 + "0",
    "*".join(["(10**3999)"] * 80), "lcm(" + ",".join(f"10**3999+{n}" for n in range(60)) + ")",
]  # fmt: skip


@table("expression", BOMBS)
async def test_bombs_are_refused_at_once(expression: str) -> None:
    started = time.perf_counter()
    assert (await calculated(expression)).outcome is Outcome.ERROR
    assert time.perf_counter() - started < 10


ESCAPES = [
    "__import__('os').system('id')", "().__class__.__bases__[0].__subclasses__()", "(lambda: 1)()",
    "[x for x in (1,2)]", "open('/etc/passwd')", "eval('1')", "(x := 5)", "abs.__self__", "FUNCTIONS",
    "__builtins__", "abs(*[1])", "{1: 2}[1]", "1 and __import__('os')", "1\nimport os", "1; 2", "\0", "\ud800",
]  # fmt: skip


@table("expression", ESCAPES)
async def test_nothing_but_arithmetic_gets_in(expression: str) -> None:
    assert (await calculated(expression)).outcome is Outcome.ERROR
