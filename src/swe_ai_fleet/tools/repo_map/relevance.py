"""Finds the code that is relevant to a task: where the names in the task are defined and used.

Unlike a map of the repository, which fills all available room, the result is empty if the task names nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath

from .graph import MappedFile, Ranked, focus_of, words_of

_CODE = re.compile(r"`([^`\n]{2,120})`|\b([\w.]+)\(|\b([^\W\d]\w*\.[^\W\d][\w.]*)")
_TERM = re.compile(r"[\w./-]*\w")
_IDENTIFIER = re.compile(r"[^\W\d]\w+")
_COMPOUND = re.compile(r"[^_]_[^_]|[a-z][A-Z]|^[A-Z][a-z]{3,}")
_TEST = re.compile(r"(^|/)(tests?|specs?|__tests__)/|(^|/)(test_|conftest)|[._-](test|spec)\.\w+$|_tests?\.\w+$")
_ASIDE = re.compile(r"(^|/)(examples?|samples?|demos?|docs?|benchmarks?|vendor|third_party|dist)/|_pb2")
_MOST_DEFINERS = 6
_MOST_USERS = 40
_MOST_FILES = 6
_MOST_IN_A_FILE = 6
_MOST_TESTS = 3
_LEAST_SHARE = 0.1
_DEFINES, _NAMED = 2.0, 4.0

Read = Callable[[str], bytes | None]


def relevant(files: Sequence[MappedFile], texts: Sequence[str], read: Read) -> tuple[list[Ranked], list[str]]:
    """The definitions that a task is about, by file, the most relevant file first; and the paths of their tests.

    Args:
        files: The files of the repository.
        texts: The task.
        read: Returns the content of a file, None if it cannot be read.
    """
    words, names, paths = focus_of(texts).words, _identifiers(texts), _paths(texts)
    definers, users = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for index, file in enumerate(files):
        for name in names & {tag.name for tag in file.tags.definitions}:
            definers[name].append(index)
        for name in names & file.tags.references.keys():
            users[name].append(index)
    scores, chosen, used = (
        defaultdict[int, float](float),
        defaultdict[int, set[int]](set),
        defaultdict[int, set[str]](set),
    )
    for name in sorted(names):
        if len(definers[name] or users[name]) > _MOST_DEFINERS:  # ambiguous
            continue
        for index in definers[name]:
            scores[index] += _DEFINES / len(definers[name])
            tags = files[index].tags.definitions
            chosen[index] |= {number for number, tag in enumerate(tags) if tag.name == name}
        for index in users[name] if len(users[name]) <= _MOST_USERS else ():
            named_in = (files[index].path, *(tag.name for tag in files[index].tags.definitions))
            overlap = len(words & {word for text in named_in for word in words_of(text)}) / max(1, len(words))
            scores[index] += (0.5 + 2 * overlap) / len(users[name]) ** 0.5
            used[index].add(name)
    named = {i for i, file in enumerate(files) if any(f"/{file.path}".endswith(f"/{path}") for path in paths)}
    for index in named:
        scores[index] += _NAMED
    if not scores:
        return _by_words(files, words), []
    tests = [index for index in scores if is_test(files[index].path)]
    code = [i for i in scores.keys() - set(tests) if i in named or not _ASIDE.search(files[i].path)]
    code.sort(key=lambda index: (-scores[index], index))
    tests.sort(key=lambda index: (-scores[index], index))
    ranked: list[Ranked] = []
    for index in code[:_MOST_FILES]:
        if scores[index] < _LEAST_SHARE * scores[code[0]]:
            break
        tags = files[index].tags.definitions
        numbers = sorted(chosen[index])
        around = _around(files[index], used[index], read)
        around += [number for number, tag in enumerate(tags) if len(words_of(tag.name) & words) > 1 or len(tags) < 4]
        numbers += [number for number in dict.fromkeys(around) if number not in chosen[index] and tags[number].name]
        ranked += [Ranked(file=index, definition=number, score=scores[index]) for number in numbers[:_MOST_IN_A_FILE]]
    return ranked, [files[index].path for index in tests[:_MOST_TESTS]]


def is_test(path: str) -> bool:
    """Whether a path looks like a test's, in any language."""
    return _TEST.search(path) is not None


def _identifiers(texts: Iterable[str]) -> set[str]:
    """The names in a task that are written as code, or in a form that prose does not have."""
    identifiers: set[str] = set()
    for text in texts:
        for code in _CODE.finditer(text):
            identifiers |= {name for name in _IDENTIFIER.findall(code[1] or code[2] or code[3]) if len(name) > 2}
        identifiers |= {name for name in _IDENTIFIER.findall(text) if _COMPOUND.search(name)}
    return identifiers


def _paths(texts: Iterable[str]) -> set[str]:
    terms = (term.strip("./-") for text in texts for term in _TERM.findall(text))
    return {term for term in terms if PurePosixPath(term).suffix and len(term) > 3}


def _around(file: MappedFile, names: set[str], read: Read) -> list[int]:
    """The definitions in which a file uses names, in order."""
    definitions = file.tags.definitions
    if not names or not definitions or (data := read(file.path)) is None:
        return []
    use = re.compile(r"\b(" + "|".join(map(re.escape, sorted(names))) + r")\b")
    using: dict[int, None] = {}
    at = -1
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), start=1):
        while at + 1 < len(definitions) and definitions[at + 1].line <= number:
            at += 1
        if at >= 0 and line[:1].isspace() and use.search(line):
            using[at] = None
    return list(using)


def _by_words(files: Sequence[MappedFile], words: frozenset[str]) -> list[Ranked]:
    """For a task without names: the definitions whose names share at least two words with it, the best match first."""
    matches: list[Ranked] = []
    for index, file in enumerate(files):
        if is_test(file.path) or _ASIDE.search(file.path):
            continue
        for number, tag in enumerate(file.tags.definitions):
            if len(both := words_of(tag.name) & words) > 1:
                matches.append(Ranked(file=index, definition=number, score=len(both) / len(words_of(tag.name))))
    matches.sort(key=lambda definition: (-definition.score, definition.file, definition.definition))
    return matches[:_MOST_FILES]
