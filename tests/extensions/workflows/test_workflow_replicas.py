"""Runs of workflows on three replicas of the orchestrator, while processes die, sleep and lose answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable

import pytest

from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.assignment import Answer, AnswerAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import DEFAULT_TENANT, RepoRef, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.domain.workflow import (
    AgentConfig,
    AgentMode,
    Edge,
    Node,
    NodeStatus,
    NodeType,
    Workflow,
    WorkflowInput,
    WorkflowTask,
)
from swe_ai_fleet.extensions.workflows.drive import WORKFLOWS
from swe_ai_fleet.orchestrator import dispatcher
from tests.scripted_fleet import ScriptedRun
from tests.simulation.test_replicas import World
from tests.simulation.virtual_loop import on_virtual_time

RUNS = 4
PLACES = ("look", "gate", "fix", "each", "each[0]", "each[1]", "sum")


def a_run(number: int) -> Task:
    item = Node(id="file", type=NodeType.AGENT, query="read ${item}")
    nodes = (
        Node(id="look", type=NodeType.AGENT, query="look", breakpoint=number % 2 == 0),
        Node(id="gate", type=NodeType.APPROVAL, prompt="Go on with ${nodes.look.output.answer}?"),
        Node(id="fix", type=NodeType.AGENT, query="fix", agent_config=AgentConfig(mode=AgentMode.ORCHESTRATE)),
        Node(id="each", type=NodeType.MAP, over="${inputs.files}", node=item),
        Node(
            id="sum", type=NodeType.TOOL, tool="calculator", arguments={"expression": "${nodes.each.output[1].answer}"}
        ),
    )
    pairs = (("look", "gate"), ("look", "each"), ("gate", "fix"), ("fix", "sum"), ("each", "sum"))
    workflow = Workflow(
        name="flow",
        nodes=nodes,
        edges=tuple(Edge(source=source, target=target) for source, target in pairs),
        inputs=(WorkflowInput(name="files", type="array"),),
        outputs={"read": "${nodes.each.output[0].answer}", "commit": "${nodes.fix.output.commit_sha}"},
    )
    return Task(
        task_id=f"flow-{number}",
        kind=TaskKind.WORKFLOW,
        description="flow",
        repo=RepoRef(location="/srv/app"),
        workflow=WorkflowTask(workflow=workflow, inputs=json.dumps({"files": ["a", "b"]})),
    )


class WorkflowWorld(World):
    """Customers who run workflows, decide what is asked, and step past breakpoints; through any replica."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.customers = RUNS
        self.workflows = WORKFLOWS
        self.fleet.inner.runs = {}
        self.fleet.inner.default = ScriptedRun(operations=1)
        self.fleet.inner.answering = self._answer

    async def _answer(self, assignment: AnswerAssignment) -> Answer:
        await asyncio.sleep(self.random.uniform(0, 20))
        return Answer(text=f"<{assignment.query}>", stop_reason=StopReason.FINAL_ANSWER, usage=Usage(model_calls=1))

    def task(self, number: int) -> Task:
        return a_run(number)

    async def nudge(self, number: int, state: ExecutionState) -> None:
        if any(one.status is NodeStatus.PAUSED for one in state.nodes.values()):
            await self.insist(lambda executions: executions.steer(DEFAULT_TENANT, state.execution_id, "continue"))


@pytest.fixture(autouse=True)
def no_clock_on_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still here, and these two are measured by it."""
    monkeypatch.setattr(dispatcher, "HEAD_START_SECONDS", 0.0)
    monkeypatch.setattr(dispatcher, "AGAIN_SECONDS", 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_to_replicas_each_run_ends_once(seed: int) -> None:
    world = WorkflowWorld(seed)
    names = on_virtual_time(world.run())
    events = world.log.events
    for name in names:
        told = [event for event in events if event.execution_id == name]
        seen = Counter(type(event.body) for event in told)
        once: Callable[[type], bool] = lambda kind, seen=seen: seen[kind] == 1  # noqa: E731
        [ending] = [event.body for event in told if isinstance(event.body, ev.ExecutionFinished)]
        assert (ending.status, ending.error) == (ev.ExecutionStatus.COMPLETED, "")
        assert all(once(kind) for kind in (ev.ExecutionStarted, ev.ResultPublished, ev.WorkflowFinished))
        nodes = [event.body for event in told if isinstance(event.body, ev.NodeUpdated)]
        completed = Counter(node.node_id for node in nodes if node.status is NodeStatus.COMPLETED)
        assert completed == dict.fromkeys(PLACES, 1)
        assert not [node for node in nodes if node.status is NodeStatus.FAILED]
        children = {node.execution_id for node in nodes if node.execution_id}
        assert len(children) == 1
        started = [
            event for event in events if event.execution_id in children and isinstance(event.body, ev.ExecutionStarted)
        ]
        assert len(started) == 1
        # Nothing that a replica began goes by two names.
        runs = {event.agent_id for event in told if event.agent_id.startswith("node-")}
        assert len(runs) == 4
