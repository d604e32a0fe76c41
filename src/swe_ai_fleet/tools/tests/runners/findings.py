"""What linters found, from the forms that each of them writes for programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import cast

from swe_ai_fleet.tools.tests.lines import lines
from swe_ai_fleet.tools.tests.runners.go_reports import PLACE
from swe_ai_fleet.tools.tests.runners.values import json_object, mapping, mappings, parsed, string

MAX_FINDINGS = 10_000
_MAX_PATH_CHARS = 500
_MAX_MESSAGE_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding: a file relative to the workspace, line and column from 1 (0 unknown), rule and message."""

    path: str
    line: int = 0
    column: int = 0
    code: str = ""
    message: str = ""

    def __str__(self) -> str:
        place = ":".join([self.path, *(str(number) for number in (self.line, self.column) if number)])
        return f"{place}: {' '.join(part for part in (self.code, self.message) if part)}"


def parse_ruff(text: str, mount: str, directory: str = ".") -> list[Finding] | None:
    """The findings in ruff's JSON; None where it is none. `mount` is cut off names of files."""
    items = parsed(text or "[]")
    if not isinstance(items, list):
        return None
    found: list[Finding] = []
    for item in mappings(cast("object", items)):
        location = mapping(item.get("location"))
        found.append(
            _finding(
                _placed(string(item.get("filename")), mount, directory),
                location.get("row"),
                location.get("column"),
                item.get("code"),
                item.get("message"),
            )
        )
    return found[:MAX_FINDINGS]


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
        ]
    return found[:MAX_FINDINGS]


def parse_go_vet(text: str, mount: str, directory: str = ".") -> list[Finding] | None:
    """The findings in what `go vet` printed, what does not compile included; None where it holds none."""
    found = [
        _finding(_placed(match[1], mount, directory), int(match[2]), int(match[3] or 0), "vet", match[4])
        for line in lines(text)
        if (match := PLACE.fullmatch(line))
    ]
    return list(dict.fromkeys(found))[:MAX_FINDINGS] or None


def parse_clippy(text: str, mount: str, directory: str = ".") -> list[Finding] | None:
    """The findings in the messages of `cargo clippy --message-format=json`; None where there is no such message."""
    found: list[Finding] = []
    spoken = False
    for line in text.split("\n"):
        if not line.startswith('{"reason"'):
            continue
        message = json_object(line)
        spoken = spoken or "reason" in message
        diagnostic = mapping(message.get("message"))
        spans = [span for span in mappings(diagnostic.get("spans")) if span.get("is_primary") is True]
        if not spans or len(found) >= MAX_FINDINGS:
            continue
        found.append(
            _finding(
                _placed(string(spans[0].get("file_name")), mount, directory),
                spans[0].get("line_start"),
                spans[0].get("column_start"),
                mapping(diagnostic.get("code")).get("code") or diagnostic.get("level"),
                diagnostic.get("message"),
            )
        )
    return list(dict.fromkeys(found)) if spoken else None


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
