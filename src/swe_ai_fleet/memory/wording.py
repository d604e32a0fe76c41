"""What the words of a question and of a text have in common."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

_MAX_WORDS = 32
_MAX_QUESTION_CHARS = 8_000
# The rest of a longer text is left out here, so that a hundred of them hold nobody up.
_MAX_TEXT_CHARS = 2_000
_LONGEST_COUNTED = 9

_WORD = re.compile(r"[^\W_]+")
_ACCENT = re.compile(r"[\u0300-\u036f]")
_NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# Scripts written without spaces: their words are compared by pairs of letters.
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]{2,}")
SAY_NOTHING = frozenset(
    re.findall(
        r"[a-z]+",
        "a about all also am an and any are as at be been being but by can could did do does doing for from had has "
        "have having he her here hers him his how i if in into is it its just me my no nor not of on or our out over "
        "own s she should so some such t than that the their them then there these they this those to too very was we "
        "were what when where which while who whom why will with would you your",
    )
)
"""Words of English that tell nothing of what a text is about."""
_SAY_LITTLE = frozenset(
    re.findall(
        r"[a-z]+",
        "best call called come cost difference ever find first get give go good happen know like little long look "
        "make many mean much need new one put remember say see set still take tell thing time two use want way work",
    )
)
_LITTLE = 0.3
_LEAST_SHARED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The share in common, 0 to 1, and whether so little is in common that it may be chance."""

    coverage: float = 0.0
    by_chance: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The words of a question: those it is weighed by, and all that it has."""

    weights: Mapping[str, float]
    words: Collection[str]

    @classmethod
    def of(cls, question: str) -> Self:
        return cls(weights=weighed_words(question), words=words_of(question))

    def overlap(self, text: str) -> Overlap:
        """How much of the question the text says, or, of a text that a long question holds, how much that says of it.

        The larger of both, as the overlap coefficient has it (Simpson 1943).
        """
        said = words_of(text) & self.weights.keys()
        coverage = min(sum(self.weights[word] for word in said) / sum(self.weights.values()), 1.0)
        by_chance = len(said) < min(2, len(self.weights))
        weights = weighed_words(text[:_MAX_TEXT_CHARS])
        held = weights.keys() & self.words
        if len(held) >= _LEAST_SHARED:
            coverage = max(coverage, min(sum(weights[word] for word in held) / sum(weights.values()), 1.0))
            by_chance = False
        return Overlap(coverage=coverage, by_chance=by_chance)


def weighed_words(question: str) -> Mapping[str, float]:
    """The words of a question, stemmed, and how much each tells: the longer, the rarer (Zipf 1935), so the more.

    At most 32; words that say nothing (of English) only where there are no others.
    """
    words = dict.fromkeys(_WORD.findall(_spread(question[:_MAX_QUESTION_CHARS])))
    telling = [word for word in words if word not in SAY_NOTHING] or list(words)
    weights: dict[str, float] = {}
    for word in telling[:_MAX_WORDS]:
        weight = math.sqrt(min(len(word), _LONGEST_COUNTED))
        weights[stem(word)] = weight * _LITTLE if word in _SAY_LITTLE else weight
    return weights


def words_of(text: str) -> frozenset[str]:
    """The distinct words of a text, stemmed."""
    return frozenset(map(stem, set(_WORD.findall(_spread(text[:_MAX_TEXT_CHARS])))))


def _spread(text: str) -> str:
    """The text without case and diacritics, and behind it the parts of names in camel case and of unspaced words."""
    parts: list[str] = []
    for name in _WORD.findall(text) if not text.islower() else ():
        if name.isascii() and len(pieces := _NAME_PART.findall(name)) > 1:
            parts.extend(pieces)
    if text.isascii():
        return " ".join((text, *parts)).lower()
    for run in _UNSPACED.findall(text):
        parts.extend(run[start : start + 2] for start in range(len(run) - 1))
    decomposed = unicodedata.normalize("NFKD", " ".join((_UNSPACED.sub(" ", text), *parts))).casefold()
    return _ACCENT.sub("", decomposed)


def stem(word: str) -> str:
    """A word without its plural ending: the S-stemmer (Harman 1991, "How effective is suffixing?")."""
    if len(word) > 4 and word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if len(word) > 2 and word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word
