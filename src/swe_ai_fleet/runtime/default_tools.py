"""The default tools of a registry: the built-in ones, and those of planning, called outside of a run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.function_calling.setup import FUNCTION_CALLING
from swe_ai_fleet.agents.recollections import FleetMemory
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults, RepositoryMemory
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentLimits, SubAgentTools
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.json_values import strings
from swe_ai_fleet.domain.memory import MemoryScope
from swe_ai_fleet.domain.run import SUB_AGENT
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.base_tool import BaseTool, declared
from swe_ai_fleet.tools.builtin import WIKIPEDIA, BuiltinSettings, BuiltinTools, builtin_tools
from swe_ai_fleet.tools.definition import Definition, ToolFailure
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.git import GitTool
from swe_ai_fleet.tools.operation import BareDirectory
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.registry import ToolRegistry

Open = Callable[[], AbstractAsyncContextManager[SubAgentTools]]


def library_registry(settings: Settings | None) -> ToolRegistry:
    """The registry of a library: the default one, with the default tools made from these settings if there are any."""
    return ToolRegistry.default() if settings is None else ToolRegistry.default().over(default_tools(settings))


def default_tools(settings: Settings | None = None) -> tuple[BaseTool, ...]:
    """Every default tool, over the working directory; one whose settings are missing fails when it is called.

    Searches use the servers in the settings (for the encyclopedia, Wikipedia by default), sub-agents the model in the
    settings. `search_memory` searches the directory, if it is a clone, and the memories that `MemoryManager` stores
    under the same home.
    """
    chosen = settings or Settings()
    root = Path.cwd()
    builtin = BuiltinSettings(
        search_url=chosen.search_url, wikipedia_url=chosen.wikipedia_url or WIKIPEDIA, file_root=root
    )
    return (*builtin_tools(builtin), *planning_tools(chosen, BareDirectory(root), builtin=builtin))


def planning_tools(
    settings: Settings, workspace: Workspace, pipeline: Pipeline | None = None, *, builtin: BuiltinSettings
) -> tuple[BaseTool, ...]:
    """`search_memory`, `research` and the `call_` tools, called by themselves rather than in a run.

    Args:
        settings: For the model, the limits of a sub-agent, and the home whose memories are searched.
        pipeline: The pipeline of sub-agents' calls; None: a new one for each call.
    """
    opened = partial(_opened, settings, workspace, pipeline, builtin)
    return tuple(_SubAgentTool(definition, opened) for definition in SubAgentTools.definitions.values())


class _SubAgentTool(BaseTool):
    """An operation of `SubAgentTools` that opens what it needs for each of its calls."""

    def __init__(self, definition: Definition, opened: Open) -> None:
        spec = definition.spec
        self.name, self.description, self.parameters = spec.name, spec.description, declared(spec.parameters)
        self.read_only, self.risk, self.network, self.locks = spec.read_only, spec.risk, spec.network, spec.locks
        self.time_limit_seconds = spec.time_limit_seconds
        self._definition = definition
        self._opened = opened

    def schema(self) -> dict[str, object]:
        return dict(self._definition.spec.parameters)

    def checked(self, arguments: Mapping[str, object], spec: OperationSpec) -> dict[str, object]:
        return self._definition.validate(arguments)

    def verify(self) -> None:
        """The declaration is the operation's own, so there is nothing to check."""

    async def execute(self, **arguments: object) -> dict[str, object]:
        """The operation's result as a mapping. Raises ToolFailure where it fails."""
        async with self._opened() as kit:
            # Without an earlier memory search, the gaps are those that the caller names.
            kit.know(MemoryResults(gaps=tuple(strings(arguments.get("gaps")))))
            result = await self._definition.run(kit, arguments)
        if not result.success:
            raise ToolFailure(result.error or result.content)
        return {name: value for name, value in result.metadata.items() if name != SUB_AGENT}


@asynccontextmanager
async def _opened(
    settings: Settings, workspace: Workspace, pipeline: Pipeline | None, builtin: BuiltinSettings
) -> AsyncGenerator[SubAgentTools]:
    # These import the model client, which a calculator should not wait for.
    from swe_ai_fleet.runtime.factories import open_model
    from swe_ai_fleet.runtime.knowledge import LIBRARY, installed
    from swe_ai_fleet.runtime.tool_services import secret_mask

    mask, seconds = secret_mask(settings), settings.sub_agent_seconds
    shared = pipeline or Pipeline(mask=mask)
    kits = (BuiltinTools(workspace, shared, settings=builtin), FileTool(workspace, shared), GitTool(workspace, shared))
    memory = RepositoryMemory(workspace) if (workspace.root / ".git").exists() else None
    async with AsyncExitStack() as stack:
        if (settings.home / LIBRARY).exists() and (knowledge := installed()) is not None:
            memories = await stack.enter_async_context(knowledge.library(settings, mask))
            memory = FleetMemory(memories, MemoryScope(), memory, mask=mask)
        yield SubAgentTools(
            workspace,
            shared,
            model=await stack.enter_async_context(open_model(settings)),
            # A sub-agent gets half of its parent's budget.
            budget=Budget(replace(FUNCTION_CALLING, timeout_seconds=2 * seconds)),
            toolkits={kit.name: kit for kit in kits},
            without=() if builtin.search_url else ("web_search",),
            memory=memory or NothingRemembered(),
            limits=SubAgentLimits(each=Limits(max_iterations=5, max_tool_calls=12, timeout_seconds=seconds)),
        )


class NothingRemembered:
    """A `MemorySearch` without memories: every entity and query is a gap."""

    async def search(self, entities: Sequence[str], queries: Sequence[str]) -> MemoryResults:
        gaps = tuple(dict.fromkeys((*entities, *queries)))
        return MemoryResults(coverage=0.0 if gaps else None, gaps=gaps)
