"""Runs one program of Rust tests for cargo and reports each test as it ends.

`fleet_cargo.py PROGRAM ARGUMENT...`. Tests that ended in an earlier attempt are not run again; if a test crashes the
program, it is reported and the others are run. Programs without Rust's own harness, and documentation tests, are
started unchanged. Standard library only; variables as for `fleet_pytest.py`, with `deselect` (ids) and `modules`
(filters on names for programs whose source is in `src`) in FLEET_TEST_OPTIONS.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
from typing import Any

_MESSAGE_CHARS = 600
_TRACE_CHARS = 2400
_RESTARTS = 12
_MAX_ARGUMENT_CHARS = 100_000
_OURS = ("--exact", "--test-threads", "--format")
# Removed, so that the started programs do not inherit it.
_KEY = os.environ.pop("FLEET_TEST_KEY", "").encode()
_OUTCOMES = {"ok": "passed", "failed": "failed", "ignored": "skipped"}
_PANIC = re.compile(r"thread '.{0,400}' (?:\(\d{1,20}\) )?panicked at (.{1,400}):$")


def main(program: str, arguments: list[str]) -> int:
    source = _source(program)
    if not source or not os.environ.get("FLEET_TEST_EVENTS"):
        return _plain(subprocess.call([program, *arguments]))
    options: dict[str, Any] = json.loads(os.environ.get("FLEET_TEST_OPTIONS") or "{}")
    if "/src/" in f"/{source}":
        arguments = [*arguments, *options.get("modules", [])]
    report = _Report(source)
    if report.ended or options.get("deselect"):
        report.ended.update(options.get("deselect", []))
        return _rest(program, arguments, report, 0)
    code = report.run([program, *arguments])
    if not report.spoke and code != 0 and code >= 0:
        code = subprocess.call([program, *arguments])
    if not report.spoke:
        report.write(
            e="end", id=source, o="passed" if code == 0 else "failed", m="" if code == 0 else f"exit code {code}"
        )
    elif not report.finished:
        # Tests ran in parallel: a sequential run shows which one crashed the program.
        for name in report.running:
            report.write(e="collected", id=f"{source}::{name}")
        return _rest(program, arguments, report, _plain(code))
    return _plain(code)


def _rest(program: str, arguments: list[str], report: _Report, code: int) -> int:
    """Run the tests that have not ended, one after the other."""
    listed = subprocess.run(
        [program, *arguments, "--list", "--format=terse"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ).stdout
    names = [line[: -len(": test")] for line in listed.splitlines() if line.endswith(": test")]
    options = [word for word in arguments if word.startswith("-") and not word.startswith(_OURS)]
    for _ in range(_RESTARTS + 1):
        left = [name for name in names if f"{report.source}::{name}" not in report.ended]
        chunk: list[str] = []
        while left and sum(map(len, chunk)) < _MAX_ARGUMENT_CHARS:
            chunk.append(left.pop(0))
        if not chunk:
            break
        ends = report.run([program, *options, "--test-threads=1", "--exact", *chunk])
        code = code or _plain(ends)
        if not report.finished:
            for name in report.running:
                reason = f"the test run died here: exit code {ends}" if ends >= 0 else f"killed by signal {-ends}"
                report.end(name, "error", m=reason, k="crashed")
            if not report.running:
                break
    return code


class _Report:
    """The results of the program's tests, reported as events."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.ended = _ended(os.environ.get("FLEET_TEST_DONE", ""), source)
        self.running: list[str] = []
        self.spoke = self.finished = False

    def write(self, **event: Any) -> None:
        text = json.dumps(event).encode("utf-8", "replace")
        line = text + b"\t" + hmac.new(_KEY, text, hashlib.sha256).hexdigest().encode() + b"\n"
        file = os.open(os.environ["FLEET_TEST_EVENTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, line)
        os.close(file)

    def end(self, name: str, outcome: str, **more: Any) -> None:
        self.ended.add(f"{self.source}::{name}")
        self.write(
            e="end", id=f"{self.source}::{name}", o=outcome, **{key: value for key, value in more.items() if value}
        )

    def run(self, argv: list[str]) -> int:
        """Run the program to its end; its exit code, negative for a signal."""
        self.running, self.finished = [], False
        # Its machine-readable output is an unstable option.
        variables = dict(os.environ, RUSTC_BOOTSTRAP="1")
        options = ["-Z", "unstable-options", "--format=json", "--report-time"]
        process = subprocess.Popen(
            [*argv, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=variables,
            errors="replace",
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            start = line.find('{ "type": "')
            event = _event(line[start:]) if start >= 0 else None
            if event is None:
                print(line, end="", flush=True)
            else:
                self._note(event)
        return process.wait()

    def _note(self, event: dict[str, Any]) -> None:
        kind, name, happening = event.get("type"), str(event.get("name", "")), event.get("event")
        self.spoke = True
        if kind == "suite":
            self.finished = happening in ("ok", "failed")
        elif kind == "test" and happening == "started":
            self.running.append(name)
            self.write(e="start", id=f"{self.source}::{name}")
        elif kind == "test" and happening in _OUTCOMES:
            if name in self.running:
                self.running.remove(name)
            print(f"test {name} ... {'FAILED' if happening == 'failed' else happening}", flush=True)
            output = str(event.get("stdout") or event.get("message") or "")
            if happening == "failed":
                print(output, flush=True)
            seconds = event.get("exec_time")
            milliseconds = round(seconds * 1000) if isinstance(seconds, int | float) else 0
            trace = output[-_TRACE_CHARS:] if happening == "failed" else ""
            self.end(
                name, _OUTCOMES[happening], ms=milliseconds, m=_message(output) if happening != "ok" else "", t=trace
            )


def _plain(code: int) -> int:
    return code if code >= 0 else 128 - code


def _message(output: str) -> str:
    lines = output.splitlines()
    for position, line in enumerate(lines):
        if match := _PANIC.match(line):
            rest = [part for part in lines[position + 1 : position + 4] if not part.startswith(("note:", "stack "))]
            return f"{match[1]}: {' '.join(part.strip() for part in rest)}"[:_MESSAGE_CHARS]
    return (lines[-1] if lines else "")[:_MESSAGE_CHARS]


def _event(text: str) -> dict[str, Any] | None:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _source(program: str) -> str:
    """A program's source file, relative to the repository; empty if the compiler has left no dependency file."""
    try:
        with open(f"{program}.d", encoding="utf-8", errors="replace") as facts:
            first = facts.readline()
    except OSError:
        return ""
    names = re.findall(r"(?:[^\s\\]|\\.)+", first.partition(": ")[2])
    if not names:
        return ""
    name = re.sub(r"\\(.)", r"\1", names[0])
    # The compiler ran in the directory of the workspace's manifest, the program runs in that of the package's.
    directory = os.getcwd()
    while not os.path.exists(os.path.join(directory, name)) and directory != "/":
        directory = os.path.dirname(directory)
    return os.path.relpath(os.path.join(directory, name), os.environ.get("FLEET_TEST_ROOT", os.getcwd()))


def _ended(path: str, source: str) -> set[str]:
    """Ids of this program's tests that ended in earlier attempts."""
    done: set[str] = set()
    if not os.path.exists(path):
        return done
    with open(path, encoding="utf-8", errors="replace") as events:
        for line in events:
            event = _event(line)
            if isinstance(event, dict) and event.get("e") == "end" and str(event.get("id")).startswith(f"{source}::"):
                done.add(str(event["id"]))
    return done


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
