"""How results reach the supervisor: a plug-in in the runner appends events to a file, or its output is parsed.

The output of `cargo test` is parsed for documentation tests and targets that do not compile, which its programs do not
report. Standard library only; this runs in the sandbox. One stream serves all attempts of a run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

Append = Callable[..., Any]

_MAX_LINES = 60
_MAX_TESTS = 100_000
_TRACE_CHARS = 2400


class Stream:
    """A runner whose plug-in writes the events and skips tests that have ended according to FLEET_TEST_DONE."""

    reads_output = False

    def feed(self, data: bytes, append: Append) -> None:
        """Print the runner's output, and append the events in it."""

    def close(self, append: Append) -> None:
        """Handle the end of an attempt's output."""

    def complete(self) -> bool:
        """Whether a runner that ended without a `finish` event has run all tests."""
        return False

    def output_of(self, name: str) -> str:
        """The output of a test that did not end."""
        return ""

    def retry(self, argv: list[str], culprits: Sequence[str]) -> list[str] | None:
        """The command for the remaining tests, without those that hung or crashed; None if there is none."""
        return argv if culprits else None


class OutputStream(Stream):
    """A runner of which only the output and the exit code are known."""

    def complete(self) -> bool:
        return True

    def retry(self, argv: list[str], culprits: Sequence[str]) -> list[str] | None:
        return None


class Lines(Stream):
    """A runner whose results are in the lines of its output."""

    reads_output = True

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes, append: Append) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.line(line.decode("utf-8", "replace"), append)

    def close(self, append: Append) -> None:
        if self._rest:
            self.line(self._rest.decode("utf-8", "replace"), append)
        self._rest = b""

    def line(self, line: str, append: Append) -> None:
        """Append the events in one line."""


_NOISE = ("=== ", "--- PASS", "--- FAIL", "--- SKIP")
_HEADING = re.compile(r"# (\S{1,500})(?: \[.{1,500}\])?")
_NOT_BUILT = re.compile(r"FAIL\t(\S{1,500}) \[(?:build|setup) failed\]")
_PLACE = re.compile(r"(?:vet: )?[^\s:][^:]{0,300}\.go:\d{1,9}(?::\d{1,9})?: .+")
_OUTCOMES = {"pass": "passed", "fail": "failed", "skip": "skipped"}


class Go(Lines):
    """`go test -json`. Ids are `package::Test/subtest`, or `package` if that fails outside its tests."""

    def __init__(self) -> None:
        super().__init__()
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

    def complete(self) -> bool:
        return not self._panicked and not self._left

    def output_of(self, name: str) -> str:
        return "\n".join(self._output.get(name, []))[-_TRACE_CHARS:]

    def retry(self, argv: list[str], culprits: Sequence[str]) -> list[str] | None:
        new = [name for name in dict.fromkeys((*self._panicked, *culprits)) if "::" in name]
        self._skipped += [name for name in new if name not in self._skipped]
        if not new:
            return None
        self._begin()
        cut = argv.index("-args") if "-args" in argv else len(argv)
        words, rest = argv[:cut], argv[cut:]
        packages = [word for word in words[2:] if not word.startswith("-")]
        options = [word for word in words[2:] if word.startswith("-")]
        listed_packages = _printed([words[0], "list", *packages]).split()
        left = [name for name in listed_packages if name not in self._done] or packages
        version = re.search(r"go(\d+)\.(\d+)", _printed([words[0], "version"]))
        # Go 1.20 was the first to have `-skip`.
        if not listed_packages or version is None or (int(version[1]), int(version[2])) >= (1, 20):
            options.append("-skip=" + "|".join(map(_pattern, self._skipped)))
        elif any(word.startswith(("-run", "--run")) for word in options):
            return None
        else:
            hung = {name.partition("::")[2].partition("/")[0] for name in self._skipped}
            listed = _printed([words[0], "test", "-list=.", *left]).split("\n")
            tests = [name for name in listed if name.isidentifier() and name not in hung]
            options.append("-run=^(" + "|".join(tests) + ")$")
        return [*words[:2], *options, *left, *rest]

    def line(self, line: str, append: Append) -> None:
        event = _event(line)
        if event is None:
            print(line, flush=True)
            # Until Go 1.23, the compiler's output is plain text below a heading with the package's name.
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
            blamed = any(failed.startswith(f"{name}/") for failed in self._failed)
            if name in self._parents and (action != "fail" or blamed):
                append(e="collected", id=name)
                return
            last = output[-1].strip() if output and action != "pass" else ""
            message = next((line for line in output if line.startswith("panic:")), last)
            trace = "\n".join(output)[-_TRACE_CHARS:] if action == "fail" else ""
            append(e="end", id=name, o=_OUTCOMES[action], ms=round(event["Elapsed"] * 1000), m=message, t=trace)

    def _package(self, action: str, package: str, append: Append) -> None:
        running = [name for name in self._open.pop(package, set()) if name not in self._parents]
        prefix = package + "::"
        panicked = any(name.startswith(prefix) for name in self._panicked)
        if running and not panicked:
            # They stay open for the supervisor: one of them crashed the process.
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
        first = next(iter(output), "the package failed outside of its tests")
        message = next((line for line in output if _PLACE.fullmatch(line)), first)
        append(e="end", id=package, o="error", m=message, t="\n".join(output)[-_TRACE_CHARS:])


def _event(line: str) -> dict[str, Any] | None:
    try:
        event: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
    except (ValueError, RecursionError):
        return None
    package, elapsed = event.get("Package") or event.get("ImportPath"), event.get("Elapsed")
    if not isinstance(package, str) or not isinstance(event.get("Action"), str):
        return None
    return {
        "Action": event["Action"],
        "Package": package.split(" ", 1)[0][:500],
        "Test": str(event.get("Test") or "")[:500],
        "Output": str(event.get("Output") or ""),
        "Elapsed": elapsed if isinstance(elapsed, int | float) and 0 <= elapsed < 1e7 else 0,
    }


def _pattern(name: str) -> str:
    return "/".join(f"^{re.escape(part)}$" for part in name.partition("::")[2].split("/"))


def _printed(argv: list[str]) -> str:
    """A command's output; empty if it cannot be run."""
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=120).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _keep(output: list[str], line: str) -> None:
    if line.strip() and len(output) < _MAX_LINES:
        output.append(line)


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


class Cargo(Lines):
    """`cargo test`. A target that does not compile is reported by its source file; other targets still run."""

    def __init__(self) -> None:
        super().__init__()
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
        super().feed(data, append)

    def close(self, append: Append) -> None:
        super().close(append)
        self._documentation_ends(append)
        packages = _packages() if self._new else []
        for package, kind, name in self._new:
            source = _source(packages, package, kind, name) or f"{package} {name}".strip()
            errors = [error for error in self._errors if f"/{source}".endswith(f"/{error[1]}")] or self._errors
            message = errors[0][0] if errors else "it does not compile"
            trace = "\n".join(line for _, _, texts in errors[:10] for line in texts)
            append(e="end", id=source, o="error", m=message, t=trace[:_TRACE_CHARS])

    def complete(self) -> bool:
        return not self._new

    def retry(self, argv: list[str], culprits: Sequence[str]) -> list[str] | None:
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
        broken = {("lib" if kind == "lib test" else kind, name) for _, kind, name in self._broken if kind != "lib"}
        sound = {
            "--lib" if kind == "lib" else f"--{kind}={target['name']}"
            for package in packages
            if package["name"] not in whole
            for target in package["targets"]
            if (kind := _kind(target)) and not broken.intersection({(kind, ""), (kind, target["name"])})
        }
        options = sorted(sound, key=lambda option: (option != "--lib", option))
        if not options or (whole and len(whole) >= len(packages)):
            return None
        excluded = ["--workspace", *(f"--exclude={name}" for name in sorted(whole))] if whole else []
        return [*words, *excluded, *options, *rest]

    def line(self, line: str, append: Append) -> None:
        line = re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip())
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
        return name if (number := self._seen.get(name, 1)) == 1 else f"{name} ({number})"

    def _documentation_ends(self, append: Append) -> None:
        for name, texts in self._failed.items():
            append(e="end", id=name, o="failed", m=texts[-1] if texts else "", t="\n".join(texts)[-_TRACE_CHARS:])
        self._failed, self._section = {}, None


def _packages() -> list[dict[str, Any]]:
    """The packages in cargo's metadata of the workspace; none if cargo fails."""
    metadata = _printed(["cargo", "metadata", "--no-deps", "--offline", "--format-version=1"])
    return json.loads(metadata or '{"packages": []}')["packages"]


def _kind(target: dict[str, Any]) -> str:
    """The name, in cargo's options, of a target's kind; empty for targets that `cargo test` does not run."""
    kinds: list[str] = target["kind"] if target.get("test", True) else []
    if {"lib", "rlib", "dylib", "cdylib", "staticlib", "proc-macro"}.intersection(kinds):
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


STREAMS = {"file": Stream, "output": OutputStream, "go": Go, "cargo": Cargo}
