"""The plan of a test run (its argv, and how results are reported), and small files exchanged through the sandbox."""

from __future__ import annotations

import re
import shlex
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.command import DEFAULT_OUTPUT_LIMIT, Command
from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files.paths import Tree, quoted

MAX_EVENT_BYTES = 16 * 1024 * 1024

_PROBE = 'printf "%s\\n" "$TMPDIR"; command -v -- "$1"'
_WRITE = 'umask 077 && printf %s "$2" > "$1"'
_TAKE = 'test -f "$1" && cat -- "$1" && rm -f -- "$1"'


async def probe(workspace: Workspace, program: str) -> tuple[str, bool]:
    """(the directory for temporary files, as commands see it; whether a program is installed). Raises ToolFailure."""
    result = await workspace.run(Command(argv=("sh", "-c", _PROBE, "sh", program), light=True))
    scratch, _, listing = result.stdout.text().partition("\n")
    if not scratch.startswith("/"):
        raise ToolFailure("the workspace's environment has no directory for temporary files (TMPDIR)")
    return scratch, bool(listing.strip())


async def write_private(workspace: Workspace, path: str, text: str) -> None:
    """Write a small file, readable by the workspace's user only, through the sandbox."""
    await workspace.run(Command(argv=("sh", "-c", _WRITE, "sh", path, text), light=True))


async def read_report(workspace: Workspace, path: str) -> bytes | None:
    """Read and remove a run's report through the sandbox; None if it is missing or too large."""
    command = Command(
        argv=("sh", "-c", _TAKE, "sh", path), light=True, output_limit=MAX_EVENT_BYTES, timeout_seconds=60
    )
    read = await workspace.run(command)
    return read.stdout.head + read.stdout.tail if read.ok and not read.stdout.elided else None


@contextmanager
def removing_afterwards(workspace: Workspace, paths: Sequence[str]) -> Generator[None]:
    """Remove files that a run has left at the end of the context: they would show up in the diff."""
    try:
        yield
    finally:
        for path in paths:
            with suppress(ToolFailure):
                Tree(workspace.root, workspace.mount).remove(path)


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MAX_KEYWORD_CHARS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The tests to run, by default all. `paths` exist and are relative to the workspace.

    `deselect` are ids not to run. `first` are groups of paths and ids to run before the others, in this order.
    """

    paths: tuple[str, ...] = ()
    keyword: str = ""
    deselect: tuple[str, ...] = ()
    first: tuple[tuple[str, ...], ...] = ()

    @property
    def some(self) -> bool:
        """Whether it selects only a part of the tests."""
        return bool(self.paths or self.keyword)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """Another way to start a runner that reported nothing; it applies if `pattern` matches the runner's output.

    Attributes:
        note: A sentence about the difference; `{}` stands for the pattern's group.
        argv: The command; empty: the same as before.
        option: An option to append to the command, completed by the pattern's group.
        stream: Replaces the plan's stream unless it is empty.
    """

    pattern: re.Pattern[str]
    note: str
    argv: tuple[str, ...] = ()
    option: str = ""
    stream: str = ""

    def instead(self, plan: SuitePlan, run: TestRun) -> SuitePlan | None:
        """The plan to try after a run; None if the pattern does not match, or the plan already does this."""
        match = self.pattern.search(run.output)
        if match is None:
            return None
        culprit = match[1] if self.option else ""
        argv = (*(self.argv or plan.argv), *((f"{self.option}{culprit}",) if culprit else ()))
        if argv == plan.argv:
            return None
        stream = self.stream or plan.stream
        return replace(plan, argv=argv, stream=stream, notes=(*plan.notes, self.note.format(culprit)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitePlan:
    """A command that runs tests.

    Attributes:
        argv: The command, with the options for reporting results.
        before: The argv prefix of the command, such as a shell that runs something first; empty for none.
        typed: The command as a person would type it.
        absent: The message if the program is missing.
        cwd: The working directory, relative to the workspace.
        stream: How results reach the supervisor: a name in `inside/streams.py`.
        fallbacks: Other ways to start the command, tried in order until results are reported.
        transient: Files that the run may leave in the repository, removed after it.
        unknown: Why the command is no known test runner; its exit code counts if it reports no tests.
        notes: Sentences about what was changed for the run to work.
    """

    framework: str
    argv: tuple[str, ...]
    typed: tuple[str, ...]
    absent: str
    cwd: str = "."
    before: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    stream: str = "file"
    output_limit: int = DEFAULT_OUTPUT_LIMIT
    fallbacks: tuple[Fallback, ...] = ()
    transient: tuple[str, ...] = ()
    unknown: str = ""
    notes: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command as a person would type it, without the options for reporting."""
        typed = shlex.join(self.typed)
        return typed if self.cwd == "." else f"{typed} (in {self.cwd})"


def checked_keyword(keyword: str | None) -> str:
    """The keyword, unchanged; empty for None. Raises ToolRefusal for a text that a runner could treat as an option."""
    if keyword is None:
        return ""
    if keyword.startswith(("-", "@")):
        raise ToolRefusal(f"keyword {quoted(keyword)} looks like an option; give (a part of) a test's name")
    if not keyword.strip() or len(keyword) > _MAX_KEYWORD_CHARS or _CONTROL.search(keyword):
        raise ToolFailure(f"keyword {quoted(keyword)} selects nothing; leave it out to run all tests")
    return keyword


def checked_path(path: str) -> str:
    """The path, unchanged. Raises ToolRefusal for a text that a runner could treat as an option or options file."""
    if path.startswith(("-", "@")):
        raise ToolRefusal(f"path {quoted(path)} looks like an option; give a file or directory, as './{path[:60]}'")
    if not path.strip() or _CONTROL.search(path):
        raise ToolFailure(f"{quoted(path)} is no path; leave paths out to run all tests")
    return path


def not_installed(program: str, needs: str) -> str:
    """The message for a model about a missing program, with a hint."""
    return (
        f"{program} is not installed in this workspace's environment; the task's environment must bring {needs} "
        "(a set-up command, or a directory on its path), or use another runner"
    )
