"""The tests most relevant to a change: those that the task names, that the change edits, or that cover its modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from pathlib import PurePosixPath

from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.orchestrator.evidence.patch import Patch
from swe_ai_fleet.orchestrator.evidence.source_files import holds_tests, is_test, language_of, may_be_compiled_from

_PARAMETERS = re.compile(r"\[.*\]$", re.S)
_MAX_TESTS_READ = 400
_IMPORT = re.compile(r"\b(?:import|from|require|use)\b")
_MAX_GROUP = 200
_MAX_READERS = 20
_PLAIN_DIRECTORIES = frozenset({"", "test", "tests", "__tests__", "spec", "specs"})


class TaskNames:
    """The words of a task: tests that it names have to pass."""

    def __init__(self, task: Task) -> None:
        text = "\n".join(task.texts)
        self._words = frozenset(word.strip(".,:;!?()[]`'\"") for word in re.split(r"[\s`'\"(),;]+", text))

    def name(self, test: str) -> bool:
        """Whether a test's id, its file or its own name is among the words."""
        path, mark, inside = test.partition("::")
        own = (inside.rpartition("::")[2] if mark else test.rpartition(".")[2]).partition("[")[0]
        files = python_files(test) if not mark else [path]
        telling = [word for file in files for word in (file, PurePosixPath(file).name) if "." in word]
        if "_" in own or own.lower().startswith("test"):  # other names are ordinary words
            telling.append(own)
        return any(word in self._words for word in (test, *telling))

    def files(self, paths: Iterable[str]) -> list[str]:
        """Those of the paths that the task names, by path or file name."""
        return [path for path in paths if path in self._words or PurePosixPath(path).name in self._words]


class Touched:
    """The test files that a patch changes, and the tests in them.

    Args:
        inline: Source files whose own tests it changes.
        readers: Unchanged test files that read some of the changed ones.
    """

    def __init__(self, paths: Iterable[str], inline: Iterable[str] = (), readers: Iterable[str] = ()) -> None:
        self._paths, self._sources, self._readers = tuple(paths), tuple(inline), tuple(readers)
        self.files = (*(path for path in self._paths if is_test(path)), *self._sources)
        self._inline = [_rust_module(path) for path in self._sources]
        self._modules = tuple(str(PurePosixPath(path).with_suffix("")).replace("/", ".") for path in self.files)
        self._directories = {str(PurePosixPath(path).parent) for path in self.files}

    def read_by(self, readers: Iterable[str]) -> Touched:
        """The same files, with test files that read some of them."""
        return Touched(self._paths, self._sources, readers)

    def has_or_feeds(self, test: str) -> bool:
        """Whether a test is in one of the files, or reads one of them."""
        return self.has(test) or (bool(self._readers) and Touched(self._readers).has(test))

    def has(self, test: str) -> bool:
        """Whether a test is in one of the files, by its id; an id that names no file may be in any."""
        if not self.files:
            return False
        scope, mark, inside = test.partition("::")
        if any(f"::{inside}".startswith(f"::{module}") for module in self._inline if scope.endswith(".rs")):
            return True
        if language_of(scope):
            # A runner's root may be below the repository's, or above it.
            return any(
                path == scope
                or path.endswith(f"/{scope}")
                or scope.endswith(f"/{path}")
                or may_be_compiled_from(scope, path)
                for path in self.files
            )
        if mark:  # a Go package, a crate: some directory of the repository, or its root
            return "." in self._directories or any(f"/{scope}".endswith(f"/{name}") for name in self._directories)
        dotted = function_of(test).split(" ")[0]
        return "." not in dotted or any(f".{dotted}.".find(f".{module}.") >= 0 for module in self._modules)


def _rust_module(path: str) -> str:
    """The module of a Rust source file as a prefix of test names; empty for the root of a crate."""
    parts = PurePosixPath(path).with_suffix("").parts
    inside = parts[parts.index("src") + 1 :] if "src" in parts else parts[-1:]
    names = [name for name in inside if name not in ("lib", "main", "mod")]
    return "".join(f"{name}::" for name in names)


def function_of(test: str) -> str:
    """A test's id without its parameters, which may differ between any two runs."""
    return _PARAMETERS.sub("", test)


def python_files(test: str) -> list[str]:
    """The files that a dotted name may mean, the longest first; the name itself may be a file, too."""
    parts = test.split(".")[:20]
    return [test, *("/".join(parts[:end]) + ".py" for end in range(len(parts) - 1, 0, -1))]


def first_tests(
    patch: Patch, names: TaskNames, paths: Collection[str], text: Callable[[str], str]
) -> tuple[tuple[str, ...], ...]:
    """Groups of test files in the order in which they run; the rest follows.

    The tests that the task names, those that the patch changes, those that import a changed module. Blocking: `text`
    reads a file of `paths`, the repository's.
    """
    tests = sorted(path for path in paths if is_test(path) and language_of(path))
    named = names.files(tests)
    changed = [path for path in patch.paths if is_test(path)]
    modules = _modules(path for path in patch.paths if not is_test(path))
    first = {*named, *changed}
    importing = [
        path for path in tests[:_MAX_TESTS_READ] if path not in first and modules and _imports(text(path), modules)
    ]
    groups = (tuple(group[:_MAX_GROUP]) for group in (named, changed, importing))
    return tuple(group for group in groups if group)


def readers(data: Collection[str], paths: Collection[str], text: Callable[[str], str]) -> tuple[str, ...]:
    """The test files that read some data files: cases, fixtures, helpers.

    They name one of these files, or, where no test file does, the directory of one. Blocking as `first_tests` is.
    """
    files = [PurePosixPath(path) for path in data]
    names = [file.stem if language_of(str(file)) and len(file.stem) >= 3 else file.name for file in files]
    directories = {file.parent.name for file in files} - _PLAIN_DIRECTORIES
    tests = sorted(path for path in paths if holds_tests(path) and path not in data)[:_MAX_TESTS_READ]
    for words in (names, sorted(directories)):
        if words:
            named = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, words[:100]))})(?![\w-])")
            if reading := [path for path in tests if named.search(text(path))]:
                return tuple(reading) if len(reading) <= _MAX_READERS else ()
    return ()


def _modules(paths: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern for the names of changed modules; None where there are none."""
    words: dict[str, None] = {}
    for path in paths:
        file = PurePosixPath(path)
        if not language_of(path):
            continue
        stem = file.parent.name if file.stem in ("__init__", "index", "mod", "lib", "main") else file.stem
        if len(stem) >= 3:
            words[stem] = None
    if not words:
        return None
    either = "|".join(map(re.escape, list(words)[:100]))
    return re.compile(rf"\b(?:{either})\b")


def _imports(text: str, modules: re.Pattern[str]) -> bool:
    """Whether a line of a file imports one of the modules; each line is scanned once."""
    imports = ((line, _IMPORT.search(line)) for line in text.splitlines())
    return any(match is not None and modules.search(line, match.end()) for line, match in imports)
