"""Runs a model's Python code in the sandbox."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.json_values import json_object, mapping
from swe_ai_fleet.domain.tool import Outcome, Risk, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import IsolationLevel, Sandbox, SandboxPolicy, choose_isolation_level, default_slots
from swe_ai_fleet.sandbox.disk import remove_tree
from swe_ai_fleet.sandbox.jail import python
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.tools.base_tool import BaseTool, ToolParameter, as_text, presented
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.truncation import truncate

MAX_CODE_BYTES = 100_000
"""The code is passed as one argument of a process, which may have 128 KiB."""
_MAX_REPORT_BYTES = 512 * 1024
_MAX_PROCESSES = 64
_SPARE_MEMORY_BYTES = 256 * 1024 * 1024
_MAX_FILE_BYTES = 64 * 1024 * 1024
_GRACE_SECONDS = 0.5
_KILLED = 137
_TIME_IS_UP = "stopped after"


class PythonExecutor(BaseTool):
    """`python_executor(code) -> {result, code, output}`: `result` is the variable that the code sets, `output` the
    lines that it printed.

    A failed run also has a text under `error`. A result that is not JSON is returned as its repr. Each call starts a
    new Python.

    Args:
        workspace: An open workspace to run in, with its environment's Python; None: a private directory for each
            call, which is removed afterwards.
        seconds: The time limit of one call.
        memory_bytes: The memory of one process.
        max_chars: The characters of the output and of the result that are kept.
    """

    name = "python_executor"
    description = (
        "Run Python code in the sandbox and read what it printed.\n\n"
        "Set the variable `result` to hand a value back. Nothing carries over to the next call but files."
    )
    parameters = (ToolParameter("code", "string", "The program; set `result` to what you want back."),)
    network = False
    executes = True
    risk = Risk.HIGH

    def __init__(
        self,
        workspace: Workspace | None = None,
        *,
        seconds: float = 30.0,
        memory_bytes: int = 1024**3,
        max_chars: int = 20_000,
    ) -> None:
        self._workspace = workspace
        self._memory_bytes = memory_bytes
        self._max_chars = max_chars
        self._level: IsolationLevel | None = None
        self.time_limit_seconds = seconds

    async def execute(self, code: str) -> dict[str, object]:
        """Run the code to its end. Raises ToolFailure for invalid code, PreconditionFailed without a sandbox."""
        size = len(code.encode())
        if not code.strip():
            raise ToolFailure("the code is empty")
        if "\0" in code:
            raise ToolFailure("the code holds NUL, which no Python source may")
        if size > MAX_CODE_BYTES:
            raise ToolFailure(f"the code has {size} bytes, at most {MAX_CODE_BYTES} are run; read data from a file")
        async with self._open() as workspace:
            result = await workspace.run(self._command(workspace, code))
        value, error = _outcome(result, self.time_limit_seconds)
        fields: dict[str, object] = {
            "result": value,
            "code": code,
            "output": truncate(result.stdout.text().rstrip("\n"), self._max_chars).splitlines(),
        }
        return {**fields, "error": error} if error else fields

    def present(self, value: object) -> ToolResult:
        fields = mapping(value)
        error = str(fields.get("error", ""))
        lines = "\n".join(map(str, cast("list[object]", fields["output"])))
        present = {"output": lines, "result": fields["result"]}
        parts = {name: part for name, part in present.items() if part not in (None, "")}
        if parts or error:
            text = as_text(parts)
        else:
            text = "The code ran, printed nothing and set no `result`; print what you want to know, or set `result`."
        result = replace(presented(self.name, value), content=text)
        return replace(result, outcome=Outcome.TIMEOUT) if error.startswith(_TIME_IS_UP) else result

    def _command(self, workspace: Workspace, code: str) -> Command:
        # The environment's Python, if there is one, has the repository's packages.
        program = ("python3",) if workspace.environment.path else python(workspace.environment)
        return Command(
            argv=(
                *program, "-I", "-u", "-X", "utf8", "-c", _runner(),
                str(self._memory_bytes), str(self._max_chars), code,
            ),
            timeout_seconds=self.time_limit_seconds,
            output_limit=max(_MAX_REPORT_BYTES, 2 * self._max_chars),
        )  # fmt: skip

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[Workspace]:
        if self._workspace is not None:
            yield self._workspace
            return
        sandbox = await self._own_sandbox()
        parent, directory = await asyncio.to_thread(_private_directory)
        try:
            async with sandbox.workspace(directory) as workspace:
                yield workspace
        finally:
            await uninterrupted(asyncio.to_thread(remove_tree, parent, ignore_errors=True))

    async def _own_sandbox(self) -> Sandbox:
        """A sandbox for this call and the running event loop; the host's isolation level is determined once."""
        self._level = self._level or await choose_isolation_level("auto")
        policy = SandboxPolicy(
            level=self._level,
            max_processes=_MAX_PROCESSES,
            max_memory_bytes=self._memory_bytes + _SPARE_MEMORY_BYTES,
            max_file_bytes=_MAX_FILE_BYTES,
            grace_seconds=_GRACE_SECONDS,
        )
        return Sandbox(policy, default_slots())


def _outcome(result: CommandResult, seconds: float) -> tuple[object, str]:
    """(result, error) of one run: from the runner's report (untrusted, the code can forge it), else from its exit."""
    if result.timed_out:
        return None, f"{_TIME_IS_UP} {seconds:g} seconds, its time limit; do less at a time"
    line = (result.stderr.tail or result.stderr.head).rstrip(b"\n").rpartition(b"\n")[2]
    report: Mapping[str, object] = json_object(line, finite=True) if len(line) <= _MAX_REPORT_BYTES else {}
    error = report.get("error")
    if report.get("kind") in ("json", "repr", "unset") and "result" in report and isinstance(error, str):
        full = error.endswith("MemoryError")
        hint = "\n(the memory of the sandbox is used up; work on less at a time)" if full else ""
        return report["result"], error + hint
    if result.exit_code == _KILLED:
        return None, "killed: it used more memory or processes than the sandbox allows"
    if result.exit_code:
        noise = result.stderr.text().strip()[-1000:]
        return None, f"Python ended with exit code {result.exit_code} {noise}".strip()
    return None, "the code ended its process before its result could be read; leave out os._exit"


def _private_directory() -> tuple[Path, Path]:
    """(parent, workspace): other users cannot enter the parent, whatever mode the code gives the workspace."""
    parent = Path(tempfile.mkdtemp(prefix="fleet-code-"))
    directory = parent / "workspace"
    directory.mkdir()
    return parent, directory


@cache
def _runner() -> str:
    return Path(__file__).with_name("python_runner.py").read_text(encoding="utf-8")
