"""The findings of linters, from the forms that each of them writes for programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import PurePosixPath
from typing import cast
from urllib.parse import unquote

from swe_ai_fleet.tools.tests.lines import lines
from swe_ai_fleet.tools.tests.runners.values import mappings, parsed, string

MAX_FINDINGS = 10_000
_MAX_PATH_CHARS = 500
_MAX_MESSAGE_CHARS = 500
_LINE = re.compile(
    r"\s{0,4}(?:vet: )?([^\s:][^:]{0,500}):(\d{1,9}):(?:(\d{1,9}):?)?(?: -)? (?!- |note: |information: )"
    r"(?:error: |warning: )?(?:\[?([A-Z]{1,8}\d{1,5}|invalid-syntax)\]? )?(.+?)(?:  \[([a-z-]+)\]| \((report\w+)\))?"
)
_ANNOTATION = re.compile(
    r"::(?:error|warning) title=([^,:]*),file=([^,]*),line=(\d{1,9}),endLine=\d{1,9},col=(\d{1,9}),endColumn=\d{1,9}"
    r"::(.*)"
)
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@.*")
_RUSTFMT_HUNK = re.compile(r"Diff in (.+?)(?: at line |:)(\d{1,9}):")
_ENDLESS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding: a file relative to the workspace, line and column from 1 (0 unknown), rule and message.

    Line 0 is the whole file; `last` is the last line, where it is another one.
    """

    path: str
    line: int = 0
    column: int = 0
    last: int = 0
    code: str = ""
    message: str = ""

    def __str__(self) -> str:
        place = ":".join([self.path, *(str(number) for number in (self.line, self.column) if number)])
        return f"{place}: {' '.join(part for part in (self.code, self.message) if part)}"


def parse_eslint(text: str, mount: str, directory: str = ".") -> list[Finding] | None:
    """The findings in ESLint's JSON; None where it is none."""
    items = parsed(text[max(text.find("["), 0) :])
    if not isinstance(items, list):
        return None
    found: list[Finding] = []
    for item in mappings(cast("object", items)):
        path = _placed(string(item.get("filePath")), mount, directory)
        found += [
            _finding(path, message.get("line"), message.get("column"), message.get("ruleId"), message.get("message"))
            for message in mappings(item.get("messages"))[:MAX_FINDINGS]
            if message.get("ruleId") or message.get("fatal")  # not: this file is ignored
        ]
    return found[:MAX_FINDINGS]


def parse_lines(text: str, mount: str, directory: str = ".") -> list[Finding] | None:
    """The findings in lines of `file:line:column: message`, as most linters write them, notes left out."""
    found = [
        _finding(_placed(path, mount, directory), int(line), int(column or 0), code or rule or report, message)
        for match in map(_LINE.fullmatch, lines(text))
        if match is not None
        for path, line, column, code, message, rule, report in [match.groups()]
    ]
    return list(dict.fromkeys(found))[:MAX_FINDINGS]


def parse_annotations(text: str, mount: str, directory: str = ".") -> list[Finding] | None:
    """The findings in annotations for GitHub, as Biome writes them; what it would format is a finding of the file."""
    found = [
        replace(finding, line=0, column=0, message="not formatted") if finding.code == "format" else finding
        for line in lines(text)
        if (match := _ANNOTATION.fullmatch(line))
        for path in [_placed(unquote(match[2]), mount, directory)]
        for finding in [_finding(path, int(match[3]), int(match[4]), match[1], unquote(match[5]))]
    ]
    return list(dict.fromkeys(found))[:MAX_FINDINGS]


def parse_format(text: str, mount: str, directory: str = ".") -> list[Finding] | None:
    """A finding for each run of lines that a formatter's diff changes."""
    return [
        Finding(path=_placed(path, mount, directory), line=old.start, last=old.stop - 1, message="not formatted")
        for path, old, _ in islice(changed_runs(text), MAX_FINDINGS)
    ]


def changed_runs(diff: str) -> Iterator[tuple[str, range, range]]:
    """Each run of lines that a unified diff, or rustfmt's, changes: the file after `+++`, its lines before and after.

    A run that only adds lines has an empty range before it, one that only removes lines an empty one after it.
    """
    path, at, start, left = "", (1, 1), (1, 1), (0, 0)
    for line in (*diff.split("\n"), ""):
        sign = line[:1] or " "
        inside = any(left) and sign in " -+\\"
        if inside and sign == "\\":
            continue
        if at != start and not (inside and sign in "-+"):
            yield path, range(start[0], at[0]), range(start[1], at[1])
            start = at
        if inside:
            step = (sign != "+", sign != "-")
            at, left = (at[0] + step[0], at[1] + step[1]), (left[0] - step[0], left[1] - step[1])
            start = at if sign == " " else start
        elif match := _HUNK.fullmatch(line):
            left = (int(match[2] or 1), int(match[4] or 1))
            # The number of a side without lines is that of the line before them.
            at = start = (int(match[1]) + (not left[0]), int(match[3]) + (not left[1]))
        elif match := _RUSTFMT_HUNK.fullmatch(line):
            path, left = match[1], (_ENDLESS, _ENDLESS)
            at = start = (int(match[2]), int(match[2]))
        elif line.startswith("+++ "):
            path = line[4:].partition("\t")[0]


def _finding(path: str, line: object, column: object, code: object, message: object) -> Finding:
    return Finding(
        path=path,
        line=_number(line),
        column=_number(column),
        code=string(code)[:100],
        message=" ".join(string(message).split())[:_MAX_MESSAGE_CHARS],
    )


def _placed(file: str, mount: str, directory: str) -> str:
    """A file as seen from the workspace: absolute ones below the mount, others below the linter's directory."""
    if file.startswith("/"):
        return file.removeprefix(f"{mount}/")[:_MAX_PATH_CHARS]
    return str(PurePosixPath(directory, file))[:_MAX_PATH_CHARS]


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 10**9 else 0
