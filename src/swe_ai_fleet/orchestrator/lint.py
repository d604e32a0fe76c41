"""Lint as evidence: only findings that the patch brings in count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from swe_ai_fleet.domain.candidate import CheckKind, CheckResult
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.ports import Clone
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.tests.runners.findings import parse_ruff

LINT_SECONDS = 120.0
MAX_FILES = 500


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings by (file, rule, message): line numbers move when code moves, so they do not count."""

    counts: Counter[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class NotLinted:
    """Why there are no findings to compare."""

    reason: str


async def find(clone: Clone, files: Sequence[str]) -> Findings | NotLinted:
    """What the repository's linter says about those of the files that exist now."""
    lint_command = clone.environment.lint_command
    if not lint_command:
        return NotLinted("no linter is known for this repository")
    python = [name for name in files if name.endswith((".py", ".pyi"))][:MAX_FILES]
    if not python:
        return NotLinted("no file that the linter knows was changed")
    tree = Tree(clone.root, clone.mount)
    there = [name for name in python if _exists(tree, name)]
    if not there:
        return Findings(Counter())
    result = await clone.run(
        Command(
            argv=(*lint_command, "--no-cache", "--exit-zero", "--output-format", "json", "--", *there),
            timeout_seconds=LINT_SECONDS,
        )
    )
    if not result.ok or result.stdout.elided:
        return NotLinted(f"the linter failed with exit code {result.exit_code}: {result.stderr.text()[-500:].strip()}")
    found = parse_ruff(result.stdout.text(), clone.mount)
    if found is None:
        return NotLinted("the linter's output cannot be read")
    return Findings(Counter((finding.path, finding.code, finding.message) for finding in found))


def lint_check(before: Findings | NotLinted, after: Findings | NotLinted) -> CheckResult:
    """The check: passed without new findings; otherwise its score falls as `1 / (1 + new findings)`. Never required."""
    if isinstance(before, NotLinted) or isinstance(after, NotLinted):
        reason = before.reason if isinstance(before, NotLinted) else cast("NotLinted", after).reason
        return CheckResult(kind=CheckKind.LINT, name="lint", passed=False, required=False, skipped_reason=reason)
    new = after.counts - before.counts
    problems = tuple(f"{file}: {rule} {message}" for file, rule, message in new.elements())
    return CheckResult(
        kind=CheckKind.LINT,
        name="lint",
        passed=not problems,
        required=False,
        score=1 / (1 + len(problems)),
        message=f"{len(problems)} new findings" if problems else "",
        problems=problems[:50],
    )


def _exists(tree: Tree, name: str) -> bool:
    try:
        tree.find(name)
    except ToolFailure:
        return False
    return True
