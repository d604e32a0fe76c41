"""Workflows and their runs on the wire."""

from __future__ import annotations

import json

from fleet.orchestrator.v1 import orchestrator_pb2 as orchestrator
from fleet.workflow.v1 import workflow_pb2 as pb
from services.orchestrator import responses
from services.orchestrator.replies import MAX_REPLY_BYTES
from swe_ai_fleet.contract import to_enum, to_message
from swe_ai_fleet.domain.event import NodeUpdated
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.workflow import NodeStatus, Workflow, WorkflowTask
from swe_ai_fleet.workflows.drawing import mermaid, said_of


def summary(workflow: Workflow, *, built_in: bool) -> pb.WorkflowSummary:
    """A workflow in a few words."""
    return pb.WorkflowSummary(
        name=workflow.name,
        description=workflow.description,
        inputs=[
            to_message(
                pb.WorkflowInput,
                one,
                required=one.required and one.default is None,
                default_json="" if one.default is None else json.dumps(one.default, ensure_ascii=False),
            )
            for one in workflow.inputs
        ],
        outputs=list(workflow.outputs),
        nodes=len(workflow.nodes),
        built_in=built_in,
    )


def graph(workflow: Workflow) -> pb.WorkflowGraph:
    """What comes after what in a workflow."""
    return pb.WorkflowGraph(
        nodes=[to_message(pb.GraphNode, one, label=said_of(one)) for one in workflow.nodes],
        edges=[to_message(pb.GraphEdge, one) for one in workflow.edges],
    )


def paused(state: ExecutionState) -> list[str]:
    """The nodes that wait at a breakpoint."""
    return [name for name, one in state.nodes.items() if one.status is NodeStatus.PAUSED]


def run_message(state: ExecutionState, order: WorkflowTask) -> pb.WorkflowRun:
    """A run as it stands; what would make the reply too large is left out, the last nodes' first."""
    run = pb.WorkflowRun(
        execution_id=state.execution_id,
        task_id=state.task.task_id,
        status=to_enum(orchestrator.DeliberationStatus, state.status),
        workflow=order.workflow.name,
        error_message=state.error[: responses.MAX_ERROR_CHARS],
        usage=to_message(orchestrator.Usage, state.usage),
        duration_ms=state.duration_ms,
        mermaid=mermaid(order.workflow, state.nodes),
        last_sequence=state.last_sequence,
        graph=graph(order.workflow),
    )
    if state.output is not None:
        run.outputs_json = state.output.output
        if state.output.output_blob is not None:
            run.output_artifact.CopyFrom(
                responses.artifact(state.output.output_blob, state.execution_id, "outputs.json")
            )
    room = MAX_REPLY_BYTES - run.ByteSize()
    if len(order.inputs.encode()) < room // 4:
        run.inputs_json = order.inputs
        room -= len(order.inputs.encode())
    for update in state.nodes.values():
        told = _node(state, update)
        if told.ByteSize() + 16 > room:
            told.ClearField("inputs_json")
            told.ClearField("output_json")
        if (room := room - told.ByteSize() - 16) < 0:
            break
        run.nodes.append(told)
    return run


def _node(state: ExecutionState, update: NodeUpdated) -> pb.NodeRun:
    told = to_message(pb.NodeRun, update, inputs_json=update.inputs, output_json=update.output, output_artifact=None)
    if update.output_blob is not None:
        name = f"{update.node_id.replace('/', '.')}.json"
        told.output_artifact.CopyFrom(responses.artifact(update.output_blob, state.execution_id, name))
    return told
