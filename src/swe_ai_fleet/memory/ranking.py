"""One ranking made of two: what was found by its words and what was found by its meaning.

A weighted sum of normalised scores (Fox and Shaw 1994, "Combination of multiple searches"). Its numbers are chosen by
measurement, `python -m labs.bench.retrieval`; docs/memory.md has the figures.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from swe_ai_fleet.domain.memory import Memory, Recollection
from swe_ai_fleet.memory.wording import Overlap, Wording
from swe_ai_fleet.ports import Match

CANDIDATES = 50
"""How many matches of each kind to ask an index for, however few are wanted in the end."""
MEANING_SHARE = 0.85
"""How much of a score is the cosine; the rest is the words."""
ENOUGH = 0.4
"""A memory is recalled where its cosine and `COVERAGE_WORTH` times its coverage come to this."""
COVERAGE_WORTH = 0.3
ENOUGH_WORDS = 0.5
"""Where a memory's cosine is not known, its coverage must be more than this."""

_BY_MEANING = ENOUGH - COVERAGE_WORTH / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """What speaks for a memory.

    Args:
        fitness: its score by words, as a share of the best one's.
        overlap: what its text and the question have in common.
        cosine: what it is known or taken to be.
        measured: whether it is known.
    """

    memory: Memory
    fitness: float
    overlap: Overlap
    cosine: float
    measured: bool


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
    asked = Wording.of(query)
    if not asked.weights:
        return ()
    recalled = [
        Recollection(memory=one.memory, score=_score(one, vectors=bool(by_meaning)), found_by=", ".join(_ways(one)))
        for one in _gathered(by_words, by_meaning, asked)
        if _is_enough(one)
    ]
    recalled.sort(key=lambda one: (-one.score, one.memory.memory_id))
    return tuple(recalled[: max(limit, 0)])


def _gathered(by_words: Sequence[Match], by_meaning: Sequence[Match], asked: Wording) -> Collection[_Evidence]:
    best = max((match.score for match in by_words), default=0.0)
    fitness = {match.memory.memory_id: match.score / best if best > 0 else 0.0 for match in by_words}
    cosines = {match.memory.memory_id: match.score for match in by_meaning}
    memories = {match.memory.memory_id: match.memory for match in (*by_words, *by_meaning)}
    # What is not among the nearest lies no nearer than the last of them; where there was room left it has no vector,
    # and its words alone decide.
    unmeasured = min(cosines.values()) if len(by_meaning) == CANDIDATES else ENOUGH
    return [
        _Evidence(
            memory=memory,
            fitness=fitness.get(key, 0.0),
            overlap=asked.overlap(memory.text) if key in fitness else Overlap(),
            cosine=cosines.get(key, unmeasured),
            measured=key in cosines,
        )
        for key, memory in memories.items()
    ]


def _is_enough(one: _Evidence) -> bool:
    # One word in common is chance, unless it is all that was asked.
    worded = one.overlap.coverage > ENOUGH_WORDS and not one.overlap.by_chance
    return (one.measured or worded) and one.cosine + COVERAGE_WORTH * one.overlap.coverage >= ENOUGH


def _score(one: _Evidence, *, vectors: bool) -> float:
    if not vectors:
        return _within(one.fitness * (1 + one.overlap.coverage) / 2)
    return _within(MEANING_SHARE * _within(one.cosine) + (1 - MEANING_SHARE) * one.fitness * one.overlap.coverage)


def _ways(one: _Evidence) -> tuple[str, ...]:
    words = ("words",) if one.overlap.coverage or not one.measured else ()
    return (*words, "meaning") if one.measured and one.cosine >= _BY_MEANING else words


def _within(score: float) -> float:
    return min(max(score, 0.0), 1.0)
