"""Replacing one passage of a text by another: exact and unique, or a refusal that shows what comes near."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher

from swe_ai_fleet.tools.definition import ToolFailure

_WORDS = re.compile(r"\w{2,}")
_WORDS_TRIED = 12
_HITS_A_WORD = 200
_WINDOWS_COMPARED = 10
_LINES_COMPARED = 30
_CHARS_COMPARED = 160
_MISSES_SHOWN = 3
_PLACES_SHOWN = 10
_LIKENESS = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A text after `count` replacements. `changed` are (first, last) line numbers, from 1, of the first new passages.

    `tolerant` says that the passage was found only by overlooking white space at line ends.
    """

    text: str
    count: int
    changed: tuple[tuple[int, int], ...]
    tolerant: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMiss:
    """A passage that resembles the one looked for: its line numbers, its lines, how alike it is (0 to 1)."""

    first: int
    lines: tuple[str, ...]
    likeness: float


def replace_passage(text: str, old: str, new: str, *, replace_all: bool = False) -> Replacement:
    """The text with `old` replaced by `new`.

    `old` must occur exactly once (with `replace_all`: at least once). Where it does not occur, whole lines that differ
    from it only in white space at their ends are taken instead, if exactly one passage of the text does.

    Raises:
        ToolFailure: It occurs more than once or not at all; the message names lines or shows what comes near.
    """
    if not old:
        raise ToolFailure(
            "old is empty, which only creates a file; to add text give the line before it as old and both as new, "
            "files_write_file replaces a file whole"
        )
    if old == new:
        raise ToolFailure("old and new are the same: nothing would change")
    count = text.count(old)
    if count > 1 and not replace_all:
        places = [text.count("\n", 0, start) + 1 for start in _occurrences(text, old)]
        raise ToolFailure(_ambiguous(places, count))
    if not count:
        return _replace_tolerantly(text, old, new)
    changed: list[tuple[int, int]] = []
    line, position = 1, 0
    for start in _occurrences(text, old):
        line += text.count("\n", position, start)
        changed.append((line, line + new.removesuffix("\n").count("\n")))
        line += new.count("\n")
        position = start + len(old)
    return Replacement(text=text.replace(old, new), count=count, changed=tuple(changed))


def near_misses(text: str, old: str) -> list[NearMiss]:
    """The passages of the text most like `old`, best first; the work is bounded whatever the two hold.

    Places that share rare words with `old` vote for the line where it would begin; only the few with the most votes are
    compared (Ratcliff and Obershelp's similarity, a bounded part of each).
    """
    lines, wanted = text.split("\n"), old.strip("\n").split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    votes: Counter[int] = Counter()
    for word, offset in _rare_words(text, wanted):
        position = text.find(word)
        for _ in range(_HITS_A_WORD):
            if position < 0:
                break
            number = bisect_right(starts, position) - 1
            votes[max(0, number - offset)] += 1
            position = text.find(word, starts[number + 1])
    candidates: list[NearMiss] = []
    for number, _ in votes.most_common(_WINDOWS_COMPARED):
        window = lines[number : number + len(wanted)]
        candidates.append(NearMiss(first=number + 1, lines=tuple(window), likeness=_likeness(window, wanted)))
    best: list[NearMiss] = []
    for candidate in sorted(candidates, key=lambda miss: (-miss.likeness, miss.first)):
        apart = all(abs(candidate.first - other.first) >= len(wanted) for other in best)
        if apart and candidate.likeness >= _LIKENESS and len(best) < _MISSES_SHOWN:
            best.append(candidate)
    return best


def _occurrences(text: str, old: str) -> list[int]:
    """Where the first few occurrences begin."""
    starts: list[int] = []
    position = text.find(old)
    while position >= 0 and len(starts) < _PLACES_SHOWN:
        starts.append(position)
        position = text.find(old, position + len(old))
    return starts


def _replace_tolerantly(text: str, old: str, new: str) -> Replacement:
    wanted = [line.rstrip() for line in old.removesuffix("\n").split("\n")]
    lines = text.split("\n")
    runs = _runs([line.rstrip() for line in lines], wanted) if any(wanted) else []
    if len(runs) > 1:
        places = [number + 1 for number in runs[:_PLACES_SHOWN]]
        raise ToolFailure("apart from white space at line ends, " + _ambiguous(places, len(runs)))
    if not runs:
        raise ToolFailure(_not_found(text, old))
    first, last = runs[0], runs[0] + len(wanted) - 1
    start = sum(len(line) + 1 for line in lines[:first])
    end = start + sum(len(line) + 1 for line in lines[first : last + 1]) - 1
    windows = lines[last].endswith("\r")
    if old.endswith("\n") and end < len(text):
        end += 1
    elif windows:
        end -= 1
    fresh = new.replace("\r\n", "\n").replace("\n", "\r\n") if windows else new
    changed = (first + 1, first + 1 + new.removesuffix("\n").count("\n"))
    return Replacement(text=text[:start] + fresh + text[end:], count=1, changed=(changed,), tolerant=True)


def _runs(lines: list[str], wanted: list[str]) -> list[int]:
    """Where the wanted lines stand in a row. The longest of them is sought first: it is the rarest."""
    offset = max(range(len(wanted)), key=lambda number: len(wanted[number]))
    starts: list[int] = []
    position = -1
    while True:
        try:
            position = lines.index(wanted[offset], position + 1)
        except ValueError:
            return starts
        first = position - offset
        if first >= 0 and lines[first : first + len(wanted)] == wanted:
            starts.append(first)


def _rare_words(text: str, wanted: list[str]) -> list[tuple[str, int]]:
    """Words of the passage with the offset of their line, those that the text has fewest of first."""
    offsets: dict[str, int] = {}
    for offset, line in enumerate(wanted[:_LINES_COMPARED]):
        for word in _WORDS.findall(line[:_CHARS_COMPARED]):
            offsets.setdefault(word, offset)
    longest = sorted(offsets, key=len, reverse=True)[: 2 * _WORDS_TRIED]
    counts = {word: text.count(word) for word in longest}
    known = sorted((word for word in longest if counts[word]), key=lambda word: counts[word])
    return [(word, offsets[word]) for word in known[:_WORDS_TRIED]]


def _likeness(window: list[str], wanted: list[str]) -> float:
    pairs = list(zip(window[:_LINES_COMPARED], wanted[:_LINES_COMPARED], strict=False))
    weights = [max(len(ours.strip()), len(theirs.strip())) for ours, theirs in pairs]
    total = sum(weights) + sum(len(line) for line in wanted[len(window) : _LINES_COMPARED])
    shared = sum(
        weight * _line_likeness(ours.strip(), theirs.strip())
        for weight, (ours, theirs) in zip(weights, pairs, strict=True)
    )
    return shared / total if total else 0.0


def _line_likeness(ours: str, theirs: str) -> float:
    if ours == theirs:
        return 1.0
    return SequenceMatcher(None, ours[:_CHARS_COMPARED], theirs[:_CHARS_COMPARED], autojunk=False).ratio()


def _ambiguous(numbers: list[int], count: int) -> str:
    places = ", ".join(str(number) for number in numbers) + (", ..." if count > len(numbers) else "")
    return (
        f"old occurs {count} times, at lines {places}; "
        "add lines before or after it until it is unique, or set replace_all=true"
    )


def _not_found(text: str, old: str) -> str:
    misses = near_misses(text, old)
    if not misses:
        return "old does not occur in the file and nothing in it comes near; read the file and copy the passage exactly"
    wanted = old.strip("\n").split("\n")
    parts = ["old does not occur in the file. What comes near:"]
    for miss in misses:
        parts.append(f"lines {miss.first}-{miss.first + len(miss.lines) - 1}:")
        parts.extend(f"{number}\t{line[:200]}" for number, line in enumerate(miss.lines[:12], start=miss.first))
        parts.append(f"  ({_difference(miss, wanted)})")
    parts.append("Copy the passage exactly, without the line numbers.")
    return "\n".join(parts)


def _difference(miss: NearMiss, wanted: list[str]) -> str:
    for number, (ours, theirs) in enumerate(zip(miss.lines, wanted, strict=False), start=miss.first):
        if ours != theirs:
            if ours.strip() == theirs.strip():
                return f"line {number} differs in white space: the file has {ours[:200]!r}"
            return f"first difference in line {number}: old has {theirs[:200]!r}"
    return "only a part of it is there"
