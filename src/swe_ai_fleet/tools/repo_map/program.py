"""The program inside the sandbox: takes a request as JSON in an argument, prints the map as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .graph import MappedFile, Ranked, focus_of, rank
from .languages import LANGUAGES
from .listing import Listing, Reader, SourceFile, list_sources
from .parsing import TagCache, parse_files
from .relevance import relevant
from .tags import FileTags

_MAX_CANDIDATES = 5_000
_MAX_PATH_CHARS = 300


def render(files: Sequence[MappedFile], ranked: Sequence[Ranked], *, max_chars: int) -> tuple[str, int, int]:
    """(text, definitions, files): as many of the best definitions as fit, each with the definitions around it."""
    low, high = 0, min(len(ranked), _MAX_CANDIDATES)
    best = ("", 0, 0)
    while low < high:
        middle = (low + high + 1) // 2
        rendered = _render(files, ranked[:middle])
        if len(rendered[0]) <= max_chars:
            low, best = middle, rendered
        else:
            high = middle - 1
    return best


def _render(files: Sequence[MappedFile], ranked: Sequence[Ranked]) -> tuple[str, int, int]:
    lines_by_file: dict[int, set[int]] = {}
    for ranked_definition in ranked:
        numbers = lines_by_file.setdefault(ranked_definition.file, set())
        definitions, number = files[ranked_definition.file].tags.definitions, ranked_definition.definition
        while number >= 0 and number not in numbers:
            numbers.add(number)
            number = definitions[number].parent
    blocks: list[str] = []
    for index, numbers in lines_by_file.items():
        definitions = files[index].tags.definitions
        rows = [f"{shown_path(files[index].path)}:"]
        for number in sorted(numbers):
            depth, above = 1, definitions[number].parent
            while above >= 0:
                depth, above = depth + 1, definitions[above].parent
            rows.append(f"{'  ' * depth}{definitions[number].line}: {definitions[number].signature}")
        blocks.append("\n".join(rows))
    return "\n".join(blocks), sum(map(len, lines_by_file.values())), len(lines_by_file)


def shown_path(path: str) -> str:
    """A path as one printable line of bounded length."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in path)
    return line if len(line) <= _MAX_PATH_CHARS else f"{line[:200]}\u2026{line[-80:]}"


def main(argument: str) -> None:
    """Draw a map of the working directory and print it.

    The request has scope, focus (a list of texts), max_chars, seconds (for parsing), narrow (only definitions that are
    relevant to the texts).
    """
    request: Mapping[str, Any] = json.loads(argument)
    json.dump(draw(os.getcwd(), request), sys.stdout)  # noqa: PTH109


def draw(root: str, request: Mapping[str, Any]) -> dict[str, object]:
    """The map for one request, see `main`."""
    listing = list_sources(root, str(request["scope"]))
    texts = request["focus"]
    tags = _tags(root, listing, seconds=float(request["seconds"]))
    files = [
        MappedFile(path=file.path, family=LANGUAGES[file.language].family, tags=cached)
        for file in listing.files
        if (cached := tags.get(file.path)) is not None
    ]
    tests: list[str] = []
    if request.get("narrow"):
        with Reader(root) as reader:
            ranked, tests = relevant(files, texts, reader.read)
    else:
        ranked = rank(files, focus_of(texts))
    text, definitions, shown = render(files, ranked, max_chars=int(request["max_chars"]))
    unread = sum(file.path not in tags for file in listing.files)
    return {
        "text": text + (f"\nTests: {', '.join(map(shown_path, tests))}" if tests else ""),
        "shown_definitions": definitions,
        "shown_files": shown,
        "definitions": sum(len(file.tags.definitions) for file in files),
        "files": len(files),
        "left_out": listing.left_out + len(listing.files) - len(files) - unread,
        "unread": unread,
    }


def _tags(root: str, listing: Listing, *, seconds: float) -> dict[str, FileTags | None]:
    """Tags by path, for as many files as there is time for; None for unreadable ones."""
    cache = TagCache(_cache_path())
    keys = [_content_key(file) for file in listing.files]
    cached = cache.get(keys)
    tags: dict[str, FileTags | None] = {
        file.path: cached[key] for file, key in zip(listing.files, keys, strict=True) if key in cached
    }
    missing = [file for file in listing.files if file.path not in tags]
    fresh: dict[str, FileTags] = {}
    for file, tags_of_file, same in parse_files(root, missing, seconds=seconds):
        tags[file.path] = tags_of_file
        if same and tags_of_file is not None:
            fresh[_content_key(file)] = tags_of_file
    if fresh:
        cache.put(fresh)
    return tags


def _content_key(file: SourceFile) -> str:
    return f"{file.language}:{file.digest}"


def _cache_path() -> Path | None:
    home = os.environ.get("HOME", "")
    return Path(home, ".cache", "fleet", "repo_map.tags") if home else None
