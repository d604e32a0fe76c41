"""What a path says about a file: a test, a document, source of which language."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePosixPath

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
    place = PurePosixPath(path)
    return bool(_TEST_NAMES.fullmatch(place.name) or any(map(_TEST_DIRECTORY.fullmatch, place.parts[:-1])))


is_test.__test__ = False  # type: ignore[attr-defined]


def holds_tests(path: str) -> bool:
    """Whether a file belongs to the tests and may hold some itself: data and what only supports them does not."""
    name = PurePosixPath(path).name
    return is_test(path) and name not in _SUPPORT and name.endswith(_TEST_SUFFIXES)


def may_be_compiled_from(output: str, source: str) -> bool:
    """Whether a JavaScript file may be what a build makes of a TypeScript one: equal names in equal directories.

    `dist/esm/test/a.test.js` and `src/test/a.test.ts`.
    """
    made, written = PurePosixPath(output), PurePosixPath(source)
    if not _TYPESCRIPT.fullmatch(written.suffix) or not _JAVASCRIPT.fullmatch(made.suffix):
        return False
    # Where the sources or what is made of them stand at the top, there is no directory that both have.
    return made.stem == written.stem and (made.parent.name == written.parent.name or len(written.parts) < 3)


def is_compiled(path: str, given: Collection[str]) -> bool:
    """Whether a runner that is given these files is given what a build makes of a TypeScript file, not the file."""
    suffixes = {PurePosixPath(place).suffix for place in given}
    languages = [pattern for pattern in (_TYPESCRIPT, _JAVASCRIPT) if any(map(pattern.fullmatch, suffixes))]
    return bool(_TYPESCRIPT.fullmatch(PurePosixPath(path).suffix)) and languages == [_JAVASCRIPT]


def inline_tests(path: str, text: str) -> int:
    """The line from which on a source file holds tests, as Rust's do; 0 where it holds none."""
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
