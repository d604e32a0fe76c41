"""What runs inside the sandbox: the question as JSON in an argument, what was found as JSON on standard output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .passages import Passage, passages
from .ranking import Index, names


def main(argument: str) -> None:
    """Search the working directory and print what was found.

    The request has entities and queries (lists of texts), threshold (the score from which a passage answers a query),
    hits (passages of each) and seconds (for reading).
    """
    request: Mapping[str, Any] = json.loads(argument)
    root = os.path.realpath(os.getcwd())  # noqa: PTH109
    found_passages = passages(root, seconds=float(request["seconds"]))
    json.dump(recall(found_passages, request), sys.stdout)


def recall(found: Sequence[Passage], request: Mapping[str, Any]) -> dict[str, object]:
    """The answer to one request: `found` says for each text asked about which passages answer it, best first."""
    index = Index([f"{passage.source}\n{passage.text}" for passage in found])
    hits = int(request["hits"])
    shown: dict[int, int] = {}
    answers: list[dict[str, object]] = []
    for entity in request["entities"]:
        chosen = _naming(found, index, entity)[:hits]
        answers.append({"asked": entity, "passages": [shown.setdefault(number, len(shown)) for number in chosen]})
    threshold = float(request["threshold"])
    for query in request["queries"]:
        chosen = [number for score, number in index.rank(query)[:hits] if score >= threshold]
        answers.append({"asked": query, "passages": [shown.setdefault(number, len(shown)) for number in chosen]})
    return {
        "found": answers,
        "passages": [{"source": found[number].source, "text": found[number].text} for number in shown],
        "searched": len(found),
    }


def _naming(found_passages: Sequence[Passage], index: Index, entity: str) -> list[int]:
    """The passages that name an entity exactly: those under its own name first, then by weight."""
    ranked = [number for _, number in index.rank(entity)]
    named = [
        number for number in ranked if names(entity, f"{found_passages[number].source}\n{found_passages[number].text}")
    ]
    if named or ranked:
        return sorted(named, key=lambda number: not _is_titled(found_passages[number].source, entity))
    # A name without a term of its own (`__init__`, a stop word) is looked for in all.
    return [number for number, each in enumerate(found_passages) if names(entity, f"{each.source}\n{each.text}")]


def _is_titled(source: str, entity: str) -> bool:
    """Whether a heading, a definition or a file is called just that."""
    path, mark, title = source.partition("#")
    title = title if mark else path.rpartition("/")[2]
    return entity.casefold() in (title.casefold(), title.rpartition(".")[2].casefold(), path.casefold())
