"""What one process needs to run agents and checks, and how it does."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.coding_run import CodingRun
from swe_ai_fleet.domain.candidate import Assignment, Candidate, CheckAssignment, CheckReport
from swe_ai_fleet.orchestrator.checks import EvidenceGatherer
from swe_ai_fleet.ports import WorkspaceProvider
from swe_ai_fleet.runtime.equipment import open_equipment
from swe_ai_fleet.runtime.factories import connect_log, workspace_provider
from swe_ai_fleet.runtime.sandboxes import with_rung
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.access import ToolAccess


@dataclass(frozen=True, kw_only=True)
class AgentWorker:
    """Carries out assignments in this process. Made by `open_worker`."""

    workspaces: WorkspaceProvider
    runs: CodingRun
    evidence: EvidenceGatherer
    access: ToolAccess

    async def run(self, assignment: Assignment) -> Candidate:
        """One agent run in a clone of its own, which is gone afterwards."""
        task = assignment.task
        environment = await self.workspaces.environment(assignment.repository, task.environment)
        environment = replace(environment, network=self.access.hosts(task.constraints))
        async with self.workspaces.open(
            assignment.execution_id, assignment.agent_id, assignment.repository, environment
        ) as clone:
            return await self.runs.carry_out(assignment, clone)

    async def check(self, assignment: CheckAssignment) -> CheckReport:
        """The evidence about one candidate."""
        return await self.evidence.gather(assignment)


@asynccontextmanager
async def open_worker(settings: Settings, *, host: str) -> AsyncGenerator[AgentWorker]:
    """Connect to the log and the model and set up workspaces, until the context ends."""
    settings = await with_rung(settings)
    workspaces = workspace_provider(settings)
    await workspaces.warm()
    async with (
        connect_log(settings, name=host) as log,
        log.live_texts() as live,
        open_equipment(settings, live=live) as equipment,
    ):
        runs = CodingRun(
            equipment=equipment,
            log=log,
            blobs=log,
            results=log,
            audit_key=settings.audit_key.encode(),
            host=host,
            approval_timeout_seconds=settings.approval_timeout_seconds,
        )
        evidence = EvidenceGatherer(workspaces=workspaces, blobs=log, access=equipment.access, mask=equipment.mask)
        yield AgentWorker(workspaces=workspaces, runs=runs, evidence=evidence, access=equipment.access)
