"""What a PromQL expression names: enough of its grammar to find metrics and labels, and to notice what is none."""

from __future__ import annotations

import re
from dataclasses import dataclass

_GROUPED = re.compile(r"\b(?:by|without) ?\(([^)]*)\)")
_METRIC = re.compile(r"\b([A-Za-z_:][\w:]*)\b(?:\{([^}]*)\})?(?!\s*\()")
_WORDS = frozenset(("and", "or", "unless"))


@dataclass(frozen=True, slots=True)
class Named:
    """A metric as an expression names it, with the labels that it picks by."""

    metric: str
    labels: frozenset[str]


def named(expression: str) -> tuple[set[Named], set[str]]:
    """The metrics of an expression, and the labels that it groups by. Raises ValueError for what does not fit."""
    plain = re.sub(r"\[(?:\$__rate_interval|\d+[smhd])\]", "", re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression))
    grouped = {label for labels in _GROUPED.findall(plain) for label in re.findall(r"\w+", labels)}
    plain = _GROUPED.sub("", plain)
    found = {
        Named(metric, frozenset(re.findall(r"(\w+) ?[=!]", picked)))
        for metric, picked in _METRIC.findall(plain)
        if metric not in _WORDS
    }
    if not found or any(plain.count(one) != plain.count(other) for one, other in ("()", "{}")) or "[" in plain:
        raise ValueError(f"no whole expression: {expression}")
    return found, grouped
