"""Drives a workflow's execution: the engine over the execution's journal; steering and approvals come from its log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import structlog

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest
from swe_ai_fleet.domain.event import ExecutionStatus, NodeUpdated, WorkflowFinished
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.extensions.workflows.engine import Steering, WorkflowRun
from swe_ai_fleet.extensions.workflows.fleet_nodes import DriveInterrupted, FleetNodes
from swe_ai_fleet.extensions.workflows.node_results import NodeResults
from swe_ai_fleet.extensions.workflows.tasks import NODE, check_workflow, inputs_of
from swe_ai_fleet.orchestrator.execution_context import Ending, ExecutionContext, ExecutionDeps

_log = structlog.get_logger(__name__)

MAX_INLINE_BYTES = 64 * 1024
"""A longer output is stored in the blob store."""
AT_ONCE = 100
"""Most agents, tools and executions of nodes running at the same time; a map without `max_parallel` sets no limit."""
JSON_TYPE = "application/json"
AGAIN_SECONDS = 1.0
"""The wait before steering requests are read again after a failed read of the log."""
LEFT_OVER = "the workflow ended without it"


@dataclass(kw_only=True)
class RunDrive:
    """Drives one workflow execution to its end.

    Args:
        work: The workflow's execution; nodes that an earlier driver completed are not run again.
    """

    work: ExecutionContext
    _nodes: FleetNodes | None = None
    _steering_arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def steered(self) -> None:
        """Called when a steering request arrives; the request itself is in the log."""
        self._steering_arrived.set()

    @property
    def waits(self) -> bool:
        """Whether executions of its nodes are running."""
        return self._nodes is not None and self._nodes.waits

    async def run(self) -> Ending:
        """Run to the end. Raises InvalidRequest, Fenced, and FleetError for a fault that does not end the execution."""
        order = self.work.task.workflow
        if order is None:
            raise InvalidRequest("the task has no workflow", field="workflow")
        known, steering = await self._earlier_nodes(), Steering()
        results = NodeResults(work=self.work, known=known)
        nodes = self._nodes = FleetNodes(
            work=self.work,
            results=results,
            known=known,
            spent=_spent(self.work.known, known),
        )
        run = WorkflowRun(
            order.workflow,
            inputs_of(order),
            runner=nodes,
            journal=self._record,
            known=known,
            steering=steering,
            at_once=AT_ONCE,
        )
        nodes.sharing = run.sharing
        for request in self.work.known.steering:
            steering.apply(request)
        self._steering_arrived.set()
        following = asyncio.create_task(self._follow(steering, len(self.work.known.steering)), name="steering")
        try:
            ended = await run.run()
        except DriveInterrupted as interrupted:
            raise interrupted.cause from interrupted
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await nodes.cancel_rest(ended.nodes, LEFT_OVER)
        if ended.status is ExecutionStatus.COMPLETED and self.work.known.output is None:
            text, blob = await self._store_text(json.dumps(dict(ended.outputs), ensure_ascii=False))
            await self.work.journal.append(WorkflowFinished(output=text, output_blob=blob))
        return Ending(status=ended.status, error=ended.error, usage=await self._usage(ended.nodes))

    async def _follow(self, steering: Steering, applied: int) -> None:
        """Pass steering requests to the engine, in the order of the log."""
        while True:
            await self._steering_arrived.wait()
            self._steering_arrived.clear()
            try:
                requests = (await self.work.runs.approvals.refresh()).steering
            except FleetError as fault:
                _log.warning("workflow.steering_unreadable", reason=fault.message)
                await asyncio.sleep(AGAIN_SECONDS)
                self._steering_arrived.set()
                continue
            for request in requests[applied:]:
                steering.apply(request)
            applied = len(requests)

    async def _record(self, update: NodeUpdated) -> None:
        text, blob = await self._store_text(update.output)
        inputs = update.inputs
        if len(inputs.encode()) > MAX_INLINE_BYTES:
            inputs = json.dumps({"left_out": f"{len(inputs)} characters of JSON"})
        await self.work.journal.append(replace(update, inputs=inputs, output=text, output_blob=blob))

    async def _store_text(self, text: str) -> tuple[str, BlobRef | None]:
        """A text if it is short, otherwise the blob that stores it."""
        data = text.encode()
        if len(data) <= MAX_INLINE_BYTES:
            return text, None
        return "", await self.work.deps.blobs.put(self.work.task.tenant, self.work.task.execution_id, data, JSON_TYPE)

    async def _earlier_nodes(self) -> Mapping[str, NodeUpdated]:
        """The last updates of nodes under earlier drivers, with their outputs loaded."""
        nodes: dict[str, NodeUpdated] = {}
        for node_id, update in self.work.known.nodes.items():
            if update.output_blob is not None:
                update = replace(update, output=(await self.work.deps.blobs.get(update.output_blob)).decode())
            nodes[node_id] = update
        return nodes

    async def _usage(self, nodes: Mapping[str, NodeUpdated]) -> Usage:
        return _spent(await self.work.runs.approvals.refresh(), nodes)


def _spent(state: ExecutionState, nodes: Mapping[str, NodeUpdated]) -> Usage:
    """The total usage: this execution's own agent runs, failed ones included, and the executions of its nodes."""
    own = (agent.usage for name, agent in state.agents.items() if name.startswith(NODE))
    theirs = (update.usage for update in nodes.values() if update.execution_id)
    return sum((*own, *theirs), Usage())


class FleetWorkflows:
    """Checks and drives workflow runs for the orchestrator."""

    check = staticmethod(check_workflow)
    drive = RunDrive

    async def ended(self, deps: ExecutionDeps, state: ExecutionState, ending: Ending) -> None:
        """Nothing of a run is kept beside its log."""


WORKFLOWS = FleetWorkflows()
