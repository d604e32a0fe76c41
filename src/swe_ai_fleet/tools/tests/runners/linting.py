"""Running the linters that a repository configures, and what an agent reads of it."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.tests.reports import MAX_REPORT_BYTES
from swe_ai_fleet.tools.tests.runners.cargo import cargo_variables, locks
from swe_ai_fleet.tools.tests.runners.findings import (
    Finding,
    changed_runs,
    parse_annotations,
    parse_eslint,
    parse_format,
    parse_lines,
)
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.linters import Linter, configured_linters
from swe_ai_fleet.tools.tests.runners.premises import leaving_nothing, probe

TYPE_CHECKERS = frozenset({"mypy", "pyright"})
MAX_FILES = 500
MAX_SHOWN_CHARS = 3_000
_REASON_CHARS = 500
_MAX_NAMED = 5
_OF_THE_ENVIRONMENT = frozenset(
    {"import", "import-not-found", "import-untyped", "E0401", "reportMissingImports", "reportMissingModuleSource"}
)
"""Rules about imports that cannot be resolved: what is not installed here says nothing about the code."""
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
_DIFF = (
    *("diff", "--unified=0", "--find-renames", "--no-color", "--no-ext-diff", "--no-textconv", "--no-relative"),
    *("--ignore-submodules", "--src-prefix=a/", "--dst-prefix=b/"),
)
_WHOLE = range(10**9)
_NODE = 'PATH="$PWD/node_modules/.bin:$PATH"; export PATH; '
_NODE_RUN = ("sh", "-c", _NODE + 'exec "$@"', "sh")
# Prettier names the files that it would change and shows no lines.
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

Parser = Callable[[str, str, str], list[Finding] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Linted:
    """The findings of one linter; `failure` is why it could not be run to its end."""

    name: str
    findings: tuple[Finding, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changed lines of each file, as runs in ascending order; an empty run is where lines were removed."""

    lines: Mapping[str, Sequence[range]]

    def hold(self, finding: Finding) -> bool:
        """Whether a finding stands on a changed line, or is about a changed file as a whole."""
        runs = self.lines.get(finding.path, ())
        before = bisect_right(runs, max(finding.line, finding.last), key=lambda run: run.start)
        return bool(runs) if not finding.line else before > 0 and finding.line < runs[before - 1].stop


async def changes_since(workspace: Workspace, commit: str) -> Changes:
    """What differs from a commit in the tracked files, and all untracked ones. Raises ToolFailure."""
    compared = await workspace.run(Command(argv=(*_GIT, *_DIFF, commit, "--"), output_limit=MAX_REPORT_BYTES))
    argv = (*_GIT, "ls-files", "--others", "--exclude-standard", "-z")
    listed = await workspace.run(Command(argv=argv, light=True, output_limit=MAX_REPORT_BYTES))
    if not (compared.ok and listed.ok):
        raise ToolFailure("git does not say what has changed here: name the paths to lint")
    lines: dict[str, list[range]] = {name: [_WHOLE] for name in listed.stdout.text().split("\0") if name}
    for path, _, new in changed_runs(compared.stdout.text()):
        if path.startswith("b/"):
            lines.setdefault(path.removeprefix("b/"), []).append(new)
    return Changes(lines)


async def run_linters(
    linters: Sequence[Linter], workspace: Workspace, inventory: Inventory, files: Collection[str], *, seconds: float
) -> list[Linted]:
    """Run linters on those of the files that they check; `seconds` are for all of them together."""
    deadline = time.monotonic() + seconds
    linted: list[Linted] = []
    for linter in linters:
        below = "" if linter.directory == "." else f"{linter.directory}/"
        if chosen := tuple(file.removeprefix(below) for file in sorted(files) if linter.reads(file)):
            linted.append(await _run(linter, chosen, workspace, inventory, deadline))
    return linted


def _command(linter: Linter, files: tuple[str, ...], scratch: str) -> tuple[tuple[str, ...], Parser]:
    """The argv that has a linter change nothing and say what it finds to a program, and what reads that."""
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
    """Run one linter; a failure is a value."""
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
    with leaving_nothing(inventory, locks(inventory, linter.directory) if rust else ()):
        result = await workspace.run(command)
    text = result.stdout.text()
    parsed = await asyncio.to_thread(parse, text, workspace.mount, linter.directory)
    found = (replace(finding, code=finding.code or name) for finding in parsed or ())
    findings = tuple(finding for finding in found if finding.code not in _OF_THE_ENVIRONMENT)
    if not result.timed_out and (parsed or result.ok):
        return Linted(name=name, findings=findings)
    place = "" if linter.directory == "." else f" in {linter.directory}"
    if result.exit_code == 127:
        return Linted(name=name, failure=f"{name}{place} is not installed in this workspace's environment.")
    why = "its time was up" if result.timed_out else f"exit code {result.exit_code}"
    words = (result.stderr.text().strip() or text.strip())[-_REASON_CHARS:]
    return Linted(name=name, failure=f"{name}{place} failed ({why}): {words}")


async def lint(workspace: Workspace, paths: tuple[str, ...], base: str, *, seconds: float) -> ToolResult:
    """Lint what has changed since a commit, on the changed lines; or all of some paths. Raises ToolFailure.

    A linter that fails is named with its reason; the operation fails where all of them do.
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


def _reported(linted: Sequence[Linted], paths: tuple[str, ...], changes: Changes | None, more: str) -> ToolResult:
    """The findings that were asked for, up to a bound, and how many there are beside them."""
    shown, older, elsewhere = list[Finding](), 0, dict[str, int]()
    for name, finding in ((part.name, finding) for part in linted for finding in part.findings):
        if _below(finding.path, paths) if changes is None else changes.hold(finding):
            shown.append(finding)
        elif name in TYPE_CHECKERS:
            elsewhere[finding.path] = elsewhere.get(finding.path, 0) + 1
        elif changes is not None:
            older += 1
    ran = ", ".join(dict.fromkeys(part.name for part in linted if not part.failure))
    text, fitting = "", 0
    while fitting < len(shown) and len(text) + len(line := f"{shown[fitting]}\n") <= MAX_SHOWN_CHARS:
        text, fitting = text + line, fitting + 1
    parts = [f"{len(shown)} finding{'' if len(shown) == 1 else 's'} ({ran})" if ran else "", text.strip(), more]
    if shown[fitting:]:
        parts.append(f"[... {len(shown) - fitting} more: name fewer paths to see them]")
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
        metadata={"count": len(shown), "older": older, "linters": ran, "findings": list(map(asdict, shown[:fitting]))},
        outcome=Outcome.SUCCESS if ran else Outcome.ERROR,
        truncated=fitting < len(shown),
    )


def _below(path: str, places: Sequence[str]) -> bool:
    return any(place in (".", path) or path.startswith(f"{place}/") for place in places)
