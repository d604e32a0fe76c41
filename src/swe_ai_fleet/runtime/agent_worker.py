"""Runs agents and checks in this process: `AgentWorker`, and everything it needs, opened by `open_worker`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast

import structlog
from structlog.contextvars import bound_contextvars

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.adapters.jetstream import TIMEOUT_SECONDS
from swe_ai_fleet.agents.answering import AnswerRun, OperateRun
from swe_ai_fleet.agents.coding_run import CodingRun, OpeningRun
from swe_ai_fleet.agents.deriving import DeriveRun
from swe_ai_fleet.agents.external_agent import ExternalRun
from swe_ai_fleet.agents.judging import JudgeRun
from swe_ai_fleet.agents.reviewing import ReviewRun
from swe_ai_fleet.agents.run_deps import RunRecorder
from swe_ai_fleet.agents.scoring import RubricJudge, ScoreRun
from swe_ai_fleet.domain.assignment import (
    AnswerAssignment,
    Assignment,
    AssignmentKind,
    BaselineAssignment,
    CheckAssignment,
    CodingAssignment,
    ExamineAssignment,
    OpeningAssignment,
    RecordedAssignment,
)
from swe_ai_fleet.domain.task import PinnedRepository
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.orchestrator.evidence import EvidenceGatherer
from swe_ai_fleet.orchestrator.evidence.test_runs import TEST_RUNS_BUCKET, KnownBaselines, TestRuns
from swe_ai_fleet.orchestrator.recipes import RECIPES_BUCKET, Recipes
from swe_ai_fleet.ports import ChatModel, Clone, EvidenceWorkspaces, Workshops, WorkspaceProvider
from swe_ai_fleet.runtime.factories import connect_log, housekeeping, workspace_provider
from swe_ai_fleet.runtime.knowledge import open_context_client
from swe_ai_fleet.runtime.run_deps import open_run_deps, outside_agents
from swe_ai_fleet.runtime.tool_services import with_isolation_level
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import own_telemetry
from swe_ai_fleet.tools.catalogue import ToolAccess, operations

Prepare = Callable[[GitWorkspaceProvider], EvidenceWorkspaces]
T = TypeVar("T")
_log = structlog.get_logger(__name__)


class Run(Protocol):
    """Runs one kind of assignment in a clone."""

    def run(self, assignment: Any, clone: Clone) -> Awaitable[object]: ...


@dataclass(frozen=True, kw_only=True)
class AgentWorker:
    """Runs assignments in this process. Made by `open_worker`."""

    workspaces: WorkspaceProvider
    workshops: Workshops
    runs: Mapping[AssignmentKind, Run]
    external: ExternalRun
    derivations: DeriveRun
    evidence: EvidenceGatherer
    access: ToolAccess
    models: Mapping[str, ChatModel] = field(default_factory=dict[str, ChatModel])
    _removals: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def run(self, assignment: Assignment[T]) -> T:
        """Run one assignment in its own clone. Raises FleetErrors of the work.

        The clone and its sandbox are removed in the background after the result is returned; without a result (a
        fault, a cancellation) they are gone when this returns.
        """
        untyped: Any = assignment
        with bound_contextvars(**assignment.ids):
            if isinstance(untyped, CheckAssignment):
                return cast("T", await self.evidence.gather(untyped))
            if isinstance(untyped, BaselineAssignment):
                return cast("T", await self.evidence.baseline(untyped))
            if isinstance(untyped, ExamineAssignment):
                return cast("T", await self.evidence.examine(untyped))
            if untyped.repository is None:
                return cast("T", await self.derivations.run(untyped, None))
            outside = isinstance(untyped, CodingAssignment) and bool(untyped.perspective.endpoint)
            kind: Any = self.external if outside else self.runs[untyped.kind]
            async with AsyncExitStack() as opened:
                clone = await opened.enter_async_context(self._clone(untyped, untyped.repository))
                result = await kind.run(untyped, clone)
                removal = asyncio.create_task(opened.pop_all().aclose(), name="removal of a clone")
            self._removals.add(removal)
            removal.add_done_callback(self._removed)
            return result

    async def settled(self) -> None:
        """Wait until the clones of all returned results are removed."""
        while self._removals:
            await asyncio.wait(self._removals)

    def _removed(self, removal: asyncio.Task[None]) -> None:
        self._removals.discard(removal)
        if not removal.cancelled() and (error := removal.exception()) is not None:
            _log.error("a clone was not removed", exc_info=error)

    @asynccontextmanager
    async def _clone(
        self, assignment: RecordedAssignment[object] | OpeningAssignment, repository: PinnedRepository
    ) -> AsyncGenerator[Clone]:
        task = assignment.task
        environment = await self.workspaces.environment(repository, task.environment)
        if isinstance(assignment, AnswerAssignment) and assignment.workshop:
            async with self.workshops.workshop(
                assignment.execution_id, assignment.agent_id, repository, environment
            ) as clone:
                yield clone
            return
        environment = replace(environment, network=self.access.hosts(task.constraints))
        async with self.workspaces.open(assignment.execution_id, assignment.agent_id, repository, environment) as clone:
            yield clone


@asynccontextmanager
async def open_worker(settings: Settings, *, host: str, prepared: Prepare | None = None) -> AsyncGenerator[AgentWorker]:
    """Connect to the log and the model and set up workspaces, until the context ends.

    `prepared` turns the node's workspaces into those of a container whose repository is already cloned.
    """
    settings, telemetry = await with_isolation_level(settings), own_telemetry()
    async with (
        connect_log(settings, name=host, waits=TIMEOUT_SECONDS) as log,
        log.live_texts() as live,
        open_context_client(settings) as context,
        open_run_deps(settings, live=live, memories=context) as deps,
    ):
        test_runs = TestRuns(log.made_bucket(TEST_RUNS_BUCKET))
        deps = replace(deps, baselines=KnownBaselines(test_runs))
        provider = workspace_provider(settings, log, Recipes(log.made_bucket(RECIPES_BUCKET)))
        await provider.warm()
        # This builds the operations' schemas, once per process: now rather than during the first task.
        operations()
        workspaces = prepared(provider) if prepared is not None else provider
        recorder = RunRecorder(
            deps=deps,
            log=telemetry.observed(log),
            blobs=log,
            audit_key=settings.audit_key.encode(),
            host=host,
        )
        derivations = DeriveRun(recorder=recorder)
        runs: dict[AssignmentKind, Run] = {
            AssignmentKind.RUN: CodingRun(
                recorder=recorder,
                results=telemetry.results(log),
                approval_timeout_seconds=settings.approval_timeout_seconds,
                checkpoint_seconds=settings.checkpoint_seconds,
            ),
            AssignmentKind.REVIEW: ReviewRun(recorder=recorder, workspaces=workspaces),
            AssignmentKind.JUDGE: JudgeRun(recorder=recorder),
            AssignmentKind.SCORE: ScoreRun(recorder=recorder),
            AssignmentKind.DERIVE: derivations,
            AssignmentKind.ANSWER: AnswerRun(recorder=recorder),
            AssignmentKind.OPERATE: OperateRun(recorder=recorder),
            AssignmentKind.OPENING: OpeningRun(deps=deps),
        }
        evidence = EvidenceGatherer(
            workspaces=workspaces,
            blobs=log,
            access=deps.access,
            mask=deps.mask,
            runs=test_runs,
            rubric=RubricJudge(deps=deps),
        )
        # Killed hosts may have left workspaces on this node, and the orchestrator may be on another one.
        async with housekeeping(provider, settings):
            worker = AgentWorker(
                workspaces=workspaces,
                workshops=provider,
                runs=runs,
                external=ExternalRun(
                    recorder=recorder,
                    results=telemetry.results(log),
                    outside=outside_agents(settings, deps.mask),
                    harnesses=next((open_(settings, deps.access) for open_ in load_parts("harnesses")), None),
                ),
                derivations=derivations,
                evidence=evidence,
                access=deps.access,
                models=deps.models,
            )
            try:
                yield worker
            finally:
                await worker.settled()
