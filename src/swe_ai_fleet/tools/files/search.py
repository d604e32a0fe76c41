"""Finds files and lines with programs in the sandbox: ripgrep, or `git grep` where that is not installed.

A model's pattern is never given to Python's `re`, whose worst case is exponential; both programs match in linear time.
The fleet chooses the whole argv, so searching counts as reading. Both programs honour .gitignore, even outside a
repository, and skip .git.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from swe_ai_fleet.domain.command import Command, Output
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.definition import ToolFailure, ToolTimeout

TIMEOUT_SECONDS = 30.0
OUTPUT_LIMIT = 1024 * 1024
_LINE_CHARS = 300
_NOT_INSTALLED = 127
# A line's number, the mark of a match, its text. git marks all lines alike, but only a match has a column.
_ROW = re.compile(rb"(\d+)(?:(\0\d+\0|:)|[-\0])(.*)", re.DOTALL)
_RIPGREP = ("rg", "--no-config", "--hidden", "--no-require-git", "--no-ignore-global", "--sort", "path", "--null")
_GIT_GREP = ("git", "--no-pager", "-c", "core.quotePath=false", "grep", "--no-index", "--exclude-standard", "--null")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchScope:
    """The files to search: a directory or one file in it, and a glob.

    `directory` is a real path below the workspace's root (see `paths.Tree.find`). A `glob` without a slash matches
    names at any depth, one with a slash matches paths relative to `directory`; a leading `!` inverts it.
    """

    directory: str = "."
    file: str = "."
    glob: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchMatch:
    """A matching line, or one near it; `path` is relative to the workspace, `line` counts from 1."""

    path: str
    line: int
    text: str
    matched: bool = True


async def find_files(workspace: Workspace, scope: SearchScope, *, limit: int) -> tuple[list[str], bool]:
    """(the files in scope by path, whether these are all). Raises ToolFailure for a wrong glob, ToolTimeout."""
    ripgrep = (*_RIPGREP, "--files", *_ripgrep_globs(scope.glob), "--", scope.file)
    # Lists the files that do not contain a random text: all files, empty ones included.
    absent = secrets.token_hex(16)
    git = (*_GIT_GREP, "--files-without-match", "--fixed-strings", "-e", absent, "--", *_git_globs(scope))
    output = await _run(workspace, scope, ripgrep, git)
    names = output.head.split(b"\0")[:-1] if output.elided else (output.head + output.tail).split(b"\0")
    paths = sorted({_path(scope, name) for name in names if name})
    return paths[:limit], not output.elided and len(paths) <= limit


async def find_matches(
    workspace: Workspace, scope: SearchScope, pattern: str, *, ignore_case: bool, limit: int, context: int = 0
) -> tuple[list[SearchMatch], bool]:
    """(the lines in scope that match a regular expression and `context` lines around each, whether these are all).

    `limit` applies to matching lines. Raises ToolFailure for an invalid regular expression.
    """
    case = (*(("--ignore-case",) if ignore_case else ()), *((f"--context={context}",) if context else ()))
    shape = ("--line-number", "--with-filename", "--no-heading", "--color=never", f"--max-columns={_LINE_CHARS}")
    ripgrep = (*_RIPGREP, *shape, "--max-columns-preview", f"--max-count={limit + 1}", *case)
    ripgrep = (*ripgrep, *_ripgrep_globs(scope.glob), "-e", pattern, "--", scope.file)
    git = (*_GIT_GREP, "--line-number", "--column", "-I", "--extended-regexp", *case)
    git = (*git, "-e", pattern, "--", *_git_globs(scope))
    output = await _run(workspace, scope, ripgrep, git)
    lines = output.head.split(b"\n")[:-1] if output.elided else (output.head + output.tail).split(b"\n")
    matches: list[SearchMatch] = []
    for line in lines:
        name, _, rest = line.partition(b"\0")
        if (row := _ROW.fullmatch(rest)) is None:
            continue
        matched = row[2] is not None
        if matched and limit <= 0:
            return matches, False
        limit -= matched
        shown = row[3].decode("utf-8", "replace").rstrip("\r")[: _LINE_CHARS + 40]
        matches.append(SearchMatch(path=_path(scope, name), line=int(row[1]), text=shown, matched=matched))
    return matches, not output.elided


def excerpts(lines: Sequence[SearchMatch]) -> list[str]:
    """The lines in ripgrep's format for people: under their file's path, with marks for gaps between excerpts."""
    gaps = not all(line.matched for line in lines)
    rows, last = list[str](), SearchMatch(path="", line=0, text="")
    for line in lines:
        if line.path != last.path:
            rows.append(f"{line.path}:")
        elif gaps and line.line > last.line + 1:
            rows.append("  ...")
        rows.append(f"{line.line}{':' if line.matched else '-'}{line.text}")
        last = line
    return rows


async def _run(workspace: Workspace, scope: SearchScope, ripgrep: tuple[str, ...], git: tuple[str, ...]) -> Output:
    command = Command(
        argv=ripgrep, cwd=scope.directory, timeout_seconds=TIMEOUT_SECONDS, output_limit=OUTPUT_LIMIT, light=True
    )
    result = await workspace.run(command)
    if result.exit_code == _NOT_INSTALLED:
        result = await workspace.run(replace(command, argv=git))
    if result.timed_out:
        raise ToolTimeout(f"it took longer than {TIMEOUT_SECONDS:g} seconds; give a narrower path or a glob")
    if result.exit_code > 1 and not result.stdout.total:
        message = result.stderr.text().strip()[:1000] or f"the search ended with exit code {result.exit_code}"
        hint = ". A literal ( [ { . * + ? | ^ $ \\ needs a backslash before it" if "regex" in message.lower() else ""
        raise ToolFailure(message + hint)
    return result.stdout


def _ripgrep_globs(glob: str) -> tuple[str, ...]:
    # A --glob overrides .gitignore for its files. A file type does not, but matches names only.
    if not glob:
        own: tuple[str, ...] = ()
    elif "/" in (name := glob.removeprefix("**/")) or glob.startswith("!"):
        own = (f"--glob={glob}",)
    else:
        own = (f"--type-add=fleet:{name}", "--type=fleet")
    return (*own, "--glob=!.git")


def _git_globs(scope: SearchScope) -> tuple[str, ...]:
    literal = f":(literal){scope.file}"
    if not scope.glob:
        return (literal,)
    bare = scope.glob.removeprefix("!")
    magic = "exclude,glob" if scope.glob.startswith("!") else "glob"
    spec = f":({magic}){bare if '/' in bare else '**/' + bare}"
    return (literal, spec) if scope.glob.startswith("!") else (spec,)


def _path(scope: SearchScope, name: bytes) -> str:
    inner = name.decode("utf-8", "replace").removeprefix("./")
    return inner if scope.directory == "." else f"{scope.directory}/{inner}"
