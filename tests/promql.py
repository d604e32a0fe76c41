"""What a PromQL expression names: enough of its grammar to find metrics and labels, and to notice what is none."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FUNCTIONS = frozenset(
    ("absent", "rate", "increase", "delta", "histogram_quantile", "topk", "time", "max", "min", "sum")
)
_WORDS = frozenset(("and", "or", "unless"))
_TOKEN = re.compile(
    r"""\s+|(?P<string>"(?:[^"\\]|\\.)*")|(?P<range>\[(?:\$__rate_interval|\d+[smhd])\])"""
    r"""|(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)|(?P<number>\d+(?:\.\d+)?)|(?P<operator>=~|!~|!=|>=|<=|==|[-+*/<>=])"""
    r"""|(?P<bracket>[(){},])"""
)
_PAIRS = {"(": ")", "{": "}"}


@dataclass(frozen=True, slots=True)
class Named:
    """A metric as an expression names it, with the labels that it picks by."""

    metric: str
    labels: frozenset[str]


def named(expression: str) -> tuple[set[Named], set[str]]:
    """The metrics of an expression, and the labels that it groups by. Raises ValueError for what does not fit."""
    tokens = _tokens(expression)
    found: set[Named] = set()
    grouped: set[str] = set()
    open_brackets: list[str] = []
    place = 0
    while place < len(tokens):
        kind, text = tokens[place]
        if text in ("by", "without"):
            place, labels = _names(tokens, place + 1, ")")
            grouped |= labels
            continue
        if text in _PAIRS:
            open_brackets.append(_PAIRS[text])
        elif text in (")", "}") and (not open_brackets or open_brackets.pop() != text):
            raise ValueError(f"an odd {text!r} in {expression}")
        elif kind == "name" and text not in _FUNCTIONS | _WORDS:
            picked: set[str] = set()
            if place + 1 < len(tokens) and tokens[place + 1][1] == "{":
                place, picked = _names(tokens, place + 1, "}")
                place -= 1
            found.add(Named(text, frozenset(picked)))
        place += 1
    if open_brackets or not found:
        raise ValueError(f"no whole expression: {expression}")
    return found, grouped


def _tokens(expression: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            raise ValueError(f"{expression[at : at + 20]!r} in {expression}")
        at = match.end()
        if match.lastgroup:
            tokens.append((match.lastgroup, match[0]))
    return tokens


def _names(tokens: list[tuple[str, str]], start: int, end: str) -> tuple[int, set[str]]:
    """The names in brackets that begin at `start`, and the place behind them."""
    names: set[str] = set()
    for place in range(start, len(tokens)):
        kind, text = tokens[place]
        if text == end:
            return place + 1, names
        if kind == "name":
            names.add(text)
    raise ValueError(f"no {end!r}")
