"""The shell: any command of the agent, inside the sandbox."""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace
from functools import cache
from typing import Annotated, ClassVar

from pydantic import Field

from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.tool import FOR_PROGRAMS, Outcome, Risk, ToolResult
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.operation import BareDirectory, Toolkit, operation
from swe_ai_fleet.tools.pipeline import SHOWN, WHOLE
from swe_ai_fleet.tools.tests.reports import without_passes
from swe_ai_fleet.tools.truncation import truncate

SHELL_CHARS = 6_000
"""Shown characters of an output, since they stay in every later prompt. The whole output can be read in a file."""
_FILE_CHARS = 600_000
_PART_CHARS = 30_000
"""Characters that fit into one argument, at four bytes each."""
_SIGNAL_BASE = 128


class ShellTool(Toolkit):
    """Shell commands in the workspace."""

    name: ClassVar[str] = "shell"
    _files = 0

    @operation(executes=True, risk=Risk.HIGH, observation_chars=SHELL_CHARS)
    async def run_command(
        self,
        command: Annotated[str, Field(description="As typed into a shell.")],
        timeout_seconds: Annotated[
            float | None,
            Field(description="Below the run's own limit.", gt=0),
        ] = None,
        idle_timeout_seconds: Annotated[
            float | None,
            Field(
                description="Stop it after so many seconds without any output.",
                gt=0,
                json_schema_extra={FOR_PROGRAMS: True},
            ),
        ] = None,
    ) -> ToolResult:
        """Run a command in a fresh shell in the repository; gives stdout and stderr together.

        `cd` and variables do not carry over, and what it leaves running is killed.
        """
        if not command.strip() or "\0" in command:
            raise ToolFailure("command is empty or holds a NUL character")
        limit = self.pipeline.limits.command_timeout_seconds
        result = await self.workspace.run(
            Command(
                argv=(interpreter(self.workspace.environment), "-c", command),
                timeout_seconds=limit if timeout_seconds is None else min(timeout_seconds, limit),
                idle_timeout_seconds=idle_timeout_seconds,
                merge_stderr=True,
            )
        )
        done = command_result("shell_run_command", result)
        verbose = without_passes(done.content) is not done.content
        if not (verbose or len(done.content) > SHELL_CHARS) or isinstance(self.workspace, BareDirectory):
            return done
        if not (path := await self._write_file(done.content)):
            return done
        return replace(done, metadata={WHOLE: path, **({SHOWN: without_passes(done.content, path)} if verbose else {})})

    async def _write_file(self, text: str) -> str:
        """Write an output to a file outside the clone that commands can read; its path, or "" if that fails."""
        self._files += 1
        text, path = truncate(text, _FILE_CHARS).replace("\0", "\ufffd"), ""
        for start in range(0, len(text), _PART_CHARS):
            script = f'printf %s "$1" >{">" if start else ""} "${{TMPDIR:-/tmp}}/$0" && echo "${{TMPDIR:-/tmp}}/$0"'
            argv = ("sh", "-c", script, f"output-{self._files}.txt", text[start : start + _PART_CHARS])
            written = await self.workspace.run(Command(argv=argv, light=True))
            path = written.stdout.text().strip()
            if not written.ok:
                return ""
        return path


def interpreter(environment: Environment) -> str:
    """`bash`, or `sh` where the environment's image, or else the host, whose /usr sandboxes see, has no bash."""
    return environment.image.shell if environment.image else _host_shell()


@cache
def _host_shell() -> str:
    return "bash" if shutil.which("bash", path="/usr/bin:/bin") else "sh"


def command_result(operation_name: str, result: CommandResult) -> ToolResult:
    """A command's result as an operation's: its output, and an error text that explains how it ended."""
    outcome, error = Outcome.SUCCESS, ""
    seconds = f"{result.duration_ms / 1000:.1f}"
    if result.idle:
        outcome = Outcome.TIMEOUT
        error = f"stopped after {seconds} seconds: it printed nothing for too long. Is it waiting for input?"
    elif result.timed_out:
        outcome = Outcome.TIMEOUT
        error = (
            f"stopped after {seconds} seconds, its time limit. What it printed until then follows; run less at a time."
        )
    elif result.exit_code != 0:
        outcome, error = Outcome.ERROR, f"exit code {result.exit_code}{_signal_name(result.exit_code)}"
    return ToolResult(
        success=outcome is Outcome.SUCCESS,
        operation=operation_name,
        content=result.stdout.text().rstrip("\n"),
        error=error,
        exit_code=result.exit_code,
        outcome=outcome,
        truncated=result.stdout.elided > 0,
    )


def _signal_name(exit_code: int) -> str:
    try:
        name = signal.Signals(exit_code - _SIGNAL_BASE).name
    except ValueError:
        return ""
    return f" ({name}: out of memory, or killed)" if name == "SIGKILL" else f" ({name})"
