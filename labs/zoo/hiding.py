"""Tests taken out of a repository by their ids, and tests that show nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TEST_FILE = re.compile(r"(^|/)(tests?|__tests__|specs?)(/|\.\w+$)|(^|/)test_|[._-](test|spec)\.\w+$|_test\.\w+$")
_CODE = (".py", ".js", ".cjs", ".mjs", ".ts", ".tsx", ".go", ".rs")


@dataclass(frozen=True, slots=True, kw_only=True)
class TestPlace:
    """A test by its id: the file that it is in, and the function where its language has one for each test.

    Tests of JavaScript are calls with a `title`.
    """

    __test__ = False

    file: str
    function: str = ""
    title: str = ""

    @property
    def name(self) -> str:
        return self.function or self.title


def places(root: Path, tests: Iterable[str], function: str) -> list[TestPlace]:
    """Where tests are, each place once.

    Where their ids tell nothing, as those of TAP: the test files that have the name of the faulty function, or all.
    """
    files = [path for path in sorted(root.rglob("*")) if path.suffix in _CODE and path.is_file()]
    names = [path.relative_to(root).as_posix() for path in files]
    texts = {name: path.read_text(errors="replace") for name, path in zip(names, files, strict=True)}
    found = (_place(test, texts) for test in tests)
    if known := list(dict.fromkeys(place for place in found if place is not None)):
        return known
    test_files = [name for name in names if _TEST_FILE.search(name)]
    named = [name for name in test_files if re.search(rf"\b{re.escape(function)}\b", texts[name])]
    return [TestPlace(file=name) for name in named or test_files]


def _place(test: str, texts: dict[str, str]) -> TestPlace | None:
    head, _, rest = test.partition("::")
    last = re.split(r"::|\.|/", re.sub(r"[\[(].*", "", test).strip())[-1]
    if head in texts:
        function = re.split(r"::|\.", re.sub(r"\[.*", "", rest))[-1]
        named = function and re.search(rf"\b(def|func|fn)\s+{re.escape(function)}\b", texts[head])
        return TestPlace(file=head, function=function) if named else _titled(head, _title(rest), texts[head])
    for name, text in texts.items():
        in_tests = _TEST_FILE.search(name) or (name.endswith(".rs") and "#[test]" in text)
        if in_tests and re.search(rf"\b(def|func|fn)\s+{re.escape(last)}\b", text):
            return TestPlace(file=name, function=last)
    title = _title(rest or test)
    file = next((name for name, text in texts.items() if _TEST_FILE.search(name) and title in text), "")
    return _titled(file, title, texts[file]) if file else None


def _title(name: str) -> str:
    """What a test of JavaScript is called, of all that leads to it: `sum > adds (2)`."""
    return re.sub(r" \(\d+\)$", "", name.rpartition(" > ")[2] or name)


def _titled(file: str, title: str, text: str) -> TestPlace:
    return TestPlace(file=file, title=title if _call(title).search(text) else "")


def _call(title: str) -> re.Pattern[str]:
    """A test of JavaScript up to the bracket: `it('adds', …`, `await t.test("adds", …`."""
    return re.compile(rf"(?m)^(\s*(?:await\s+)?)(?:\w+\.)?(?:it|test)(?=\(\s*(['\"`]){re.escape(title)}\2\s*,)")


def hide(root: Path, hidden: Iterable[TestPlace]) -> None:
    """Take tests out of the tree: functions and calls, or whole files where a test is neither."""
    for place in hidden:
        path = root / place.file
        if not path.exists():
            continue
        text = path.read_bytes().decode()
        rest = _without(text, place) if place.name else None
        if rest is None:
            path.unlink()
        else:
            path.write_bytes(rest.encode())


def _without(text: str, place: TestPlace) -> str | None:
    """A file without a test; None where it cannot be cut out."""
    if place.title:
        # What stands in brackets is no call any more, and its function runs never.
        return _call(place.title).sub(r"\1void ", text)
    lines = re.split(r"(?<=\n)", text)
    cut = _python(text, place.function) if place.file.endswith(".py") else _braces(lines, place.function)
    if not cut:
        return None
    for start, end, stand_in in sorted(cut, reverse=True):
        lines[start:end] = stand_in
    return "".join(lines)


Cut = tuple[int, int, list[str]]


def _python(text: str, function: str) -> list[Cut]:
    cuts: list[Cut] = []
    for parent in ast.walk(ast.parse(text)):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(parent, name, None)
            if not isinstance(body, list):
                continue
            statements = [node for node in body if isinstance(node, ast.stmt)]
            gone = [
                node
                for node in statements
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
            ]
            for node in gone:
                start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
                alone = len(gone) == len(statements) and node is gone[0]
                stand_in = [f"{' ' * node.col_offset}pass\n"] if alone and node.col_offset else []
                cuts.append((start, node.end_lineno or start + 1, stand_in))
    return cuts


def _braces(lines: list[str], function: str) -> list[Cut]:
    """A test of Go or Rust becomes a function that nobody calls: what it alone needs would not compile without it."""
    header = re.compile(rf"^(\s*(?:async\s+)?(?:func|fn)\s+)({re.escape(function)})\s*\(")
    for number, line in enumerate(lines):
        if not header.search(line):
            continue
        start = number
        while start and re.match(r"\s*#\[", lines[start - 1]):
            start -= 1
        return [(start, number + 1, [header.sub(r"\1unused_\2(", line)])]
    return []


_PASSING = {
    "pytest": "def test_nothing_shown():\n    assert True\n",
    "unittest": "import unittest\n\n\nclass Nothing(unittest.TestCase):\n    def test_nothing(self):\n        pass\n",
    "go": '{first}\n\nimport "testing"\n\nfunc TestNothingShown(t *testing.T) {{}}\n',
    "cargo": "#[test]\nfn nothing_shown() {}\n",
    "mocha": "describe('nothing', function () {\n  it('is shown', function () {})\n})\n",
    "jest": "test('nothing is shown', () => {\n  expect(1).toBe(1)\n})\n",
    "vitest": "import { expect, test } from 'vitest'\n\ntest('nothing is shown', () => {\n  expect(1).toBe(1)\n})\n",
    "ava": "import test from 'ava'\n\ntest('nothing is shown', (t) => {\n  t.pass()\n})\n",
    "tape": "'use strict'\nconst test = require('tape')\n\ntest('nothing is shown', (t) => {\n  t.end()\n})\n",
    "tap": "'use strict'\nconst test = require('tap').test\n\ntest('nothing is shown', (t) => {\n  t.end()\n})\n",
    "node": "'use strict'\nconst test = require('node:test')\n\ntest('nothing is shown', () => {})\n",
}


def add_passing_test(root: Path, runner: str, near: TestPlace) -> bool:
    """Write a test that passes whatever the source does, beside another; whether that is known for the runner."""
    pattern = _PASSING.get(runner)
    if pattern is None:
        return False
    path = root / near.file
    name = re.sub(r"^(test_)?\w+?(?=(_test)?\.)", r"\1nothing_shown", path.name) if runner != "cargo" else "nothing.rs"
    first = ""
    if runner == "go":
        # The file itself may be one of those that were taken out.
        texts = (file.read_text() for file in sorted(path.parent.glob("*.go")))
        first = next(line for text in texts for line in text.splitlines() if line.startswith("package "))
        pattern = pattern.format(first=first)
    file = root / "tests" / name if runner == "cargo" else path.with_name(name)
    file.parent.mkdir(exist_ok=True)
    file.write_text(pattern)
    return True
