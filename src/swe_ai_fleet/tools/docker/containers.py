"""Running commands in containers: to their end, within a time, with what they printed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.tools.docker.container import ContainerRequest
from swe_ai_fleet.tools.docker.engine import Engine
from swe_ai_fleet.tools.docker.names import Entry
from swe_ai_fleet.tools.docker.output import Printout
from swe_ai_fleet.tools.failure import ToolFailure

_MIB = 1024 * 1024


async def run_to_end(engine: Engine, request: ContainerRequest, name: str, *, seconds: float, limit: int) -> ToolResult:
    """Run a new container and remove it, whatever happens. Raises ToolFailure."""
    printout, late = Printout(limit), False
    identifier = await engine.create(request.config(), name)
    started_at = time.monotonic()
    try:
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                await engine.attached(identifier, printout, start=lambda: engine.start(identifier), seconds=seconds)
                if not printout.flooded:
                    await engine.wait(identifier, seconds)
        except TimeoutError:
            if not scope.expired():
                raise
            late = True
        if late or printout.flooded:
            await engine.kill(identifier)
        state = (await engine.container(identifier))["State"]
    finally:
        # What is left because the engine went away is the reaper's.
        with suppress(ToolFailure):
            await uninterrupted(engine.remove(identifier))
    note = f" (it ran out of its {request.limits.memory_mb} MiB of memory)" if state.get("OOMKilled") else ""
    return ended("docker_run", printout, code=state["ExitCode"], late=late, started_at=started_at, note=note)


async def start(engine: Engine, request: ContainerRequest, name: str) -> str:
    """Start a container that runs on by itself; its id. One that does not start is removed. Raises ToolFailure."""
    identifier = await engine.create(request.config(), name)
    try:
        await engine.start(identifier)
    except BaseException:
        with suppress(ToolFailure):
            await uninterrupted(engine.remove(identifier))
        raise
    return identifier


async def execute(
    engine: Engine, entry: Entry, command: Sequence[str], *, directory: str, seconds: float, limit: int
) -> ToolResult:
    """Run a command in a running container. Raises ToolFailure.

    The engine can't end one command of a container: one that takes too long or prints too much is ended by starting
    the container anew, a cancelled one by stopping it.
    """
    if entry.listed.get("State") != "running":
        raise ToolFailure(f"the container {entry.name} does not run ({entry.listed.get('Status')}); run another")
    started_at, printout, late = time.monotonic(), Printout(limit), False
    code: int | None = None
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            code = await engine.execute(entry.id, command, printout, directory=directory, seconds=seconds)
    except TimeoutError:
        if not scope.expired():
            raise
        late = True
    except asyncio.CancelledError:
        await uninterrupted(engine.kill(entry.id))
        raise
    note = ""
    if late or code is None:
        await uninterrupted(engine.restart(entry.id))
        note = f"; to end it the container {entry.name} was started anew"
    return ended("docker_exec", printout, code=code, late=late, started_at=started_at, note=note)


def ended(
    operation: str, printout: Printout, *, code: int | None, late: bool, started_at: float, note: str = ""
) -> ToolResult:
    """How a command ended, for a reader."""
    outcome, error = Outcome.SUCCESS, ""
    if late:
        outcome = Outcome.TIMEOUT
        error = f"stopped after {time.monotonic() - started_at:.1f} seconds, its time limit{note}"
    elif printout.flooded:
        outcome, error = Outcome.ERROR, f"stopped: it printed {printout.output.total // _MIB} MiB and more{note}"
    elif code != 0:
        outcome, error = Outcome.ERROR, f"exit code {code}{note}" if code is not None else f"it did not end{note}"
    metadata: Mapping[str, object] = {"output_bytes": printout.output.total, "flooded": printout.flooded}
    return ToolResult(
        success=outcome is Outcome.SUCCESS,
        operation=operation,
        content=printout.text(),
        error=error,
        exit_code=code,
        metadata=metadata,
        outcome=outcome,
        truncated=printout.output.elided > 0,
    )
