"""The calculator."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from swe_ai_fleet.domain.tool import Risk, ToolResult
from swe_ai_fleet.tools.builtin.arithmetic import evaluate
from swe_ai_fleet.tools.registry.base_tool import BaseTool, ToolParameter
from swe_ai_fleet.tools.registry.plain_text import presented


class Calculator(BaseTool):
    """`calculator(expression) -> {result, expression}`."""

    name = "calculator"
    description = (
        "Work out an arithmetic expression exactly.\n\n"
        "It knows + - * / // % **, comparisons, functions such as sqrt, log, sin, round, min, max, mean, factorial, "
        "comb, gcd, and pi and e."
    )
    parameters = (ToolParameter("expression", "string", "What to work out, as '2 * (3 + 4) ** 2'."),)
    read_only = True
    risk = Risk.LOW
    network = False
    locks = frozenset[str]()
    time_limit_seconds = 5.0

    async def execute(self, expression: str) -> dict[str, object]:
        """The value of the expression. Raises ToolFailure."""
        return {"result": evaluate(expression), "expression": expression}

    def present(self, value: object) -> ToolResult:
        fields = cast("dict[str, object]", value)
        text = f"{fields['expression']} = {fields['result']}"
        return replace(presented(self.name, value), content=text)
