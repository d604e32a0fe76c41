"""What a map is wanted for: words of the task, names, paths."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

MAX_WORDS = 200
_TERM = re.compile(r"[\w./+-]*\w")
_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_a-zA-Z]+")
_COMMON = frozenset(
    {
        "a", "add", "all", "also", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by", "can",
        "change", "class", "code", "could", "does", "each", "error", "file", "files", "fix", "for", "from",
        "function", "get", "has", "have", "how", "if", "in", "into", "is", "it", "its", "make", "method",
        "must", "need", "new", "no", "not", "of", "on", "one", "only", "or", "out", "please", "return", "set",
        "should", "so", "some", "test", "tests", "than", "that", "the", "them", "then", "there", "these",
        "this", "to", "up", "use", "used", "using", "value", "was", "we", "what", "when", "where", "which",
        "while", "why", "will", "with", "work", "would", "you",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Focus:
    """Exact `names` and paths as given, and the lower-case `words` that they and the prose around them consist of."""

    names: frozenset[str]
    words: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.names)


def focus_of(texts: Iterable[str]) -> Focus:
    """What the texts name; common words and those of fewer than three letters are left out."""
    names: list[str] = []
    for text in texts:
        names += [term.strip("./-") for term in _TERM.findall(text)]
    names = [name for name in dict.fromkeys(names) if len(name) > 2 and name.lower() not in _COMMON][:MAX_WORDS]
    words = {word for name in names for word in words_of(name)}
    for name in names:
        words |= {word for part in re.split(r"[./+-]", name) for word in words_of(part)}
    return Focus(names=frozenset(names), words=frozenset(words))


@cache
def words_of(name: str) -> frozenset[str]:
    """The words that a name or path is made of: `parseHttp_url` of parse, http and url; plurals as one."""
    words = (word.lower() for word in _PARTS.findall(name))
    return frozenset(_singular(word) for word in words if len(word) > 2 and word not in _COMMON)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 4 and word.endswith("s") and not word.endswith("ss") else word
