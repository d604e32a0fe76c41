"""Runs the linters that a repository configures, and parses the findings in their machine-readable output."""

from __future__ import annotations

import asyncio
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import PurePosixPath
from urllib.parse import unquote

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.json_values import is_list, json_or_none, mappings, string
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.tests.compiled import cargo_variables, locks
from swe_ai_fleet.tools.tests.inventory import Inventory
from swe_ai_fleet.tools.tests.linters import Linter, configured_linters
from swe_ai_fleet.tools.tests.plan import probe, removing_afterwards
from swe_ai_fleet.tools.tests.reports import MAX_REPORT_BYTES, lines

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
class LintFinding:
    """One finding: a file relative to the workspace, line and column from 1 (0 unknown), rule and message.

    Line 0 is the whole file; `last` is the last line of a finding that spans several.
    """

    path: str
    line: int = 0
    column: int = 0
    last: int = 0
    code: str = ""
    message: str = ""

    def __str__(self) -> str:
        position = ":".join([self.path, *(str(number) for number in (self.line, self.column) if number)])
        return f"{position}: {' '.join(part for part in (self.code, self.message) if part)}"


def parse_eslint(text: str, mount: str, directory: str = ".") -> list[LintFinding] | None:
    """The findings in ESLint's JSON; None if the text is not such JSON."""
    items = json_or_none(text[max(text.find("["), 0) :])
    if not is_list(items):
        return None
    findings: list[LintFinding] = []
    for item in mappings(items):
        path = _placed(string(item.get("filePath")), mount, directory)
        findings += [
            _finding(path, message.get("line"), message.get("column"), message.get("ruleId"), message.get("message"))
            for message in mappings(item.get("messages"))[:MAX_FINDINGS]
            if message.get("ruleId") or message.get("fatal")  # others say that a file is ignored
        ]
    return findings[:MAX_FINDINGS]


def parse_lines(text: str, mount: str, directory: str = ".") -> list[LintFinding] | None:
    """The findings in lines of `file:line:column: message`, the format of most linters, without notes."""
    findings = [
        _finding(_placed(path, mount, directory), int(line), int(column or 0), code or rule or report, message)
        for match in map(_LINE.fullmatch, lines(text))
        if match is not None
        for path, line, column, code, message, rule, report in [match.groups()]
    ]
    return list(dict.fromkeys(findings))[:MAX_FINDINGS]


def parse_annotations(text: str, mount: str, directory: str = ".") -> list[LintFinding] | None:
    """The findings in Biome's annotations for GitHub; a file that it would format is one finding."""
    findings = [
        replace(finding, line=0, column=0, message="not formatted") if finding.code == "format" else finding
        for line in lines(text)
        if (match := _ANNOTATION.fullmatch(line))
        for path in [_placed(unquote(match[2]), mount, directory)]
        for finding in [_finding(path, int(match[3]), int(match[4]), match[1], unquote(match[5]))]
    ]
    return list(dict.fromkeys(findings))[:MAX_FINDINGS]


def parse_format(text: str, mount: str, directory: str = ".") -> list[LintFinding] | None:
    """A finding for each run of lines that a formatter's diff changes."""
    return [
        LintFinding(path=_placed(path, mount, directory), line=old.start, last=old.stop - 1, message="not formatted")
        for path, old, _ in islice(changed_runs(text), MAX_FINDINGS)
    ]


def changed_runs(diff: str) -> Iterator[tuple[str, range, range]]:
    """The runs of lines that a unified diff, or rustfmt's, changes: (file after `+++`, old lines, new lines).

    A run that only adds lines has an empty range of old lines, one that only removes lines an empty range of new ones.
    """
    path, at, start, remaining = "", (1, 1), (1, 1), (0, 0)
    for line in (*diff.split("\n"), ""):
        sign = line[:1] or " "
        inside = any(remaining) and sign in " -+\\"
        if inside and sign == "\\":
            continue
        if at != start and not (inside and sign in "-+"):
            yield path, range(start[0], at[0]), range(start[1], at[1])
            start = at
        if inside:
            step = (sign != "+", sign != "-")
            at, remaining = (at[0] + step[0], at[1] + step[1]), (remaining[0] - step[0], remaining[1] - step[1])
            start = at if sign == " " else start
        elif match := _HUNK.fullmatch(line):
            remaining = (int(match[2] or 1), int(match[4] or 1))
            # For a side without lines, the number in the header is that of the line before.
            at = start = (int(match[1]) + (not remaining[0]), int(match[3]) + (not remaining[1]))
        elif match := _RUSTFMT_HUNK.fullmatch(line):
            path, remaining = match[1], (_ENDLESS, _ENDLESS)
            at = start = (int(match[2]), int(match[2]))
        elif line.startswith("+++ "):
            path = line[4:].partition("\t")[0]


def _finding(path: str, line: object, column: object, code: object, message: object) -> LintFinding:
    return LintFinding(
        path=path,
        line=_number(line),
        column=_number(column),
        code=string(code)[:100],
        message=" ".join(string(message).split())[:_MAX_MESSAGE_CHARS],
    )


def _placed(file: str, mount: str, directory: str) -> str:
    """A file's path relative to the workspace; in the output it is absolute, or relative to the linter's directory."""
    if file.startswith("/"):
        return file.removeprefix(f"{mount}/")[:_MAX_PATH_CHARS]
    return str(PurePosixPath(directory, file))[:_MAX_PATH_CHARS]


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 10**9 else 0


TYPE_CHECKERS = frozenset({"mypy", "pyright"})
MAX_FILES = 500
MAX_SHOWN_CHARS = 3_000
_REASON_CHARS = 500
_MAX_NAMED = 5
_OF_THE_ENVIRONMENT = frozenset(
    {"import", "import-not-found", "import-untyped", "E0401", "reportMissingImports", "reportMissingModuleSource"}
)
"""Rules about imports that cannot be resolved: a package that is not installed here is no fault of the code."""
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
_DIFF = (
    *("diff", "--unified=0", "--find-renames", "--no-color", "--no-ext-diff", "--no-textconv", "--no-relative"),
    *("--ignore-submodules", "--src-prefix=a/", "--dst-prefix=b/"),
)
_WHOLE = range(10**9)
_NODE = 'PATH="$PWD/node_modules/.bin:$PATH"; export PATH; '
_NODE_RUN = ("sh", "-c", _NODE + 'exec "$@"', "sh")
# Prettier lists the files that it would change, but not the lines.
_PRETTIER = (
    _NODE + 'prettier --list-different --ignore-unknown "$@" > "$TMPDIR/unformatted"; code=$?; '
    'while IFS= read -r f; do prettier -- "$f" | diff -U0 --label "$f" --label "$f" -- "$f" -; done '
    '< "$TMPDIR/unformatted"; exit $code'
)
_RUFF = ("--no-fix", "--no-cache", "--force-exclude", "--output-format", "pylint")
_FLAKE8 = "--format=%(path)s:%(row)d:%(col)d: %(code)s %(text)s"
_PYLINT = "--msg-template={path}:{line}: {msg_id} {msg} ({symbol})"
_MYPY = (
    *("--no-pretty", "--show-error-codes", "--show-column-numbers", "--no-error-summary", "--no-color-output"),
    "--hide-error-context",
)
_BIOME = ("--colors=off", "--reporter=github", "--no-errors-on-unmatched", "--max-diagnostics=200")

Parser = Callable[[str, str, str], list[LintFinding] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Linted:
    """The findings of one linter; `failure` is the reason why it could not be run to its end."""

    name: str
    findings: tuple[LintFinding, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True)
class ChangedLines:
    """The changed lines of each file, as runs in ascending order; an empty run is where lines were removed."""

    lines: Mapping[str, Sequence[range]]

    def hold(self, finding: LintFinding) -> bool:
        """Whether a finding is on a changed line, or about a changed file as a whole."""
        runs = self.lines.get(finding.path, ())
        before = bisect_right(runs, max(finding.line, finding.last), key=lambda run: run.start)
        return bool(runs) if not finding.line else before > 0 and finding.line < runs[before - 1].stop


async def changes_since(workspace: Workspace, commit: str) -> ChangedLines:
    """The lines of tracked files that differ from a commit, and all untracked files. Raises ToolFailure."""
    compared = await workspace.run(Command(argv=(*_GIT, *_DIFF, commit, "--"), output_limit=MAX_REPORT_BYTES))
    argv = (*_GIT, "ls-files", "--others", "--exclude-standard", "-z")
    listed = await workspace.run(Command(argv=argv, light=True, output_limit=MAX_REPORT_BYTES))
    if not (compared.ok and listed.ok):
        raise ToolFailure("git does not say what has changed here: name the paths to lint")
    lines: dict[str, list[range]] = {name: [_WHOLE] for name in listed.stdout.text().split("\0") if name}
    for path, _, new in changed_runs(compared.stdout.text()):
        if path.startswith("b/"):
            lines.setdefault(path.removeprefix("b/"), []).append(new)
    return ChangedLines(lines)


async def run_linters(
    linters: Sequence[Linter], workspace: Workspace, inventory: Inventory, files: Collection[str], *, seconds: float
) -> list[Linted]:
    """Run linters on the files that they check, for at most `seconds` in all."""
    deadline = time.monotonic() + seconds
    linted: list[Linted] = []
    for linter in linters:
        below = "" if linter.directory == "." else f"{linter.directory}/"
        if chosen := tuple(file.removeprefix(below) for file in sorted(files) if linter.reads(file)):
            linted.append(await _run(linter, chosen, workspace, inventory, deadline))
    return linted


def _command(linter: Linter, files: tuple[str, ...], scratch: str) -> tuple[tuple[str, ...], Parser]:
    """The argv of a linter that changes nothing and writes machine-readable output, and the parser of that output."""
    options, named = linter.options, ("--", *files)
    match linter.name:
        case "ruff":
            return ("ruff", "check", *options, *_RUFF, *named), parse_lines
        case "ruff format":
            return ("ruff", "format", *options, "--diff", "--no-cache", "--force-exclude", *named), parse_format
        case "flake8":
            return ("flake8", *options, "--exit-zero", _FLAKE8, *named), parse_lines
        case "pylint":
            return ("pylint", *options, "--score=n", "--output-format=text", _PYLINT, *named), parse_lines
        case "mypy":
            checked = () if linter.lists_files else ("--", *(linter.targets or files))
            return ("mypy", *options, *_MYPY, f"--cache-dir={scratch}/fleet-mypy", *checked), parse_lines
        case "pyright":
            return (*_NODE_RUN, "pyright", *options, *linter.targets), parse_lines
        case "eslint":
            return (*_NODE_RUN, "eslint", *options, "--format", "json", *named), parse_eslint
        case "biome":
            return (*_NODE_RUN, "biome", "check", *options, *_BIOME, *named), parse_annotations
        case "prettier":
            return ("sh", "-c", _PRETTIER, "sh", *options, *named), parse_format
        case "gofmt":
            return ("gofmt", "-d", *named), parse_format
        case "go vet":
            return ("go", "vet", *dict.fromkeys(f"./{file.rpartition('/')[0]}" for file in files)), parse_lines
        case "rustfmt":
            return ("cargo", "fmt", "--all", "--check", "--", "--color=never"), parse_format
        case _:
            return ("cargo", "clippy", "--quiet", "--all-targets", "--message-format=short"), parse_lines


async def _run(
    linter: Linter, files: tuple[str, ...], workspace: Workspace, inventory: Inventory, deadline: float
) -> Linted:
    """Run one linter; a failure is part of the result."""
    name, rust = linter.name, linter.name == "clippy"
    scratch = (await probe(workspace, "sh"))[0]
    argv, parse = _command(linter, files, scratch)
    command = Command(
        argv=argv,
        cwd=linter.directory,
        variables=cargo_variables(scratch) if rust else {},
        timeout_seconds=max(1.0, deadline - time.monotonic()),
        output_limit=MAX_REPORT_BYTES // 2,
        merge_stderr=name in ("go vet", "clippy"),
    )
    with removing_afterwards(workspace, locks(inventory, linter.directory) if rust else ()):
        result = await workspace.run(command)
    text = result.stdout.text()
    parsed = await asyncio.to_thread(parse, text, workspace.mount, linter.directory)
    named_findings = (replace(finding, code=finding.code or name) for finding in parsed or ())
    findings = tuple(finding for finding in named_findings if finding.code not in _OF_THE_ENVIRONMENT)
    if not result.timed_out and (parsed or result.ok):
        return Linted(name=name, findings=findings)
    where = "" if linter.directory == "." else f" in {linter.directory}"
    if result.exit_code == 127:
        return Linted(name=name, failure=f"{name}{where} is not installed in this workspace's environment.")
    why = "it timed out" if result.timed_out else f"exit code {result.exit_code}"
    words = (result.stderr.text().strip() or text.strip())[-_REASON_CHARS:]
    return Linted(name=name, failure=f"{name}{where} failed ({why}): {words}")


async def lint(workspace: Workspace, paths: tuple[str, ...], base: str, *, seconds: float) -> ToolResult:
    """Lint the lines that have changed since a commit, or all of some paths. Raises ToolFailure.

    The result names linters that fail, with their reasons; the operation fails only if all of them do.
    """
    inventory = await Inventory.take(workspace)
    linters = await asyncio.to_thread(configured_linters, inventory.files, inventory.text)
    if not linters:
        raise ToolFailure("this repository configures no linter that is known here")
    changes = None if paths else await changes_since(workspace, base)
    files = [file for file in inventory.files if (_below(file, paths) if changes is None else file in changes.lines)]
    checked = [file for file in sorted(files) if any(linter.reads(file) for linter in linters)]
    if not checked:
        names = ", ".join(dict.fromkeys(linter.name for linter in linters))
        raise ToolFailure(f"{names} check none of the {'files there' if paths else 'changed files'}; name other paths")
    linted = await run_linters(linters, workspace, inventory, checked[:MAX_FILES], seconds=seconds)
    more = f"Only the first {MAX_FILES} of {len(checked)} files were checked." if checked[MAX_FILES:] else ""
    return _reported(linted, paths, changes, more)


def _reported(linted: Sequence[Linted], paths: tuple[str, ...], changes: ChangedLines | None, more: str) -> ToolResult:
    """The result with the requested findings, up to a limit, and the number of others."""
    listed, older, elsewhere = list[LintFinding](), 0, dict[str, int]()
    for name, finding in ((part.name, finding) for part in linted for finding in part.findings):
        if _below(finding.path, paths) if changes is None else changes.hold(finding):
            listed.append(finding)
        elif name in TYPE_CHECKERS:
            elsewhere[finding.path] = elsewhere.get(finding.path, 0) + 1
        elif changes is not None:
            older += 1
    ran = ", ".join(dict.fromkeys(part.name for part in linted if not part.failure))
    text, fitting = "", 0
    while fitting < len(listed) and len(text) + len(line := f"{listed[fitting]}\n") <= MAX_SHOWN_CHARS:
        text, fitting = text + line, fitting + 1
    parts = [f"{len(listed)} finding{'' if len(listed) == 1 else 's'} ({ran})" if ran else "", text.strip(), more]
    if listed[fitting:]:
        parts.append(f"[... {len(listed) - fitting} more: name fewer paths to see them]")
    if older:
        are = "finding is" if older == 1 else "findings are"
        parts.append(f"{older} older {are} not shown, on lines that have not been changed; name paths to see all.")
    if elsewhere:
        where = ", ".join(f"{path} ({count})" for path, count in list(elsewhere.items())[:_MAX_NAMED])
        parts.append(f"Type errors elsewhere, old or caused by a change, {sum(elsewhere.values())}: {where}.")
    return ToolResult(
        success=bool(ran),
        operation="tests_lint",
        content="\n\n".join(part for part in (*parts, *(part.failure for part in linted)) if part),
        error="" if ran else "no linter could run",
        metadata={
            "count": len(listed),
            "older": older,
            "linters": ran,
            "findings": list(map(asdict, listed[:fitting])),
        },
        outcome=Outcome.SUCCESS if ran else Outcome.ERROR,
        truncated=fitting < len(listed),
    )


def _below(path: str, directories: Sequence[str]) -> bool:
    return any(directory in (".", path) or path.startswith(f"{directory}/") for directory in directories)
