"""How complex a request is, judged from its words alone: the same request always gets the same score.

A sum of weighted features, each with its reason, squeezed into 0 to 1. What weighs most is whether the work can be
known before it is begun: "implement", "debug" and "find out why" cannot, "read", "list" and "rename" can.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass
from itertools import pairwise

THRESHOLD = 0.7
"""From here on a request is worked on step by step; below, one plan is made and carried out."""
_MAX_CHARS = 20_000
_WORD = re.compile(r"[a-z][a-z'-]*|[.,;:!?()\n]")
_PATH = re.compile(r"(?<![\w./-])(?:[\w.-]{1,80}/){0,12}[\w-]{1,80}\.[A-Za-z][A-Za-z0-9]{0,4}(?![\w/])")
_NAMED = re.compile(r"`[^`\n]{1,120}`|\b[a-z][a-z0-9]*_[a-z0-9_]+\b|\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+\b|\b\w+\(\)")
_ITEM = re.compile(r"^\s{0,8}(?:\d{1,2}[.)]|[-*])\s", re.MULTILINE)
_SEQUENCE = re.compile(r"\b(?:and then|after that|afterwards|then|next|finally|once (?:that|this|it) is)\b")
_CONDITION = re.compile(r"\b(?:if|unless|otherwise|depending|until|whenever|as long as|in case|make sure|without)\b")
_EVERY = re.compile(r"\b(?:all|every|each|everywhere|throughout|across|whole|entire|several|multiple)\b")
_TRACE = re.compile(
    r"Traceback \(most recent call last\)|^[ \t]{1,40}at [^\s(]{1,200}\([^\s:)]{1,200}:\d", re.MULTILINE
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split(" "))


_OPEN = _words(
    "implement refactor debug investigate diagnose optimise optimize migrate redesign design rewrite rework extend "
    "improve integrate modernise modernize harden secure restructure analyse analyze architect build develop port "
    "parallelise parallelize profile speed fix repair resolve solve support prototype compare research review audit "
    "propose evaluate reproduce untangle decouple"
)
_CHANGE = _words(
    "add append create write change update edit replace rename remove delete move insert bump set convert format "
    "document generate make merge commit revert upgrade install drop introduce wrap extract cover test"
)
_READ = _words(
    "read show list print display open view cat find search grep count look check get fetch run tell describe explain "
    "summarise summarize calculate compute what which where when who does is are how status diff log"
)
# Behind these, and at the beginning of a sentence, a verb says what is to be done ("port it", not "which port").
_BEFORE_A_VERB = _words("and or then to please you me also but first next finally just now . , ; : ! ? ( ) \n")
_QUESTION = _words("what which where when who is are does do did has can how")
_SOFT = _words("why slow slower flaky sometimes intermittent race leak deadlock crash crashes fails failing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Complexity:
    """A score from 0 (one look) to 1 (open-ended work), and what it is made of."""

    score: float
    reasons: tuple[str, ...] = ()


def assess(request: str) -> Complexity:
    """How complex a request is. Takes time linear in its length; what is behind 20,000 characters is not looked at."""
    text = request[:_MAX_CHARS]
    prose, fences = _without_fences(text)
    lowered = prose.lower()
    tokens = _WORD.findall(lowered)
    orders = [word for before, word in pairwise(["\n", *tokens]) if before in _BEFORE_A_VERB]
    words = [token for token in tokens if token[0].isalpha()]
    known = set(words)
    parts = [
        _verbs(orders),
        _sequence(lowered, prose),
        _counted("a condition", len(_CONDITION.findall(lowered)), each=0.15, most=0.3),
        _counted("all or every of something", len(_EVERY.findall(lowered)), each=0.1, most=0.2),
        _counted("a thing named", len({*_PATH.findall(prose), *_NAMED.findall(prose)}) - 1, each=0.04, most=0.16),
        _length(len(words)),
        _counted("a block of code or output", fences, each=0.1, most=0.2),
        (0.25, "an error to be explained") if _TRACE.search(text) else (0.0, ""),
        _soft(known),
        _question(prose, words, known),
    ]
    score = min(1.0, max(0.0, sum(weight for weight, _ in parts)))
    return Complexity(
        score=round(score, 3), reasons=tuple(f"{reason} ({weight:+.2f})" for weight, reason in parts if weight)
    )


def _verbs(orders: list[str]) -> tuple[float, str]:
    opens, changes, reads = _found(orders, _OPEN), _found(orders, _CHANGE), _found(orders, _READ)
    if opens:
        return min(0.9, 0.75 + 0.05 * (len(opens) + len(changes) - 1)), f"open-ended work: {', '.join(opens[:4])}"
    if changes:
        return min(0.6, 0.25 + 0.1 * len(changes)), f"changes: {', '.join(changes[:4])}"
    return min(0.3, 0.1 * max(0, len(reads) - 1)), "several things to look at"


def _found(words: list[str], verbs: Set[str]) -> list[str]:
    return list(dict.fromkeys(word for word in words if word in verbs))


def _sequence(lowered: str, prose: str) -> tuple[float, str]:
    count = len(_SEQUENCE.findall(lowered)) + max(0, len(_ITEM.findall(prose)) - 1)
    return min(0.3, 0.1 * count), f"{count} steps in a row"


def _counted(reason: str, count: int, *, each: float, most: float) -> tuple[float, str]:
    return (min(most, each * count), f"{reason}, {count} times") if count > 0 else (0.0, "")


def _length(words: int) -> tuple[float, str]:
    weight = 0.0 if words <= 25 else 0.1 if words <= 60 else 0.2 if words <= 150 else 0.35
    return weight, f"{words} words"


def _soft(known: Set[str]) -> tuple[float, str]:
    found = sorted(known & _SOFT)
    return (0.2, f"a cause to be found: {', '.join(found[:3])}") if found else (0.0, "")


def _question(prose: str, words: list[str], known: Set[str]) -> tuple[float, str]:
    asks = prose.rstrip().endswith("?") or (bool(words) and words[0] in _QUESTION)
    return (-0.2, "a question") if asks and not known & _CHANGE else (0.0, "")


def _without_fences(text: str) -> tuple[str, int]:
    """The text outside of ``` fences, and how many of those there are."""
    parts = text.split("```")
    return " ".join(parts[::2]), len(parts) // 2
