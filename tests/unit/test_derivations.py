"""Plans split on request, and subtasks on the wire: the planner is the real one, its model is scripted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from swe_ai_fleet.agents.deriving import DeriveRun
from swe_ai_fleet.agents.run_deps import RunDeps, RunRecorder
from swe_ai_fleet.domain.assignment import DeriveAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, ModelRequest
from swe_ai_fleet.domain.subtask import Derivation
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.derivations import DerivationRequest, Derivations
from tests.scripted_fleet import ScriptedFleet, ScriptedModel
from tests.scripted_workspaces import ScriptedWorkspaces

PLAN = DerivationRequest(description="Build it", plan_id="p-1", repo=RepoRef(location="/srv/app", ref="main"))
ANSWER = {
    "subtasks": [
        {"id": "Parser", "description": "Parse", "role": "DEV", "paths": ["src/parser/"]},
        {"id": "tests", "description": "Test", "role": "QA", "depends_on": ["Parser"], "priority": 3},
    ]
}


@dataclass(kw_only=True)
class Answering(ScriptedModel):
    """Says one thing, as soon as it may."""

    text: str = json.dumps(ANSWER)
    asked: int = 0

    async def reply(self, request: ModelRequest) -> ModelReply:
        self.asked += 1
        await self.ping()
        message = AssistantMessage(content=self.text)
        return ModelReply(message=message, finish_reason="stop", usage=Usage(model_calls=1))


@dataclass(kw_only=True)
class PlannersFleet(ScriptedFleet):
    """A fleet with a real planner."""

    model: Answering = field(default_factory=Answering)

    async def _derive(self, assignment: DeriveAssignment) -> Derivation:
        self.derived.append(assignment)
        services = RunRecorder(deps=RunDeps(models={"": self.model}), log=self.storage, blobs=self.storage)
        return await DeriveRun(recorder=services).run(assignment, None)


@dataclass
class World:
    fleet: PlannersFleet = field(default_factory=lambda: PlannersFleet(storage=MemoryLog()))
    workspaces: ScriptedWorkspaces = field(default_factory=ScriptedWorkspaces)

    def replica(self) -> Derivations:
        return Derivations(fleet=self.fleet, log=self.fleet.storage, workspaces=self.workspaces)


async def test_the_same_plan_is_split_once_on_whichever_replica():
    world = World()
    async with world.replica() as one, world.replica() as other:
        first = await one.derive(PLAN)
        assert await one.derive(PLAN) == await other.derive(PLAN) == first
        assert world.fleet.model.asked == 1
        assert [subtask.subtask_id for subtask in first.subtasks] == ["parser", "tests"]
        again = await one.derive(replace(PLAN, description="Build something else"))
        moved = await one.derive(replace(PLAN, repo=RepoRef(location="/srv/app", ref="next")))
    assert len({first.derivation_id, again.derivation_id, moved.derivation_id}) == world.fleet.model.asked == 3
    assert world.workspaces.released == [one.execution_id for one in world.fleet.derived]
