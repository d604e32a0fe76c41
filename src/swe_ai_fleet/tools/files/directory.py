"""A workspace out of nothing but a path, for those who use a tool alone."""

from __future__ import annotations

from pathlib import Path

from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import open_workspace


class BareDirectory:
    """A directory on this host as a workspace; each command opens a sandbox over it and closes it again.

    For many commands open the workspace yourself (`sandbox.open_workspace`): a sandbox that is up saves some
    milliseconds a command.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    @property
    def root(self) -> Path:
        return self._root

    @property
    def mount(self) -> str:
        return "/workspace"

    @property
    def environment(self) -> Environment:
        return Environment()

    async def run(self, command: Command) -> CommandResult:
        """Run a command on the strongest rung of the sandbox there is. Raises PreconditionFailed where none is."""
        async with open_workspace(self._root) as workspace:
            return await workspace.run(command)


def as_workspace(workspace: Workspace | Path | str) -> Workspace:
    """The workspace itself, or the directory of that path as one."""
    return BareDirectory(Path(workspace)) if isinstance(workspace, str | Path) else workspace
