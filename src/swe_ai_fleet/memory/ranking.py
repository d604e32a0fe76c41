"""One ranking made of two: what was found by its words and what was found by its meaning.

A weighted sum of normalised scores (Fox and Shaw 1994, "Combination of multiple searches"). Its numbers are chosen by
measurement, `python -m tests.bench.retrieval`; docs/memory.md has the figures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from swe_ai_fleet.domain.memory import Memory, Recollection
from swe_ai_fleet.memory.wording import weighed_words, words_of
from swe_ai_fleet.ports import Match

CANDIDATES = 50
"""How many matches of each kind to ask an index for, however few are wanted in the end."""
MEANING_SHARE = 0.8
"""How much of a score is the cosine; the rest is the words."""
ENOUGH = 0.4
"""A memory is recalled where its cosine and `COVERAGE_WORTH` times its coverage come to this."""
COVERAGE_WORTH = 0.3
ENOUGH_WORDS = 0.5
"""Where no cosine is known, a memory is recalled that says more than this share of the question."""

_BY_MEANING = ENOUGH - COVERAGE_WORTH / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """What speaks for a memory.

    Args:
        fitness: its score by words, as a share of the best one's.
        coverage: the share of the question that its text says.
        said: how many words of the question those are.
        cosine: None where it is not known.
    """

    memory: Memory
    fitness: float
    coverage: float
    said: int
    cosine: float | None


def fused(
    by_words: Sequence[Match], by_meaning: Sequence[Match], *, query: str, limit: int
) -> tuple[Recollection, ...]:
    """The memories that fit a question, best first; nothing where nothing does.

    Args:
        by_words: What an index found by `words` (BM25), best first; up to `CANDIDATES` of them are looked at.
        by_meaning: What it found by `vector` (cosine), best first; empty where there are no vectors.
        query: The question, as it was asked.
        limit: How many to give at most.
    """
    by_words, by_meaning = by_words[:CANDIDATES], by_meaning[:CANDIDATES]
    asked = weighed_words(query)
    if not asked:
        return ()
    # A memory that is not among the nearest lies no nearer than the last of them.
    farthest = min((match.score for match in by_meaning), default=0.0)
    recalled = [
        Recollection(
            memory=one.memory, score=_score(one, farthest, vectors=bool(by_meaning)), found_by=", ".join(_ways(one))
        )
        for one in _gathered(by_words, by_meaning, asked)
        if _is_enough(one, words=len(asked))
    ]
    recalled.sort(key=lambda one: (-one.score, one.memory.memory_id))
    return tuple(recalled[: max(limit, 0)])


def _gathered(
    by_words: Sequence[Match], by_meaning: Sequence[Match], asked: Mapping[str, float]
) -> Collection[_Evidence]:
    best = max((match.score for match in by_words), default=0.0)
    fitness = {match.memory.memory_id: match.score / best if best > 0 else 0.0 for match in by_words}
    cosines = {match.memory.memory_id: match.score for match in by_meaning}
    memories = {match.memory.memory_id: match.memory for match in (*by_words, *by_meaning)}
    total = sum(asked.values())
    gathered: list[_Evidence] = []
    for key, memory in memories.items():
        said = words_of(memory.text) & asked.keys() if key in fitness else set[str]()
        coverage = min(sum(asked[word] for word in said) / total, 1.0)
        gathered.append(
            _Evidence(
                memory=memory,
                fitness=fitness.get(key, 0.0),
                coverage=coverage,
                said=len(said),
                cosine=cosines.get(key),
            )
        )
    return gathered


def _is_enough(one: _Evidence, *, words: int) -> bool:
    if one.cosine is not None:
        return one.cosine + COVERAGE_WORTH * one.coverage >= ENOUGH
    # One word in common is chance, unless it is all that was asked.
    return one.coverage > ENOUGH_WORDS and one.said >= min(2, words)


def _score(one: _Evidence, farthest: float, *, vectors: bool) -> float:
    if not vectors:
        return _within(one.fitness * (1 + one.coverage) / 2)
    cosine = one.cosine if one.cosine is not None else farthest
    return _within(MEANING_SHARE * _within(cosine) + (1 - MEANING_SHARE) * one.fitness * one.coverage)


def _ways(one: _Evidence) -> tuple[str, ...]:
    words = ("words",) if one.said or one.cosine is None else ()
    return (*words, "meaning") if one.cosine is not None and one.cosine >= _BY_MEANING else words


def _within(score: float) -> float:
    return min(max(score, 0.0), 1.0)
