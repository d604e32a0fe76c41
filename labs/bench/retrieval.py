"""How well memories are found again, by words, by meaning and by both, and how soon among a hundred thousand.

The numbers of `extensions/knowledge/ranking.py` were chosen on every other question; the figures are of the rest. A
question is asked again of the set that it does not belong to: what is recalled there is recalled wrongly. For the time
the index is filled up with sentences drawn from the words of the sets, each with a random vector, which costs nothing
to make and as much to search. `python -m labs.bench.retrieval` measures this alone.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from labs.bench.labelled import LabelledSet, labelled_sets
from swe_ai_fleet.domain.memory import Memory, MemoryScope
from swe_ai_fleet.extensions.knowledge.embedding import open_embedder
from swe_ai_fleet.extensions.knowledge.ranking import CANDIDATES, MemoryMatch, fused
from swe_ai_fleet.extensions.knowledge.sqlite_index import SqliteMemoryIndex
from swe_ai_fleet.ports import Embedder

ENTRIES = 100_000
SEED = 20_090_719
_AT_ONCE = 2_000
_TIMED = 60
_BEST = 5
_WAYS = ("lexical", "vector", "reciprocal", "hybrid", "fallback")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question with what is to be found and what each way finds, best first, as memory ids."""

    group: str
    held_out: bool
    relevant: frozenset[str]
    found: dict[str, list[str]]
    astray: dict[str, bool]


async def retrieval_figures(directory: Path, embedder: Embedder | None = None) -> dict[str, float]:
    """Recall among the five best and mean reciprocal rank of each way, and milliseconds of a question."""
    directory.mkdir(parents=True, exist_ok=True)
    sets = await asyncio.to_thread(labelled_sets, directory)
    if embedder is not None:
        return await _figures(directory, sets, embedder)
    async with open_embedder("local") as local:
        assert local is not None
        return await _figures(directory, sets, local)


async def _figures(directory: Path, sets: Sequence[LabelledSet], embedder: Embedder) -> dict[str, float]:
    async with SqliteMemoryIndex.open(directory / "memories.db") as index:
        figures: dict[str, float] = {}
        for one in sets:
            began = time.perf_counter()
            vectors = await embedder.embed(one.texts)
            figures[f"retrieval_{one.name}_texts_a_second"] = len(one.texts) / (time.perf_counter() - began)
            memories = [Memory(namespace=f"agent:{one.name}", text=text) for text in one.texts]
            await index.put(list(zip(memories, vectors, strict=True)), space=embedder.name)
        asked = [question for one in sets for question in await _asked(index, embedder, one, sets)]
        figures |= _quality(asked)
        _print(asked)
        figures |= await _latency(index, embedder, sets)
    return {name: round(value, 3) for name, value in figures.items()}


async def _asked(
    index: SqliteMemoryIndex, embedder: Embedder, own: LabelledSet, sets: Sequence[LabelledSet]
) -> list[Question]:
    asked: list[Question] = []
    before = sum(len(one.groups[group]) for one in sets[: sets.index(own)] for group in one.groups)
    everywhere = MemoryScope(namespaces=tuple(f"agent:{one.name}" for one in sets))
    elsewhere = MemoryScope(namespaces=tuple(f"agent:{one.name}" for one in sets if one is not own))
    ids = [Memory(namespace=f"agent:{own.name}", text=text).memory_id for text in own.texts]
    for group, questions in own.groups.items():
        vectors = await embedder.embed([question for question, _ in questions])
        for (question, right), vector in zip(questions, vectors, strict=True):
            ways = await _ways(index, everywhere, question, vector, embedder.name)
            wrong = await _ways(index, elsewhere, question, vector, embedder.name) if elsewhere.namespaces else {}
            asked.append(
                Question(
                    group=group,
                    held_out=(before + len(asked)) % 2 == 1,
                    relevant=frozenset(ids[one] for one in right),
                    found=ways,
                    astray={way: bool(found) for way, found in wrong.items()},
                )
            )
    return asked


async def _ways(
    index: SqliteMemoryIndex, scope: MemoryScope, question: str, vector: Sequence[float], space: str
) -> dict[str, list[str]]:
    """What is found in the index's own order, by both ways fused, and by words alone with the thresholds."""
    words = await index.search(scope, words=question, limit=CANDIDATES)
    meaning = await index.search(scope, vector=vector, space=space, limit=CANDIDATES)
    ranked = {
        "hybrid": fused(words, meaning, query=question, limit=CANDIDATES),
        "fallback": fused(words, (), query=question, limit=CANDIDATES),
    }
    plain: dict[str, Sequence[MemoryMatch]] = {
        "lexical": words,
        "vector": meaning,
        "reciprocal": _reciprocally_fused(words, meaning),
    }
    return {way: [one.memory.memory_id for one in found] for way, found in (*plain.items(), *ranked.items())}


def _reciprocally_fused(words: Sequence[MemoryMatch], meaning: Sequence[MemoryMatch]) -> list[MemoryMatch]:
    """Reciprocal rank fusion (Cormack, Clarke and Büttcher 2009), to compare with."""
    scores: dict[str, float] = {}
    matches = {match.memory.memory_id: match for match in (*words, *meaning)}
    for found in (words, meaning):
        for rank, match in enumerate(found, 1):
            scores[match.memory.memory_id] = scores.get(match.memory.memory_id, 0.0) + 1 / (60 + rank)
    return [matches[one] for one in sorted(scores, key=lambda one: -scores[one])]


def _quality(asked: Sequence[Question]) -> dict[str, float]:
    """Of the held-out half: means over the groups, so that a large one does not drown a small one."""
    figures: dict[str, float] = {}
    held_out = [one for one in asked if one.held_out]
    for way in _WAYS:
        figures[f"retrieval_{way}_recall_at_5"] = _mean(held_out, lambda one, way=way: _recall(one, way))
        figures[f"retrieval_{way}_mrr"] = _mean(held_out, lambda one, way=way: _reciprocal_rank(one, way))
    for way in ("hybrid", "fallback"):
        wrong = [one for one in held_out if one.astray and one.group != "keywords"]
        if wrong:
            figures[f"retrieval_{way}_unrelated_recalled"] = _mean(wrong, lambda one, way=way: float(one.astray[way]))
    return figures


def _mean(asked: Sequence[Question], value: Callable[[Question], float]) -> float:
    groups = sorted({one.group for one in asked})
    return statistics.fmean(statistics.fmean(value(one) for one in asked if one.group == group) for group in groups)


def _recall(one: Question, way: str) -> float:
    return len(one.relevant & set(one.found[way][:_BEST])) / min(_BEST, len(one.relevant))


def _reciprocal_rank(one: Question, way: str) -> float:
    return next((1 / rank for rank, found in enumerate(one.found[way], 1) if found in one.relevant), 0.0)


async def _latency(index: SqliteMemoryIndex, embedder: Embedder, sets: Sequence[LabelledSet]) -> dict[str, float]:
    source = random.Random(SEED)
    words = [word for one in sets for text in one.texts for word in text.split()]
    questions = source.sample(
        [question for one in sets for group in one.groups.values() for question, _ in group], _TIMED
    )
    vectors = await embedder.embed(questions)
    have = sum(len(one.texts) for one in sets)
    began = time.perf_counter()
    for start in range(have, ENTRIES, _AT_ONCE):
        count = min(_AT_ONCE, ENTRIES - start)
        await index.put(
            await asyncio.to_thread(_padding, source, words, start, count, len(vectors[0])), space=embedder.name
        )
    figures = {"retrieval_fill_entries_a_second": (ENTRIES - have) / (time.perf_counter() - began)}
    times: dict[str, list[float]] = {"embed": [], "words": [], "vector": [], "hybrid": []}
    scope = MemoryScope()
    for question in questions:
        started = time.perf_counter()
        (vector,) = await embedder.embed([question])
        embedded = time.perf_counter()
        await index.search(scope, words=question, limit=CANDIDATES)
        worded = time.perf_counter()
        await index.search(scope, vector=vector, space=embedder.name, limit=CANDIDATES)
        meant = time.perf_counter()
        both = await asyncio.gather(
            index.search(scope, words=question, limit=CANDIDATES),
            index.search(scope, vector=vector, space=embedder.name, limit=CANDIDATES),
        )
        fused(*both, query=question, limit=_BEST)
        spent = (embedded - started, worded - embedded, meant - worded, time.perf_counter() - meant)
        for way, seconds in zip(times, spent, strict=True):
            times[way].append(seconds * 1000)
    for way, taken in times.items():
        cuts = statistics.quantiles(taken, n=20)
        figures |= {f"retrieval_100k_{way}_ms_p50": statistics.median(taken), f"retrieval_100k_{way}_ms_p95": cuts[-1]}
    return figures


def _padding(
    source: random.Random, words: Sequence[str], start: int, count: int, dimensions: int
) -> list[tuple[Memory, list[float]]]:
    """Sentences of words as frequent as in the sets, with vectors of length 1 in all directions."""
    made: list[tuple[Memory, list[float]]] = []
    for number in range(start, start + count):
        text = f"{number}: {' '.join(source.choices(words, k=source.randint(8, 40)))}"
        vector = [source.gauss(0, 1) for _ in range(dimensions)]
        length = math.sqrt(math.fsum(one * one for one in vector))
        made.append((Memory(namespace=f"agent:padding-{number % 8}", text=text), [one / length for one in vector]))
    return made


def _print(asked: Sequence[Question]) -> None:
    table = Table("questions", "count", *_WAYS, "recalled wrongly", title="Recall among five / mean reciprocal rank")
    for held_out in (False, True):
        for group in sorted({one.group for one in asked}):
            some = [one for one in asked if one.group == group and one.held_out == held_out]
            cells = [
                f"{_mean(some, lambda one, way=way: _recall(one, way)):.3f} / "
                f"{_mean(some, lambda one, way=way: _reciprocal_rank(one, way)):.3f}"
                for way in _WAYS
            ]
            wrong = [
                f"{way} {_mean(some, lambda one, way=way: float(one.astray[way])):.3f}"
                for way in ("hybrid", "fallback")
                if all(way in one.astray for one in some)
            ]
            half = "held out" if held_out else "chosen on"
            table.add_row(f"{group}, {half}", str(len(some)), *cells, ", ".join(wrong))
    Console(width=150).print(table)


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as name:
        print(json.dumps(await retrieval_figures(Path(name)), indent=2))


if __name__ == "__main__":
    asyncio.run(main())
