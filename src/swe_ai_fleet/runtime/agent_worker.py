"""What one process needs to run agents and checks, and how it does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.adapters.jetstream import PATIENCE_SECONDS
from swe_ai_fleet.agents.answering import AnswerRun, OperateRun
from swe_ai_fleet.agents.coding_run import CodingRun
from swe_ai_fleet.agents.deriving import DeriveRun
from swe_ai_fleet.agents.external_run import ExternalRun
from swe_ai_fleet.agents.judging import JudgeRun
from swe_ai_fleet.agents.recorded_run import RunServices
from swe_ai_fleet.agents.reviewing import ReviewRun
from swe_ai_fleet.agents.rubric import RubricJudge
from swe_ai_fleet.domain.candidate import (
    Assignment,
    Candidate,
    CheckAssignment,
    CheckReport,
    DeriveAssignment,
    JudgeAssignment,
    ReviewAssignment,
)
from swe_ai_fleet.domain.node_work import Answer, AnswerAssignment, OperateAssignment
from swe_ai_fleet.domain.review import Critique, Vote
from swe_ai_fleet.domain.subtask import Derivation
from swe_ai_fleet.domain.task import PinnedRepository
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.orchestrator.evidence import EvidenceGatherer
from swe_ai_fleet.ports import ChatModel, Clone, WorkspaceProvider
from swe_ai_fleet.runtime.context_client import open_context_client
from swe_ai_fleet.runtime.councils import outside_agents
from swe_ai_fleet.runtime.equipment import open_equipment
from swe_ai_fleet.runtime.factories import connect_log, seed_seconds, workspace_provider
from swe_ai_fleet.runtime.housekeeping import housekeeping, pause_seconds
from swe_ai_fleet.runtime.sandboxes import with_rung
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import own_telemetry
from swe_ai_fleet.tools.access import ToolAccess

Prepare = Callable[[GitWorkspaceProvider], WorkspaceProvider]
_Assigned = Assignment | ReviewAssignment | JudgeAssignment | DeriveAssignment | AnswerAssignment | OperateAssignment


@dataclass(frozen=True, kw_only=True)
class AgentWorker:
    """Carries out assignments in this process. Made by `open_worker`."""

    workspaces: WorkspaceProvider
    runs: CodingRun
    reviews: ReviewRun
    judgings: JudgeRun
    external: ExternalRun
    derivations: DeriveRun
    answers: AnswerRun
    operations: OperateRun
    evidence: EvidenceGatherer
    access: ToolAccess
    models: Mapping[str, ChatModel] = field(default_factory=dict[str, ChatModel])

    async def run(self, assignment: Assignment) -> Candidate:
        """One agent run in a clone of its own, which is gone afterwards."""
        async with self._clone(assignment, assignment.repository) as clone:
            if assignment.perspective.endpoint:
                return await self.external.carry_out(assignment, clone)
            return await self.runs.carry_out(assignment, clone)

    async def review(self, assignment: ReviewAssignment) -> Critique:
        """One review, in a clone of its own."""
        async with self._clone(assignment, assignment.repository) as clone:
            return await self.reviews.carry_out(assignment, clone)

    async def judge(self, assignment: JudgeAssignment) -> tuple[Vote, ...]:
        """One judge's votes, in a clone of the commit that the candidates started from."""
        async with self._clone(assignment, assignment.repository) as clone:
            return await self.judgings.carry_out(assignment, clone)

    async def derive(self, assignment: DeriveAssignment) -> Derivation:
        """A task split, with a look at the repository where there is one."""
        if assignment.repository is None:
            return await self.derivations.carry_out(assignment, None)
        async with self._clone(assignment, assignment.repository) as clone:
            return await self.derivations.carry_out(assignment, clone)

    async def answer(self, assignment: AnswerAssignment) -> Answer:
        """One question answered, in a clone of its own."""
        async with self._clone(assignment, assignment.repository) as clone:
            return await self.answers.carry_out(assignment, clone)

    async def operate(self, assignment: OperateAssignment) -> ToolResult:
        """One call of a tool, in a clone of its own."""
        async with self._clone(assignment, assignment.repository) as clone:
            return await self.operations.carry_out(assignment, clone)

    async def check(self, assignment: CheckAssignment) -> CheckReport:
        """The evidence about one candidate."""
        return await self.evidence.gather(assignment)

    @asynccontextmanager
    async def _clone(self, assignment: _Assigned, repository: PinnedRepository) -> AsyncGenerator[Clone]:
        task = assignment.task
        environment = await self.workspaces.environment(repository, task.environment)
        environment = replace(environment, network=self.access.hosts(task.constraints))
        name = assignment.agent_id
        async with self.workspaces.open(assignment.execution_id, name, repository, environment) as clone:
            yield clone


@asynccontextmanager
async def open_worker(settings: Settings, *, host: str, prepared: Prepare | None = None) -> AsyncGenerator[AgentWorker]:
    """Connect to the log and the model and set up workspaces, until the context ends.

    `prepared` makes of the node's repositories those of a container, where somebody else has cloned already.
    """
    settings, telemetry = await with_rung(settings), own_telemetry()
    async with (
        connect_log(settings, name=host, waits=PATIENCE_SECONDS) as log,
        log.live_texts() as live,
        open_context_client(settings) as context,
        open_equipment(settings, live=live, memories=context) as equipment,
    ):
        provider = workspace_provider(settings, log)
        await provider.warm()
        workspaces = prepared(provider) if prepared is not None else provider
        runs = CodingRun(
            equipment=equipment,
            log=telemetry.observed(log),
            blobs=log,
            results=telemetry.results(log),
            audit_key=settings.audit_key.encode(),
            host=host,
            approval_timeout_seconds=settings.approval_timeout_seconds,
            checkpoint_seconds=settings.checkpoint_seconds,
        )
        evidence = EvidenceGatherer(
            workspaces=workspaces,
            blobs=log,
            access=equipment.access,
            mask=equipment.mask,
            rubric=RubricJudge(equipment=equipment),
        )
        services = RunServices(
            equipment=equipment,
            log=telemetry.observed(log),
            blobs=log,
            audit_key=settings.audit_key.encode(),
            host=host,
        )
        # Hosts that were killed on this node may have left theirs; the orchestrator may be on another one.
        async with housekeeping(provider.reap, pause=pause_seconds(seed_seconds(settings))):
            yield AgentWorker(
                workspaces=workspaces,
                runs=runs,
                reviews=ReviewRun(services=services),
                judgings=JudgeRun(services=services),
                external=ExternalRun(
                    services=services, results=telemetry.results(log), outside=outside_agents(settings, equipment.mask)
                ),
                derivations=DeriveRun(services=services),
                answers=AnswerRun(services=services),
                operations=OperateRun(services=services),
                evidence=evidence,
                access=equipment.access,
                models=equipment.models,
            )
