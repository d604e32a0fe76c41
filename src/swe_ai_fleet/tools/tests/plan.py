"""One test run to be: the argv, how its report is read, and what the sandbox has for it."""

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
_LEAVE = 'umask 077 && printf %s "$2" > "$1"'
_TAKE = 'test -f "$1" && cat -- "$1" && rm -f -- "$1"'


async def probe(workspace: Workspace, program: str) -> tuple[str, bool]:
    """(where temporary files go, as commands see it; whether they find a program). Raises ToolFailure."""
    result = await workspace.run(Command(argv=("sh", "-c", _PROBE, "sh", program), light=True))
    scratch, _, listing = result.stdout.text().partition("\n")
    if not scratch.startswith("/"):
        raise ToolFailure("the workspace's environment has no directory for temporary files (TMPDIR)")
    return scratch, bool(listing.strip())


async def leave(workspace: Workspace, path: str, text: str) -> None:
    """Write a small file for the next command alone to read, through the sandbox."""
    await workspace.run(Command(argv=("sh", "-c", _LEAVE, "sh", path, text), light=True))


async def read_report(workspace: Workspace, path: str) -> bytes | None:
    """The report that a run left, read through the sandbox; None where there is none to be trusted."""
    command = Command(
        argv=("sh", "-c", _TAKE, "sh", path), light=True, output_limit=MAX_EVENT_BYTES, timeout_seconds=60
    )
    read = await workspace.run(command)
    return read.stdout.head + read.stdout.tail if read.ok and not read.stdout.elided else None


@contextmanager
def leaving_nothing(workspace: Workspace, paths: Sequence[str]) -> Generator[None]:
    """Remove files at the end that a run has left: they would show up in the diff."""
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
    """Which tests to run; nothing said means all. `paths` exist and are relative to the workspace.

    `deselect` are ids that are left out. `first` are groups of paths and ids to be run before the rest, in this order.
    """

    paths: tuple[str, ...] = ()
    keyword: str = ""
    deselect: tuple[str, ...] = ()
    first: tuple[tuple[str, ...], ...] = ()

    @property
    def some(self) -> bool:
        """Whether it is a part only."""
        return bool(self.paths or self.keyword)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """Another way to start a runner that reported nothing, tried where what it printed matches `pattern`.

    Attributes:
        note: What is different, in words; `{}` is what the pattern's group found.
        argv: The command; empty: the one that reported nothing.
        option: Goes behind the command, completed by what the pattern's group found.
        stream: Another one than the plan's, where it is not empty.
    """

    pattern: re.Pattern[str]
    note: str
    argv: tuple[str, ...] = ()
    option: str = ""
    stream: str = ""

    def instead(self, plan: SuitePlan, run: TestRun) -> SuitePlan | None:
        """The plan that may get around what ended a run; None where that was something else, or is got around."""
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
        argv: The command, with what serves the report.
        before: What starts the command, such as a shell that does something first; empty for nothing.
        typed: The command as a person would type it.
        absent: The message where the program is missing.
        cwd: Relative to the workspace.
        stream: How the supervisor hears of single tests, a name in `inside/streams.py`.
        fallbacks: Other ways to start it, tried in order while nothing is reported.
        transient: Files that the run may leave in the repository, removed after it.
        unknown: Why the command is taken for no known runner, in words; its exit code counts where it reports nothing.
        notes: What was changed for the run to work, in words.
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
        """The command as a person would type it, without what only serves the report."""
        typed = shlex.join(self.typed)
        return typed if self.cwd == "." else f"{typed} (in {self.cwd})"


def checked_keyword(keyword: str | None) -> str:
    """The keyword itself, empty for None. Raises ToolRefusal for what a runner could take for an option."""
    if keyword is None:
        return ""
    if keyword.startswith(("-", "@")):
        raise ToolRefusal(f"keyword {quoted(keyword)} looks like an option; give (a part of) a test's name")
    if not keyword.strip() or len(keyword) > _MAX_KEYWORD_CHARS or _CONTROL.search(keyword):
        raise ToolFailure(f"keyword {quoted(keyword)} selects nothing; leave it out to run all tests")
    return keyword


def checked_path(path: str) -> str:
    """The path itself. Raises ToolRefusal for what a runner could take for an option or a file of options."""
    if path.startswith(("-", "@")):
        raise ToolRefusal(f"path {quoted(path)} looks like an option; give a file or directory, as './{path[:60]}'")
    if not path.strip() or _CONTROL.search(path):
        raise ToolFailure(f"{quoted(path)} is no path; leave paths out to run all tests")
    return path


def not_installed(program: str, needs: str) -> str:
    """What to tell a model that has no such program, and what would help."""
    return (
        f"{program} is not installed in this workspace's environment; the task's environment must bring {needs} "
        "(a set-up command, or a directory on its path), or use another runner"
    )
