"""One run of the repository's tests in a clone, by test."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from swe_ai_fleet.agents.test_summaries import test_summary
from swe_ai_fleet.domain.candidate import TestSummary
from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.tests import TestTool

_TOLD_CHARS = 64_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRun:
    """How a test run ended. `failing` has a message for each failing test that is named; content is untrusted.

    `output` is what a reader needs, `whole` everything that the commands printed. Without a `summary` no report was
    found.
    """

    success: bool
    summary: TestSummary | None = None
    failing: Mapping[str, str] = field(default_factory=dict[str, str])
    error: str = ""
    output: str = ""
    whole: str = ""
    exit_code: int | None = None
    duration_ms: int = 0
    timed_out: bool = False

    @property
    def ran(self) -> int:
        """How many tests were carried out."""
        return self.summary.passed + self.failed if self.summary else 0

    @property
    def failed(self) -> int:
        """How many tests failed or could not run, named or not."""
        return self.summary.failed + self.summary.errors if self.summary else 0


async def run_suite(workspace: Workspace, *, seconds: float, paths: Sequence[str] = ()) -> SuiteRun:
    """Run the repository's tests, all or those of some files, within so many seconds from the CPU slot on."""
    heard = _Overheard(workspace)
    limits = ToolLimits(command_timeout_seconds=seconds, observation_chars=_TOLD_CHARS)
    result = await TestTool(heard, Pipeline(limits=limits)).run(paths=list(paths))
    return SuiteRun(
        success=result.success,
        summary=test_summary(result),
        failing=_failing(result),
        error=result.error,
        output=result.content,
        whole=heard.text(),
        exit_code=result.exit_code,
        duration_ms=round(result.duration * 1000),
        timed_out=result.outcome is Outcome.TIMEOUT,
    )


def _failing(result: ToolResult) -> dict[str, str]:
    tests = result.metadata.get("tests")
    if not isinstance(tests, Mapping):
        return {}
    named = cast("Mapping[str, object]", tests).get("failing")
    items = cast("list[Mapping[str, object]]", named) if isinstance(named, list) else []
    return {str(item.get("id", "")): str(item.get("message", "")) for item in items}


class _Overheard:
    """A workspace that keeps what its heavy commands print."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._said: list[str] = []

    @property
    def root(self) -> Path:
        return self._workspace.root

    @property
    def mount(self) -> str:
        return self._workspace.mount

    @property
    def environment(self) -> Environment:
        return self._workspace.environment

    async def run(self, command: Command) -> CommandResult:
        """Run a command in the workspace."""
        result = await self._workspace.run(command)
        if not command.light:
            printed = result.stdout.text() + result.stderr.text()
            self._said.append(f"$ {shlex.join(command.argv)[:1_000]}\n{printed}\n[exit code {result.exit_code}]\n")
        return result

    def text(self) -> str:
        """Everything, command by command."""
        return "\n".join(self._said)
