"""What runs inside the sandbox: request as JSON in an argument, map as JSON on standard output."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .cache import TagCache
from .focus import focus_of
from .graph import MappedFile, rank
from .languages import LANGUAGES
from .listing import Listing, Reader, SourceFile, list_sources
from .parsing import parse_files
from .relevance import relevant
from .rendering import render, shown_path
from .tags import FileTags

_KEY_VERSION = "2"


def main(argument: str) -> None:
    """Draw a map of the working directory and print it.

    The request has scope, focus (a list of texts), max_tokens, seconds (for parsing), narrow (only what the
    texts lead to) and known: keys of maps that the asker still has. The answer is `{"key": …}` alone for one of those.
    """
    request: Mapping[str, Any] = json.loads(argument)
    json.dump(draw(os.getcwd(), request), sys.stdout)  # noqa: PTH109


def draw(root: str, request: Mapping[str, Any]) -> dict[str, object]:
    """The answer to one request, see `main`."""
    listing = list_sources(root, str(request["scope"]))
    texts = request["focus"]
    key = _key(listing, texts, request)
    if key in request["known"]:
        return {"key": key}
    tags = _tags(root, listing, seconds=float(request["seconds"]))
    files = [
        MappedFile(path=file.path, family=LANGUAGES[file.language].family, tags=known)
        for file in listing.files
        if (known := tags.get(file.path)) is not None
    ]
    tests: list[str] = []
    if request.get("narrow"):
        with Reader(root) as reader:
            ranked, tests = relevant(files, texts, reader.read)
    else:
        ranked = rank(files, focus_of(texts))
    rendered = render(files, ranked, max_tokens=int(request["max_tokens"]))
    unread = sum(file.path not in tags for file in listing.files)
    return {
        # A map that is not whole is not to be kept: the next call goes on where this one stopped.
        "key": "" if unread else key,
        "text": rendered.text + (f"\nTests: {', '.join(map(shown_path, tests))}" if tests else ""),
        "shown_definitions": rendered.definitions,
        "shown_files": rendered.files,
        "definitions": sum(len(file.tags.definitions) for file in files),
        "files": len(files),
        "left_out": listing.left_out + len(listing.files) - len(files) - unread,
        "unread": unread,
    }


def _key(listing: Listing, texts: Sequence[str], request: Mapping[str, Any]) -> str:
    """A digest of all that the map depends on: the files' contents, and what was asked."""
    digest = hashlib.sha256()
    parts = [
        _KEY_VERSION,
        request["scope"],
        request["max_tokens"],
        request.get("narrow"),
        list(texts),
        listing.left_out,
    ]
    parts += [[file.path, file.digest] for file in listing.files]
    digest.update(json.dumps(parts).encode())
    return digest.hexdigest()


def _tags(root: str, listing: Listing, *, seconds: float) -> dict[str, FileTags | None]:
    """Tags by path, of as many files as there is time for; None for what can't be read."""
    cache = TagCache(_cache_path())
    keys = [_content_key(file) for file in listing.files]
    known = cache.get(list(dict.fromkeys(keys)))
    tags: dict[str, FileTags | None] = {
        file.path: known[key] for file, key in zip(listing.files, keys, strict=True) if key in known
    }
    missing = [file for file in listing.files if file.path not in tags]
    fresh: dict[str, FileTags] = {}
    for file, tags_of_file, same in parse_files(root, missing, seconds=seconds):
        tags[file.path] = tags_of_file
        if same and tags_of_file is not None:
            fresh[_content_key(file)] = tags_of_file
    if fresh:
        cache.put(fresh, keep=keys)
    return tags


def _content_key(file: SourceFile) -> str:
    return f"{file.language}:{file.digest}"


def _cache_path() -> Path | None:
    home = os.environ.get("HOME", "")
    return Path(home, ".cache", "fleet", "repo_map.sqlite3") if home else None
