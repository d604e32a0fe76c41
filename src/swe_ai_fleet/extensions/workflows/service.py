"""The RPCs of `fleet.workflow.v1.WorkflowService`, and its messages for workflows and their runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from google.protobuf import json_format

from fleet.orchestrator.v1 import orchestrator_pb2 as orchestrator
from fleet.workflow.v1 import workflow_pb2 as pb
from fleet.workflow.v1.workflow_pb2_grpc import WorkflowServiceServicer
from services.auth import caller_of, principal, tenant
from services.errors import Context, check_values
from services.grpc_server import Service, service_of
from services.orchestrator import responses
from services.orchestrator.replies import MAX_REPLY_BYTES
from services.orchestrator.requests import fields_of, orchestration_task
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentTools
from swe_ai_fleet.agents.toolbox import REQUEST_TOOLS
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.contract import to_enum, to_message
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.domain.event import ExecutionStatus, NodeUpdated
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.json_values import is_list, is_object, mapping, parse_json
from swe_ai_fleet.domain.task import Constraints, Task, TaskKind
from swe_ai_fleet.domain.workflow import NodeStatus, Workflow, WorkflowTask
from swe_ai_fleet.extensions.workflows.documents import InvalidWorkflow
from swe_ai_fleet.extensions.workflows.reading import (
    CatalogEntry,
    WorkflowCatalog,
    mermaid,
    node_caption,
    read_catalog,
    read_workflow,
)
from swe_ai_fleet.extensions.workflows.runner import exact_json
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.runtime.service_deps import ServiceDeps
from swe_ai_fleet.runtime.tool_services import tool_access
from swe_ai_fleet.settings import Settings, listed
from swe_ai_fleet.tools.catalogue import ToolAccess, operations

MAX_STORED_BYTES = 1024 * 1024
"""Of a run's stored task: its workflow, its inputs and the other fields of its request."""
_ACTIONS = {
    pb.STEER_ACTION_PAUSE: "pause",
    pb.STEER_ACTION_STEP: "step",
    pb.STEER_ACTION_CONTINUE: "continue",
}
_ORCHESTRATION_FIELDS = (
    "task_id", "repo", "constraints", "approval", "memory", "environment", "model_profile", "context", "case_id",
    "story_id", "attempt", "priority", "delivery", "planning_mode",
)  # fmt: skip
"""The fields that a run shares with an orchestration."""
_SCALAR_FIELDS = frozenset(
    field.name
    for field in pb.RunWorkflowRequest.DESCRIPTOR.fields
    if field.message_type is None and not field.has_presence
)


def summary(workflow: Workflow, *, built_in: bool) -> pb.WorkflowSummary:
    """The summary of a workflow: its name, description, inputs and outputs."""
    return pb.WorkflowSummary(
        name=workflow.name,
        description=workflow.description,
        inputs=[
            to_message(
                pb.WorkflowInput,
                declared,
                required=declared.required and declared.default is None,
                default_json="" if declared.default is None else json.dumps(declared.default, ensure_ascii=False),
            )
            for declared in workflow.inputs
        ],
        outputs=list(workflow.outputs),
        nodes=len(workflow.nodes),
        built_in=built_in,
    )


def graph(workflow: Workflow) -> pb.WorkflowGraph:
    """The nodes and edges of a workflow."""
    return pb.WorkflowGraph(
        nodes=[to_message(pb.GraphNode, node, label=node_caption(node)) for node in workflow.nodes],
        edges=[to_message(pb.GraphEdge, edge) for edge in workflow.edges],
    )


def paused(state: ExecutionState) -> list[str]:
    """The ids of the paused nodes."""
    return [name for name, update in state.nodes.items() if update.status is NodeStatus.PAUSED]


def run_message(state: ExecutionState, order: WorkflowTask) -> pb.WorkflowRun:
    """The current state of a run; inputs, outputs and nodes beyond the size of a reply are left out, the last first."""
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
        node = _node(state, update)
        if node.ByteSize() + 16 > room:
            node.ClearField("inputs_json")
            node.ClearField("output_json")
        if (room := room - node.ByteSize() - 16) < 0:
            break
        run.nodes.append(node)
    return run


def _node(state: ExecutionState, update: NodeUpdated) -> pb.NodeRun:
    node = to_message(pb.NodeRun, update, inputs_json=update.inputs, output_json=update.output, output_artifact=None)
    if update.output_blob is not None:
        name = f"{update.node_id.replace('/', '.')}.json"
        node.output_artifact.CopyFrom(responses.artifact(update.output_blob, state.execution_id, name))
    return node


class WorkflowServicer(WorkflowServiceServicer):
    """Serves workflows; their runs are ordinary executions.

    Args:
        executions: Runs workflows.
        catalog: Reads the known workflows; blocking.
        tools: The names of the tools that workflows may use; None: tools are not checked.
    """

    def __init__(
        self, *, executions: Executions, catalog: Callable[[], WorkflowCatalog], tools: frozenset[str] | None = None
    ) -> None:
        self._executions = executions
        self._catalog = catalog
        self._tools = tools

    async def ListWorkflows(self, request: pb.ListWorkflowsRequest, context: Context) -> pb.ListWorkflowsResponse:
        catalog = await asyncio.to_thread(self._catalog)
        return pb.ListWorkflowsResponse(
            workflows=[summary(entry.workflow, built_in=entry.built_in) for entry in catalog.workflows.values()],
            broken=[str(fault) for fault in catalog.broken],
        )

    async def GetWorkflow(self, request: pb.GetWorkflowRequest, context: Context) -> pb.GetWorkflowResponse:
        entry = await self._entry(request.name)
        return pb.GetWorkflowResponse(
            summary=summary(entry.workflow, built_in=entry.built_in),
            definition=entry.text,
            mermaid=mermaid(entry.workflow),
            graph=graph(entry.workflow),
        )

    async def ValidateWorkflow(
        self, request: pb.ValidateWorkflowRequest, context: Context
    ) -> pb.ValidateWorkflowResponse:
        try:
            workflow = await self._read(request.definition)
        except InvalidWorkflow as error:
            return pb.ValidateWorkflowResponse(faults=[to_message(pb.WorkflowFault, fault) for fault in error.faults])
        return pb.ValidateWorkflowResponse(
            summary=summary(workflow, built_in=False),
            mermaid=mermaid(workflow),
            graph=graph(workflow),
        )

    async def RunWorkflow(self, request: pb.RunWorkflowRequest, context: Context) -> pb.RunWorkflowResponse:
        task = replace(await self._task(request), tenant=tenant(), caller=caller_of(context))
        submission = await self._executions.submit(task)
        state = self._executions.projection.get(tenant(), submission.execution_id)
        return pb.RunWorkflowResponse(
            execution_id=submission.execution_id,
            task_id=task.task_id,
            status=to_enum(orchestrator.DeliberationStatus, state.status if state else ExecutionStatus.PENDING),
            already_existed=submission.existed,
        )

    async def SteerWorkflow(self, request: pb.SteerWorkflowRequest, context: Context) -> pb.SteerWorkflowResponse:
        execution_id, action = request.execution_id, _ACTIONS.get(request.action)
        if action is None:
            raise InvalidRequest("no action given", field="action", hint="PAUSE, STEP or CONTINUE")
        by = principal().name or request.by.strip() or f"token holder at {context.peer()}"
        state = await self._executions.steer(tenant(), execution_id, action, request.node_id, by=by)
        return pb.SteerWorkflowResponse(execution_id=execution_id, paused=paused(state))

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        state = await self._executions.get(tenant(), request.execution_id)
        if state.task.workflow is None:
            raise NotFound(f"execution {state.execution_id} is not a workflow run", field="execution_id")
        return pb.GetRunResponse(run=run_message(state, state.task.workflow))

    async def _entry(self, name: str) -> CatalogEntry:
        return (await asyncio.to_thread(self._catalog)).get(name)

    async def _read(self, definition: str) -> Workflow:
        """The workflow in a caller's YAML; it may use the server's workflows. Raises InvalidWorkflow."""

        def read() -> Workflow:
            return read_workflow(definition, tools=self._tools, workflows=self._catalog().by_name)

        return await asyncio.to_thread(read)

    async def _task(self, request: pb.RunWorkflowRequest) -> Task:
        """The task of a run. Raises InvalidRequest, NotFound naming the field."""
        match request.WhichOneof("workflow"):
            case "name":
                workflow = (await self._entry(request.name)).workflow
            case "definition":
                workflow = await self._read(request.definition)
            case _:
                raise InvalidRequest("no workflow given", field="workflow", hint="set name or definition")
        shared = orchestrator.OrchestrateRequest(task_description=workflow.description or workflow.name)
        for name in _ORCHESTRATION_FIELDS:
            if name in _SCALAR_FIELDS or request.HasField(cast("Any", name)):
                _copy(getattr(request, name), shared, name)
        with fields_of(shared):
            # Its description is that of the workflow.
            check_values(shared)
            task = orchestration_task(shared)
        run = WorkflowTask(workflow=workflow, inputs=exact_json(_inputs(request), "inputs"))
        task = replace(task, kind=TaskKind.WORKFLOW, workflow=run, rounds=0, num_agents=1)
        if (size := len(to_json(task))) > MAX_STORED_BYTES:
            raise InvalidRequest(
                f"the run has {size} bytes as a stored task", field="inputs", hint=f"at most {MAX_STORED_BYTES}"
            )
        return task


def workflow_servicer(executions: Executions, settings: Settings) -> WorkflowServicer:
    """The servicer of an installation, with the workflows of its directories and its tools."""
    tools = tool_names(tool_access(settings))
    directories = tuple(Path(name) for name in listed(settings.workflows))
    return WorkflowServicer(executions=executions, catalog=lambda: read_catalog(directories, tools=tools), tools=tools)


def tool_names(access: ToolAccess) -> frozenset[str] | None:
    """The names of operations and their tools; None where servers bring some that only they know."""
    if access.servers(Constraints()):
        return None
    specs = [definition.spec for definition in operations().values()]
    others = {*SubAgentTools.definitions, REQUEST_TOOLS, *(plugin.name for plugin in access.plugins)}
    return frozenset({name for spec in specs for name in (spec.name, spec.tool)} | others)


@asynccontextmanager
async def open_service(deps: ServiceDeps) -> AsyncGenerator[Service]:
    """The workflow service of the orchestrator."""
    yield service_of(workflow_servicer(deps.executions, deps.settings))


def _copy(value: object, into: orchestrator.OrchestrateRequest, name: str) -> None:
    field: Any = getattr(into, name)
    if hasattr(field, "CopyFrom"):
        field.CopyFrom(value)
    else:
        setattr(into, name, value)


def _inputs(request: pb.RunWorkflowRequest) -> Mapping[str, object]:
    """The inputs; those from a Struct with whole numbers as integers. Raises InvalidRequest."""
    if not request.inputs_json:
        return mapping(_whole(json_format.MessageToDict(request.inputs)))
    try:
        inputs = parse_json(request.inputs_json)
    except ValueError as error:
        raise InvalidRequest(f"not valid JSON: {str(error)[:200]}", field="inputs_json") from None
    if not is_object(inputs):
        raise InvalidRequest("it is not a JSON object", field="inputs_json", hint='such as {"query": "..."}')
    return inputs


def _whole(value: object) -> object:
    """A JSON value in which 3.0 is 3: a Struct has no integers."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case _ if is_object(value):
            return {name: _whole(item) for name, item in value.items()}
        case _ if is_list(value):
            return [_whole(item) for item in value]
        case _:
            return value
