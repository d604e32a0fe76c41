"""Plan sessions from settings: their limits, model, storage and tools, and the memory that gets their outcomes.

The tools are memory, the web, sub-agents, the fleet, and those of the operator.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from swe_ai_fleet.agents.recollections import FleetMemory
from swe_ai_fleet.agents.run_deps import ANY_MODEL
from swe_ai_fleet.agents.sub_agents.memory import MemorySearch, RepositoryMemory
from swe_ai_fleet.domain.command import Owner
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.memory import MemoryScope
from swe_ai_fleet.domain.task import DEFAULT_TENANT, RepoRef, TaskKind, UncommittedChanges
from swe_ai_fleet.extensions.plans.drive import PlanDriver, TenantPlanner
from swe_ai_fleet.extensions.plans.session import PlanSession, PlanTools
from swe_ai_fleet.extensions.plans.sessions import PlanSessions
from swe_ai_fleet.extensions.plans.store import KeyValueSessions
from swe_ai_fleet.in_process import MemoryKeyValue
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.ports import KeyValue, Workspace, WorkspaceProvider
from swe_ai_fleet.runtime.default_tools import NothingRemembered
from swe_ai_fleet.runtime.execution_tools import FleetView, ListExecutions, ShowExecution, StartTask, TaskStarter
from swe_ai_fleet.runtime.factories import open_model
from swe_ai_fleet.runtime.knowledge import ContextClient
from swe_ai_fleet.runtime.own_executions import own_executions
from swe_ai_fleet.runtime.run_deps import chat_limits, model_prices, sub_agent_limits
from swe_ai_fleet.runtime.tool_services import (
    make_sandbox,
    operator_tools,
    secret_mask,
    tool_access,
    with_isolation_level,
)
from swe_ai_fleet.sandbox import Sandbox
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.base_tool import BaseTool
from swe_ai_fleet.tools.builtin import BuiltinSettings, BuiltinTools
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.git import GitTool
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.registry import RegisteredTools
from swe_ai_fleet.tools.secrets import Secrets

MODEL_TIMEOUT_SECONDS = 60.0
"""How long a plan waits for a model server that is down: long enough for a restart, while a person waits."""
_RESERVED = frozenset(
    {"list_executions", "show_execution", "start_task", "search_memory", "research", "call_planner", "call_verifier",
     "call_executor", "call_generator", "calculator", "python_executor", "read_webpage", "web_search",
     "search_wikipedia", "propose_approach", "ask_user", "request_tools", "final_answer", "builtin", "fleet",
     "registered", "sub_agents", "plan_session"}
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlanDeps:
    """Opens the workspace and the tools of a session for one request.

    Code runs in the sandbox, in a directory that is deleted after the request.

    Attributes:
        remembering: Combines a repository's memory (None: no repository) with the memories of the fleet; None: the
            fleet has no memory.
    """

    home: Path
    sandbox: Sandbox
    builtin: BuiltinSettings
    mask: Secrets
    fleet: FleetView | None = None
    starter: TaskStarter | None = None
    plugins: tuple[BaseTool, ...] = ()
    mcp: tuple[Toolkit, ...] = ()
    remembering: Callable[[MemorySearch | None], MemorySearch] | None = None
    repositories: WorkspaceProvider | None = None
    tenant: str = DEFAULT_TENANT

    @asynccontextmanager
    async def open(self, session: PlanSession) -> AsyncGenerator[PlanTools]:
        """The tools of a session. Raises FleetError where the sandbox or the repository cannot be opened."""
        directory = self.home / "plans"
        await asyncio.to_thread(directory.mkdir, mode=0o700, parents=True, exist_ok=True)
        scratch = await asyncio.to_thread(tempfile.TemporaryDirectory, prefix="work-", dir=directory)
        try:
            async with self._workspace(session, Path(scratch.name)) as workspace:
                pipeline = Pipeline(mask=self.mask)
                kits: tuple[Toolkit, ...] = (
                    BuiltinTools(workspace, pipeline, settings=self.builtin, names=self._builtin_names()),
                    _FleetTools(self._fleet_tools(session), workspace, pipeline),
                    RegisteredTools(self.plugins, workspace, pipeline),
                    *self.mcp,
                    *(_repository_tools(workspace, pipeline) if session.repository else ()),
                )
                repository = RepositoryMemory(workspace) if session.repository else None
                # Without a search engine, research has no page to begin with.
                searches = self.builtin.search_url or self.builtin.wikipedia_url
                unusable = frozenset[str]() if searches else frozenset({"research"})
                yield PlanTools(
                    workspace=workspace,
                    pipeline=pipeline,
                    toolkits={kit.name: kit for kit in kits},
                    idle=unusable,
                    unlisted=unusable,
                    memory=self.remembering(repository) if self.remembering else repository or NothingRemembered(),
                )
        finally:
            await asyncio.to_thread(scratch.cleanup)

    @asynccontextmanager
    async def _workspace(self, session: PlanSession, scratch: Path) -> AsyncGenerator[Workspace]:
        """A clone of the session's repository, or an empty directory."""
        if not session.repository:
            owner = Owner(tenant=self.tenant, execution_id=self._clone_name(session.session_id))
            async with self.sandbox.workspace(scratch, owner=owner) as workspace:
                yield workspace
            return
        if self.repositories is None:
            raise InvalidRequest("this service does not read repositories", field="repository", hint="leave it out")
        reference = RepoRef(location=session.repository, ref=session.ref, uncommitted=UncommittedChanges.IGNORE)
        pinned = await self.repositories.pin(self.tenant, reference)
        execution_id = self._clone_name(session.session_id)
        try:
            async with self.repositories.open(execution_id, "planner", pinned, Environment()) as clone:
                yield clone
        finally:
            await self.repositories.release(execution_id)

    def _builtin_names(self) -> frozenset[str]:
        web = {"web_search": self.builtin.search_url, "search_wikipedia": self.builtin.wikipedia_url}
        names = {name for name, url in web.items() if url}
        return frozenset({"calculator", "python_executor", *names, *(("read_webpage",) if names else ())})

    def _clone_name(self, session_id: str) -> str:
        """The name of a session's clones, which no session of another tenant has."""
        return f"plan-{session_id}" if self.tenant == DEFAULT_TENANT else f"plan-{self.tenant}.{session_id}"

    def _fleet_tools(self, session: PlanSession) -> list[BaseTool]:
        tools: list[BaseTool] = []
        if self.fleet is not None:
            tools += [ListExecutions(self.fleet), ShowExecution(self.fleet)]
        if self.starter is not None:
            tools.append(StartTask(self.starter, session.session_id, session.started_by))
        return tools


class _FleetTools(RegisteredTools):
    name = "fleet"


def _repository_tools(workspace: Workspace, pipeline: Pipeline) -> tuple[Toolkit, ...]:
    """The operations that read a repository: nobody would get the changes that others make in the clone."""
    kits: tuple[Toolkit, ...] = (FileTool(workspace, pipeline), GitTool(workspace, pipeline))
    for kit in kits:
        kit.definitions = {
            name: definition
            for name, definition in kit.definitions.items()
            if definition.spec.read_only and not definition.spec.executes and not definition.spec.network
        }
    return kits


@asynccontextmanager
async def open_plans(settings: Settings) -> AsyncGenerator[PlanSessions]:
    """Plan sessions of a program, without a fleet, until the context ends; see `open_tenant_plans`."""
    async with open_tenant_plans(settings) as plans:
        yield plans(DEFAULT_TENANT)


@asynccontextmanager
async def open_tenant_plans(
    settings: Settings,
    *,
    executions: Executions | None = None,
    buckets: tuple[KeyValue, KeyValue] | None = None,
    context: ContextClient | None = None,
    fleet: Callable[[str], FleetView | None] = lambda _: None,
    starter: Callable[[str], TaskStarter | None] = lambda _: None,
    repositories: WorkspaceProvider | None = None,
) -> AsyncGenerator[Callable[[str], PlanSessions]]:
    """The plan sessions of a service by tenant, driven with their own model client until the context ends.

    Tenants cannot reach each other's sessions.

    Args:
        executions: The executions that goals become; None: executions in the memory of this process.
        buckets: The stores of sessions and their parts; None: sessions end with the process.
        context: The memory that is searched, and gets the outcomes of goals; None: no memory.
        fleet: Shows the executions of a tenant; None: sessions cannot see any.
        starter: Starts tasks of a tenant; None: sessions cannot start any.
        repositories: Opens the repositories of goals; None: goals with a repository are refused.

    Raises:
        InvalidRequest: No model server is configured, or a setting is malformed.
        PreconditionFailed: The sandbox of the settings is not available here.
    """
    confined = await with_isolation_level(settings)
    access, mask, prices = tool_access(settings), secret_mask(settings), model_prices(settings)
    timeout = min(settings.model_patience_seconds, MODEL_TIMEOUT_SECONDS)
    async with (
        open_model(settings.model_copy(update={"model_patience_seconds": timeout})) as model,
        operator_tools(confined, settings.home / "plans" / "mcp", reserved=_RESERVED) as mcp,
        AsyncExitStack() as stack,
    ):
        sandbox = make_sandbox(confined)
        if executions is None:
            executions = await stack.enter_async_context(own_executions(settings, model))

        in_memory = MemoryKeyValue(), MemoryKeyValue()

        @cache
        def planner(tenant: str) -> TenantPlanner:
            scope = MemoryScope(tenant=tenant)
            deps = PlanDeps(
                home=settings.home,
                sandbox=sandbox,
                builtin=access.builtin,
                mask=mask,
                remembering=partial(FleetMemory, context, scope, mask=mask) if context is not None else None,
                fleet=fleet(tenant),
                starter=starter(tenant),
                plugins=access.plugins,
                mcp=mcp,
                repositories=repositories,
                tenant=tenant,
            )
            return TenantPlanner(
                model=model,
                tools=deps.open,
                store=KeyValueSessions(*(buckets or in_memory), tenant=tenant),
                limits=chat_limits(settings),
                sub_agents=sub_agent_limits(settings),
                prices=prices.get(settings.model) or prices.get(ANY_MODEL),
                record=context.record_outcome if context is not None else None,
                secrets=mask,
                audit_key=settings.audit_key.encode(),
            )

        await stack.enter_async_context(executions.driving(TaskKind.PLAN, PlanDriver(planner)))
        yield lambda tenant: PlanSessions(executions, planner(tenant), tenant=tenant)
