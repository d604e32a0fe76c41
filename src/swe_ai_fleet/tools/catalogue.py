"""The toolkits there are, and those an agent run holds."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import structlog

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

RUNNERS = frozenset(f"tests_{name}" for name in ("unittest", "go_test", "npm_test", "cargo_test", "make_test"))
"""What `tests_run` calls by itself where a repository needs it."""

PLUGINS = "plugins"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolset:
    """The toolkits of one run by name, the operations in them that it is not shown, and what could not be had."""

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
    """The toolkits of one agent run. An engine that nobody configured is not there, whoever calls it."""
    kits = all_toolkits(workspace, pipeline, access, tenant=task.tenant)
    docker = kits.pop(DockerTool.name)
    async with AsyncExitStack() as stack:
        if access.docker is not None and isinstance(docker, DockerTool):
            kits[docker.name] = await stack.enter_async_context(docker)
        if access.plugins:
            kits[PLUGINS] = RegisteredTools(access.plugins, workspace, pipeline)
        idle, notes = _idle(kits, access, task, networked=workspace.environment.network is not None), tuple[str, ...]()
        if servers := access.servers(task.constraints):
            names = {definition.spec.name for kit in kits.values() for definition in kit.definitions.values()}
            mcp = McpTool(workspace, pipeline, servers=servers, sandbox=access.sandbox, reserved=names | kits.keys())
            kits[mcp.name] = await stack.enter_async_context(mcp)
            # A server's own words are for the log: nothing that it says may stand in a system prompt.
            notes = tuple(f"Not all tools of the MCP server {name} could be had." for name in mcp.incomplete)
            for note in mcp.notes:
                _log.warning("mcp.incomplete", agent=pipeline.trail.agent_id, reason=note)
        yield Toolset(toolkits=kits, idle=idle, notes=notes)


def _idle(kits: dict[str, Toolkit], access: ToolAccess, task: Task, *, networked: bool) -> frozenset[str]:
    """What a run is not shown unless its task names it: operations without what they need, and rarely needed ones."""
    of_use = {
        HttpTool.name: networked,
        DatabaseTool.name: bool(access.databases),
        "web_search": bool(access.builtin.search_url),
        "search_wikipedia": bool(access.builtin.wikipedia_url),
        "read_webpage": networked,
        **dict.fromkeys(REMOTE_OPERATIONS, bool(access.remotes)),
        **dict.fromkeys(RUNNERS, False),
    }
    asked = {*task.tools, *task.constraints.allowed_tools}
    idle: set[str] = set()
    for kit in kits.values():
        for spec in (definition.spec for definition in kit.definitions.values()):
            shown = of_use.get(spec.name, of_use.get(spec.tool, kit.name != BuiltinTools.name))
            if not shown and not {spec.name, spec.tool} & asked:
                idle.add(spec.name)
    return frozenset(idle)
