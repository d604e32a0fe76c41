"""Static checks of a patch: lint and compilation.

Lint counts new findings on the changed lines, by the rules before the patch. Compilation is tried where it is cheap and
tests might miss a fault.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import PurePosixPath

from swe_ai_fleet.domain.candidate import CheckKind, CheckResult
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.json_values import is_list
from swe_ai_fleet.orchestrator.evidence.patch import Patch
from swe_ai_fleet.orchestrator.evidence.source_files import CloneFiles
from swe_ai_fleet.ports import Clone
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.tests.inventory import Inventory
from swe_ai_fleet.tools.tests.linters import configured_linters, is_lint_setting
from swe_ai_fleet.tools.tests.linting import TYPE_CHECKERS, Linted, LintFinding, changes_since, run_linters

_LINT_SECONDS = 120.0
"""The time limit of all linters together on one clone."""
_MAX_FINDINGS = 50
_MAX_ELSEWHERE = 10
_NUMBER = re.compile(r"\d+")

CleanClone = Callable[[str], AbstractAsyncContextManager[Clone]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LintCheck:
    """Lints one candidate: its patch and the files of a clone that has it.

    Args:
        base_commit: The commit without the patch, whose objects that clone has.
    """

    patch: Patch
    files: CloneFiles
    base_commit: str
    clean_clone: CleanClone

    async def result(self) -> CheckResult:
        """The check: passed without new findings on changed lines, otherwise its score is `1 / (1 + new findings)`.

        Never required. It runs with the linter settings from before the patch. New findings of type checkers on other
        lines are only listed in the details.
        """
        settings = [file.path for file in self.patch.files if is_lint_setting(file.path)]
        rest = self.patch.without(settings)
        if not rest:
            return _skipped("no configured linter checks a changed file")
        async with AsyncExitStack() as clones:
            files = self.files
            if settings:
                clone = await clones.enter_async_context(self.clean_clone("lint"))
                await clone.apply(rest)
                files = CloneFiles(clone)
            try:
                changes = await changes_since(files.clone, self.base_commit)
            except ToolFailure as error:
                return _skipped(error.message)
            after = await self._linted(files)
        if all(part.failure for part in after):
            return _skipped("; ".join(part.failure for part in after) or "no configured linter checks a changed file")
        on_changed_lines = [finding for part in after for finding in part.findings if changes.hold(finding)]
        checked = [finding for part in after if part.name in TYPE_CHECKERS for finding in part.findings]
        elsewhere = [finding for finding in checked if not changes.hold(finding)]
        before: list[Linted] = []
        if on_changed_lines or elsewhere:
            # Only then it matters which of them existed before.
            async with self.clean_clone("lint-base") as base:
                before = await self._linted(CloneFiles(base))
        unknown = {part.name for part in before if part.failure}
        compared = [finding for part in after if part.name not in unknown for finding in part.findings]
        counts = _counted(compared) - _counted(finding for part in before for finding in part.findings)
        new = [finding for finding in on_changed_lines if _take_one(finding, counts)]
        failures = [part.failure for part in after if part.failure]
        failures += [f"before the patch, {part.failure}" for part in before if part.failure not in ("", *failures)]
        details = {
            "linters": ", ".join(dict.fromkeys(part.name for part in after if not part.failure)),
            "settings": f"as they were before the patch, which changes {', '.join(settings[:5])}" if settings else "",
            "new elsewhere": "; ".join(
                [str(finding) for finding in elsewhere if _take_one(finding, counts)][:_MAX_ELSEWHERE]
            ),
            "not run": "; ".join(failures)[:1_000],
        }
        return CheckResult(
            kind=CheckKind.LINT,
            name="lint",
            passed=not new,
            required=False,
            score=1 / (1 + len(new)),
            message=f"{len(new)} new finding{'' if len(new) == 1 else 's'}" if new else "",
            problems=tuple(map(str, new[:_MAX_FINDINGS])),
            details={name: text for name, text in details.items() if text},
        )

    async def _linted(self, files: CloneFiles) -> list[Linted]:
        inventory = Inventory(files.tree, await files.paths())
        linters = await asyncio.to_thread(configured_linters, inventory.files, inventory.text)
        changed = inventory.files & set(self.patch.paths)
        return await run_linters(linters, files.clone, inventory, changed, seconds=_LINT_SECONDS)


def _counted(findings: Iterable[LintFinding]) -> Counter[tuple[str, str, str]]:
    return Counter(map(_identity, findings))


def _take_one(finding: LintFinding, counts: Counter[tuple[str, str, str]]) -> bool:
    """Whether there are more findings like this one than before; reduces their count by one."""
    counts[_identity(finding)] -= 1
    return counts[_identity(finding)] >= 0


def _identity(finding: LintFinding) -> tuple[str, str, str]:
    """The identity of a finding, without line and numbers, which change when code moves or grows."""
    return finding.path, finding.code, _NUMBER.sub("", finding.message)


def _skipped(reason: str) -> CheckResult:
    return CheckResult(kind=CheckKind.LINT, name="lint", passed=False, required=False, skipped_reason=reason[:1_000])


_PYTHON_SECONDS = 120.0
_GO_SECONDS = 600.0
_MAX_FILES = 500
_NO_CODE = frozenset({"fixtures", "testdata", "templates", "data", "snapshots"})
_MAX_FAULTS = 20
# A file that did not compile before is not reported.
_PROGRAM = """
import json, subprocess, sys
def fault(code, name):
    try:
        compile(code, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return "%s:%s: %s" % (name, error.lineno or 0, error.msg)
    except Exception as error:
        return "%s: %s" % (name, error)
found = []
for name in sys.argv[2:]:
    try:
        with open(name, "rb") as file:
            said = fault(file.read(), name)
    except OSError:
        continue
    if said:
        before = subprocess.run(["git", "show", sys.argv[1] + ":" + name], capture_output=True)
        if before.returncode or not fault(before.stdout, name):
            found.append(said)
print(json.dumps(found))
"""


async def compile_faults(
    patch: Patch, files: CloneFiles, clean_clone: CleanClone, *, base_commit: str
) -> tuple[str, ...]:
    """The new compiler errors, by file and line: of changed Python files, and of Go modules that compiled before.

    `base_commit` is the commit without the patch, whose objects the clone has. Rust and builds of package scripts are
    left to the tests.
    """
    python = [path for path in patch.paths if path.endswith(".py") and not _NO_CODE & set(PurePosixPath(path).parts)]
    faults = await _python(files.clone, base_commit, python[:_MAX_FILES]) if python else ()
    if any(file.path.endswith((".go", "go.mod")) for file in patch.files):
        faults = (*faults, *await _go(files, clean_clone))
    return faults[:_MAX_FAULTS]


async def _python(clone: Clone, base_commit: str, paths: Sequence[str]) -> tuple[str, ...]:
    argv = ("python3", "-I", "-W", "ignore", "-c", _PROGRAM, base_commit, *paths)
    result = await clone.run(Command(argv=argv, timeout_seconds=_PYTHON_SECONDS))
    if not result.ok:
        return ()  # no interpreter, or a too old one: the tests will show more
    try:
        answer: object = json.loads(result.stdout.text())
    except ValueError:
        return ()
    return tuple(str(fault)[:500] for fault in answer) if is_list(answer) else ()


async def _go(files: CloneFiles, clean_clone: CleanClone) -> tuple[str, ...]:
    modules = sorted(
        str(PurePosixPath(path).parent) for path in await files.paths() if PurePosixPath(path).name == "go.mod"
    )
    broken = [(module, errors) for module in modules[:10] if (errors := await _built(files.clone, module))]
    if not broken:
        return ()
    async with clean_clone("build-base") as base:
        return tuple([line for module, errors in broken if not await _built(base, module) for line in errors])


async def _built(clone: Clone, module: str) -> tuple[str, ...]:
    """The compiler's errors in a module; none where it compiles, or Go is not installed."""
    if not (clone.root / module).is_dir():
        return ()
    command = Command(
        argv=("go", "build", "-o", "/dev/null", "./..."), cwd=module, timeout_seconds=_GO_SECONDS, merge_stderr=True
    )
    result = await clone.run(command)
    if result.ok or result.exit_code == 127 or result.timed_out:
        return ()
    lines = [line[:500] for line in result.stdout.text().splitlines() if line.strip() and not line.startswith("#")]
    return tuple(lines[:_MAX_FAULTS]) or (f"go build ends with exit code {result.exit_code}",)
