"""The toolkits there are, and those an agent run holds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from swe_ai_fleet.domain.network import NetworkGrant
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.db import DatabaseTool
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.git import GitTool
from swe_ai_fleet.tools.http import HttpTool
from swe_ai_fleet.tools.http_transport import HttpPolicy
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.shell import ShellTool
from swe_ai_fleet.tools.tests import TestTool

TOOLKITS: tuple[type[Toolkit], ...] = (FileTool, GitTool, TestTool, ShellTool, HttpTool, DatabaseTool)
"""Every toolkit of the catalogue; all can be made from a workspace and a pipeline alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAccess:
    """What tools may use beside the workspace and its network: services that an operator configured.

    `databases` are URLs by name; those of `writable_databases` may be written.
    """

    databases: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    writable_databases: tuple[str, ...] = ()


def all_toolkits(workspace: Workspace, pipeline: Pipeline, access: ToolAccess) -> dict[str, Toolkit]:
    """Every toolkit over one workspace and one pipeline; what is not configured says so when it is called."""
    grant = workspace.environment.network
    kits: tuple[Toolkit, ...] = (
        FileTool(workspace, pipeline),
        GitTool(workspace, pipeline),
        TestTool(workspace, pipeline),
        ShellTool(workspace, pipeline),
        HttpTool(workspace, pipeline, policy=HttpPolicy.of(grant or NetworkGrant())),
        DatabaseTool(workspace, pipeline, connections=access.databases, writable=access.writable_databases),
    )
    return {kit.name: kit for kit in kits}


@asynccontextmanager
async def open_toolkits(
    workspace: Workspace, pipeline: Pipeline, access: ToolAccess
) -> AsyncGenerator[dict[str, Toolkit]]:
    """The toolkits of one agent run: those for code always, the others where the run may use what they need."""
    async with AsyncExitStack():
        kits = all_toolkits(workspace, pipeline, access)
        needed = {HttpTool.name: workspace.environment.network, DatabaseTool.name: access.databases}
        yield {name: kit for name, kit in kits.items() if needed.get(name, True)}
