from fleet.options.v1 import options_pb2 as _options_pb2
from fleet.orchestrator.v1 import orchestrator_pb2 as _orchestrator_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_STATUS_UNSPECIFIED: _ClassVar[NodeStatus]
    NODE_STATUS_PENDING: _ClassVar[NodeStatus]
    NODE_STATUS_RUNNING: _ClassVar[NodeStatus]
    NODE_STATUS_WAITING: _ClassVar[NodeStatus]
    NODE_STATUS_PAUSED: _ClassVar[NodeStatus]
    NODE_STATUS_COMPLETED: _ClassVar[NodeStatus]
    NODE_STATUS_FAILED: _ClassVar[NodeStatus]
    NODE_STATUS_SKIPPED: _ClassVar[NodeStatus]

class SteerAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEER_ACTION_UNSPECIFIED: _ClassVar[SteerAction]
    STEER_ACTION_PAUSE: _ClassVar[SteerAction]
    STEER_ACTION_STEP: _ClassVar[SteerAction]
    STEER_ACTION_CONTINUE: _ClassVar[SteerAction]
NODE_STATUS_UNSPECIFIED: NodeStatus
NODE_STATUS_PENDING: NodeStatus
NODE_STATUS_RUNNING: NodeStatus
NODE_STATUS_WAITING: NodeStatus
NODE_STATUS_PAUSED: NodeStatus
NODE_STATUS_COMPLETED: NodeStatus
NODE_STATUS_FAILED: NodeStatus
NODE_STATUS_SKIPPED: NodeStatus
STEER_ACTION_UNSPECIFIED: SteerAction
STEER_ACTION_PAUSE: SteerAction
STEER_ACTION_STEP: SteerAction
STEER_ACTION_CONTINUE: SteerAction

class WorkflowInput(_message.Message):
    __slots__ = ("name", "type", "description", "required", "default_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    description: str
    required: bool
    default_json: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., description: _Optional[str] = ..., required: _Optional[bool] = ..., default_json: _Optional[str] = ...) -> None: ...

class WorkflowSummary(_message.Message):
    __slots__ = ("name", "description", "inputs", "outputs", "nodes", "built_in")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    BUILT_IN_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    inputs: _containers.RepeatedCompositeFieldContainer[WorkflowInput]
    outputs: _containers.RepeatedScalarFieldContainer[str]
    nodes: int
    built_in: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[WorkflowInput, _Mapping]]] = ..., outputs: _Optional[_Iterable[str]] = ..., nodes: _Optional[int] = ..., built_in: _Optional[bool] = ...) -> None: ...

class WorkflowGraph(_message.Message):
    __slots__ = ("nodes", "edges")
    NODES_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[GraphNode]
    edges: _containers.RepeatedCompositeFieldContainer[GraphEdge]
    def __init__(self, nodes: _Optional[_Iterable[_Union[GraphNode, _Mapping]]] = ..., edges: _Optional[_Iterable[_Union[GraphEdge, _Mapping]]] = ...) -> None: ...

class GraphNode(_message.Message):
    __slots__ = ("id", "type", "label", "breakpoint", "line")
    ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    BREAKPOINT_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    id: str
    type: str
    label: str
    breakpoint: bool
    line: int
    def __init__(self, id: _Optional[str] = ..., type: _Optional[str] = ..., label: _Optional[str] = ..., breakpoint: _Optional[bool] = ..., line: _Optional[int] = ...) -> None: ...

class GraphEdge(_message.Message):
    __slots__ = ("source", "target", "label")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    source: str
    target: str
    label: str
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ..., label: _Optional[str] = ...) -> None: ...

class WorkflowFault(_message.Message):
    __slots__ = ("message", "line", "node", "hint")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    message: str
    line: int
    node: str
    hint: str
    def __init__(self, message: _Optional[str] = ..., line: _Optional[int] = ..., node: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class ListWorkflowsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListWorkflowsResponse(_message.Message):
    __slots__ = ("workflows", "broken")
    WORKFLOWS_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    workflows: _containers.RepeatedCompositeFieldContainer[WorkflowSummary]
    broken: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, workflows: _Optional[_Iterable[_Union[WorkflowSummary, _Mapping]]] = ..., broken: _Optional[_Iterable[str]] = ...) -> None: ...

class GetWorkflowRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetWorkflowResponse(_message.Message):
    __slots__ = ("summary", "definition", "mermaid", "svg", "graph")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    MERMAID_FIELD_NUMBER: _ClassVar[int]
    SVG_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    summary: WorkflowSummary
    definition: str
    mermaid: str
    svg: str
    graph: WorkflowGraph
    def __init__(self, summary: _Optional[_Union[WorkflowSummary, _Mapping]] = ..., definition: _Optional[str] = ..., mermaid: _Optional[str] = ..., svg: _Optional[str] = ..., graph: _Optional[_Union[WorkflowGraph, _Mapping]] = ...) -> None: ...

class ValidateWorkflowRequest(_message.Message):
    __slots__ = ("definition",)
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    definition: str
    def __init__(self, definition: _Optional[str] = ...) -> None: ...

class ValidateWorkflowResponse(_message.Message):
    __slots__ = ("faults", "summary", "mermaid", "svg", "graph")
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    MERMAID_FIELD_NUMBER: _ClassVar[int]
    SVG_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    faults: _containers.RepeatedCompositeFieldContainer[WorkflowFault]
    summary: WorkflowSummary
    mermaid: str
    svg: str
    graph: WorkflowGraph
    def __init__(self, faults: _Optional[_Iterable[_Union[WorkflowFault, _Mapping]]] = ..., summary: _Optional[_Union[WorkflowSummary, _Mapping]] = ..., mermaid: _Optional[str] = ..., svg: _Optional[str] = ..., graph: _Optional[_Union[WorkflowGraph, _Mapping]] = ...) -> None: ...

class RunWorkflowRequest(_message.Message):
    __slots__ = ("task_id", "name", "definition", "inputs", "inputs_json", "repo", "constraints", "approval", "memory", "environment", "model_profile", "context", "case_id", "story_id", "attempt", "priority", "delivery", "planning_mode")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_JSON_FIELD_NUMBER: _ClassVar[int]
    REPO_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    MODEL_PROFILE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    STORY_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    PLANNING_MODE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    name: str
    definition: str
    inputs: _struct_pb2.Struct
    inputs_json: str
    repo: _orchestrator_pb2.RepoRef
    constraints: _orchestrator_pb2.TaskConstraints
    approval: _orchestrator_pb2.ApprovalPolicy
    memory: _orchestrator_pb2.MemoryOptions
    environment: _orchestrator_pb2.EnvironmentSpec
    model_profile: str
    context: str
    case_id: str
    story_id: str
    attempt: int
    priority: int
    delivery: _orchestrator_pb2.Delivery
    planning_mode: _orchestrator_pb2.PlanningMode
    def __init__(self, task_id: _Optional[str] = ..., name: _Optional[str] = ..., definition: _Optional[str] = ..., inputs: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., inputs_json: _Optional[str] = ..., repo: _Optional[_Union[_orchestrator_pb2.RepoRef, _Mapping]] = ..., constraints: _Optional[_Union[_orchestrator_pb2.TaskConstraints, _Mapping]] = ..., approval: _Optional[_Union[_orchestrator_pb2.ApprovalPolicy, str]] = ..., memory: _Optional[_Union[_orchestrator_pb2.MemoryOptions, _Mapping]] = ..., environment: _Optional[_Union[_orchestrator_pb2.EnvironmentSpec, _Mapping]] = ..., model_profile: _Optional[str] = ..., context: _Optional[str] = ..., case_id: _Optional[str] = ..., story_id: _Optional[str] = ..., attempt: _Optional[int] = ..., priority: _Optional[int] = ..., delivery: _Optional[_Union[_orchestrator_pb2.Delivery, _Mapping]] = ..., planning_mode: _Optional[_Union[_orchestrator_pb2.PlanningMode, str]] = ...) -> None: ...

class RunWorkflowResponse(_message.Message):
    __slots__ = ("execution_id", "task_id", "status", "already_existed")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ALREADY_EXISTED_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    task_id: str
    status: _orchestrator_pb2.DeliberationStatus
    already_existed: bool
    def __init__(self, execution_id: _Optional[str] = ..., task_id: _Optional[str] = ..., status: _Optional[_Union[_orchestrator_pb2.DeliberationStatus, str]] = ..., already_existed: _Optional[bool] = ...) -> None: ...

class SteerWorkflowRequest(_message.Message):
    __slots__ = ("execution_id", "action", "node_id", "by")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    action: SteerAction
    node_id: str
    by: str
    def __init__(self, execution_id: _Optional[str] = ..., action: _Optional[_Union[SteerAction, str]] = ..., node_id: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class SteerWorkflowResponse(_message.Message):
    __slots__ = ("execution_id", "paused")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    paused: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, execution_id: _Optional[str] = ..., paused: _Optional[_Iterable[str]] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("execution_id",)
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    def __init__(self, execution_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: WorkflowRun
    def __init__(self, run: _Optional[_Union[WorkflowRun, _Mapping]] = ...) -> None: ...

class WorkflowRun(_message.Message):
    __slots__ = ("execution_id", "task_id", "status", "workflow", "nodes", "outputs_json", "output_artifact", "error_message", "usage", "duration_ms", "inputs_json", "mermaid", "last_sequence", "graph")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_JSON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_JSON_FIELD_NUMBER: _ClassVar[int]
    MERMAID_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    task_id: str
    status: _orchestrator_pb2.DeliberationStatus
    workflow: str
    nodes: _containers.RepeatedCompositeFieldContainer[NodeRun]
    outputs_json: str
    output_artifact: _orchestrator_pb2.ArtifactRef
    error_message: str
    usage: _orchestrator_pb2.Usage
    duration_ms: int
    inputs_json: str
    mermaid: str
    last_sequence: int
    graph: WorkflowGraph
    def __init__(self, execution_id: _Optional[str] = ..., task_id: _Optional[str] = ..., status: _Optional[_Union[_orchestrator_pb2.DeliberationStatus, str]] = ..., workflow: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[NodeRun, _Mapping]]] = ..., outputs_json: _Optional[str] = ..., output_artifact: _Optional[_Union[_orchestrator_pb2.ArtifactRef, _Mapping]] = ..., error_message: _Optional[str] = ..., usage: _Optional[_Union[_orchestrator_pb2.Usage, _Mapping]] = ..., duration_ms: _Optional[int] = ..., inputs_json: _Optional[str] = ..., mermaid: _Optional[str] = ..., last_sequence: _Optional[int] = ..., graph: _Optional[_Union[WorkflowGraph, _Mapping]] = ...) -> None: ...

class NodeRun(_message.Message):
    __slots__ = ("node_id", "status", "attempt", "failures", "inputs_json", "output_json", "output_artifact", "error_message", "execution_id", "label", "usage", "duration_ms")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_JSON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_JSON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    status: NodeStatus
    attempt: int
    failures: int
    inputs_json: str
    output_json: str
    output_artifact: _orchestrator_pb2.ArtifactRef
    error_message: str
    execution_id: str
    label: str
    usage: _orchestrator_pb2.Usage
    duration_ms: int
    def __init__(self, node_id: _Optional[str] = ..., status: _Optional[_Union[NodeStatus, str]] = ..., attempt: _Optional[int] = ..., failures: _Optional[int] = ..., inputs_json: _Optional[str] = ..., output_json: _Optional[str] = ..., output_artifact: _Optional[_Union[_orchestrator_pb2.ArtifactRef, _Mapping]] = ..., error_message: _Optional[str] = ..., execution_id: _Optional[str] = ..., label: _Optional[str] = ..., usage: _Optional[_Union[_orchestrator_pb2.Usage, _Mapping]] = ..., duration_ms: _Optional[int] = ...) -> None: ...
