"""Running the linters that a repository configures, with one list of findings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.tests.reports import MAX_REPORT_BYTES
from swe_ai_fleet.tools.tests.runners.findings import Finding
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.linters import Lint, concerns, linters
from swe_ai_fleet.tools.tests.runners.premises import leaving_nothing, probe

MAX_FINDINGS_SHOWN = 200
MAX_FINDINGS_TOLD = 500
"""Findings in the metadata of one lint; more are counted only."""
_REASON_CHARS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Linted:
    """What one linter said; `failure` is why it could not be run to its end."""

    findings: list[Finding]
    failure: str = ""
    truncated: bool = False


async def lint(
    workspace: Workspace, inventory: Inventory, paths: tuple[str, ...], *, timeout_seconds: float
) -> ToolResult:
    """Run every configured linter on existing paths, all files if empty. Raises ToolFailure where none is configured.

    `timeout_seconds` is the limit of each. A linter that fails is told; the operation fails where all of them do.
    """
    scratch, _ = await probe(workspace, "sh")
    runs = linters(inventory, paths, workspace.environment.lint_command, scratch)
    if not runs:
        raise ToolFailure("no linter is configured for these files; use shell_run_command to run one")
    said = [await run_linter(run, workspace, inventory, timeout_seconds) for run in runs]
    found = [finding for part in said for finding in part.findings if concerns(finding, paths)]
    failures = [part.failure for part in said if part.failure]
    return _told(
        found,
        failures,
        ", ".join(dict.fromkeys(run.name for run in runs)),
        none_ran=len(failures) == len(runs),
        truncated=any(part.truncated for part in said),
    )


async def run_linter(run: Lint, workspace: Workspace, inventory: Inventory, timeout_seconds: float) -> Linted:
    """Run one linter; a failure is a value."""
    command = Command(
        argv=run.argv,
        cwd=run.cwd,
        variables=run.variables,
        timeout_seconds=timeout_seconds,
        output_limit=MAX_REPORT_BYTES // 2,
        merge_stderr=run.merge_stderr,
    )
    with leaving_nothing(inventory, run.transient):
        result = await workspace.run(command)
    text, truncated = result.stdout.text(), result.stdout.elided > 0
    findings = await asyncio.to_thread(run.parse, text, workspace.mount, run.cwd)
    if not result.timed_out and (findings or result.ok):
        return Linted(findings=findings or [], truncated=truncated)
    place = "" if run.cwd == "." else f" in {run.cwd}"
    if result.exit_code == 127:
        return Linted(findings=[], failure=f"{run.name}{place} is not installed in this workspace's environment.")
    why = "its time was up" if result.timed_out else f"exit code {result.exit_code}"
    words = (result.stderr.text().strip() or text.strip())[-_REASON_CHARS:]
    return Linted(findings=findings or [], failure=f"{run.name}{place} failed ({why}): {words}", truncated=truncated)


def _told(found: list[Finding], failures: list[str], ran: str, *, none_ran: bool, truncated: bool) -> ToolResult:
    count = "" if none_ran and not found else f"{len(found)} finding{'' if len(found) == 1 else 's'} ({ran})"
    more = f"[... {len(found) - MAX_FINDINGS_SHOWN} more; name paths to see them]" if found[MAX_FINDINGS_SHOWN:] else ""
    shown = "\n".join(map(str, found[:MAX_FINDINGS_SHOWN]))
    return ToolResult(
        success=not none_ran,
        operation="tests_lint",
        content="\n\n".join(part for part in (count, shown, more, *failures) if part),
        error="no linter could run" if none_ran else "",
        metadata={
            "count": len(found),
            "linters": ran,
            "findings": [_as_json(finding) for finding in found[:MAX_FINDINGS_TOLD]],
        },
        outcome=Outcome.ERROR if none_ran else Outcome.SUCCESS,
        truncated=truncated or bool(more),
    )


def _as_json(finding: Finding) -> dict[str, object]:
    return {
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "code": finding.code,
        "message": finding.message,
    }
