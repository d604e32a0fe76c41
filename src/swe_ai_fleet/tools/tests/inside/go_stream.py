"""Reads `go test -json` as it comes, and runs the rest of a package in which a test hung or took the process down."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, cast

from streams import Append, Stream

_MAX_LINES = 60
_MAX_TESTS = 100_000
_TRACE_CHARS = 2400
_NOISE = ("=== ", "--- PASS", "--- FAIL", "--- SKIP")
_HEADING = re.compile(r"# (\S{1,500})(?: \[.{1,500}\])?")
_NOT_BUILT = re.compile(r"FAIL\t(\S{1,500}) \[(?:build|setup) failed\]")
_PLACE = re.compile(r"(?:vet: )?[^\s:][^:]{0,300}\.go:\d{1,9}(?::\d{1,9})?: .+")
_OUTCOMES = {"pass": "passed", "fail": "failed", "skip": "skipped"}


class Go(Stream):
    """Ids are `package::Test/subtest`; a package that cannot be built, or fails outside of its tests, is its own id."""

    reads_output = True

    def __init__(self) -> None:
        self._rest = b""
        self._heading = ""
        self._builds: dict[str, list[str]] = {}
        self._skipped: list[str] = []
        self._done: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        self._output: dict[str, list[str]] = {}
        self._open: dict[str, set[str]] = {}
        self._parents: set[str] = set()
        self._failed: set[str] = set()
        self._panicked: list[str] = []
        self._left: list[str] = []

    def feed(self, data: bytes, append: Append) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line.decode("utf-8", "replace"), append)

    def close(self, append: Append) -> None:
        if self._rest:
            self._line(self._rest.decode("utf-8", "replace"), append)
        self._rest = b""

    def complete(self, code: int) -> bool:
        return not self._panicked and not self._left

    def said(self, name: str) -> str:
        return "\n".join(self._output.get(name, []))[-_TRACE_CHARS:]

    def again(self, argv: list[str], culprits: Sequence[str]) -> list[str] | None:
        new = [name for name in dict.fromkeys((*self._panicked, *culprits)) if "::" in name]
        self._skipped += [name for name in new if name not in self._skipped]
        if not new:
            return None
        self._begin()
        cut = argv.index("-args") if "-args" in argv else len(argv)
        words, rest = argv[:cut], argv[cut:]
        packages = [word for word in words[2:] if not word.startswith("-")]
        options = [word for word in words[2:] if word.startswith("-")]
        known = _printed([words[0], "list", *packages])
        left = [name for name in known if name not in self._done] or packages
        if not known or _has_skip(words[0]):
            options.append("-skip=" + "|".join(map(_pattern, self._skipped)))
        elif any(word.startswith(("-run", "--run")) for word in options):
            return None
        else:
            hung = {name.partition("::")[2].partition("/")[0] for name in self._skipped}
            tests = [name for name in _printed([words[0], "test", "-list=.", *left]) if name.isidentifier()]
            options.append("-run=^(" + "|".join(name for name in tests if name not in hung) + ")$")
        return [*words[:2], *options, *left, *rest]

    def _line(self, line: str, append: Append) -> None:
        event = _event(line)
        if event is None:
            print(line, flush=True)
            # What the compiler says comes as plain text until Go 1.23 and stands under the package's name.
            if match := _HEADING.fullmatch(line):
                self._heading = match[1]
            elif match := _NOT_BUILT.match(line):
                self._unusable(match[1], [], append)
            elif self._heading and line:
                _keep(self._builds.setdefault(self._heading, []), line)
            return
        action, package, test = event["Action"], event["Package"], event["Test"]
        if event["Output"]:
            print(event["Output"], end="", flush=True)
        if action in ("build-output", "build-fail"):
            _keep(self._builds.setdefault(package, []), event["Output"].rstrip("\n"))
        elif test:
            self._test(action, package, f"{package}::{test}", event, append)
        elif action == "output":
            _keep(self._output.setdefault(package, []), event["Output"].rstrip("\n"))
        elif action in _OUTCOMES:
            self._package(action, package, append)

    def _test(self, action: str, package: str, name: str, event: dict[str, Any], append: Append) -> None:
        parent = name.rpartition("/")[0]
        if action in ("run", "cont"):
            if len(self._output) > _MAX_TESTS:
                return
            self._output.setdefault(name, [])
            self._open.setdefault(package, set()).add(name)
            if "::" in parent and parent not in self._parents:
                # A parent takes as long as all its subtests together.
                self._parents.add(parent)
                append(e="collected", id=parent)
            append(e="start", id=name)
        elif action == "pause":
            append(e="collected", id=name)
        elif action == "output":
            text = event["Output"].rstrip("\n")
            if not text.lstrip().startswith(_NOISE):
                _keep(self._output.setdefault(name, []), text)
        elif action in _OUTCOMES:
            self._open.get(package, set()).discard(name)
            output = self._output.get(name, [])
            if action == "fail":
                if any(line.startswith(("panic: ", "fatal error: ")) for line in output):
                    self._panicked.append(name)
                self._failed.update((name, *([parent] if parent else [])))
            if any(skipped.startswith(f"{name}/") for skipped in self._skipped):
                self._parents.add(name)
            if name in self._parents and (action != "fail" or self._blamed(name)):
                append(e="collected", id=name)
                return
            message = next((line for line in output if line.startswith("panic:")), output[-1].strip() if output else "")
            trace = "\n".join(output)[-_TRACE_CHARS:]
            milliseconds = round(event["Elapsed"] * 1000)
            if action == "fail":
                append(e="end", id=name, o="failed", ms=milliseconds, m=message, t=trace)
            else:
                append(e="end", id=name, o=_OUTCOMES[action], ms=milliseconds, m=message if action == "skip" else "")

    def _blamed(self, parent: str) -> bool:
        """Whether a subtest failed, so that its parent's failure says no more."""
        return any(name.startswith(parent + "/") for name in self._failed)

    def _package(self, action: str, package: str, append: Append) -> None:
        running = [name for name in self._open.pop(package, set()) if name not in self._parents]
        prefix = package + "::"
        panicked = any(name.startswith(prefix) for name in self._panicked)
        if running and not panicked:
            # They stay open for the supervisor: one of them took the process down.
            output = self._output.get(package, [])
            for name in running:
                self._output.setdefault(name, []).extend(output[: _MAX_LINES - len(self._output.get(name, []))])
            self._left += running
            return
        for name in running:
            append(e="collected", id=name)
        if panicked:
            return
        self._done.add(package)
        if action == "fail" and not any(name.startswith(prefix) for name in self._failed):
            output = [line for line in self._output.get(package, []) if line.split("\t")[0] != "FAIL"]
            self._unusable(package, output, append)

    def _unusable(self, package: str, output: list[str], append: Append) -> None:
        self._done.add(package)
        output = self._builds.get(package, []) or output
        first = next((line for line in output if _PLACE.fullmatch(line)), output[0] if output else "")
        message = first or "the package failed outside of its tests"
        append(e="end", id=package, o="error", m=message, t="\n".join(output)[-_TRACE_CHARS:])


def _event(line: str) -> dict[str, Any] | None:
    try:
        decoded: Any = json.loads(line) if line.startswith("{") else None
    except ValueError:
        return None
    event = cast("dict[str, Any]", decoded) if isinstance(decoded, dict) else {}
    package = event.get("Package") or event.get("ImportPath")
    if not isinstance(package, str) or not isinstance(event.get("Action"), str):
        return None
    elapsed = event.get("Elapsed")
    return {
        "Action": event["Action"],
        "Package": package.split(" ", 1)[0][:500],
        "Test": str(event.get("Test") or "")[:500],
        "Output": str(event.get("Output") or ""),
        "Elapsed": elapsed if isinstance(elapsed, int | float) and 0 <= elapsed < 1e7 else 0,
    }


def _keep(output: list[str], line: str) -> None:
    if line.strip() and len(output) < _MAX_LINES:
        output.append(line)


def _pattern(name: str) -> str:
    return "/".join(f"^{re.escape(part)}$" for part in name.partition("::")[2].split("/"))


def _has_skip(go: str) -> bool:
    """Go 1.20 was the first to have `-skip`."""
    match = re.search(r"go(\d+)\.(\d+)", " ".join(_printed([go, "version"])))
    return match is None or (int(match[1]), int(match[2])) >= (1, 20)


def _printed(argv: list[str]) -> list[str]:
    """The lines that a command prints; none where it cannot be run."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines()
