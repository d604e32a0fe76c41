"""Source files: the kind of a file by its path (a test, a document, the language), and bounded reading of a clone.

A clone's files are listed once and read within bounds; their content is untrusted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.ports import Clone
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree

_TEST_DIRECTORY = re.compile(r"_*(?:tests?|specs?|(?:[a-z0-9]+_)+tests)_*|testdata|testsuite|fixtures|test-d")
_TEST_NAMES = re.compile(
    r"test_.+\.py|.+_test\.py|tests?\.py|conftest\.py|.+_test\.go|(?:.+[._-])?(?:tests?|spec)\.[cm]?[jt]sx?"
)
_SUPPORT = ("conftest.py", "__init__.py")
_TEST_SUFFIXES = (".py", ".js", ".cjs", ".mjs", ".jsx", ".ts", ".cts", ".mts", ".tsx", ".go", ".rs")
_TYPESCRIPT, _JAVASCRIPT = re.compile(r"\.[cm]?tsx?"), re.compile(r"\.[cm]?jsx?")
_RUST_TESTS = re.compile(r"#\[cfg\(test\)\]")
_COMMENTS = {"python": ("#",), "other": ("#", "//", "/*", "*")}
_DIRECTIVE = re.compile(
    r"#!|#\s*(?:type|noqa|pragma|pylint|mypy|ruff|pyright|cython|distutils|fmt|isort|-\*-|coding)\b"
    r"|//(?:go:|export |\s*\+build|\s*@|\s*#)|/[/*]\s*(?:eslint|jshint|@|#|istanbul|c8|prettier|webpack|v8|tslint)"
)
_DOCUMENTS = (".md", ".rst", ".txt", ".adoc", ".ipynb")
_LANGUAGES = {
    **dict.fromkeys((".py", ".pyi"), "python"),
    **dict.fromkeys((".js", ".cjs", ".mjs", ".jsx", ".ts", ".cts", ".mts", ".tsx"), "javascript"),
    ".go": "go",
    ".rs": "rust",
    **dict.fromkeys((".java", ".kt", ".scala"), "jvm"),
    **dict.fromkeys((".c", ".h", ".cc", ".cpp", ".hpp", ".cxx"), "c"),
    **dict.fromkeys((".rb", ".php", ".cs", ".swift", ".sh"), "other"),
}


def language_of(path: str) -> str:
    """The language of a source file, empty for any other file."""
    return _LANGUAGES.get(PurePosixPath(path).suffix, "")


def is_test(path: str) -> bool:
    """Whether a file belongs to the tests, by its name or its directory."""
    file = PurePosixPath(path)
    return bool(_TEST_NAMES.fullmatch(file.name) or any(map(_TEST_DIRECTORY.fullmatch, file.parts[:-1])))


is_test.__test__ = False  # type: ignore[attr-defined]


def holds_tests(path: str) -> bool:
    """Whether a file may contain tests itself; data and support files of tests do not."""
    name = PurePosixPath(path).name
    return is_test(path) and name not in _SUPPORT and name.endswith(_TEST_SUFFIXES)


def may_be_compiled_from(output: str, source: str) -> bool:
    """Whether a JavaScript file may be compiled from a TypeScript one: equal names in equal directories.

    `dist/esm/test/a.test.js` and `src/test/a.test.ts`.
    """
    compiled, written = PurePosixPath(output), PurePosixPath(source)
    if not _TYPESCRIPT.fullmatch(written.suffix) or not _JAVASCRIPT.fullmatch(compiled.suffix):
        return False
    # If sources or output are at the top, they have no directory in common.
    return compiled.stem == written.stem and (compiled.parent.name == written.parent.name or len(written.parts) < 3)


def is_compiled(path: str, paths: Collection[str]) -> bool:
    """Whether a runner of these files gets the compiled form of a TypeScript file, not the file itself."""
    suffixes = {PurePosixPath(name).suffix for name in paths}
    languages = [pattern for pattern in (_TYPESCRIPT, _JAVASCRIPT) if any(map(pattern.fullmatch, suffixes))]
    return bool(_TYPESCRIPT.fullmatch(PurePosixPath(path).suffix)) and languages == [_JAVASCRIPT]


def inline_tests(path: str, text: str) -> int:
    """The line from which on a source file contains tests, as Rust's do; 0 where it contains none."""
    if language_of(path) != "rust":
        return 0
    return next((at for at, line in enumerate(text.split("\n"), start=1) if _RUST_TESTS.match(line)), 0)


def is_comment(line: str, language: str) -> bool:
    """Whether a line of source is blank or a comment that no tool reads; docstrings are code."""
    text = line.strip()
    return not text or (text.startswith(_COMMENTS.get(language, ("//", "/*", "*"))) and not _DIRECTIVE.match(text))


def is_document(path: str) -> bool:
    """Whether a file is prose."""
    return path.endswith(_DOCUMENTS)


_MAX_FILE_BYTES = 1024 * 1024
_MAX_LISTING_BYTES = 8 * 1024 * 1024
_LISTING_SECONDS = 30.0


class CloneFiles:
    """One clone's files."""

    def __init__(self, clone: Clone) -> None:
        self.clone = clone
        self.tree = Tree(clone.root, clone.mount)
        self._paths: frozenset[str] | None = None

    async def paths(self) -> frozenset[str]:
        """The tracked paths, including those of an applied patch; none where git cannot list them."""
        if self._paths is None:
            command = Command(
                argv=("git", "-c", "core.fsmonitor=false", "ls-files", "-z"),
                light=True,
                timeout_seconds=_LISTING_SECONDS,
                output_limit=_MAX_LISTING_BYTES,
            )
            result = await self.clone.run(command)
            listing = (result.stdout.head + result.stdout.tail).decode("utf-8", "replace") if result.ok else ""
            self._paths = frozenset(path for path in listing.split("\0") if path)
        return self._paths

    def text(self, path: str) -> str:
        """A file's text; empty where it cannot be read, is too large, or is binary."""
        try:
            data = self.tree.read(path, limit=_MAX_FILE_BYTES).data
        except (ToolFailure, OSError):
            return ""
        return "" if b"\0" in data else data.decode("utf-8", "replace")

    def links(self, paths: Iterable[str]) -> frozenset[str]:
        """Which of these are symbolic links."""
        return frozenset(path for path in paths if (self.clone.root / path).is_symlink())

    def has(self, path: str) -> bool:
        """Whether a path exists."""
        try:
            self.tree.find(path)
        except ToolFailure:
            return False
        return True
