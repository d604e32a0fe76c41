"""Workflows as executions, over the log in memory: nodes on the fleet, people, steering, restarts, take-overs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalResolution
from swe_ai_fleet.domain.assignment import Answer, AnswerAssignment, OperateAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.context import ContextRequest, GatheredContext
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.event import (
    ApprovalAwaited,
    ApprovalResolved,
    ExecutionStarted,
    ExecutionStatus,
    NodeUpdated,
    WorkflowFinished,
)
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.memory import Memory
from swe_ai_fleet.domain.task import DEFAULT_TENANT, RepoRef, Task, TaskKind
from swe_ai_fleet.domain.tool import Outcome, ToolResult
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
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.extensions.workflows import read_catalog
from swe_ai_fleet.orchestrator.executions import Executions, Room
from tests.scripted_fleet import PASSED, ScriptedRun, execution_deps
from tests.scripted_workspaces import DELIVERED_COMMIT
from tests.unit.test_executions import World, published

(WORKFLOWS,) = load_parts("workflows")


def chain(*ids: str) -> tuple[Edge, ...]:
    return tuple(Edge(source=one, target=other) for one, other in pairwise(ids))


def agent(name: str, query: str = "", *, mode: AgentMode = AgentMode.ANSWER, agents: int = 1, **fields: object) -> Node:
    config = AgentConfig(mode=mode, agents=agents)
    return Node(id=name, type=NodeType.AGENT, query=query or f"do {name}", agent_config=config, **fields)


def tool(name: str, **arguments: object) -> Node:
    return Node(id=name, type=NodeType.TOOL, tool="calculator", arguments=arguments)


ITEMS = (WorkflowInput(name="of", type="array"),)


def over(name: str, node: Node) -> Node:
    return Node(id=name, type=NodeType.MAP, over="${inputs.of}", node=node)


def a_run(*nodes: Node, edges: Sequence[Edge] = (), task_id: str = "flow", **fields: object) -> Task:
    inputs, given = fields.pop("inputs", ()), fields.pop("given", {})
    outputs = fields.pop("outputs", {})
    workflow = Workflow(name="flow", nodes=nodes, edges=tuple(edges), inputs=inputs, outputs=outputs)
    return replace(
        Task(
            task_id=task_id,
            kind=TaskKind.WORKFLOW,
            description="flow",
            repo=RepoRef(location="/srv/app"),
            workflow=WorkflowTask(workflow=workflow, inputs=json.dumps(given)),
        ),
        **fields,
    )


def said(text: str) -> Answer:
    return Answer(text=text, stop_reason=StopReason.FINAL_ANSWER, usage=Usage(model_calls=1, prompt_tokens=10))


YES = ApprovalResolution(approval_id="", decision=ApprovalDecision.APPROVED)


async def echo(assignment: AnswerAssignment) -> Answer:
    return said(f"<{assignment.query}>")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One workflow in a process that drives it."""

    executions: Executions
    execution_id: str

    async def state(self) -> ExecutionState:
        return await self.executions.get(DEFAULT_TENANT, self.execution_id)

    async def until(self, status: NodeStatus, node_id: str) -> ExecutionState:
        """The state once this node stands there."""
        async for _ in self.executions.watch(DEFAULT_TENANT, self.execution_id):
            state = await self.state()
            if node_id in state.nodes and state.nodes[node_id].status is status:
                return state
        raise AssertionError("it ended first")

    async def asked(self) -> ExecutionState:
        """The state once a person is asked."""
        async for stored in self.executions.watch(DEFAULT_TENANT, self.execution_id):
            if isinstance(stored.event.body, ApprovalAwaited):
                break
        return await self.state()

    async def resolve(self, decision: ApprovalResolution = YES) -> None:
        await self.executions.resolve(DEFAULT_TENANT, self.execution_id, decision)

    async def steer(self, *what: str, **how: str) -> None:
        await self.executions.steer(DEFAULT_TENANT, self.execution_id, *what, **how)

    async def ended(self) -> ExecutionState:
        return await self.executions.wait(DEFAULT_TENANT, self.execution_id)

    async def part(self, node_id: str) -> ExecutionState:
        """The state of the execution that a node is."""
        return await self.executions.get(DEFAULT_TENANT, (await self.state()).nodes[node_id].execution_id)


@asynccontextmanager
async def driven(world: World, task: Task, **options: object) -> AsyncIterator[Run]:
    """A process that the task is submitted to, whether or not another one had it before."""
    async with world.running(**options) as executions:
        yield Run(executions=executions, execution_id=(await executions.submit(task)).execution_id)


@pytest.fixture
def world() -> World:
    world = World(workflows=WORKFLOWS)
    world.fleet.answering = echo
    return world


async def test_nodes_answer_and_operate_and_the_result_carries_the_outputs(world: World):
    async def operate(assignment: OperateAssignment) -> ToolResult:
        return ToolResult(success=True, operation="calculator", content=f"got {assignment.arguments}")

    world.fleet.operating = operate
    task = a_run(
        agent("look", "about ${inputs.topic}"),
        tool("sum", expression="${nodes.look.output.answer}"),
        edges=chain("look", "sum"),
        inputs=(WorkflowInput(name="topic"),),
        given={"topic": "cats"},
        outputs={"sum": "${nodes.sum.output.content}"},
    )
    async with driven(world, task) as run:
        state = await run.ended()
        await published(run.executions, run.execution_id)
    assert (state.status, state.error) == (ExecutionStatus.COMPLETED, "")
    assert (state.usage.model_calls, state.usage.prompt_tokens) == (1, 10)
    (asked,), (operated,) = world.fleet.asked, world.fleet.operated
    assert (asked.agent_id, operated.agent_id) == ("node-look-1", "node-sum-1")
    assert asked.repository.location == "/srv/app"
    (result,) = (json.loads(one.payload) for one in world.log.results if not one.agent_id)
    outputs = {"sum": 'got {"expression": "<about cats>"}'}
    assert (result["status"], result["outputs"], json.loads(state.output.output)) == ("completed", outputs, outputs)
    assert [(one["node_id"], one["status"]) for one in result["nodes"]] == [("look", "completed"), ("sum", "completed")]


async def test_a_node_that_delivers_is_an_execution_of_its_own_and_the_next_one_stands_on_it(world: World):
    config = AgentConfig(mode=AgentMode.ORCHESTRATE, agents=2, role="QA", checks=("make test",))
    fix = Node(id="fix", type=NodeType.AGENT, query="mend it", agent_config=config)
    seen = agent("seen", "look at ${nodes.fix.output.commit_sha} by ${nodes.fix.output.winner}")
    task = a_run(agent("before"), fix, seen, edges=chain("before", "fix", "seen"), story_id="story-1")
    async with driven(world, task, room=Room(executions=1)) as run:
        state, child = await run.ended(), await run.part("fix")
    assert (state.status, child.status) == (ExecutionStatus.COMPLETED, ExecutionStatus.COMPLETED)
    assert (child.task.kind, child.task.parent_execution_id) == (TaskKind.ORCHESTRATE, state.execution_id)
    assert (child.task.num_agents, child.task.role, child.task.story_id) == (2, "QA", "story-1")
    assert [one.command for one in child.task.constraints.checks] == ["make test"]
    bases = {one.query.split()[0]: one.repository.commit for one in world.fleet.asked}
    assert bases["look"] == DELIVERED_COMMIT != bases["do"] == state.repository.commit
    assert world.fleet.asked[-1].query == f"look at {DELIVERED_COMMIT} by agent-qa-1"
    assert state.usage.total_tokens == 2 * 101 + 2 * 10
    output = json.loads(state.nodes["fix"].output)
    assert (output["branch"], output["status"]) == (f"fleet/{child.task.task_id}", "completed")
    assert output["patch"].startswith("diff of agent-qa-1")
    assert output["checks"] == [{"name": "tests", "passed": True, "required": True, "message": PASSED.message}]


async def test_a_failed_node_names_itself_and_what_runs_beside_it_is_stopped(world: World):
    world.fleet.default = ScriptedRun(after=asyncio.Event())

    async def fails(assignment: AnswerAssignment) -> Answer:
        await world.fleet.started(1)
        return replace(said(""), error="the run stopped: loop")

    world.fleet.answering = fails
    async with driven(world, a_run(agent("bad"), agent("busy", mode=AgentMode.ORCHESTRATE))) as run:
        state, child = await run.ended(), await run.part("busy")
    assert (state.status, state.error) == (ExecutionStatus.FAILED, "bad: the run stopped: loop")
    assert (state.nodes["busy"].status, child.status) == (NodeStatus.SKIPPED, ExecutionStatus.CANCELLED)
    assert world.fleet.cancelled


async def test_an_interrupted_call_fails_unless_the_node_may_be_tried_again(world: World):
    async def interrupted(assignment: OperateAssignment) -> ToolResult:
        if assignment.agent_id.endswith("-1"):
            return ToolResult(success=False, operation="x", error="interrupted: it may", outcome=Outcome.INTERRUPTED)
        return ToolResult(success=True, operation="x")

    world.fleet.operating = interrupted
    assert "interrupted" in (await world.run(a_run(tool("write"), task_id="once"))).error
    twice = replace(tool("write"), retries=1, retry_seconds=0.0)
    assert (await world.run(a_run(twice, task_id="twice"))).status is ExecutionStatus.COMPLETED
    assert [one.agent_id for one in world.fleet.operated] == [f"node-write-{n}" for n in (1, 1, 2)]


@pytest.mark.parametrize("word", ["approved", "rejected", "adjusted"])
async def test_people_decide_through_the_execution_s_own_approvals(world: World, word: str):
    gate = Node(id="gate", type=NodeType.APPROVAL, prompt="Ship ${nodes.one.output.answer}?")
    task = a_run(agent("one"), gate, agent("two", "${nodes.gate.output.text}"), edges=chain("one", "gate", "two"))
    decision = ApprovalResolution(approval_id="", decision=ApprovalDecision(word), text="with care", approver="ada")
    async with driven(world, task) as run:
        # Who is told that the node waits can decide at once.
        waiting = await run.until(NodeStatus.WAITING, "gate")
        assert (waiting.status, waiting.pending[0].approach) == (ExecutionStatus.AWAITING_APPROVAL, "Ship <do one>?")
        await run.resolve(decision)
        state = await run.ended()
    if word == "rejected":
        assert (state.status, len(world.fleet.asked), "gate" in state.error) == (ExecutionStatus.REJECTED, 1, True)
    else:
        assert (state.status, state.agents["node-gate"].status) == (ExecutionStatus.COMPLETED, "finished")
        assert world.fleet.asked[-1].query == "with care"
        assert json.loads(state.nodes["gate"].output)["approver"] == "ada"


async def test_nobody_in_time_is_a_rejection_also_behind_a_restart(world: World):
    task = a_run(Node(id="gate", type=NodeType.APPROVAL, prompt="Go?", timeout_seconds=0.5))
    async with driven(world, task) as run:
        await run.asked()
    async with driven(world, task) as run:
        assert (await run.ended()).status is ExecutionStatus.REJECTED
    assert [one.resolution.approver for one in world.bodies(ApprovalResolved)] == ["time-out"]


async def test_breakpoints_pause_show_inputs_step_and_continue(world: World):
    two = agent("two", "${nodes.one.output.answer}", breakpoint=True)
    task = a_run(agent("one"), two, agent("three"), agent("four"), edges=chain("one", "two", "three", "four"))
    async with driven(world, task) as run:
        paused = await run.until(NodeStatus.PAUSED, "two")
        assert json.loads(paused.nodes["two"].inputs) == {"query": "<do one>"}
        with pytest.raises(InvalidRequest):
            await run.steer("jump")
        with pytest.raises(NotFound):
            await run.steer("step", "nowhere")
        await run.steer("step", by="ada")
        await run.until(NodeStatus.PAUSED, "three")
        assert [one.query for one in world.fleet.asked] == ["do one", "<do one>"]
        await run.steer("step", "two")  # that one has begun: nothing is said
        await run.steer("continue")
        state = await run.ended()
        with pytest.raises(PreconditionFailed):
            await run.steer("pause")
    assert state.status is ExecutionStatus.COMPLETED
    told = [(one.action, one.node_id) for one in state.steering]
    assert told == [("step", "two"), ("step", "three"), ("continue", "")]
    four = [one.status for one in world.bodies(NodeUpdated) if one.node_id == "four"]
    assert four == [NodeStatus.RUNNING, NodeStatus.COMPLETED]


def _whole_task() -> Task:
    """One of everything."""
    gate = Node(id="gate", type=NodeType.APPROVAL, prompt="Go?")
    return a_run(
        agent("look"),
        gate,
        agent("fix", mode=AgentMode.ORCHESTRATE, timeout_seconds=60),
        over("each", agent("file", "read ${item}")),
        tool("sum", expression="${nodes.each.output[1].answer}"),
        edges=(*chain("look", "gate", "fix", "sum"), *chain("look", "each", "sum")),
        inputs=ITEMS,
        given={"of": ["a", "b"]},
        outputs={"read": "${nodes.each.output[0].answer}", "commit": "${nodes.fix.output.commit_sha}"},
    )


@pytest.mark.parametrize("number", range(1, 24, 2))
async def test_cut_off_at_any_entry_it_goes_on_and_does_nothing_twice(world: World, number: int):
    """The drive ends behind the workflow's `number`-th entry; the next one ends the same, each work done once."""
    task = _whole_task()

    def ended_nodes(*statuses: NodeStatus) -> list[str]:
        mine = [one for one in world.log.events if one.execution_id == task.execution_id and one.agent_id == "_"]
        updated = [one.body for one in mine if isinstance(one.body, NodeUpdated)]
        return [one.node_id for one in updated if (one.status in statuses if statuses else one.status.ended)]

    async def ended(executions: Executions, enough: int) -> bool:
        """Approve what is asked, until the workflow's own subject has so many entries, or its run has ended."""
        count = 0
        async for stored in executions.watch(DEFAULT_TENANT, task.execution_id):
            count += stored.event.agent_id == "_"
            if isinstance(stored.event.body, ApprovalAwaited):
                await executions.resolve(DEFAULT_TENANT, task.execution_id, replace(YES, approval_id="node-gate"))
            if count >= enough:
                return False
        return True

    async with driven(world, task) as run:
        done = await ended(run.executions, number)
    before = ended_nodes(NodeStatus.COMPLETED)
    asked, operated = len(world.fleet.asked), len(world.fleet.operated)
    async with world.running(owner="next") as executions:
        assert done or await ended(executions, 10_000)
        state = await executions.wait(DEFAULT_TENANT, task.execution_id)
        await published(executions, task.execution_id)
    assert (state.status, state.error) == (ExecutionStatus.COMPLETED, "")
    assert json.loads(state.output.output) == {"read": "<read a>", "commit": DELIVERED_COMMIT}
    completed = ended_nodes()
    assert len(completed) == len(set(completed)) == 7
    places = {"do look": "look", "read a": "each[0]", "read b": "each[1]"}
    after = {places[one.query] for one in world.fleet.asked[asked:]} | {"sum" for _ in world.fleet.operated[operated:]}
    assert not set(before) & after
    # One execution for the node that delivers, whatever happened, and every run under the same name as before.
    assert sum(isinstance(event.body, ExecutionStarted) for event in world.log.events) == 2
    names = {one.agent_id for one in (*world.fleet.asked, *world.fleet.operated)}
    assert (len(names), {name.rpartition("-")[2] for name in names}) == (4, {"1"})
    assert len(world.bodies(WorkflowFinished)) == 1
    assert len({one.agent_id for one in world.fleet.begun}) == 1


def refused() -> list[tuple[Task, str]]:
    one = agent("one")
    return [
        (a_run(one, inputs=(WorkflowInput(name="topic"),)), "inputs.topic"),
        (a_run(replace(one, agent_config=AgentConfig(model="gone"))), "workflow.nodes[one].model"),
        (a_run(replace(one, agent_config=AgentConfig(use_memory=True))), "workflow.nodes[one].use_memory"),
        (a_run(Node(id="one", type=NodeType.WORKFLOW, workflow="nowhere")), "workflow.nodes[one]"),
        (a_run(Node(id="one", type=NodeType.TOOL, tool="git")), "workflow.nodes[one].tool"),
        (a_run(agent("one", mode=AgentMode.DELIBERATE, agents=999)), "workflow.nodes[one].agents"),
        (a_run(agent("one", mode=AgentMode.ORCHESTRATE), repo=RepoRef(location="")), "repo"),
    ]


async def test_what_cannot_run_here_is_refused_by_name(world: World):
    async with world.running() as executions:
        for task, field in refused():
            with pytest.raises(InvalidRequest) as caught:
                await executions.submit(task)
            assert caught.value.field == field


@dataclass
class Remembering:
    """A context service that knows one thing and keeps what it is told; `fault` is what it answers with."""

    fault: FleetError | None = None
    asked: list[ContextRequest] = field(default_factory=list)
    kept: list[Memory] = field(default_factory=list)

    async def gather(self, request: ContextRequest) -> GatheredContext:
        self.asked.append(request)
        if self.fault is not None:
            raise self.fault
        return GatheredContext(text="blue is liked")

    async def remember(self, memory: Memory) -> bool:
        if self.fault is not None:
            raise self.fault
        self.kept.append(memory)
        return True


@pytest.mark.parametrize("fault", [None, Unavailable("gone")])
async def test_what_is_remembered_is_told_to_who_asks_and_costs_nobody_the_run(world: World, fault: FleetError | None):
    memory = Remembering(fault=fault)
    ask = Node(id="ask", type=NodeType.AGENT, query="which colour?", agent_config=AgentConfig(use_memory=True))
    around = {"fleet": world.fleet, "workspaces": world.workspaces, "model": world.model, "workflows": WORKFLOWS}
    deps = execution_deps(world.log, context=memory, memories=memory, **around)
    async with asyncio.timeout(10), Executions(deps) as executions:
        task = a_run(agent("plain"), ask, edges=chain("plain", "ask"))
        state = await executions.wait(DEFAULT_TENANT, (await executions.submit(task)).execution_id)
    assert state.status is ExecutionStatus.COMPLETED
    assert [one.background for one in world.fleet.asked] == ["", "" if fault else "blue is liked"]
    (asked,) = memory.asked
    # What the agent remembers is its own: neither the repository's nor that of another agent of the run.
    own = f"agent:{task.workflow.workflow.name}.ask"
    assert (asked.query, asked.namespaces) == ("which colour?", (own,))
    kept = [(one.namespace, one.text) for one in memory.kept]
    assert kept == ([] if fault else [(own, "which colour?\n<which colour?>")])


@pytest.mark.parametrize(("name", "told"), [("fix-issue", "review"), ("upgrade-dependency", "notes")])
async def test_tests_that_fail_on_a_delivered_branch_cost_nobody_the_branch(world: World, name: str, told: str):
    async def fails(assignment: OperateAssignment) -> ToolResult:
        return ToolResult(success=False, operation=assignment.tool, error="1 failed", exit_code=1)

    world.fleet.operating = fails
    workflow = read_catalog().get(name).workflow
    given = {one.name: "leftpad" for one in workflow.inputs if one.required and one.default is None}
    async with driven(world, a_run(workflow=WorkflowTask(workflow=workflow, inputs=json.dumps(given)))) as run:
        if name == "upgrade-dependency":
            await run.asked()
            await run.resolve()
        state = await run.ended()
    assert (state.status, state.error) == (ExecutionStatus.COMPLETED, "")
    outputs = json.loads(state.output.output)
    assert outputs["branch"].startswith("fleet/") and outputs[told]
    assert (outputs["verified"], "1 failed" in outputs["tests"]["error"]) == ("failed", True)
