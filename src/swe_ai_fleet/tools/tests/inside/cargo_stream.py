"""Reads what `cargo test` prints beside its programs' own events: documentation tests, and what does not compile."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from streams import Append, Stream

_MAX_LINES = 60
_MAX_TESTS = 100_000
_TRACE_CHARS = 2400
_DOC_TESTS = re.compile(r" +Doc-tests (\S{1,200})")
_DOC_TEST = re.compile(
    r"test (\S{1,300}) - (.{0,300}?) ?\(line \d+\)(?: - .{1,60})? \.\.\. (ok|FAILED|ignored.{0,200})"
)
_SECTION = re.compile(r"---- (\S{1,300}) - (.{0,300}?) ?\(line \d+\)(?: - .{1,60})? stdout ----")
_ERROR = re.compile(r"error(?:\[E\d{1,6}\])?: .+")
_ARROW = re.compile(r" *--> (\S{1,300}):(\d{1,9}:\d{1,9})")
_NOT_COMPILED = re.compile(
    r"error: could not compile `([^`]+)` \((?:(lib)|(lib test)|(bin|test|example|bench) \"([^\"]+)\"(?: test)?)\).*"
)
_NOT_ERRORS = ("could not compile", "test failed, to rerun", "aborting due to", "doctest failed")


class Cargo(Stream):
    """A target that does not compile is an error of its source file, and the other targets are still run."""

    reads_output = True

    def __init__(self) -> None:
        self._rest = b""
        self._broken: set[tuple[str, str, str]] = set()
        self._begin()

    def _begin(self) -> None:
        self._documented = False
        self._failed: dict[str, list[str]] = {}
        self._section: list[str] | None = None
        self._seen: dict[str, int] = {}
        self._errors: list[tuple[str, str, list[str]]] = []
        self._new: list[tuple[str, str, str]] = []

    def feed(self, data: bytes, append: Append) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(re.sub(r"\x1b\[[0-9;]*m", "", line.decode("utf-8", "replace").rstrip()), append)

    def close(self, append: Append) -> None:
        self._rest = b""
        self._documentation_ends(append)
        if self._new:
            packages = _packages()
            for package, kind, name in self._new:
                self._report(_source(packages, package, kind, name) or f"{package} {name}".strip(), append)

    def complete(self, code: int) -> bool:
        return not self._new

    def again(self, argv: list[str], culprits: Sequence[str]) -> list[str] | None:
        new, self._broken = self._new, self._broken | set(self._new)
        self._begin()
        if not new and not culprits:
            return None
        if not self._broken:
            return argv
        cut = argv.index("--") if "--" in argv else len(argv)
        words, rest = argv[:cut], argv[cut:]
        if any(word.startswith(("--test", "--lib", "--bin", "--doc", "--all-targets")) for word in words):
            return None
        packages = _packages()
        whole = {package for package, kind, _ in self._broken if kind == "lib"}
        targets = {
            (str(target["name"]), _kind(target))
            for package in packages
            if package["name"] not in whole
            for target in package["targets"]
            if _kind(target)
        }
        kept = [(name, kind) for name, kind in sorted(targets) if not self._is_broken(name, kind)]
        options = ["--lib"] if any(kind == "lib" for _, kind in kept) else []
        options += [f"--{kind}={name}" for name, kind in kept if kind != "lib"]
        if not options or (whole and len(whole) >= len(packages)):
            return None
        excluded = ["--workspace", *(f"--exclude={name}" for name in sorted(whole))] if whole else []
        return [*words, *excluded, *options, *rest]

    def _is_broken(self, name: str, kind: str) -> bool:
        return any(kind == other and (not target or name == target) for _, other, target in self._kinds())

    def _kinds(self) -> Iterable[tuple[str, str, str]]:
        for package, kind, name in self._broken:
            if kind != "lib":
                yield package, "lib" if kind == "lib test" else kind, name

    def _line(self, line: str, append: Append) -> None:
        if match := _NOT_COMPILED.fullmatch(line):
            diagnostic = (match[1], match[2] or match[3] or match[4], match[5] or "")
            if diagnostic not in self._broken and diagnostic not in self._new:
                self._new.append(diagnostic)
        elif _DOC_TESTS.fullmatch(line):
            self._documentation_ends(append)
            self._documented = True
        elif self._documented and (match := _DOC_TEST.fullmatch(line)):
            name = self._numbered(f"{match[1]}::{match[2] or 'file'} (documentation)")
            if match[3] == "FAILED":
                self._failed.setdefault(name, [])
            else:
                append(e="end", id=name, o="passed" if match[3] == "ok" else "skipped")
        elif self._documented and (match := _SECTION.fullmatch(line)):
            self._section = self._failed.get(f"{match[1]}::{match[2] or 'file'} (documentation)")
        elif line.startswith("test result: "):
            self._documentation_ends(append)
        elif self._section is not None:
            _keep(self._section, line)
        elif _ERROR.fullmatch(line):
            if not line.partition(": ")[2].startswith(_NOT_ERRORS) and len(self._errors) < _MAX_LINES:
                self._errors.append((line, "", [line]))
        elif self._errors and line.startswith(" "):
            message, place, texts = self._errors[-1]
            if not place and (match := _ARROW.fullmatch(line)):
                self._errors[-1] = (f"{match[1]}:{match[2]}: {message}", match[1], texts)
            _keep(texts, line)

    def _numbered(self, name: str) -> str:
        if len(self._seen) < _MAX_TESTS:
            self._seen[name] = self._seen.get(name, 0) + 1
        number = self._seen.get(name, 1)
        return name if number == 1 else f"{name} ({number})"

    def _documentation_ends(self, append: Append) -> None:
        for name, texts in self._failed.items():
            append(e="end", id=name, o="failed", m=texts[-1] if texts else "", t="\n".join(texts)[-_TRACE_CHARS:])
        self._failed, self._section = {}, None

    def _report(self, source: str, append: Append) -> None:
        mine = [
            error for error in self._errors if error[1] == source or source.endswith(f"/{error[1]}")
        ] or self._errors
        message = mine[0][0] if mine else "it does not compile"
        trace = "\n".join(line for _, _, texts in mine[:10] for line in texts)
        append(e="end", id=source, o="error", m=message, t=trace[:_TRACE_CHARS])


def _keep(lines: list[str], line: str) -> None:
    if line.strip() and len(lines) < _MAX_LINES:
        lines.append(line)


def _packages() -> list[dict[str, Any]]:
    """The packages of the workspace as cargo tells them; none where it does not."""
    argv = ["cargo", "metadata", "--no-deps", "--offline", "--format-version=1"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=60)
        return json.loads(done.stdout)["packages"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError):
        return []


def _kind(target: dict[str, Any]) -> str:
    """What an option of cargo's calls a target that `cargo test` runs; empty for others."""
    if not target.get("test", True):
        return ""
    kinds = target.get("kind", [])
    if any(kind in ("lib", "rlib", "dylib", "cdylib", "staticlib", "proc-macro") for kind in kinds):
        return "lib"
    return next((kind for kind in kinds if kind in ("bin", "test")), "")


def _source(packages: list[dict[str, Any]], package: str, kind: str, name: str) -> str:
    """A target's file relative to the root of the repository."""
    wanted = "lib" if kind.startswith("lib") else kind
    for each in packages:
        for target in each["targets"]:
            own = _kind({**target, "test": True}) or next(iter(target["kind"]), "")
            if each["name"] == package and own == wanted and (not name or target["name"] == name):
                return os.path.relpath(target["src_path"], os.environ.get("FLEET_TEST_ROOT", os.getcwd()))
    return ""
