"""Licence headers: where the repository's files of a language begin with one, a new file does too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from swe_ai_fleet.orchestrator.evidence.patch import Patch
from swe_ai_fleet.orchestrator.evidence.source_files import language_of
from swe_ai_fleet.orchestrator.evidence.violation import Concern, Violation

SAMPLE = 30
"""Files of a language that are looked at."""
_LEAST_FILES = 3
_SHARE = 0.9
_HEAD_CHARS = 2_000
_HEAD_LINES = 12
_HEADER = re.compile(r"(?i)SPDX-License-Identifier|\bcopyright\b|\blicensed under\b|\(c\) (?:19|20)\d\d")


def missing_licences(patch: Patch, listed: Iterable[str], text_of: Callable[[str], str]) -> Iterator[Violation]:
    """Warnings about new source files without the header that nearly all others of their language have.

    Args:
        patch: What is changed.
        listed: The paths of the repository with the patch applied.
        text_of: The text of one of them, empty where it cannot be read.
    """
    added = {file.path: language for file in patch.files if file.is_new and (language := language_of(file.path))}
    others: dict[str, list[str]] = {}
    for path in sorted(listed) if added else ():
        if path not in added and (language := language_of(path)) in added.values():
            others.setdefault(language, []).append(path)
    usual = {language for language, paths in others.items() if _usual(paths, text_of)}
    for path, language in added.items():
        text = text_of(path)
        if language in usual and text.strip() and not _has_header(text):
            text = f"has no licence header, as the other {language} files have"
            yield Violation(concern=Concern.LICENCES, path=path, line=1, text=text, required=False)


def _usual(paths: list[str], text_of: Callable[[str], str]) -> bool:
    # Spread over the repository rather than all from one directory.
    step = max(1, len(paths) // SAMPLE)
    texts = [text for path in paths[::step][:SAMPLE] if (text := text_of(path)).strip()]
    return len(texts) >= _LEAST_FILES and sum(map(_has_header, texts)) >= _SHARE * len(texts)


def _has_header(text: str) -> bool:
    return bool(_HEADER.search("\n".join(text[:_HEAD_CHARS].split("\n")[:_HEAD_LINES])))
