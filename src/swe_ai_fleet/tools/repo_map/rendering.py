"""The map as text: the best definitions with their first lines, by file, as many as a budget of tokens holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .graph import MappedFile, Ranked

CHARS_PER_TOKEN = 4
"""A rough measure for code and English; no tokenizer is asked."""

_MAX_CANDIDATES = 5_000
_MAX_PATH_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The text, and how many definitions of how many files it shows."""

    text: str
    definitions: int
    files: int


def render(files: Sequence[MappedFile], ranked: Sequence[Ranked], *, max_tokens: int) -> Rendered:
    """As many of the best definitions as fit; each brings the lines of the definitions around it."""
    room = max_tokens * CHARS_PER_TOKEN
    low, high = 0, min(len(ranked), _MAX_CANDIDATES)
    best = Rendered(text="", definitions=0, files=0)
    while low < high:
        middle = (low + high + 1) // 2
        rendered = _render(files, ranked[:middle])
        if len(rendered.text) <= room:
            low, best = middle, rendered
        else:
            high = middle - 1
    return best


def _render(files: Sequence[MappedFile], ranked: Sequence[Ranked]) -> Rendered:
    shown: dict[int, set[int]] = {}
    for ranked_definition in ranked:
        numbers = shown.setdefault(ranked_definition.file, set())
        definitions, number = files[ranked_definition.file].tags.definitions, ranked_definition.definition
        while number >= 0 and number not in numbers:
            numbers.add(number)
            number = definitions[number].parent
    blocks: list[str] = []
    for index, numbers in shown.items():
        definitions = files[index].tags.definitions
        rows = [f"{shown_path(files[index].path)}:"]
        for number in sorted(numbers):
            depth, above = 1, definitions[number].parent
            while above >= 0:
                depth, above = depth + 1, definitions[above].parent
            rows.append(f"{'  ' * depth}{definitions[number].line}: {definitions[number].signature}")
        blocks.append("\n".join(rows))
    return Rendered(
        text="\n".join(blocks), definitions=sum(len(numbers) for numbers in shown.values()), files=len(shown)
    )


def shown_path(path: str) -> str:
    """A path in one line of bounded length, whatever characters its names hold."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in path)
    return line if len(line) <= _MAX_PATH_CHARS else f"{line[:200]}\u2026{line[-80:]}"
