"""What plan sessions of a service work with: memory, the web, sub-agents, the fleet, the operator's own tools."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.agents.plan_session.session import PlanSession, PlanTools
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults, MemorySearch, RepositoryMemory
from swe_ai_fleet.domain.command import Owner
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import DEFAULT_TENANT, RepoRef, UncommittedChanges
from swe_ai_fleet.domain.tool import Risk
from swe_ai_fleet.ports import Workspace, WorkspaceProvider
from swe_ai_fleet.runtime.execution_tools import FleetView, ListExecutions, Proposal, ShowExecution, TaskStarter
from swe_ai_fleet.sandbox import Sandbox
from swe_ai_fleet.tools.builtin import BuiltinSettings, BuiltinTools
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.git import GitTool
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.registry.base_tool import BaseTool, ToolParameter
from swe_ai_fleet.tools.registry.toolkit import RegisteredTools
from swe_ai_fleet.tools.secrets import Secrets

_MAX_DESCRIPTION_CHARS = 20_000
_MAX_NAME_CHARS = 300
_MAX_AGENTS = 64
_SUBMIT_SECONDS = 120.0


class StartTask(BaseTool):
    """`start_task(description, repository, ref="", agents=0) -> {execution_id, status}`.

    The same task again in the same session is the same execution, so that a plan which is carried out once more starts
    nothing twice.

    Args:
        starter: Who starts it.
        session_id: In whose plan.
        by: Who set the goal of the plan, and so is who hands the task in; empty: nobody knows.
    """

    name = "start_task"
    description = (
        "Have the fleet carry out a coding task: several agents solve it in clones of their own, the best result is "
        "put on a branch. Gives the execution's id at once; show_execution tells how it goes."
    )
    parameters = (
        ToolParameter("description", "string", "What is to be done, complete in itself."),
        ToolParameter("repository", "string", "Path or URL of the repository."),
        ToolParameter("ref", "string", "Branch, tag or commit to start from.", required=False),
        ToolParameter("agents", "integer", "How many agents solve it.", required=False),
    )
    risk = Risk.HIGH
    network = False
    locks = frozenset({"fleet"})
    time_limit_seconds = _SUBMIT_SECONDS
    late_note = "list_executions says whether it was started"

    def __init__(self, starter: TaskStarter, session_id: str, by: str = "") -> None:
        self._starter = starter
        self._by = by
        self._session_id = session_id

    async def execute(self, description: str, repository: str, ref: str = "", agents: int = 0) -> dict[str, object]:
        """The execution that was started. Raises ToolFailure for what is no task, and where none can be started."""
        description, repository, ref = description.strip(), repository.strip(), ref.strip()
        if not description or not repository:
            raise ToolFailure("a task has a description and a repository")
        for name, text, limit in (
            ("description", description, _MAX_DESCRIPTION_CHARS),
            ("repository", repository, _MAX_NAME_CHARS),
            ("ref", ref, _MAX_NAME_CHARS),
        ):
            if len(text) > limit:
                raise ToolFailure(f"the {name} is too long; at most {limit} characters")
        if not 0 <= agents <= _MAX_AGENTS:
            raise ToolFailure(f"agents goes from 1 to {_MAX_AGENTS}; leave it out for the usual number")
        proposal = Proposal(description=description, repository=repository, ref=ref, agents=agents, by=self._by)
        words = "\x1f".join((self._session_id, description, repository, ref, str(agents)))
        key = f"plan-{hashlib.sha256(words.encode('utf-8', 'replace')).hexdigest()[:32]}"
        execution_id = await self._starter.start(proposal, key=key)
        return {"execution_id": execution_id, "status": "started"}


class NothingRemembered:
    """A `MemorySearch` where no memory is kept: everything asked is a gap."""

    async def search(self, entities: Sequence[str], queries: Sequence[str]) -> MemoryResults:
        """Gaps, all of them."""
        asked = tuple(dict.fromkeys((*entities, *queries)))
        return MemoryResults(coverage=0.0 if asked else None, gaps=asked)


@dataclass(frozen=True, kw_only=True)
class PlanEquipment:
    """Opens what a session works with, for the time of one request.

    Code runs in the sandbox, in a directory that vanishes with the request.

    Attributes:
        home: Where the directory is made.
        sandbox: Of the commands.
        builtin: Which servers search the web.
        mask: Hides secrets.
        remembering: Makes of a repository's memory (None: there is none) one that asks what the fleet remembers too;
            None: nothing is remembered.
        fleet: Where executions are looked at; None: nowhere.
        starter: Starts tasks; None: none can be started.
        plugins: Tools that the operator brought.
        mcp: What the operator's MCP servers offer.
        repositories: Where repositories are looked into; None: none are.
        tenant: Whose sessions they are.
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
        """The tools of a session. Raises FleetError where sandbox or repository cannot be had."""
        place = self.home / "plans"
        await asyncio.to_thread(place.mkdir, mode=0o700, parents=True, exist_ok=True)
        scratch = await asyncio.to_thread(tempfile.TemporaryDirectory, prefix="work-", dir=place)
        try:
            async with self._workspace(session, Path(scratch.name)) as workspace:
                pipeline = Pipeline(mask=self.mask)
                kits: tuple[Toolkit, ...] = (
                    BuiltinTools(workspace, pipeline, settings=self.builtin, names=self._builtin_names()),
                    _FleetTools(self._fleet_tools(session), workspace, pipeline),
                    RegisteredTools(self.plugins, workspace, pipeline),
                    *self.mcp,
                    *(_looking(workspace, pipeline) if session.repository else ()),
                )
                repository = RepositoryMemory(workspace) if session.repository else None
                useless = frozenset[str]() if self.searches else frozenset({"research"})
                yield PlanTools(
                    workspace=workspace,
                    pipeline=pipeline,
                    toolkits={kit.name: kit for kit in kits},
                    idle=useless,
                    unlisted=useless,
                    memory=self.remembering(repository) if self.remembering else repository or NothingRemembered(),
                )
        finally:
            await asyncio.to_thread(scratch.cleanup)

    @asynccontextmanager
    async def _workspace(self, session: PlanSession, scratch: Path) -> AsyncGenerator[Workspace]:
        """A clone of the session's repository, or an empty directory."""
        if not session.repository:
            owner = Owner(tenant=self.tenant, execution_id=self._run(session.session_id))
            async with self.sandbox.workspace(scratch, owner=owner) as workspace:
                yield workspace
            return
        if self.repositories is None:
            raise InvalidRequest("this service does not read repositories", field="repository", hint="leave it out")
        wanted = RepoRef(location=session.repository, ref=session.ref, uncommitted=UncommittedChanges.IGNORE)
        pinned = await self.repositories.pin(self.tenant, wanted)
        execution_id = self._run(session.session_id)
        try:
            async with self.repositories.open(execution_id, "planner", pinned, Environment()) as clone:
                yield clone
        finally:
            await self.repositories.release(execution_id)

    @property
    def searches(self) -> bool:
        """Whether anything finds pages: without it there is nothing to begin research with."""
        return bool(self.builtin.search_url or self.builtin.wikipedia_url)

    def _builtin_names(self) -> frozenset[str]:
        web = {"web_search": self.builtin.search_url, "search_wikipedia": self.builtin.wikipedia_url}
        names = {name for name, url in web.items() if url}
        return frozenset({"calculator", "python_executor", *names, *(("read_webpage",) if names else ())})

    def _run(self, session_id: str) -> str:
        """What clones are named after: no other tenant's session has the same."""
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


def _looking(workspace: Workspace, pipeline: Pipeline) -> tuple[Toolkit, ...]:
    """What reads a repository: changes in a clone that nobody gets would be lost."""
    kits: tuple[Toolkit, ...] = (FileTool(workspace, pipeline), GitTool(workspace, pipeline))
    for kit in kits:
        kit.definitions = {
            name: definition
            for name, definition in kit.definitions.items()
            if definition.spec.read_only and not definition.spec.executes and not definition.spec.network
        }
    return kits
