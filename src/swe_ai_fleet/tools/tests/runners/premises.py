"""What the sandbox has for a run: its directory for temporary files, programs, the report that a runner left."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import cast

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.tests.runners.inventory import Inventory

MAX_EVENT_BYTES = 16 * 1024 * 1024

_PROBE = 'printf "%s\\n" "$TMPDIR"; command -v -- "$1"'
_LEAVE = 'umask 077 && printf %s "$2" > "$1"'
_TAKE = 'test -f "$1" && cat -- "$1" && rm -f -- "$1"'


async def probe(workspace: Workspace, program: str) -> tuple[str, bool]:
    """(where temporary files go, as commands see it; whether they find a program). Raises ToolFailure."""
    asked = await workspace.run(Command(argv=("sh", "-c", _PROBE, "sh", program), light=True))
    scratch, _, found = asked.stdout.text().partition("\n")
    if not scratch.startswith("/"):
        raise ToolFailure("the workspace's environment has no directory for temporary files (TMPDIR)")
    return scratch, bool(found.strip())


async def leave(workspace: Workspace, path: str, text: str) -> None:
    """Write a small file for the next command alone to read, through the sandbox."""
    await workspace.run(Command(argv=("sh", "-c", _LEAVE, "sh", path, text), light=True))


async def written(workspace: Workspace, path: str) -> bytes | None:
    """The report that a run left, read through the sandbox; None where there is none to be trusted."""
    command = Command(
        argv=("sh", "-c", _TAKE, "sh", path), light=True, output_limit=MAX_EVENT_BYTES, timeout_seconds=60
    )
    read = await workspace.run(command)
    return read.stdout.head + read.stdout.tail if read.ok and not read.stdout.elided else None


@contextmanager
def leaving_nothing(inventory: Inventory | None, paths: Sequence[str]) -> Generator[None]:
    """Remove at the end those of the files that were not there at the start: they would show up in the diff."""
    made = [path for path in paths if inventory is not None and not inventory.has(path)]
    try:
        yield
    finally:
        for path in made:
            with suppress(ToolFailure):
                cast("Inventory", inventory).remove(path)
