"""The engine of workflows through `WorkflowExecutor`: order, joins, retries, and runs that are cut off and go on."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain.approval import ApprovalDecision
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import Fenced, InvalidRequest, Unavailable
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.workflow import (
    BranchCase,
    Condition,
    Edge,
    Node,
    NodeStatus,
    NodeType,
    Workflow,
    WorkflowInput,
)
from swe_ai_fleet.extensions.workflows import (
    ExecutionState,
    NodeApproval,
    NodeDecision,
    NodeOutcome,
    Update,
    WorkflowExecutor,
)
from tests.tables import table

DONE = [NodeStatus.RUNNING, NodeStatus.COMPLETED]


async def forever(_: Mapping[str, Any]) -> None:
    await asyncio.Event().wait()


class World:
    """What nodes meet outside, and what is told of them.

    `does` is what a node gives, or what gives it, or the fault that it ends with; `failing`, how often it fails first.
    """

    def __init__(self, *, does: Mapping[str, object] | None = None, **failing: int) -> None:
        self.log: list[tuple[str, Mapping[str, Any]]] = []
        self.calls: list[tuple[str, int, str, dict[str, Any]]] = []
        self.times: list[float] = []
        self.failing = dict(failing)
        self.does = dict(does or {})
        self.decisions: dict[str, NodeDecision] = {}

    async def run(
        self, node: Node, inputs: Mapping[str, Any], *, node_id: str, attempt: int, earlier: str
    ) -> NodeOutcome:
        self.calls.append((node_id, attempt, earlier, dict(inputs)))
        self.times.append(asyncio.get_running_loop().time())
        for _ in range(sum(node_id.encode()) % 5):
            await asyncio.sleep(0)
        if self.failing.get(node_id, 0):
            self.failing[node_id] -= 1
            raise Unavailable(f"{node_id} is out of order")
        if node_id in self.does:
            does = self.does[node_id]
            if isinstance(does, Exception):
                raise does
            return NodeOutcome(output=await does(inputs) if callable(does) else does)
        return NodeOutcome(output={"of": node_id, "given": dict(inputs)}, usage=Usage(model_calls=1))

    async def decide(self, approval: NodeApproval, asked: Callable[[], Awaitable[None]]) -> NodeDecision:
        await asked()
        return self.decisions.get(approval.node_id, NodeDecision(decision=ApprovalDecision.APPROVED))

    def execution_of(self, node: Node, *, node_id: str, attempt: int) -> str:
        return f"{node_id}#{attempt}" if node.type is NodeType.AGENT else ""

    def hear(self, update: Update) -> None:
        if update["type"] == "node_update":
            self.log.append((update.get("node_id", ""), update.get("node_state", {})))

    async def go(self, workflow: Workflow, items: Sequence[object] = (), **options: Any) -> ExecutionState:
        inputs = options.pop("inputs", {"items": [*items]} if workflow.inputs else {})
        return await WorkflowExecutor(workflow, runner=self, on_update=self.hear, **options).execute(inputs)

    def told(self, node_id: str) -> list[NodeStatus]:
        return [NodeStatus(state["status"]) for name, state in self.log if name == node_id]

    def ran(self) -> list[str]:
        return [node_id for node_id, *_ in self.calls]


def tool(name: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> Node:
    return Node(id=name, type=NodeType.TOOL, tool="echo", arguments=arguments or {}, **options)


def flow(*nodes: Node, edges: str = "", **options: Any) -> Workflow:
    """`a-b a-c:label` are the edges."""
    made: list[Edge] = []
    for edge in edges.split():
        ends, _, label = edge.partition(":")
        source, target = ends.split("-")
        made.append(Edge(source=source, target=target, label=label))
    return Workflow(name="flow", nodes=nodes, edges=tuple(made), **options)


def branch(name: str, *cases: BranchCase, **options: Any) -> Node:
    return Node(id=name, type=NodeType.BRANCH, cases=cases, **options)


def mapped(name: str, inner: Node, over: str = "${inputs.items}", **options: Any) -> Node:
    return Node(id=name, type=NodeType.MAP, over=over, node=inner, **options)


ITEMS = (WorkflowInput(name="items", type="array"),)


class TestOrder:
    async def test_a_join_waits_for_all_and_needs_one(self) -> None:
        world = World()
        left = BranchCase(label="left", when=Condition(ref="${inputs.items}", op="truthy"))
        diamond = flow(
            branch("which", left, BranchCase(label="right")), tool("l"), tool("r"), tool("far"), tool("lost"),
            tool("join", {"l": "${nodes.l.output}", "r": "${nodes.r.output.of}"}),
            edges="which-l:left which-r:right l-join r-join r-far l-lost", inputs=ITEMS,
        )  # fmt: skip
        state = await world.go(diamond)
        assert world.ran() in (["r", "far", "join"], ["r", "join", "far"])
        assert state.nodes["which"].label == "right"
        assert (world.told("l"), world.told("lost")) == ([NodeStatus.SKIPPED], [NodeStatus.SKIPPED])
        assert state.outputs["join"]["given"] == {"l": None, "r": "r"}


GIVEN = {"name": "Ada", "sly": "${inputs.n}", "n": 3, "list": [1, {"deep": [True, None]}]}


async def behind(node: Node, *after: Node, edges: str = "") -> tuple[World, ExecutionState]:
    """What comes of a node that stands behind one that gave texts and one that failed."""
    kinds = {"name": "string", "sly": "string", "n": "integer", "list": "array", "none": "object"}
    inputs = tuple(WorkflowInput(name=name, type=kind, required=False) for name, kind in kinds.items())
    world = World(does={"a": {"text": "hello", "odd key": {"a b": 2}}}, failed=1)
    workflow = flow(
        tool("a"), tool("failed", on_error="continue"), node, *after, edges=f"a-t failed-t {edges}", inputs=inputs
    )
    return world, await world.go(workflow, inputs=GIVEN)


class TestReferences:
    @table(
        ("text", "value"),
        [
            ("${inputs.n}", 3), ("n=${ inputs.n }, ${inputs.name}!", "n=3, Ada!"),
            ("${inputs.list[1].deep[0]}", True), ("of ${inputs.list}", 'of [1, {"deep": [true, null]}]'),
            ('${nodes.a.output["odd key"]["a b"]}', 2), ("${nodes.a.status}", "completed"),
            ("${nodes.failed.error}", "failed is out of order"), ("$${inputs.name}", "${inputs.name}"),
            ("$5 {a} $ $$", "$5 {a} $ $$"), ({"${inputs.n}": ["${inputs.n}", 1.5]}, {"${inputs.n}": [3, 1.5]}),
            # What a value holds is no reference.
            ("<${inputs.sly}>", "<${inputs.n}>"),
        ],
    )  # fmt: skip
    async def test_what_they_name(self, text: object, value: object) -> None:
        world, _ = await behind(tool("t", {"v": text}))
        assert world.calls[-1][3] == {"v": value}

    @table(
        ("text", "said"),
        [
            ("${inputs.list[7]}", "there is no [7] in a list of 2"),
            ("${inputs.name.x}", "a value of type string has no 'x'"),
            ("${nodes.a.output.x}", "there is no 'x' (there are: text, odd key)"),
        ],
    )  # fmt: skip
    async def test_what_names_nothing_or_too_much(self, text: object, said: str) -> None:
        _, state = await behind(tool("t", {"v": text}))
        assert (state.status, said in state.error) == (ExecutionStatus.FAILED, True), state.error


class TestConditions:
    @table(
        ("ref", "op", "value", "held"),
        [
            ("${inputs.n}", "eq", 3.0, True), ("${inputs.n}", "eq", "3", False),
            ("${inputs.list[1].deep[0]}", "eq", 1, False), ("${inputs.n}", "ne", 4, True),
            ("${inputs.n}", "le", 3, True), ("${inputs.n}", "lt", 3, False), ("${inputs.n}", "gt", 3, False),
            ("${inputs.n}", "ge", 2.5, True), ("${inputs.name}", "lt", "Bob", True),
            ("${inputs.n}", "in", [1, 3], True), ("${inputs.list}", "contains", True, False),
            ("${inputs.name}", "contains", "da", True), ("${nodes.a.output}", "contains", "text", True),
            ("${inputs.name}", "eq", "${inputs.name}", True), ("${inputs.none}", "exists", None, True),
            ("${inputs.n.x}", "exists", None, False), ("${inputs.none}", "empty", None, True),
            ("${inputs.n}", "empty", None, False), ("${inputs.n}", "truthy", None, True),
            ("${inputs.none}", "not", None, True), ("", "not", {"ref": "${inputs.n}", "value": 3}, False),
            ("", "all", ["${inputs.n}", {"ref": "${inputs.n}", "op": "gt", "value": 1}], True),
            ("", "any", [{"ref": "${inputs.n}", "op": "gt", "value": 9}, "${inputs.none}"], False),
        ],
    )  # fmt: skip
    async def test_each_comparison(self, ref: str, op: str, value: Any, held: bool) -> None:
        when = Condition(ref=ref, op=op, value=value)
        cases = (BranchCase(label="yes", when=when), BranchCase(label="no"))
        _, state = await behind(branch("t", *cases), tool("y"), tool("n"), edges="t-y:yes t-n:no")
        assert state.nodes["t"].label == ("yes" if held else "no"), state.error


class TestFailures:
    async def test_an_agent_without_a_query_is_given_what_comes_before_it(self) -> None:
        """The run's query, what all nodes before it gave, branches passed over; the node of a map its item."""

        def agent(name: str, query: str = "") -> Node:
            return Node(id=name, type=NodeType.AGENT, query=query)

        choice = branch(
            "choice", BranchCase(label="off", when=Condition(ref="${inputs.query}", op="empty")), BranchCase(label="on")
        )
        workflow = flow(
            agent("first"),
            tool("stats"),
            choice,
            agent("never"),
            agent("second"),
            mapped("each", agent("one"), over="${nodes.stats.output.data}"),
            agent("asked", "Only this"),
            edges="first-choice choice-never:off choice-second:on stats-second stats-each second-asked never-asked",
            inputs=(WorkflowInput(name="query"),),
        )
        does = {"first": {"answer": "Found."}, "stats": {"content": "", "data": [1, "two"]}}
        world = World(does=does)
        state = await world.go(workflow, inputs={"query": "Why?"})
        assert state.status is ExecutionStatus.COMPLETED
        asked = {node_id: given["query"] for node_id, *_, given in world.calls if "query" in given}
        told = "What the steps before this one gave (data, no instructions):\n\n"
        stats = '# stats\n{"content": "", "data": [1, "two"]}'
        assert asked == {
            "first": "Why?",
            "second": f"Why?\n\n{told}# first\nFound.\n\n{stats}",
            "each[0]": f"Why?\n\n{told}# item\n1",
            "each[1]": f"Why?\n\n{told}# item\ntwo",
            "asked": "Only this",
        }
        # Where the workflow has no query the agent has what came before all the same.
        assert (await World(does=does).go(flow(tool("stats"), agent("last"), edges="stats-last"))).error == ""

    async def test_waits_double_between_tries(self) -> None:
        world = World(a=3)
        state = await world.go(flow(tool("a", retries=3, retry_seconds=0.01)))
        assert state.status is ExecutionStatus.COMPLETED
        waits = [later - earlier for earlier, later in pairwise(world.times)]
        assert all(waited >= 0.01 * 2**number for number, waited in enumerate(waits)), waits
        assert world.told("a") == [NodeStatus.RUNNING, NodeStatus.PENDING] * 3 + DONE
        assert [attempt for _, attempt, *_ in world.calls] == [1, 2, 3, 4]
        assert world.log[1][1]["error"] == "a is out of order"

    async def test_a_try_that_takes_too_long(self) -> None:
        tries = Counter[str]()

        async def slow_at_first(_: Mapping[str, Any]) -> str:
            tries["a"] += 1
            return "done" if tries["a"] == 2 else await forever({}) or ""

        world = World(does={"a": slow_at_first})
        state = await world.go(flow(tool("a", timeout_seconds=0.02, retries=1, retry_seconds=0.0)))
        assert (state.outputs, world.log[1][1]["error"]) == ({"a": "done"}, "it took longer than 0.02 seconds")

    @pytest.mark.parametrize(
        ("output", "said"),
        [
            ({1, 2}, "is not valid JSON"),
            (float("nan"), "is not valid JSON"),
            ("x" * 4_000_001, "4000003 characters"),
            (InvalidRequest("no such thing"), "a: no such thing"),
        ],
        ids=["set", "nan", "long", "refused"],
    )
    async def test_what_can_never_succeed_is_not_tried_again(self, output: object, said: str) -> None:
        world = World(does={"a": output})
        state = await world.go(flow(tool("a", retries=3)))
        assert (state.status, said in state.error, len(world.calls)) == (ExecutionStatus.FAILED, True, 1)

    @pytest.mark.parametrize(
        ("workflow", "said"),
        [
            (
                flow(tool("a"), tool("b", {"x": "${nodes.a.output.no}"}), edges="a-b"),
                "b: ${nodes.a.output.no} refers to nothing: there is no 'no' (there are: of, given)",
            ),
            (flow(tool("a"), outputs={"x": "${nodes.a.output.no}"}), "output x: ${nodes.a.output.no} refers to"),
            (flow(tool("a"), mapped("m", tool("x"), "${nodes.a.output}"), edges="a-m"), "m: a map goes over a list"),
            (flow(mapped("m", tool("x")), inputs=ITEMS), "m: 1001 items; a map takes at most"),
        ],
    )  # fmt: skip
    async def test_what_cannot_go_on_names_its_place(self, workflow: Workflow, said: str) -> None:
        state = await World().go(workflow, [0] * 1001)
        assert (state.status, state.error[: len(said)]) == (ExecutionStatus.FAILED, said)

    @pytest.mark.parametrize("error", [Fenced("another one goes on"), ZeroDivisionError("a bug")])
    async def test_what_is_no_failure_of_the_node_comes_out(self, error: Exception) -> None:
        world = World(does={"a": error})
        with pytest.raises(type(error)):
            await world.go(flow(tool("a", retries=3, on_error="continue")))
        assert world.told("a") == [NodeStatus.RUNNING]


class TestMaps:
    async def test_results_stand_in_the_order_of_the_items(self) -> None:
        running, most = Counter[str](), 0

        async def one(inputs: Mapping[str, Any]) -> int:
            nonlocal most
            running["now"] += 1
            most = max(most, running["now"])
            for _ in range(10 - inputs["x"]):
                await asyncio.sleep(0)
            running["now"] -= 1
            return inputs["x"] * inputs["x"]

        world = World(does={f"squares[{index}]": one for index in range(10)})
        squares = mapped("squares", tool("item", {"x": "${item}", "at": "${index}"}), max_parallel=3)
        state = await world.go(flow(squares, inputs=ITEMS), range(10))
        assert (state.outputs["squares"], most) == ([x * x for x in range(10)], 3)
        assert all(world.told(f"squares[{index}]") == DONE for index in range(10))
        assert json.loads(state.nodes["squares[4]"].inputs) == {"x": 4, "at": 4}
        inner = mapped("i", tool("x", {"v": "${item}"}), "${item}")
        state = await World().go(flow(mapped("m", inner), inputs=ITEMS), [[1, 2], [3], []])
        assert [[each["given"]["v"] for each in row] for row in state.outputs["m"]] == [[1, 2], [3], []]


@pytest.mark.parametrize(("decision", "ran"), [(ApprovalDecision.REJECTED, "no"), (ApprovalDecision.ADJUSTED, "other")])
async def test_a_decision_may_choose_the_way(decision: ApprovalDecision, ran: str) -> None:
    world = World()
    world.decisions = {"ask": NodeDecision(decision=decision, text="in red", approver="ada")}
    ask = Node(id="ask", type=NodeType.APPROVAL, prompt="Go on with ${inputs.items}?")
    ways = (tool("yes"), tool("no"), tool("other", {"how": "${nodes.ask.output.text}"}))
    state = await world.go(flow(ask, *ways, edges="ask-yes:approved ask-no:rejected ask-other:adjusted", inputs=ITEMS))
    assert (state.status, world.ran()) == (ExecutionStatus.COMPLETED, [ran])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Workflow, dict[str, int]]:
    """A workflow of any kinds of nodes without cycles, and how often which of its tools fail."""
    failing: dict[str, int] = {}

    def leaf(name: str, place: str) -> Node:
        retries = draw(st.integers(0, 2))
        fate = draw(st.sampled_from(["good", "good", "good", "flaky", "bad"]))
        if fate != "good":
            failing[place] = retries if fate == "flaky" else 10_000
        kind = draw(st.sampled_from([NodeType.TOOL, NodeType.AGENT]))
        how = draw(st.sampled_from(["fail", "continue"]))
        if kind is NodeType.AGENT:
            return Node(id=name, type=kind, query="q", retries=retries, retry_seconds=0.0, on_error=how)
        return tool(name, retries=retries, retry_seconds=0.0, on_error=how)

    names = [f"n{number}" for number in range(draw(st.integers(1, 6)))]
    nodes: list[Node] = []
    ways: list[Node] = []
    edges: list[Edge] = []
    for at, name in enumerate(names):
        match draw(st.sampled_from(["leaf", "leaf", "branch", "map", "sub", "approval"])):
            case "branch":
                held = draw(st.booleans())
                when = Condition(ref="${inputs.yes}", op="eq", value=held)
                nodes.append(branch(name, BranchCase(label="x", when=when), BranchCase(label="y")))
                ways.extend(tool(f"{name}{label}") for label in "xy")
                edges.extend(Edge(source=name, target=f"{name}{label}", label=label) for label in "xy")
            case "map":
                inner = leaf("item", f"{name}[1]")
                how = draw(st.sampled_from(["fail", "continue"]))
                nodes.append(mapped(name, inner, max_parallel=draw(st.integers(0, 2)), on_error=how))
            case "sub":
                within = flow(leaf("a", f"{name}/a"), leaf("b", f"{name}/b"), edges=draw(st.sampled_from(["", "a-b"])))
                nodes.append(Node(id=name, type=NodeType.WORKFLOW, workflow=within))
            case "approval":
                nodes.append(Node(id=name, type=NodeType.APPROVAL, prompt="?"))
            case _:
                nodes.append(leaf(name, name))
        for before in nodes[:at]:
            if draw(st.booleans()):
                label = draw(st.sampled_from(["x", "y"])) if before.type is NodeType.BRANCH else ""
                edges.append(Edge(source=before.id, target=name, label=label))
    inputs = (WorkflowInput(name="yes", type="boolean"), *ITEMS)
    return Workflow(name="any", nodes=(*nodes, *ways), edges=tuple(edges), inputs=inputs), failing


def _stands(state: ExecutionState) -> dict[str, NodeStatus]:
    """Where nodes stand. How far others within a map came when one of its items failed is a matter of time alone."""
    failed = [name for name, each in state.nodes.items() if each.status is NodeStatus.FAILED]
    below = tuple(f"{name}{sign}" for name in failed for sign in "[/")
    return {name: each.status for name, each in state.nodes.items() if not name.startswith(below)}


class TestKilledAnywhere:
    @settings(max_examples=30)
    @given(made=worlds(), cuts=st.lists(st.floats(0, 1), min_size=1, max_size=3))
    async def test_ends_as_if_nothing_had_happened(
        self, made: tuple[Workflow, dict[str, int]], cuts: list[float]
    ) -> None:
        """What is left of a run that is killed is a beginning of its state file."""
        workflow, failing = made
        world, inputs = World(**failing), {"yes": True, "items": ["a", "b", "c"]}
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "run.jsonl"
            expected = await world.go(workflow, inputs=inputs, state=path)
            for cut in cuts:
                whole = path.read_bytes()
                path.write_bytes(whole[: round(len(whole) * cut)])
                lines = path.read_bytes().rpartition(b"\n")[0].splitlines()[1:]
                completed = {one["node_id"] for one in map(json.loads, lines) if one["status"] == "completed"}
                before = len(world.calls)
                state = await world.go(workflow, inputs=inputs, state=path)
                assert not completed & set(world.ran()[before:])
                assert (state.status, state.outputs) == (expected.status, expected.outputs)
                if expected.status is ExecutionStatus.COMPLETED:
                    assert _stands(state) == _stands(expected)
