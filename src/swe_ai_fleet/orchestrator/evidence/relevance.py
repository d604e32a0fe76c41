"""Which tests a change is most likely to show in: those the task names, those it changes, those of what it changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from pathlib import PurePosixPath

from swe_ai_fleet.orchestrator.evidence.comparison import TaskNames
from swe_ai_fleet.orchestrator.evidence.patch import Patch
from swe_ai_fleet.orchestrator.evidence.source_files import holds_tests, is_test, language_of

_MAX_TESTS_READ = 400
_IMPORT = re.compile(r"\b(?:import|from|require|use)\b")
_MAX_GROUP = 200
_MAX_READERS = 20
_PLAIN_DIRECTORIES = frozenset({"", "test", "tests", "__tests__", "spec", "specs"})


def first_tests(
    patch: Patch, names: TaskNames, paths: Collection[str], text: Callable[[str], str]
) -> tuple[tuple[str, ...], ...]:
    """Groups of test files in the order in which they are to run; the rest follows.

    The tests that the task names, those that the patch changes, those that import or speak of a changed module.

    Args:
        paths: All files of the repository.
        text: A file's text, empty where it cannot be read. Blocking.
    """
    tests = sorted(path for path in paths if is_test(path) and language_of(path))
    named = names.files(tests)
    changed = [path for path in patch.paths if is_test(path)]
    modules = _modules(path for path in patch.paths if not is_test(path))
    known = {*named, *changed}
    importing = [
        path for path in tests[:_MAX_TESTS_READ] if path not in known and modules and _imports(text(path), modules)
    ]
    groups = (tuple(group[:_MAX_GROUP]) for group in (named, changed, importing))
    return tuple(group for group in groups if group)


def readers(data: Collection[str], paths: Collection[str], text: Callable[[str], str]) -> tuple[str, ...]:
    """The test files that read some files beside them, which hold no test: cases, fixtures, helpers.

    They name one of these files, or, where no test file does, the directory of one.

    Args:
        data: The files that are read.
        paths: All files of the repository.
        text: A file's text, empty where it cannot be read. Blocking.
    """
    places = [PurePosixPath(path) for path in data]
    names = [place.stem if language_of(str(place)) and len(place.stem) >= 3 else place.name for place in places]
    directories = {place.parent.name for place in places} - _PLAIN_DIRECTORIES
    tests = sorted(path for path in paths if holds_tests(path) and path not in data)[:_MAX_TESTS_READ]
    for words in (names, sorted(directories)):
        if words:
            named = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, words[:100]))})(?![\w-])")
            if reading := [path for path in tests if named.search(text(path))]:
                return tuple(reading) if len(reading) <= _MAX_READERS else ()
    return ()


def _modules(paths: Iterable[str]) -> re.Pattern[str] | None:
    """What finds a changed module's name."""
    words: dict[str, None] = {}
    for path in paths:
        place = PurePosixPath(path)
        if not language_of(path):
            continue
        stem = place.parent.name if place.stem in ("__init__", "index", "mod", "lib", "main") else place.stem
        if len(stem) >= 3:
            words[stem] = None
    if not words:
        return None
    either = "|".join(map(re.escape, list(words)[:100]))
    return re.compile(rf"\b(?:{either})\b")


def _imports(text: str, modules: re.Pattern[str]) -> bool:
    """Whether a line of a file imports one of the modules; each line is gone through once."""
    imports = ((line, _IMPORT.search(line)) for line in text.splitlines())
    return any(match is not None and modules.search(line, match.end()) for line, match in imports)
