"""Lint as evidence: only findings that the patch brings in count, by the rules that held before it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from swe_ai_fleet.domain.candidate import CheckKind, CheckResult
from swe_ai_fleet.orchestrator.evidence.clone_files import CloneFiles
from swe_ai_fleet.orchestrator.evidence.patch import Patch
from swe_ai_fleet.orchestrator.evidence.settings_changes import is_lint_setting
from swe_ai_fleet.orchestrator.evidence.source_files import language_of
from swe_ai_fleet.ports import Clone
from swe_ai_fleet.tools.tests.runners.findings import Finding
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.linters import Lint, concerns, linters
from swe_ai_fleet.tools.tests.runners.linting import run_linter
from swe_ai_fleet.tools.tests.runners.premises import probe

LINT_SECONDS = 120.0
MAX_FILES = 500
_MAX_PROBLEMS = 50
_PYTHON = (".py", ".pyi")
_LINTED = (*_PYTHON, ".go", ".rs", ".vue", ".svelte")
_FLAKE8 = re.compile(r"([^\s:][^:]{0,300}):(\d{1,9}):(\d{1,9}): ([A-Z]{1,3}\d{1,4}) (.+)")
_FLAKE8_FILES = (".flake8", "setup.cfg", "tox.ini")

CleanClone = Callable[[str], AbstractAsyncContextManager[Clone]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What linters said of some files; `failures` are of those that could not run, `linters` the ones that did."""

    found: tuple[Finding, ...] = ()
    linters: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()

    def counted(self) -> Counter[tuple[str, str, str]]:
        """Findings by (file, rule, message): line numbers move when code moves, so they do not count."""
        return Counter(map(_identity, self.found))


@dataclass(frozen=True, slots=True)
class NotLinted:
    """Why there are no findings to compare."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LintOutcome:
    """The check; `parsed` says that a linter has read every changed Python file and found nothing new in its syntax."""

    result: CheckResult
    parsed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LintCheck:
    """Lints one candidate.

    Args:
        patch: The candidate's.
        files: Of a clone that has it applied.
        clean_clone: Opens another clone under a name.
    """

    patch: Patch
    files: CloneFiles
    clean_clone: CleanClone
    seconds: float = field(default=LINT_SECONDS)

    async def outcome(self) -> LintOutcome:
        """The check: passed without new findings, otherwise its score falls as `1 / (1 + new findings)`.

        Never required. Settings of linters that the patch changes are left as they were before it.
        """
        paths = [path for path in self.patch.paths if path.endswith(_LINTED) or language_of(path) == "javascript"]
        if not paths:
            return _skipped("no file that a linter is known for was changed")
        settings = [file.path for file in self.patch.files if is_lint_setting(file.path)]
        async with self._linted_clone(settings) as files:
            after = await _find(files, paths, self.seconds)
        if isinstance(after, NotLinted):
            return _skipped(after.reason)
        before: Findings | NotLinted = Findings()
        if after.found:
            # Only where there are findings does it matter which of them were there before.
            async with self.clean_clone("lint-base") as base:
                before = await _find(CloneFiles(base), paths, self.seconds)
        if isinstance(before, NotLinted):
            return _skipped(f"on the commit before it: {before.reason}")
        return _told(before, after, settings, len(paths))

    @asynccontextmanager
    async def _linted_clone(self, settings: Sequence[str]) -> AsyncGenerator[CloneFiles]:
        if not settings:
            yield self.files
            return
        async with self.clean_clone("lint") as clone:
            await clone.apply(self.patch.without(settings))
            yield CloneFiles(clone)


async def _find(files: CloneFiles, paths: Sequence[str], seconds: float) -> Findings | NotLinted:
    there = tuple(path for path in paths if files.has(path))[:MAX_FILES]
    if not there:
        return Findings()
    # Python's linters are known from the environment; the others from manifests that may lie anywhere.
    listed = there if all(path.endswith(_PYTHON) for path in there) else await files.paths()
    inventory = Inventory(files.tree, listed)
    scratch = (await probe(files.clone, "sh"))[0] if any(path.endswith(".rs") for path in there) else ""
    runs = linters(inventory, there, files.clone.environment.lint_command, scratch)
    python = tuple(path for path in there if path.endswith(_PYTHON))
    said = [await run_linter(run, files.clone, inventory, seconds) for run in _chosen(runs, files, python)]
    failures = tuple(part.failure for part in said if part.failure)
    if not runs:
        return NotLinted("no linter is known for the changed files")
    if len(failures) == len(runs):
        return NotLinted("; ".join(failures)[:1_000])
    found = tuple(finding for part in said for finding in part.findings if concerns(finding, there))
    names = tuple(dict.fromkeys(run.name for run, part in zip(runs, said, strict=True) if not part.failure))
    return Findings(found=found, linters=names, failures=failures)


def _chosen(runs: list[Lint], files: CloneFiles, python: tuple[str, ...]) -> list[Lint]:
    """The runs, with flake8 in ruff's place where the repository is set up for it and not for ruff."""
    if not python or not _uses_flake8(files):
        return runs
    argv = ("flake8", "--exit-zero", "--format=%(path)s:%(row)d:%(col)d: %(code)s %(text)s", "--", *python)
    for at, run in enumerate(runs):
        if run.name == "ruff":
            runs[at] = Lint(name="flake8", argv=argv, parse=_parse_flake8)
    return runs


def _uses_flake8(files: CloneFiles) -> bool:
    if any(files.has(name) for name in ("ruff.toml", ".ruff.toml")) or "[tool.ruff" in files.text("pyproject.toml"):
        return False
    return any(re.search(r"^\[flake8\]", files.text(name), re.M) for name in _FLAKE8_FILES)


def _parse_flake8(text: str, mount: str, directory: str) -> list[Finding] | None:
    found = [
        Finding(
            path=match[1].removeprefix(f"{mount}/").removeprefix("./"),
            line=int(match[2]),
            column=int(match[3]),
            code=match[4],
            message=match[5][:500],
        )
        for line in text.split("\n")
        if (match := _FLAKE8.fullmatch(line))
    ]
    return found[:10_000]


def _told(before: Findings, after: Findings, settings: Sequence[str], changed: int) -> LintOutcome:
    left = after.counted() - before.counted()
    new: list[Finding] = []
    # Of findings that are alike, the last ones are taken for the new ones.
    for finding in reversed(after.found):
        if left[_identity(finding)] > 0:
            left[_identity(finding)] -= 1
            new.append(finding)
    new.reverse()
    details = {"linters": ", ".join(after.linters)}
    if settings:
        details["settings"] = f"as they were before the patch, which changes {', '.join(settings[:5])}"
    if after.failures:
        details["not run"] = "; ".join(after.failures)[:1_000]
    result = CheckResult(
        kind=CheckKind.LINT,
        name="lint",
        passed=not new,
        required=False,
        score=1 / (1 + len(new)),
        message=f"{len(new)} new finding{'' if len(new) == 1 else 's'}" if new else "",
        problems=tuple(map(str, new[:_MAX_PROBLEMS])),
        details=details,
    )
    parsed = "ruff" in after.linters and changed <= MAX_FILES and not any(map(_is_of_syntax, new))
    return LintOutcome(result=result, parsed=parsed)


def _is_of_syntax(finding: Finding) -> bool:
    return finding.code in ("", "invalid-syntax") or finding.code.startswith("E9")


def _identity(finding: Finding) -> tuple[str, str, str]:
    return finding.path, finding.code, finding.message


def _skipped(reason: str) -> LintOutcome:
    return LintOutcome(
        result=CheckResult(kind=CheckKind.LINT, name="lint", passed=False, required=False, skipped_reason=reason)
    )
