"""The toolkits there are, and those an agent run holds."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from swe_ai_fleet.domain.network import NetworkGrant
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import Sandbox
from swe_ai_fleet.tools.access import ToolAccess
from swe_ai_fleet.tools.builtin import BuiltinTools
from swe_ai_fleet.tools.db import DatabaseTool
from swe_ai_fleet.tools.docker import DockerTool, Owner
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.git import GitTool
from swe_ai_fleet.tools.git.remotes import GitRemotes
from swe_ai_fleet.tools.http import HttpTool
from swe_ai_fleet.tools.http.transport import HttpPolicy
from swe_ai_fleet.tools.mcp import McpTool
from swe_ai_fleet.tools.operation import Definition, Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.registry.toolkit import RegisteredTools
from swe_ai_fleet.tools.shell import ShellTool
from swe_ai_fleet.tools.tests import TestTool

TOOLKITS: tuple[type[Toolkit], ...] = (
    FileTool,
    GitTool,
    TestTool,
    ShellTool,
    DockerTool,
    HttpTool,
    DatabaseTool,
    BuiltinTools,
    McpTool,
)
"""Every toolkit of the catalogue; all can be made from a workspace and a pipeline alone."""

REMOTE_OPERATIONS = frozenset({"git_clone", "git_fetch", "git_pull", "git_push"})
"""What git does only where a remote is granted."""

PLUGINS = "plugins"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolset:
    """The toolkits of one run by name, the operations in them that it has no use for, and what could not be had."""

    toolkits: dict[str, Toolkit]
    idle: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def operations() -> dict[str, Definition]:
    """Every operation of the catalogue, by the name that models call it by; MCP servers and plug-ins bring others."""
    kits = (*TOOLKITS, BuiltinTools())
    return {definition.spec.name: definition for kit in kits for definition in kit.definitions.values()}


def all_toolkits(
    workspace: Workspace, pipeline: Pipeline, access: ToolAccess, *, tenant: str = ""
) -> dict[str, Toolkit]:
    """The toolkits that need no opening; what is not configured says so when it is called."""
    grant = HttpPolicy.of(workspace.environment.network or NetworkGrant())
    trail = pipeline.trail
    kits: tuple[Toolkit, ...] = (
        FileTool(workspace, pipeline),
        GitTool(workspace, pipeline, remotes=GitRemotes(Sandbox(access.sandbox), access.remotes)),
        TestTool(workspace, pipeline),
        ShellTool(workspace, pipeline),
        DockerTool(
            workspace,
            pipeline,
            policy=access.docker,
            owner=Owner(tenant=tenant, execution_id=trail.execution_id, agent_id=trail.agent_id),
        ),
        HttpTool(workspace, pipeline, policy=grant),
        DatabaseTool(workspace, pipeline, connections=access.databases, writable=access.writable_databases),
        BuiltinTools(workspace, pipeline, settings=replace(access.builtin, pages=grant)),
    )
    return {kit.name: kit for kit in kits}


@asynccontextmanager
async def open_toolkits(
    workspace: Workspace, pipeline: Pipeline, access: ToolAccess, task: Task
) -> AsyncGenerator[Toolset]:
    """The toolkits of one agent run: those for code always, the others where the run may use what they need.

    Of the built-in tools a run holds those that the task names, and those for the web where they can reach it.
    """
    network = workspace.environment.network
    kits = all_toolkits(workspace, pipeline, access, tenant=task.tenant)
    needed = {HttpTool.name: network, DatabaseTool.name: access.databases, DockerTool.name: access.docker}
    held = {name: kit for name, kit in kits.items() if needed.get(name, True)}
    if access.plugins:
        held[PLUGINS] = RegisteredTools(access.plugins, workspace, pipeline)
    reserved = {definition.spec.name for kit in held.values() for definition in kit.definitions.values()}
    notes: tuple[str, ...] = ()
    async with AsyncExitStack() as stack:
        docker = held.get(DockerTool.name)
        if isinstance(docker, DockerTool):
            await stack.enter_async_context(docker)
        if servers := access.servers(task.constraints):
            names = reserved | kits.keys()
            mcp = McpTool(workspace, pipeline, servers=servers, sandbox=access.sandbox, reserved=names)
            held[mcp.name] = await stack.enter_async_context(mcp)
            notes = mcp.notes
        yield Toolset(toolkits=held, idle=_idle(kits, access, task, networked=bool(network)), notes=notes)


def _idle(kits: dict[str, Toolkit], access: ToolAccess, task: Task, *, networked: bool) -> frozenset[str]:
    """The operations that would only say that they can do nothing, and built-in ones that nobody asked for."""
    idle = frozenset[str]() if access.remotes else REMOTE_OPERATIONS
    of_use = {
        "web_search": bool(access.builtin.search_url),
        "search_wikipedia": bool(access.builtin.wikipedia_url),
        "read_webpage": networked,
    }
    builtin = {definition.spec.name for definition in kits[BuiltinTools.name].definitions.values()}
    asked = {*task.tools, *task.constraints.allowed_tools}
    return idle | frozenset(name for name in builtin - asked if not of_use.get(name, False))
