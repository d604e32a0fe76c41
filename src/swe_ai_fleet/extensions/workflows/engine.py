"""The workflow engine: runs nodes in parallel as they become ready; a run can be resumed from its journal.

People can steer a run: pause, step, continue.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import BreakpointsSet, ExecutionStatus, NodeUpdated
from swe_ai_fleet.domain.workflow import Edge, JsonValue, Node, NodeStatus, NodeType, Workflow
from swe_ai_fleet.extensions.workflows.node_checks import inputs_of, outputs_of
from swe_ai_fleet.extensions.workflows.references import NodeValue, ReferenceScope
from swe_ai_fleet.extensions.workflows.runner import ExecutionState, NodeOutcome, NodeRunner, checked_inputs, shown_json
from swe_ai_fleet.extensions.workflows.tries import (
    Cancelled,
    Journal,
    NodeFailed,
    NodeStep,
    NodeUpdates,
    Rejected,
    Sleep,
    Tries,
    TryFailed,
    Work,
    together,
)

MAX_ITEMS = 1_000
"""Of the list of one map."""
MAX_NODES = 10_000
"""Of one run, items and the nodes of sub-workflows counted."""
_REJECTED = "rejected"


class Steering:
    """Pauses nodes before they begin, and releases them.

    After a restart, all earlier requests are applied again, in order, to a new instance. A step that names its node
    holds whenever the node becomes ready, so it survives this; a step without a name means the nodes paused then.

    Args:
        holding: Whether every node that has not begun is paused from the start.
    """

    def __init__(self, *, holding: bool = False) -> None:
        self.holding = holding
        self._released: set[str] = set()
        self._paused: dict[str, asyncio.Event] = {}

    @property
    def paused(self) -> tuple[str, ...]:
        """The ids of the paused nodes, in the order in which they became ready."""
        return tuple(self._paused)

    def pause(self) -> None:
        """Pause every node that has not begun."""
        self.holding = True

    def step(self, node_id: str = "") -> None:
        """Release one node, paused now or later; without an id all nodes paused now. Later nodes are paused."""
        self.holding = True
        for name in (node_id,) if node_id else self.paused:
            self._released.add(name)
            self._release(name)

    def proceed(self) -> None:
        """Release all paused nodes, up to the next breakpoint."""
        self.holding = False
        for name in self.paused:
            self._release(name)

    def apply(self, request: BreakpointsSet) -> None:
        """Apply a steering event. Raises InvalidRequest for an unknown action."""
        match request.action:
            case "pause":
                self.pause()
            case "step":
                self.step(request.node_id)
            case "continue":
                self.proceed()
            case _:
                raise InvalidRequest(
                    f"{request.action[:40]!r} is not an action", field="action", hint="pause, step or continue"
                )

    async def wait(self, node_id: str, *, at_breakpoint: bool, note: Callable[[], Awaitable[None]]) -> None:
        """Wait until a node may begin; where it has to wait, `note` is awaited first."""
        if node_id in self._released or not (self.holding or at_breakpoint):
            return
        # The node counts as paused before `note` is awaited, so that no request is missed meanwhile.
        released = self._paused.setdefault(node_id, asyncio.Event())
        try:
            await note()
            await released.wait()
        finally:
            self._paused.pop(node_id, None)

    def _release(self, node_id: str) -> None:
        if node_id in self._paused:
            self._paused[node_id].set()


class WorkflowRun:
    """One run of a checked workflow whose sub-workflows are resolved.

    A node runs once all edges to it are decided and at least one was taken; otherwise it is skipped. Given the same
    outputs, a run ends the same however often it was interrupted and resumed: completed nodes are not run again,
    running nodes are retried (with one more attempt), decisions stay.

    Args:
        workflow: The workflow to run.
        inputs: Its inputs.
        runner: Runs nodes.
        journal: Awaited with each update before it takes effect, one at a time; its exceptions end the run.
        known: The last update of each node, from the log. Outputs stored as blobs must be loaded into `output`;
            inputs may be missing.
        steering: Pauses and releases nodes.
        at_once: Most agents and tools running at the same time; 0: no limit.
        sleep: Waits between attempts, in seconds.

    Raises:
        InvalidRequest: The inputs are not those that the workflow declares.
    """

    def __init__(
        self,
        workflow: Workflow,
        inputs: Mapping[str, JsonValue],
        *,
        runner: NodeRunner,
        journal: Journal,
        known: Mapping[str, NodeUpdated] | None = None,
        steering: Steering | None = None,
        at_once: int = 0,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._workflow = workflow
        self._inputs = checked_inputs(workflow, inputs)
        self._record = NodeUpdates(journal, known or {})
        self._tries = Tries(runner, self._record, sleep, at_once)
        self._steering = steering or Steering()
        self._cancelled = asyncio.Event()
        self._reason = ""
        self._node_ids: set[str] = set(known or {})
        self._counts: dict[str, int] = {}

    def cancel(self, reason: str = "") -> None:
        """Stop all running nodes; `run` returns a cancelled state."""
        self._reason = reason or "cancelled"
        self._cancelled.set()

    def sharing(self, node_id: str) -> int:
        """How many instances of a node its maps run, one for each item; the same after a resumption."""
        maps = (node_id[:at] for at, each in enumerate(node_id) if each == "[")
        return prod(self._counts.get(name, 1) for name in maps)

    @property
    def state(self) -> ExecutionState:
        """The current state of the run."""
        return self._state(ExecutionStatus.IN_PROGRESS)

    async def run(self) -> ExecutionState:
        """Run to the end: completed, failed, rejected, or cancelled by `cancel`.

        If the task that awaits this is cancelled, the log stays as it is and the run can be resumed.

        Raises:
            The journal's exceptions, and Fenced from the runner.
        """
        try:
            outputs = await self._whole()
        except NodeFailed as error:
            return await self._ended(ExecutionStatus.FAILED, str(error))
        except Rejected as error:
            return await self._ended(ExecutionStatus.REJECTED, str(error))
        except Cancelled as error:
            return await self._ended(ExecutionStatus.CANCELLED, str(error))
        return self._state(ExecutionStatus.COMPLETED, outputs=outputs)

    async def _whole(self) -> Mapping[str, JsonValue]:
        async with together() as group:
            watch = group.create_task(self._watch())
            try:
                return await self._graph(self._workflow, ReferenceScope(inputs=self._inputs), "")
            except TryFailed as error:
                raise NodeFailed("", str(error)) from error
            finally:
                watch.cancel()

    async def _watch(self) -> None:
        await self._cancelled.wait()
        raise Cancelled(self._reason)

    async def _ended(self, status: ExecutionStatus, error: str) -> ExecutionState:
        await self._stop_below("", error)
        return self._state(status, error=error)

    def _state(
        self, status: ExecutionStatus, *, outputs: Mapping[str, JsonValue] | None = None, error: str = ""
    ) -> ExecutionState:
        nodes = dict(self._record.updates)
        return ExecutionState(status=status, outputs=outputs or {}, nodes=nodes, error=error, usage=self._record.usage)

    async def _stop_below(self, node_id: str, why: str) -> None:
        for update in self._record.below(node_id):
            await self._record.put(replace(update, status=NodeStatus.SKIPPED, error=f"stopped: {why}"[:500]))

    async def _graph(self, workflow: Workflow, scope: ReferenceScope, prefix: str) -> Mapping[str, JsonValue]:
        """Run a workflow's nodes to their end; returns its outputs. Raises TryFailed where an output fails."""
        into: dict[str, list[Edge]] = defaultdict(list)
        after: dict[str, dict[str, None]] = defaultdict(dict)
        for edge in workflow.edges:
            into[edge.target].append(edge)
            after[edge.source][edge.target] = None
        nodes = {node.id: node for node in workflow.nodes}
        values: dict[str, NodeValue] = {}
        level = replace(scope, nodes=values)
        decides = {edge.source for edge in workflow.edges if edge.label == _REJECTED}

        def sources(edges: Sequence[Edge]) -> Iterator[str]:
            """The sources of the edges that were taken; a branch has no output, so its own sources take its place."""
            for edge in edges:
                if not _is_taken(edge, values[edge.source]):
                    continue
                if nodes[edge.source].type is NodeType.BRANCH:
                    yield from sources(into[edge.source])
                else:
                    yield edge.source

        async def step(node: Node, group: asyncio.TaskGroup) -> None:
            edges = into[node.id]
            if not edges or any(_is_taken(edge, values[edge.source]) for edge in edges):
                within = replace(level, before=tuple(dict.fromkeys(sources(edges))))
                value = await self._node(node, f"{prefix}{node.id}", within, may_reject=node.id in decides)
            else:
                value = await self._skipped(f"{prefix}{node.id}")
            values[node.id] = value
            for target in after[node.id]:
                if all(edge.source in values for edge in into[target]):
                    _begin_node(group, step(nodes[target], group))

        # A failure that ended an earlier run ends this one too, before anything else begins.
        for node in workflow.nodes:
            self._verify(node, f"{prefix}{node.id}", may_reject=node.id in decides)
        async with together() as group:
            for node in workflow.nodes:
                if not into[node.id]:
                    group.create_task(step(node, group))
        try:
            return outputs_of(workflow, level, last=[name for name in nodes if not after[name]])
        except InvalidRequest as error:
            raise TryFailed(str(error)) from error

    async def _skipped(self, node_id: str) -> NodeValue:
        self._node_ids.add(node_id)
        update = self._record.updates.get(node_id)
        if update is None or update.status is not NodeStatus.SKIPPED:
            await self._record.put(NodeUpdated(node_id=node_id, status=NodeStatus.SKIPPED))
        return NodeValue(status=NodeStatus.SKIPPED.value)

    async def _node(self, node: Node, node_id: str, scope: ReferenceScope, *, may_reject: bool = False) -> NodeValue:
        """A node's value, computed now or before a resumption. Raises Ended where the node ends the run."""
        update = self._record.updates.get(node_id)
        if update is None or update.status not in (NodeStatus.COMPLETED, NodeStatus.FAILED):
            self._node_ids.add(node_id)
            if len(self._node_ids) > MAX_NODES:
                raise NodeFailed(node_id, f"a run has {MAX_NODES} nodes at most, its items counted")
            await self._run_node(node, node_id, scope, update)
        self._verify(node, node_id, may_reject=may_reject)
        return self._record.value(node_id)

    def _verify(self, node: Node, node_id: str, *, may_reject: bool) -> None:
        """Raise Ended where the state of a node ends the run."""
        match self._record.updates.get(node_id):
            case NodeUpdated(status=NodeStatus.FAILED, error=error) if node.on_error != "continue":
                raise NodeFailed(node_id, error)
            case NodeUpdated(status=NodeStatus.COMPLETED, label=label) if label == _REJECTED and not may_reject:
                if node.type is NodeType.APPROVAL:
                    raise Rejected(node_id, str(self._record.value(node_id).output["text"]))
            case _:
                pass

    async def _run_node(self, node: Node, node_id: str, scope: ReferenceScope, update: NodeUpdated | None) -> None:
        """Run a node to its end; whether it completed or failed is in the record."""
        try:
            inputs = inputs_of(node, scope)
            step = NodeStep(node=node, node_id=node_id, inputs=inputs, shown=shown_json(inputs), known=update)
        except InvalidRequest as error:
            await self._tries.refused(node, node_id, str(error), update)
            return
        if update is None or update.status in (NodeStatus.PAUSED, NodeStatus.SKIPPED):
            await self._steering.wait(node_id, at_breakpoint=node.breakpoint, note=lambda: self._tries.paused(step))
        match node.type:
            case NodeType.BRANCH:
                await self._tries.branch(step, scope)
            case NodeType.APPROVAL:
                await self._tries.approval(step)
            case NodeType.MAP | NodeType.WORKFLOW:
                await self._tries.run(step, self._within(step, scope), stop=self._stop_below)
            case _:
                await self._tries.work(step)

    def _within(self, step: NodeStep, scope: ReferenceScope) -> Work:
        """The work of a map or a sub-workflow; its inner nodes are retried, not the node itself."""

        async def work(attempt: int, earlier: str) -> NodeOutcome:
            del attempt, earlier
            try:
                if step.node.type is NodeType.MAP:
                    return NodeOutcome(output=await self._items(step, scope))
                return NodeOutcome(output=await self._inner(step))
            except NodeFailed as error:
                raise TryFailed(str(error)) from error

        return work

    async def _inner(self, step: NodeStep) -> JsonValue:
        workflow = step.node.workflow
        if not isinstance(workflow, Workflow):
            raise TryFailed(f"the workflow {workflow!r} is not resolved")
        try:
            inputs = checked_inputs(workflow, step.inputs)
        except InvalidRequest as error:
            raise TryFailed(str(error)) from error
        return await self._graph(workflow, ReferenceScope(inputs=inputs), f"{step.node_id}/")

    async def _items(self, step: NodeStep, scope: ReferenceScope) -> JsonValue:
        items, inner = step.inputs["items"], step.node.node
        if inner is None:
            raise TryFailed("it has no node for its items")
        if len(items) > MAX_ITEMS:
            raise TryFailed(f"{len(items)} items; a map takes at most {MAX_ITEMS}")
        self._counts[step.node_id] = len(items)
        slots = asyncio.Semaphore(step.node.max_parallel or max(1, len(items)))

        async def run_item(index: int) -> JsonValue:
            async with slots:
                within = replace(scope, item=items[index], index=index, has_item=True)
                return (await self._node(inner, f"{step.node_id}[{index}]", within)).output

        # As in a graph: an earlier failure fails the map again, before any item begins.
        for index in range(len(items)):
            self._verify(inner, f"{step.node_id}[{index}]", may_reject=False)
        async with together() as group:
            tasks = [group.create_task(run_item(index)) for index in range(len(items))]
        return [task.result() for task in tasks]


def _begin_node(group: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> None:
    """Begin the next node, unless the run is being stopped: a node may still end, by failing, during that."""
    try:
        group.create_task(work)
    except RuntimeError:
        work.close()  # a task group that is being stopped takes no more tasks


def _is_taken(edge: Edge, source: NodeValue) -> bool:
    return source.status != NodeStatus.SKIPPED and edge.label in ("", source.label)
