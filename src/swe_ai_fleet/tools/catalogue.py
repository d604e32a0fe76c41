"""The catalogue of toolkits: all of them, those of one agent run, and the services that they may use."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.command import NetworkGrant, NetworkRules
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import ApprovalPolicy, Constraints, Role, Task
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy
from swe_ai_fleet.tools.base_tool import BaseTool
from swe_ai_fleet.tools.builtin import PROPOSE, BuiltinSettings, BuiltinTools
from swe_ai_fleet.tools.definition import Definition
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.git import GitTool
from swe_ai_fleet.tools.git.gateway import RemoteGrant
from swe_ai_fleet.tools.git.remotes import GitRemotes
from swe_ai_fleet.tools.http import HttpTool
from swe_ai_fleet.tools.http_transport import HttpPolicy
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pack import ToolPack, installed_packs, unconfigured_packs
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.registry import RegisteredTools
from swe_ai_fleet.tools.shell import ShellTool
from swe_ai_fleet.tools.tests import TestTool

_CORE_TOOLKITS: tuple[type[Toolkit], ...] = (FileTool, GitTool, TestTool, ShellTool, HttpTool, BuiltinTools)
_CODING = frozenset(
    ("shell_run_command", "files_read_file", "files_edit_file", "files_search_in_files", "tests_run", "git_diff")
)
_LOOKING = frozenset(
    (
        *(f"files_{name}" for name in ("read_file", "search_in_files", "list_files", "repo_map", "write_file")),
        *(f"git_{name}" for name in ("status", "diff", "log", "show")),
    )
)
_PROFILES: Mapping[Role, frozenset[str]] = {
    **dict.fromkeys(Role, _CODING),
    Role.QA: _CODING | {"tests_lint"},
    Role.ARCHITECT: _LOOKING,
}
_DONE_BY_COMMANDS = frozenset(
    {
        *(f"files_{name}" for name in ("append_file", "move_file", "copy_file", "delete_file", "mkdir", "file_info")),
        *("files_list_files", "files_diff_files", "calculator", "python_executor", "tests_pytest", "git_status"),
        *(f"git_{name}" for name in ("add", "commit", "log", "show", "checkout", "branch", "blame", "stash", "merge")),
        "git_revert",
    }
)
"""Not listed for a model that has the shell: it uses commands instead."""
REMOTE_OPERATIONS = frozenset({"git_clone", "git_fetch", "git_pull", "git_push"})
"""Git operations that need a granted remote."""
RUNNERS = frozenset(f"tests_{name}" for name in ("unittest", "go_test", "npm_test", "cargo_test", "make_test"))
"""Runners that `tests_run` chooses by itself."""
PLUGINS = "plugins"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAccess:
    """The services that an operator configured, and the hosts that tasks may request.

    `packs` are the toolkits of extensions, `plugins` the tools of other distributions. Git reaches `remotes` from a
    `sandbox`.
    """

    network: NetworkRules = field(default_factory=NetworkRules)
    remotes: tuple[RemoteGrant, ...] = ()
    builtin: BuiltinSettings = field(default_factory=lambda: BuiltinSettings(wikipedia_url=""))
    packs: tuple[ToolPack, ...] = field(default_factory=unconfigured_packs)
    plugins: tuple[BaseTool, ...] = ()
    sandbox: SandboxPolicy = field(default_factory=SandboxPolicy)

    def hosts(self, constraints: Constraints) -> NetworkGrant | None:
        """The hosts that a task may reach. Raises InvalidRequest for one that is not grantable."""
        return self.network.grant(constraints.allowed_hosts) or None

    def servers(self, constraints: Constraints) -> frozenset[str]:
        """The names of the servers whose tools a task has. Raises InvalidRequest naming a field of its constraints."""
        names = frozenset(name for pack in self.packs for name in pack.server_names(constraints))
        for number, requested in enumerate(constraints.mcp_servers):
            if requested.name not in names:
                raise InvalidRequest(
                    "this installation reaches no MCP servers: its extension `mcp` was removed",
                    field=f"constraints.mcp_servers[{number}]",
                    hint="leave them out, or install the extension",
                )
        return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolset:
    """The toolkits of one run by name; `gaps` are the missing ones, as the model is told.

    `idle` are the operations that the model does not see at first, `unlisted` those of them that are not listed for it
    either; all can be called.
    """

    toolkits: dict[str, Toolkit]
    idle: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    gaps: tuple[str, ...] = ()


def toolkits() -> Iterator[type[Toolkit]]:
    """Every toolkit of the catalogue; all can be made from a workspace and a pipeline alone."""
    yield from _CORE_TOOLKITS
    yield from (pack.kit for pack in installed_packs())


def operations() -> dict[str, Definition]:
    """Every operation of the catalogue by its name for models; MCP servers and plug-ins add others."""
    kits = (*toolkits(), BuiltinTools())
    return {definition.spec.name: definition for kit in kits for definition in kit.definitions.values()}


def shown_first(role: Role) -> frozenset[str]:
    """The operations that a role's models see from the start, if they are usable.

    All others that policy permits can be called by name, and shown on request. Every schema costs tokens, and makes the
    choice harder.
    """
    return _PROFILES[role].union(*(pack.shown.get(role, ()) for pack in installed_packs()))


def all_toolkits(workspace: Workspace, pipeline: Pipeline, access: ToolAccess) -> dict[str, Toolkit]:
    """The toolkits for a program's own calls; one without its service says so when it is called."""
    of_packs = (pack.toolkit(workspace, pipeline) for pack in access.packs)
    kits = (*_core_toolkits(workspace, pipeline, access), *filter(None, of_packs))
    return {kit.name: kit for kit in kits}


def _core_toolkits(workspace: Workspace, pipeline: Pipeline, access: ToolAccess) -> tuple[Toolkit, ...]:
    grant = HttpPolicy.of(workspace.environment.network or NetworkGrant())
    return (
        FileTool(workspace, pipeline),
        GitTool(workspace, pipeline, remotes=GitRemotes(Sandbox(access.sandbox), access.remotes)),
        TestTool(workspace, pipeline),
        ShellTool(workspace, pipeline),
        HttpTool(workspace, pipeline, policy=grant),
        BuiltinTools(workspace, pipeline, settings=replace(access.builtin, pages=grant)),
    )


@asynccontextmanager
async def open_toolkits(
    workspace: Workspace, pipeline: Pipeline, access: ToolAccess, task: Task
) -> AsyncGenerator[Toolset]:
    """The toolkits of one agent run, open until the context ends, without those whose service is not configured."""
    access = replace(access, sandbox=replace(access.sandbox, tenant=task.tenant))
    kits = {kit.name: kit for kit in _core_toolkits(workspace, pipeline, access)}
    if access.plugins:
        kits[PLUGINS] = RegisteredTools(access.plugins, workspace, pipeline)
        kits[PLUGINS].chosen = True
    async with AsyncExitStack() as stack:
        for pack in access.packs:
            taken = kits.keys() | {spec.name for spec in _specs(kits.values())}
            if (kit := pack.toolkit(workspace, pipeline, task, taken)) is not None:
                kits[kit.name] = await stack.enter_async_context(kit)
        idle, unlisted = _idle(kits, access, task, networked=workspace.environment.network is not None)
        shell = kits[ShellTool.name].definitions["run_command"].spec
        # Under other policies, commands may have to wait for a person.
        unattended = task.approval in (ApprovalPolicy.NONE, ApprovalPolicy.PLAN)
        if unattended and shell.name not in idle and pipeline.policy.offers(shell):
            unlisted |= idle & _DONE_BY_COMMANDS
        gaps = tuple(gap for kit in kits.values() for gap in kit.gaps)
        yield Toolset(toolkits=kits, idle=idle, unlisted=unlisted, gaps=gaps)


def _idle(
    kits: Mapping[str, Toolkit], access: ToolAccess, task: Task, *, networked: bool
) -> tuple[frozenset[str], frozenset[str]]:
    """The operations not shown at first (neither of the role nor named by the task), and the unusable ones of them."""
    requested = {*task.tools, *task.constraints.allowed_tools}
    profile = set(shown_first(task.role))
    if task.constraints.allowed_hosts:
        profile.add("http_get")
    if task.approval is ApprovalPolicy.PLAN:
        profile.add(PROPOSE)
    useless = _useless(kits, access, task, networked=networked)
    idle = frozenset(
        spec.name
        for spec in _specs(kit for kit in kits.values() if not kit.chosen)
        if not {spec.name, spec.tool} & requested and (spec.name in useless or spec.name not in profile)
    )
    return idle, idle & useless


def _useless(kits: Mapping[str, Toolkit], access: ToolAccess, task: Task, *, networked: bool) -> frozenset[str]:
    """The operations that lack a network, a remote or a service, and some that others replace."""
    of_use = {
        HttpTool.name: networked,
        "web_search": bool(access.builtin.search_url),
        "search_wikipedia": bool(access.builtin.wikipedia_url),
        "read_webpage": networked,
        # No person answers questions during a run, and only a plan policy needs a proposal.
        "ask_user": False,
        PROPOSE: task.approval is ApprovalPolicy.PLAN,
        **dict.fromkeys(REMOTE_OPERATIONS, bool(access.remotes)),
        **dict.fromkeys(RUNNERS, False),
        **{name: False for pack in access.packs for name in pack.useless},
    }
    return frozenset(
        spec.name for spec in _specs(kits.values()) if not of_use.get(spec.name, of_use.get(spec.tool, True))
    )


def _specs(kits: Iterable[Toolkit]) -> Iterator[OperationSpec]:
    return (definition.spec for kit in kits for definition in kit.definitions.values())


def prompt_tokens(specs: Iterable[OperationSpec]) -> int:
    """About how many tokens of every prompt the schemas of these operations take, at four characters each."""
    functions = [{"name": spec.name, "description": spec.description, "parameters": spec.parameters} for spec in specs]
    wire = [{"type": "function", "function": function} for function in functions]
    return (len(json.dumps(wire, ensure_ascii=False, separators=(",", ":"))) + 3) // 4 if functions else 0
