"""Ranks definitions by importance: PageRank over the graph of files that use each other's names.

The idea of ranking the files of a repository by the references between them, weighted by the names they use, is that of
the code map of the aider assistant; the ranking itself is that of S. Brin and L. Page, "The Anatomy of a Large-Scale
Hypertextual Web Search Engine" (1998), in its personalised form: the random reader restarts at files that the task
names. The weights and constants are our own.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import nlargest

from .tags import FileTags

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
    """Exact `names` and paths from a task, and the lower-case `words` of them and of the prose around them."""

    names: frozenset[str]
    words: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.names)


def focus_of(texts: Iterable[str]) -> Focus:
    """The names and words in texts, without common words and those of fewer than three letters."""
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
    """The words in a name or path, in the singular: parse, http and url for `parseHttp_url`."""
    words = (word.lower() for word in _PARTS.findall(name))
    return frozenset(_singular(word) for word in words if len(word) > 2 and word not in _COMMON)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 4 and word.endswith("s") and not word.endswith("ss") else word


_DAMPING = 0.85
_ITERATIONS = 40
_TOLERANCE = 1e-5
# A name that more files define does not tell which of them is meant.
_MAX_DEFINERS = 8
# The limit of uses in all files together, which bounds time and memory; each file keeps an equal number, its strongest.
_MAX_USES = 1_000_000
_SELF = 0.1
_EVERYWHERE = 0.15
_COMPOUND = re.compile(r"[^_]_[^_]|[a-z][A-Z]")
_PLAIN = re.compile(r"[a-z]+")

_Definers = Mapping[str, Mapping[str, list[int]]]
"""The files that define a name, by family and name."""

_Use = tuple[int, str, float]
"""The file that defines a name, the name, and the weight of using it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedFile:
    """A file of the tree: its path, the family of languages within which its names are looked up, its tags."""

    path: str
    family: str
    tags: FileTags


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A definition, by the index of its file and its index in that file's tags."""

    file: int
    definition: int
    score: float


def rank(files: Sequence[MappedFile], focus: Focus) -> list[Ranked]:
    """All definitions, the most important first; equal ones in the order of path and line."""
    if not files:
        return []
    definers = _definers(files)
    uses = _uses(files, definers, focus)
    weights = _weights(files, definers, focus)
    ranks = pagerank([_by_target(index, file_uses) for index, file_uses in enumerate(uses)], weights)
    flow: defaultdict[tuple[int, str], float] = defaultdict(float)
    for index, file_uses in enumerate(uses):
        total = sum(weight for _, _, weight in file_uses)
        for target, name, weight in file_uses:
            flow[target, name] += ranks[index] * weight / total * (_SELF if target == index else 1.0)
    ranked: list[Ranked] = []
    for index, file in enumerate(files):
        definitions = file.tags.definitions
        # An unused definition still has a share of its file's rank, and a larger one if the task names the file.
        share = (0.1 * ranks[index] + (0.3 * weights[index] if focus else 0.0)) / max(1, len(definitions))
        shared = Counter(tag.name for tag in definitions)
        for number, tag in enumerate(definitions):
            if tag.name:
                score = flow[index, tag.name] / shared[tag.name] + share
                score *= _interest(tag.name, focus) * (0.2 if tag.name.startswith("_") else 1.0)
                ranked.append(Ranked(file=index, definition=number, score=score))
    ranked.sort(key=lambda definition: (-definition.score, definition.file, definition.definition))
    return ranked


def pagerank(edges: Sequence[Mapping[int, float]], weights: Sequence[float]) -> list[float]:
    """The share of time that a random reader spends at each node; the shares add up to 1.

    With probability 0.85 the reader follows an edge, in proportion to its weight; otherwise, and at a node without
    edges, the reader restarts at a node in proportion to `weights`.

    Args:
        edges: For each node the weights of its edges by target, none negative.
        weights: The weight of each node for a restart, none negative; if all are zero, all nodes are equal.
    """
    size, total = len(edges), sum(weights)
    start = [value / total for value in weights] if total > 0 else [1 / size] * size
    sums = [sum(targets.values()) for targets in edges]
    moves = [
        [(target, _DAMPING * weight / out) for target, weight in targets.items()] if out > 0 else []
        for targets, out in zip(edges, sums, strict=True)
    ]
    ranks = list(start)
    for _ in range(_ITERATIONS):
        stuck = sum(value for value, move in zip(ranks, moves, strict=True) if not move)
        again = 1 - _DAMPING + _DAMPING * stuck
        following = [again * value for value in start]
        for value, move in zip(ranks, moves, strict=True):
            for target, share in move:
                following[target] += value * share
        change = sum(abs(new - old) for new, old in zip(following, ranks, strict=True))
        ranks = following
        if change < _TOLERANCE:
            break
    return ranks


def _definers(files: Sequence[MappedFile]) -> _Definers:
    definers: dict[str, dict[str, list[int]]] = {}
    for index, file in enumerate(files):
        names = definers.setdefault(file.family, {})
        for name in {tag.name for tag in file.tags.definitions if tag.name}:
            names.setdefault(name, []).append(index)
    return definers


def _uses(files: Sequence[MappedFile], definers: _Definers, focus: Focus) -> list[list[_Use]]:
    """The uses of defined names by each file, those that it defines itself included."""
    users: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for file in files:
        users[file.family].update(file.tags.references.keys() & definers[file.family].keys())
    weights = {
        family: {
            name: _weight(name) * _rarity(count, len(files)) * _interest(name, focus) / len(definers[family][name])
            for name, count in names.items()
            if len(definers[family][name]) <= _MAX_DEFINERS
        }
        for family, names in users.items()
    }
    room = _MAX_USES // len(files)
    uses: list[list[_Use]] = []
    for index, file in enumerate(files):
        uses_of_file: list[_Use] = []
        family_weights, targets_of = weights[file.family], definers[file.family]
        for name, count in file.tags.references.items():
            weight = family_weights.get(name)
            if weight is None:
                continue
            weight *= math.sqrt(count)
            targets = targets_of[name]
            # A file that defines the name itself means its own definition.
            if index in targets:
                uses_of_file.append((index, name, weight * len(targets)))
            else:
                uses_of_file += [(target, name, weight) for target in targets]
        uses.append(uses_of_file if len(uses_of_file) <= room else nlargest(room, uses_of_file, key=lambda use: use[2]))
    return uses


def _by_target(index: int, uses: list[_Use]) -> dict[int, float]:
    """The edges from a file to others; an edge to itself would raise its own rank."""
    weights: dict[int, float] = {}
    for target, _, weight in uses:
        weights[target] = weights.get(target, 0.0) + weight
    weights.pop(index, None)
    return weights


def _weight(name: str) -> float:
    """The weight of using a name: high for long compound names, which are specific, low for plain or private ones."""
    weight = 0.1 if name.startswith("_") else 1.0
    if len(name) < 4 or _PLAIN.fullmatch(name):
        return weight * 0.2
    return weight * 3.0 if len(name) >= 8 and _COMPOUND.search(name) else weight


def _rarity(users: int, files: int) -> float:
    """From 1 for a name that one file uses down to nearly 0 for a name that all files use."""
    return (math.log1p(files / users) / math.log1p(files)) ** 2


def _interest(name: str, focus: Focus) -> float:
    if not focus:
        return 1.0
    if name in focus.names:
        return 20.0
    if not focus.words:
        return 1.0
    words = words_of(name)
    return 1.0 + 6.0 * len(words & focus.words) / len(words) if words else 1.0


def _weights(files: Sequence[MappedFile], definers: _Definers, focus: Focus) -> list[float]:
    """The weight of each file for a restart: a small equal share for all, the rest for files that match the focus."""
    even = [1 / len(files)] * len(files)
    if not focus:
        return even
    matched = [0.0] * len(files)
    by_word: defaultdict[str, list[int]] = defaultdict(list)
    for index, file in enumerate(files):
        for word in words_of(file.path):
            if word in focus.words:
                by_word[word].append(index)
        stem = file.path.rpartition("/")[2].partition(".")[0]
        for name in focus.names:
            if file.path == name or file.path.endswith("/" + name):
                matched[index] += 30
            elif f"/{name}/" in f"/{file.path}":
                matched[index] += 3
            elif stem == name:
                matched[index] += 10
    for name, targets in (pair for names in definers.values() for pair in names.items()):
        if name in focus.names:
            for index in targets:
                matched[index] += 20 / len(targets)
        else:
            for word in words_of(name) & focus.words:
                by_word[word] += targets
    for indexes in by_word.values():
        for index in set(indexes):
            matched[index] += 5 / len(set(indexes)) ** 0.5
    total = sum(matched)
    if not total:
        return even
    return [_EVERYWHERE * value + (1 - _EVERYWHERE) * match / total for value, match in zip(even, matched, strict=True)]
