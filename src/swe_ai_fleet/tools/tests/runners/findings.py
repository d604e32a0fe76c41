"""What linters found, from the forms that each of them writes for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import cast

from swe_ai_fleet.tools.tests.runners.lines import lines

MAX_FINDINGS = 10_000
_MAX_PATH_CHARS = 500
_MAX_MESSAGE_CHARS = 500
_VET = re.compile(r"(?:vet: )?([^\s:][^:]{0,300}\.go):(\d{1,9})(?::(\d{1,9}))?: (.+)")


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
    items = _list(text or "[]")
    if items is None:
        return None
    found: list[Finding] = []
    for item in _mappings(items):
        location = _mapping(item.get("location"))
        found.append(
            _finding(
                _placed(_text(item.get("filename")), mount, directory),
                location.get("row"),
                location.get("column"),
                item.get("code"),
                item.get("message"),
            )
        )
    return found[:MAX_FINDINGS]


def parse_eslint(text: str, mount: str, directory: str = ".") -> list[Finding] | None:
    """The findings in ESLint's JSON; None where it is none."""
    items = _list(text[max(text.find("["), 0) :])
    if items is None:
        return None
    found: list[Finding] = []
    for item in _mappings(items):
        path = _placed(_text(item.get("filePath")), mount, directory)
        found += [
            _finding(path, message.get("line"), message.get("column"), message.get("ruleId"), message.get("message"))
            for message in _mappings(item.get("messages"))[:MAX_FINDINGS]
        ]
    return found[:MAX_FINDINGS]


def parse_go_vet(text: str, mount: str, directory: str = ".") -> list[Finding] | None:
    """The findings in what `go vet` printed, what does not compile included; None where it holds none."""
    found = [
        _finding(_placed(match[1], mount, directory), int(match[2]), int(match[3] or 0), "vet", match[4])
        for line in lines(text)
        if (match := _VET.fullmatch(line))
    ]
    return list(dict.fromkeys(found))[:MAX_FINDINGS] or None


def parse_clippy(text: str, mount: str, directory: str = ".") -> list[Finding] | None:
    """The findings in the messages of `cargo clippy --message-format=json`; None where there is no such message."""
    found: list[Finding] = []
    spoken = False
    for line in text.split("\n"):
        if not line.startswith('{"reason"'):
            continue
        message = _mapping(_parsed(line))
        spoken = spoken or "reason" in message
        diagnostic = _mapping(message.get("message"))
        spans = [span for span in _mappings(diagnostic.get("spans")) if span.get("is_primary") is True]
        if not spans or len(found) >= MAX_FINDINGS:
            continue
        found.append(
            _finding(
                _placed(_text(spans[0].get("file_name")), mount, directory),
                spans[0].get("line_start"),
                spans[0].get("column_start"),
                _mapping(diagnostic.get("code")).get("code") or diagnostic.get("level"),
                diagnostic.get("message"),
            )
        )
    return list(dict.fromkeys(found)) if spoken else None


def _finding(path: str, line: object, column: object, code: object, message: object) -> Finding:
    return Finding(
        path=path,
        line=_number(line),
        column=_number(column),
        code=_text(code)[:100],
        message=" ".join(_text(message).split())[:_MAX_MESSAGE_CHARS],
    )


def _placed(file: str, mount: str, directory: str) -> str:
    """A file as seen from the workspace: absolute ones below the mount, others below the linter's directory."""
    if file.startswith("/"):
        return file.removeprefix(f"{mount}/")[:_MAX_PATH_CHARS]
    return str(PurePosixPath(directory, file))[:_MAX_PATH_CHARS]


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _list(text: str) -> list[object] | None:
    value = _parsed(text)
    return cast("list[object]", value) if isinstance(value, list) else None


def _mapping(value: object) -> Mapping[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _mappings(value: object) -> list[Mapping[str, object]]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, object]", item) for item in items if isinstance(item, dict)]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 10**9 else 0
