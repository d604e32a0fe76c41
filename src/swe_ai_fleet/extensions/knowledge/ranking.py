"""The ranking of memories: fusion of matches by words and matches by meaning.

A score is a weighted sum of normalised scores (Fox and Shaw 1994, "Combination of multiple searches"). Its weights are
chosen by measurement, `python -m labs.bench.retrieval`; docs/memory.md has the figures. Near duplicates are memories
that say the same in other words.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from swe_ai_fleet.agents.sub_agents.recall import terms
from swe_ai_fleet.domain.memory import Memory, Recollection

_MAX_WORDS = 32
_MAX_QUESTION_CHARS = 8_000
# The rest of a longer text is ignored, so that ranking a hundred of them is fast.
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
"""English stop words."""
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
class MemoryMatch:
    """A memory found by an index. A higher `score` is better; its scale depends on the index and the kind of search."""

    memory: Memory
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The share of common words, 0 to 1, and whether there are so few that it may be chance."""

    coverage: float = 0.0
    by_chance: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The words of a query: the weights of the distinctive ones, and all of its words."""

    weights: Mapping[str, float]
    words: Collection[str]

    @classmethod
    def of(cls, question: str) -> Self:
        return cls(weights=weighed_words(question), words=words_of(question))

    def overlap(self, text: str) -> Overlap:
        """How much of the query the text covers, or, for a long query, how much of the text the query covers.

        The larger of both, as in the overlap coefficient (Simpson 1943).
        """
        shared = words_of(text) & self.weights.keys()
        coverage = min(sum(self.weights[word] for word in shared) / sum(self.weights.values()), 1.0)
        by_chance = len(shared) < min(2, len(self.weights))
        weights = weighed_words(text[:_MAX_TEXT_CHARS])
        common = weights.keys() & self.words
        if len(common) >= _LEAST_SHARED:
            coverage = max(coverage, min(sum(weights[word] for word in common) / sum(weights.values()), 1.0))
            by_chance = False
        return Overlap(coverage=coverage, by_chance=by_chance)


def weighed_words(question: str) -> Mapping[str, float]:
    """The weights of the words of a query, stemmed: longer words are rarer (Zipf 1935), so they weigh more.

    At most 32; English stop words only if there are no others.
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
    """The text without case and diacritics, followed by the parts of names in camel case and of unspaced words."""
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


NEAR = 0.97
"""The least cosine of duplicates, which must not differ in a distinctive word either."""
SHARED_WORDS = 0.6
"""The share of words, stop words aside, that duplicates must have in common."""
_EDGES = ".,;:!?()[]{}<>\"'`"
_TELLING = re.compile(r"[\d_/\\@#$%=+*&|~^-]|\w[.:]\w")
_DENIALS = frozenset(
    ("no", "not", "never", "none", "without", "cannot", "nobody", "nothing", "neither", "nor", "except", "unless")
)


def near_duplicate(memory: Memory, matches: Iterable[MemoryMatch]) -> Memory | None:
    """The first match that says nearly the same as a memory.

    Vectors hardly distinguish what matters most in a fact about a project: a number, a name, a path, a "not"; and in a
    language unknown to the model, all texts have similar vectors. So memories that differ in any of those, or in many
    of their words, are never duplicates, however similar their vectors; nor are memories of different kinds or with
    different metadata.
    """
    words, marks = frozenset(terms(memory.text)), telling(memory.text)
    for match in matches:
        other = match.memory
        if (
            match.score >= NEAR
            and other.memory_id != memory.memory_id
            and (other.tenant, other.namespace, other.kind) == (memory.tenant, memory.namespace, memory.kind)
            and dict(other.metadata) == dict(memory.metadata)
            and telling(other.text) == marks
            and _overlap(words, frozenset(terms(other.text))) >= SHARED_WORDS
        ):
            return other
    return None


def telling(text: str) -> frozenset[str]:
    """The words that distinguish similar sentences: numbers, names, identifiers, paths, negations."""
    words: set[str] = set()
    for token in text.split():
        word = token.strip(_EDGES)
        folded = word.casefold()
        denies = folded in _DENIALS or folded.endswith(("n't", "n\N{RIGHT SINGLE QUOTATION MARK}t"))
        if denies or _TELLING.search(word) or any(letter.isupper() for letter in word):
            words.add(folded)
    return frozenset(words)


def _overlap(words: frozenset[str], other: frozenset[str]) -> float:
    """Jaccard's index; 0 for texts without words."""
    return len(words & other) / len(words | other) if words | other else 0.0


CANDIDATES = 50
"""How many matches of each kind to request from an index, independent of the limit of results."""
MEANING_SHARE = 0.85
"""The weight of the cosine in a score; the rest is that of the words."""
ENOUGH = 0.4
"""The least sum of a recalled memory's cosine and `COVERAGE_WORTH` times its coverage."""
COVERAGE_WORTH = 0.3
ENOUGH_WORDS = 0.5
"""If a memory's cosine is not known, its coverage must be more than this."""

_BY_MEANING = ENOUGH - COVERAGE_WORTH / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """The evidence for a memory.

    Args:
        fitness: its score by words, relative to the best.
        overlap: the words that its text and the query have in common.
        cosine: the measured or assumed cosine of its vector.
        measured: whether the cosine was measured.
    """

    memory: Memory
    fitness: float
    overlap: Overlap
    cosine: float
    measured: bool


def fused(
    by_words: Sequence[MemoryMatch], by_meaning: Sequence[MemoryMatch], *, query: str, limit: int
) -> tuple[Recollection, ...]:
    """The memories that fit a query, best first; may be empty.

    Args:
        by_words: The matches of an index by `words` (BM25), best first; at most `CANDIDATES` are used.
        by_meaning: Its matches by `vector` (cosine), best first; empty without vectors.
        query: The query.
        limit: The most memories to return.
    """
    by_words, by_meaning = by_words[:CANDIDATES], by_meaning[:CANDIDATES]
    wording = Wording.of(query)
    if not wording.weights:
        return ()
    recalled = [
        Recollection(memory=each.memory, score=_score(each, vectors=bool(by_meaning)), found_by=", ".join(_ways(each)))
        for each in _gathered(by_words, by_meaning, wording)
        if _is_enough(each)
    ]
    recalled.sort(key=lambda each: (-each.score, each.memory.memory_id))
    return tuple(recalled[: max(limit, 0)])


def _gathered(
    by_words: Sequence[MemoryMatch], by_meaning: Sequence[MemoryMatch], wording: Wording
) -> Collection[_Evidence]:
    best = max((match.score for match in by_words), default=0.0)
    fitness = {match.memory.memory_id: match.score / best if best > 0 else 0.0 for match in by_words}
    cosines = {match.memory.memory_id: match.score for match in by_meaning}
    memories = {match.memory.memory_id: match.memory for match in (*by_words, *by_meaning)}
    # The cosine of a memory that is not among the nearest is at most that of the last one. If fewer than requested were
    # found, it has no vector, and only its words count.
    unmeasured = min(cosines.values()) if len(by_meaning) == CANDIDATES else ENOUGH
    return [
        _Evidence(
            memory=memory,
            fitness=fitness.get(key, 0.0),
            overlap=wording.overlap(memory.text) if key in fitness else Overlap(),
            cosine=cosines.get(key, unmeasured),
            measured=key in cosines,
        )
        for key, memory in memories.items()
    ]


def _is_enough(evidence: _Evidence) -> bool:
    # One word in common is chance, unless it is the whole query.
    worded = evidence.overlap.coverage > ENOUGH_WORDS and not evidence.overlap.by_chance
    return (evidence.measured or worded) and evidence.cosine + COVERAGE_WORTH * evidence.overlap.coverage >= ENOUGH


def _score(evidence: _Evidence, *, vectors: bool) -> float:
    fitness, coverage = evidence.fitness, evidence.overlap.coverage
    if not vectors:
        return _within(fitness * (1 + coverage) / 2)
    return _within(MEANING_SHARE * _within(evidence.cosine) + (1 - MEANING_SHARE) * fitness * coverage)


def _ways(evidence: _Evidence) -> tuple[str, ...]:
    words = ("words",) if evidence.overlap.coverage or not evidence.measured else ()
    return (*words, "meaning") if evidence.measured and evidence.cosine >= _BY_MEANING else words


def _within(score: float) -> float:
    return min(max(score, 0.0), 1.0)
