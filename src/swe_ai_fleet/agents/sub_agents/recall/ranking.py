"""Okapi BM25 over short passages, its scores made comparable between queries.

Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009). The inverse document frequency
has one added under its logarithm, so that a term which stands everywhere counts little instead of against a passage.
A score is divided by that of a passage of average length which holds each of the query's terms once: 1.0 is such a
passage, whatever the query and the collection.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

K1, B = 1.2, 0.75
MAX_TERM_CHARS = 64
_WORD = re.compile(r"[^\W_]+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_STOP_WORDS = """
a an and are as at be been but by can could did do does for from had has have how i if in into is it its may me my no
not of on or our should so that the their them then there these they this to us was we were what when where which who
why will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


def terms(text: str) -> Iterator[str]:
    """The words of a text in lower case and without plural endings; of `camelCase` its parts too, no stop words.

    The endings are those of Harman's S stemmer ("How effective is suffixing?", 1991).
    """
    for match in _WORD.finditer(text):
        word = match[0][:MAX_TERM_CHARS]
        yield from _term(word)
        if not (word.islower() or word.isupper() or word.istitle() or word.isdigit()):
            for part in _PART.findall(word):
                if part != word:
                    yield from _term(part)


def _term(word: str) -> Iterator[str]:
    word = word.casefold()
    if word in STOP_WORDS:
        return
    if len(word) > 3:
        if word.endswith("ies") and not word.endswith(("eies", "aies")):
            word = f"{word[:-3]}y"
        elif word.endswith("s") and not word.endswith(("us", "ss", "aes", "ees", "oes")):
            word = word[:-1]
        # `fixes` and `fix`, `classes` and `class` meet here.
        word = word.removesuffix("e") if len(word) > 3 else word
    yield word


class Index:
    """Passages by their terms.

    Args:
        passages: The texts; what is found is their numbers.
    """

    def __init__(self, passages: Sequence[str]) -> None:
        self._postings: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._lengths: list[int] = []
        for number, passage in enumerate(passages):
            counts = Counter(terms(passage))
            self._lengths.append(counts.total())
            for term, count in counts.items():
                self._postings[term].append((number, count))
        self._average = max(1.0, sum(self._lengths) / max(1, len(self._lengths)))

    def rank(self, query: str) -> list[tuple[float, int]]:
        """(score, number) of the passages that hold any of the query's terms, best first; ties in the given order."""
        asked = set(terms(query))
        scores: defaultdict[int, float] = defaultdict(float)
        for term in asked:
            postings = self._postings.get(term, ())
            weight = self._weight(len(postings))
            for number, count in postings:
                scores[number] += weight * count * (K1 + 1) / (count + K1 * self._damping(number))
        whole = sum(self._weight(len(self._postings.get(term, ()))) for term in asked)
        return sorted(((score / whole, number) for number, score in scores.items()), key=lambda hit: (-hit[0], hit[1]))

    def _weight(self, holding: int) -> float:
        """The inverse document frequency of a term that so many passages hold."""
        return math.log(1 + (len(self._lengths) - holding + 0.5) / (holding + 0.5))

    def _damping(self, number: int) -> float:
        return 1 - B + B * self._lengths[number] / self._average


def names(phrase: str, text: str) -> bool:
    """Whether a text holds a phrase as it is, upper and lower case aside, and not as a part of longer words."""
    wanted, text = phrase.strip().casefold(), text.casefold()
    start = text.find(wanted) if wanted else -1
    while start >= 0:
        end = start + len(wanted)
        if not _joined(text[max(0, start - 1) : start], wanted[0]) and not _joined(wanted[-1], text[end : end + 1]):
            return True
        start = text.find(wanted, start + 1)
    return False


def _joined(left: str, right: str) -> bool:
    """Whether two neighbouring characters, either of which may be missing, belong to one word."""
    return bool(left and right) and all(character.isalnum() or character == "_" for character in (left, right))
