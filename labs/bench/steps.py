"""The scripted model of a bench, in a process of its own: some shell steps, then the final answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

COMMAND = "echo step >> notes.log; wc -l notes.log"
FILES = {"README.md": "A repository.\n", ".gitignore": "*.log\n"}
"""The notes are ignored by git, so that no candidate differs and no check runs into a measurement."""


@asynccontextmanager
async def scripted_steps(directory: Path, *, steps: int, latency: float) -> AsyncGenerator[tuple[str, int]]:
    """The server's (URL, process id); each reply takes `latency` seconds."""
    script = directory / f"script-{steps}.json"
    turns: list[dict[str, object]] = [
        {"tool_calls": [["shell_run_command", {"command": COMMAND}]], "times": steps},
        {"tool_calls": [["final_answer", {"result": "All steps taken."}]]},
    ]
    script.write_text(json.dumps({"conversations": [{"turns": turns}]}))
    process = subprocess.Popen(
        [sys.executable, "-m", "swe_ai_fleet.testing.scripted_model", str(script), "--latency", str(latency)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], process.pid
    finally:
        process.terminate()
        process.wait()
