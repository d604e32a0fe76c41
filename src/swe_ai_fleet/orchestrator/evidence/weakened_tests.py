"""Existing tests that a patch removes, switches off, weakens, or changes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from swe_ai_fleet.domain.candidate import ChangedTest
from swe_ai_fleet.domain.text import first_names, shortened
from swe_ai_fleet.orchestrator.evidence.check_results import Concern, Violation
from swe_ai_fleet.orchestrator.evidence.patch import FilePatch, Hunk, Patch, PatchLine
from swe_ai_fleet.orchestrator.evidence.source_files import is_test, language_of

_MAX_NAMES = 5
MAX_CHANGED_TESTS = 8
MAX_TEST_CHARS = 1_200


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dialect:
    """How tests are written in one language.

    `test` finds a test's name, `group` that of a group of tests. A test is switched off by a `mark` in front of it or a
    `call` inside it, all tests by a line that `whole` finds. With an `attribute` only functions after it are tests.
    """

    test: re.Pattern[str]
    assertion: re.Pattern[str]
    group: re.Pattern[str] | None = None
    mark: re.Pattern[str] | None = None
    call: re.Pattern[str] | None = None
    whole: re.Pattern[str] | None = None
    skipped: re.Pattern[str] | None = None
    attribute: re.Pattern[str] | None = None


_TITLE = r"\s*\(\s*([\"'`])(?P<name>.{1,200}?)\1"
_DIALECTS = {
    "python": _Dialect(
        test=re.compile(r"\s*(?:async\s+)?def (?P<name>test\w*)\s*\("),
        group=re.compile(r"\s*(?:class|(?:async\s+)?def) (?P<name>\w+)"),
        mark=re.compile(
            r"\s*@(?:pytest\.mark\.|unittest\.|mark\.)?(?:skip|skipif|skipIf|skipUnless|xfail|expectedFailure)\b"
            r"|.*\bmarks\s*=.*\b(?:skip|skipif|xfail)\b"
        ),
        call=re.compile(
            r"\s*(?:raise\s+)?(?:(?:pytest|self|unittest)\.)?(?:skip|skipTest|xfail|importorskip|SkipTest)\("
        ),
        whole=re.compile(
            r"pytestmark\s*=.*\b(?:skip|skipif|xfail)\b|\s*(?:collect_ignore\w*|__test__)\s*=|.*allow_module_level"
        ),
        assertion=re.compile(r"\s*assert\b|.*\bself\.(?:assert|fail)\w*\(|.*\b(?:pytest\.)?(?:raises|warns)\("),
    ),
    "javascript": _Dialect(
        test=re.compile(r"\s*f?(?:it|test)(?:\.(?:concurrent|only|each\b.{0,200}?))?" + _TITLE),
        skipped=re.compile(r"\s*(?:x(?:it|test)|(?:it|test)\.(?:skip|todo|fails|failing))" + _TITLE),
        whole=re.compile(r"\s*(?:(?:it|test|describe)\.only|f(?:it|describe)|xdescribe|describe\.skip)\s*[(.]"),
        assertion=re.compile(r".*\b(?:expect\(|assert[.(\w])"),
    ),
    "go": _Dialect(
        test=re.compile(r"func (?P<name>(?:Test|Fuzz)\w*)\s*\("),
        group=re.compile(r"func (?:\([^)]{1,100}\) )?(?P<name>\w+)"),
        call=re.compile(r"\s*\w{1,20}\.Skip(?:f|Now)?\("),
        whole=re.compile(r"//\s?(?:go:build|\+build)\s.*\bignore\b"),
        assertion=re.compile(r".*(?:\b\w\.(?:Error|Fatal|Fail)\w*\(|\b(?:assert|require)\.\w)"),
    ),
    "rust": _Dialect(
        test=re.compile(r"\s*(?:pub\s+)?(?:async\s+)?fn (?P<name>\w+)"),
        attribute=re.compile(r"\s*#\[(?:\w+::)?(?:test|rstest)\b"),
        mark=re.compile(r"\s*#\[ignore\b"),
        assertion=re.compile(r".*\b(?:debug_)?assert\w*!"),
    ),
}


@dataclass(slots=True)
class _Side:
    """The tests on one side of a file's hunks."""

    names: Counter[str]
    skipped: dict[str, int]
    groups: set[str]
    ownerless: list[int]


def weakened_tests(patch: Patch) -> Iterator[Violation]:
    """The existing tests that a patch weakens. A test that moves to another file is not removed.

    In each file, fewer tests than before or an existing one switched off are violations; replaced tests and fewer
    assertions are warnings.
    """
    sides = [
        (file, dialect, _side(file, dialect, " -"), _side(file, dialect, " +"))
        for file in patch.files
        if (dialect := _dialect_of(file)) is not None
    ]
    removed_in = {file.path: before.names - after.names for file, _, before, after in sides}
    added_in = {file.path: after.names - before.names for file, _, before, after in sides}
    added, removed = sum(added_in.values(), Counter[str]()), sum(removed_in.values(), Counter[str]())
    for file, dialect, before, after in sides:
        if file.is_new:
            continue
        lost = removed_in[file.path] - added
        fresh = added_in[file.path] - removed
        if lost:
            yield _lost(file, lost, fresh)
        elif not removed_in[file.path] and (dialect.attribute is None or before.names):
            # Moved tests take their assertions along; code beside tests (in Rust) has assertions of its own.
            yield from _fewer_assertions(file, dialect)
        yield from _switched_off(file, before, after)


def changed_tests(patch: Patch, text: Callable[[str], str]) -> tuple[ChangedTest, ...]:
    """The existing tests whose text changed, with both versions."""
    changed: list[ChangedTest] = []
    for file in patch.files:
        dialect = _dialect_of(file)
        if dialect is None or file.is_new or file.is_deleted or not file.hunks:
            continue
        after = text(file.path)
        old, new = _functions(file.before(after), dialect), _functions(after, dialect)
        changed += (
            ChangedTest(
                path=file.path,
                name=name,
                before=shortened(text_before, MAX_TEST_CHARS),
                after=shortened(new[name], MAX_TEST_CHARS),
            )
            for name, text_before in old.items()
            if name in new and new[name] != text_before
        )
    return tuple(changed[:MAX_CHANGED_TESTS])


def _functions(text: str, dialect: _Dialect) -> dict[str, str]:
    """The tests of a file by name, each from its decorators to the last line that is indented more than its first."""
    lines = text.split("\n")
    functions: dict[str, str] = {}
    start = 0  # the first decorator or attribute of the next test
    for at, line in enumerate(lines):
        match = dialect.test.match(line[:1_000])
        marks = line.lstrip().startswith(("@", "#["))
        if match is None:
            start = start if marks else at + 1
            continue
        depth, end = len(line) - len(line.lstrip()), at + 1
        while end < len(lines) and (not lines[end].strip() or _inside(lines[end], depth)):
            end += 1
        if dialect.attribute is None or any(dialect.attribute.match(mark) for mark in lines[start:at]):
            functions[match["name"]] = "\n".join(lines[start:end]).rstrip()
        start = at + 1
    return functions


def _inside(line: str, depth: int) -> bool:
    indented = len(line) - len(line.lstrip())
    return indented > depth or (indented == depth and line.lstrip().startswith((")", "]", "}")))


def _lost(file: FilePatch, lost: Counter[str], fresh: Counter[str]) -> Violation:
    names = sorted(lost)
    named = first_names(names, _MAX_NAMES)
    line = next((line.number for line in file.lines("-") if any(name in line.text for name in names[:_MAX_NAMES])), 0)
    if lost.total() <= fresh.total():
        text = f"other tests take the place of {named}"
        return Violation(concern=Concern.TESTS, path=file.path, line=line, text=text, required=False)
    return Violation(concern=Concern.TESTS, path=file.path, line=line, text=f"removes the tests {named}")


def _switched_off(file: FilePatch, before: _Side, after: _Side) -> Iterator[Violation]:
    named = {*before.names, *before.groups}
    for name, line in after.skipped.items():
        if name in named and name not in before.skipped:
            yield Violation(concern=Concern.TESTS, path=file.path, line=line, text=f"switches {name[:200]} off")
    for line in after.ownerless:
        yield Violation(concern=Concern.TESTS, path=file.path, line=line, text="switches tests off")


def _fewer_assertions(file: FilePatch, dialect: _Dialect) -> Iterator[Violation]:
    removed, added = (sum(1 for line in file.lines(sign) if dialect.assertion.match(line.text)) for sign in ("-", "+"))
    if removed > added:
        line = next(line.number for line in file.lines("-") if dialect.assertion.match(line.text))
        text = f"{removed} assertions go and {added} come"
        yield Violation(concern=Concern.TESTS, path=file.path, line=line, text=text, required=False)


def _dialect_of(file: FilePatch) -> _Dialect | None:
    language = language_of(file.old_path)
    # Rust keeps its tests beside the code.
    return _DIALECTS.get(language) if language == "rust" or is_test(file.old_path) or is_test(file.path) else None


def _side(file: FilePatch, dialect: _Dialect, signs: str) -> _Side:
    side = _Side(Counter(), {}, set(), [])
    for hunk in file.hunks:
        _scan(hunk, (line for line in hunk.lines if line.sign in signs), dialect, side)
    return side


def _scan(hunk: Hunk, lines: Iterable[PatchLine], dialect: _Dialect, side: _Side) -> None:
    owner = match["name"] if (match := dialect.test.match(hunk.section)) and not dialect.attribute else ""
    marked: PatchLine | None = None
    attributed = dialect.attribute is None
    for line in lines:
        text = line.text[:1_000]
        if line.sign == "+" and dialect.whole and dialect.whole.match(text):
            side.ownerless.append(line.number)
        if dialect.mark and dialect.mark.match(text):
            marked = line
        elif dialect.attribute and dialect.attribute.match(text):
            attributed = True
        elif dialect.skipped and (match := dialect.skipped.match(text)):
            owner = match["name"]
            side.names[owner] += 1
            side.skipped[owner] = line.number
        elif attributed and (match := dialect.test.match(text)):
            owner = match["name"]
            side.names[owner] += 1
            if marked:
                side.skipped[owner] = marked.number
            marked, attributed = None, dialect.attribute is None
        elif dialect.group and (match := dialect.group.match(text)):
            owner = match["name"]
            side.groups.add(owner)
            if marked:
                side.skipped[owner] = marked.number
            marked = None
        elif dialect.call and dialect.call.match(text):
            if owner:
                side.skipped.setdefault(owner, line.number)
            elif line.sign == "+":
                side.ownerless.append(line.number)
    if marked and marked.sign == "+":
        side.ownerless.append(marked.number)
