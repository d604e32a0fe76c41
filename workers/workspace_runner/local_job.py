"""`python -m workers.workspace_runner.local_job DIRECTORY`: what a Pod is for the local backend.

It clones, then runs the agent, each in a process of its own, and leaves in `exit.json` how that ended. Both die with
it, and it goes on when its runner dies.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from swe_ai_fleet.codec import from_json
from workers.container import FENCED, GIT_CREDENTIALS
from workers.workspace_runner.backend import EndReason, JobSpec

GIT_DIRECTORY = "FLEET_RUNNER_GIT_DIRECTORY"
SPEC, EXIT, LOG, LOCK, PID = "spec.json", "exit.json", "log.txt", "lock", "pid"
_GRACE_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


async def run(directory: Path, environment: Mapping[str, str]) -> None:
    """Carry out the steps of the job in a directory and write how they ended."""
    spec = from_json(JobSpec, (directory / SPEC).read_bytes())
    plain = {name: value for name, value in environment.items() if name not in (GIT_DIRECTORY, GIT_CREDENTIALS)}
    cloning = dict(plain)
    if directory_of_secrets := environment.get(GIT_DIRECTORY):
        cloning[GIT_CREDENTIALS] = directory_of_secrets
    steps = [("workers.agent", plain)]
    if spec.clones:
        steps.insert(0, ("workers.cloning", cloning))
    reason, message = EndReason.COMPLETED, ""
    deadline = asyncio.get_running_loop().time() + spec.deadline_seconds
    for module, variables in steps:
        code = await _step(directory, module, variables, deadline)
        if code == 0:
            continue
        if code is None:
            reason, message = EndReason.DEADLINE, f"{module} ran for longer than {spec.deadline_seconds:g} seconds"
        elif module == "workers.cloning":
            reason, message = EndReason.CLONE, f"exit code {code}"
        else:
            reason = EndReason.FENCED if code == FENCED else EndReason.ERROR
            message = f"signal {-code}" if code < 0 else f"exit code {code}"
        break
    written = directory / f"{EXIT}.new"
    written.write_text(json.dumps({"reason": reason, "message": message}))
    written.replace(directory / EXIT)


async def _step(directory: Path, module: str, variables: Mapping[str, str], deadline: float) -> int | None:
    """The exit code of a step; None: it timed out."""
    with (directory / LOG).open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module),
            cwd=directory,
            env=dict(variables),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,
        )
    try:
        async with asyncio.timeout_at(deadline):
            return await process.wait()
    except TimeoutError:
        process.terminate()
        try:
            async with asyncio.timeout(_GRACE_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        return None


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    """Run the job in the directory named on the command line."""
    # The whole group is told to end; this process waits for the steps to have ended, and says how.
    signal.signal(signal.SIGTERM, _ignore_signal)
    asyncio.run(run(Path(sys.argv[1]), os.environ))


def _ignore_signal(signal_number: int, frame: object) -> None:
    """A SIGTERM is the steps' business."""


if __name__ == "__main__":
    main()
