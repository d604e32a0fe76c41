"""The HTTP operations: one row for each RPC."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from services.gateway.upstream import CALL_SECONDS, method

Kind = Literal["unary", "waiting", "last", "bytes", "upload"]
PLACEHOLDERS = re.compile(r"\{([a-z_]+)\}")
"""The names in braces in a path or a location."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A row of the table.

    Attributes:
        path: From `/api` on; names in braces are its parameters.
        fields: The request's field for each path parameter that has another name; dots lead into nested messages.
        location: The path of what the call created; names in braces are fields of the reply.
        answer: The one field of the reply that is the answer; empty: the whole reply.
    """

    verb: Literal["GET", "POST", "DELETE"]
    path: str
    rpc: str
    summary: str
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    status: int = 200
    location: str = ""
    answer: str = ""
    seconds: float = CALL_SECONDS

    @property
    def method(self) -> MethodDescriptor:
        return method(self.rpc)

    @property
    def kind(self) -> Kind:
        """How it is answered, from the RPC's definition.

        unary: one request, one reply. waiting: a task; the client may wait for its end. last: the answer is the last
        message of a stream. bytes: downloads a blob. upload: uploads one.
        """
        rpc = self.method
        if rpc.client_streaming:
            return "upload"
        if rpc.server_streaming:
            return "last" if self.answer else "bytes"
        tasks = method(SUBMIT).input_type.fields
        return "waiting" if any(task.message_type == rpc.input_type for task in tasks) else "unary"

    @property
    def events(self) -> str:
        """The streaming RPC that serves clients which accept server-sent events; empty if there is none."""
        rpc = self.method
        if self.kind not in ("waiting", "last"):
            return ""
        streaming = (each for each in rpc.containing_service.methods if each.server_streaming)
        return next((each.full_name for each in streaming if each.input_type == rpc.input_type), "")

    @property
    def service(self) -> str:
        return self.rpc.rpartition(".")[0]

    @property
    def parameters(self) -> Mapping[str, str]:
        return {name: self.fields.get(name, name) for name in PLACEHOLDERS.findall(self.path)}

    @property
    def has_body(self) -> bool:
        """Whether the fields that are not in the path come in a JSON body; otherwise they come in the query."""
        return self.verb == "POST" and self.kind != "upload"

    @property
    def id(self) -> str:
        """The RPC's name, which is unique in the table."""
        return self.rpc.rpartition(".")[2]


def field_of(message: Descriptor, name: str) -> FieldDescriptor:
    """A field by its name; dots lead into nested messages. Raises KeyError."""
    *parents, last = name.split(".")
    for part in parents:
        inner = message.fields_by_name[part].message_type
        if inner is None:
            raise KeyError(name)
        message = inner
    return message.fields_by_name[last]


_FLEET = "fleet.orchestrator.v1.OrchestratorService"
_WORKFLOW = "fleet.workflow.v1.WorkflowService"
_CHAT = "fleet.conversation.v1.ConversationService"
_CONTEXT = "fleet.context.v1.ContextService"
_PLANNING = "fleet.planning.v1.PlanningService"
_NOTIFICATION = "fleet.notification.v1.NotificationService"
SUBMIT = f"{_FLEET}.SubmitTask"
"""Submits any kind of task without waiting for its end."""
WAIT = "wait_seconds"
"""The query parameter for how long to wait for a task's end."""
MAX_WAIT_SECONDS = 86_400
ELSEWHERE = frozenset({f"{_FLEET}.StreamExecution"})
"""RPCs without a row: an execution's events have routes of their own in `streams`."""
_EXECUTION = "/api/executions/{execution_id}"
# These make several model calls.
_MODEL_SECONDS = 600.0
_HOUR = 3600.0


def _row(
    service: str,
    rpc: str,
    verb: Literal["GET", "POST", "DELETE"],
    path: str,
    summary: str,
    **more: Any,
) -> Operation:
    return Operation(verb=verb, path=path, rpc=f"{service}.{rpc}", summary=summary, **more)


OPERATIONS: tuple[Operation, ...] = (
    _row(_FLEET, "SubmitTask", "POST", "/api/executions", "Submit a task", status=202, location=_EXECUTION),
    _row(_FLEET, "ListExecutions", "GET", "/api/executions", "List executions"),
    _row(_FLEET, "GetExecution", "GET", _EXECUTION, "Get an execution"),
    _row(_FLEET, "CancelExecution", "POST", f"{_EXECUTION}/cancel", "Cancel an execution"),
    _row(_FLEET, "ResolveApproval", "POST", f"{_EXECUTION}/approval", "Resolve an approval"),
    _row(_FLEET, "GetArtifact", "GET", f"{_EXECUTION}/artifacts/{{digest}}", "Get an artifact"),
    _row(_FLEET, "Deliberate", "POST", "/api/deliberations", "Deliberate, and wait", location=_EXECUTION),
    _row(_FLEET, "Orchestrate", "POST", "/api/orchestrations", "Orchestrate, and wait", location=_EXECUTION),
    _row(_FLEET, "JudgePatches", "POST", "/api/judgements", "Judge patches, and wait", location=_EXECUTION),
    _row(_FLEET, "DeliverCandidate", "POST", f"{_EXECUTION}/deliveries", "Deliver a candidate"),
    _row(_FLEET, "Erase", "POST", "/api/erasures", "Erase data for good", seconds=_HOUR),
    _row(_FLEET, "GetDeliberationResult", "GET", "/api/tasks/{task_id}/result", "Get a task's result"),
    _row(_FLEET, "UploadRepository", "POST", "/api/repositories", "Upload a repository", status=201, seconds=_HOUR),
    _row(_FLEET, "ListCouncils", "GET", "/api/councils", "List councils"),
    _row(_FLEET, "CreateCouncil", "POST", "/api/councils", "Create a council", status=201),
    _row(_FLEET, "DeleteCouncil", "DELETE", "/api/councils/{role}", "Delete a council"),
    _row(_FLEET, "RegisterAgent", "POST", "/api/councils/{role}/agents", "Register an agent", status=201),
    _row(_FLEET, "UnregisterAgent", "DELETE", "/api/councils/{role}/agents/{agent_id}", "Unregister an agent"),
    _row(
        _FLEET,
        "ProcessPlanningEvent",
        "POST",
        "/api/planning-events",
        "Submit a planning event",
        seconds=_MODEL_SECONDS,
    ),
    _row(_FLEET, "DeriveSubtasks", "POST", "/api/subtasks", "Split a plan into subtasks", seconds=_MODEL_SECONDS),
    _row(_FLEET, "GetTaskContext", "POST", "/api/task-context", "Get a task's context"),
    _row(_FLEET, "GetStatus", "GET", "/api/status", "Get the fleet's health"),
    _row(_FLEET, "GetMetrics", "GET", "/api/metrics", "Get metrics"),
    _row(_FLEET, "Drain", "POST", "/api/drains", "Drain a part of the fleet"),
    _row(_WORKFLOW, "ListWorkflows", "GET", "/api/workflows", "List workflows"),
    _row(_WORKFLOW, "ValidateWorkflow", "POST", "/api/workflows/validate", "Validate a workflow"),
    _row(_WORKFLOW, "GetWorkflow", "GET", "/api/workflows/{name}", "Get a workflow"),
    _row(
        _WORKFLOW,
        "RunWorkflow",
        "POST",
        "/api/workflow-runs",
        "Run a workflow",
        status=202,
        location="/api/workflow-runs/{execution_id}",
    ),
    _row(_WORKFLOW, "GetRun", "GET", "/api/workflow-runs/{execution_id}", "Get a workflow's run"),
    _row(_WORKFLOW, "SteerWorkflow", "POST", "/api/workflow-runs/{execution_id}/steer", "Steer a workflow's run"),
    _row(_CHAT, "Send", "POST", "/api/chat", "Send a message to a chat", answer="answer", seconds=_MODEL_SECONDS),
    _row(_CHAT, "ListConversations", "GET", "/api/conversations", "List chats"),
    _row(_CHAT, "GetConversation", "GET", "/api/conversations/{session_id}", "Get a chat"),
    _row(_CHAT, "EndConversation", "DELETE", "/api/conversations/{session_id}", "Delete a chat"),
    _row(_PLANNING, "ExecutePlan", "POST", "/api/execute-plan", "Propose an approach", seconds=_HOUR),
    _row(_PLANNING, "ApproveApproach", "POST", "/api/approve-approach", "Decide about an approach", seconds=_HOUR),
    _row(_PLANNING, "ContinuePlan", "POST", "/api/continue-plan", "Execute an approved approach", seconds=_HOUR),
    _row(_PLANNING, "ListPlanSessions", "GET", "/api/plan-sessions", "List plan sessions"),
    _row(_PLANNING, "GetPlanSession", "GET", "/api/plan-sessions/{session_id}", "Get a plan session"),
    _row(_CONTEXT, "GetContext", "POST", "/api/context", "Get a context"),
    _row(_CONTEXT, "UpdateContext", "POST", "/api/context/changes", "Change a story"),
    _row(_CONTEXT, "RehydrateSession", "POST", "/api/context/rehydrate", "Rehydrate a session"),
    _row(_CONTEXT, "ValidateScope", "POST", "/api/context/validate-scope", "Validate a scope"),
    _row(_CONTEXT, "ListStories", "GET", "/api/stories", "List stories"),
    _row(_CONTEXT, "CreateStory", "POST", "/api/stories", "Create a story", status=201),
    _row(
        _CONTEXT,
        "CreateTask",
        "POST",
        "/api/stories/{story_id}/tasks",
        "Add a task to a story",
        fields={"story_id": "task.story_id"},
        status=201,
    ),
    _row(_CONTEXT, "TransitionPhase", "POST", "/api/stories/{story_id}/phase", "Move a story to another phase"),
    _row(_CONTEXT, "AddProjectDecision", "POST", "/api/decisions", "Add a decision", status=201),
    _row(_CONTEXT, "GetGraphRelationships", "GET", "/api/graph", "Get relationships in a graph"),
    _row(_CONTEXT, "RecordOperations", "POST", "/api/operations", "Record work"),
    _row(_CONTEXT, "AddInteraction", "POST", "/api/memories/interactions", "Store an interaction", status=201),
    _row(_CONTEXT, "AddFact", "POST", "/api/memories/facts", "Store a fact", status=201),
    _row(_CONTEXT, "Recall", "POST", "/api/memories/recall", "Recall memories"),
    _row(_CONTEXT, "ClearMemory", "POST", "/api/memories/clear", "Delete memories"),
    _row(_CONTEXT, "RecordOutcome", "POST", "/api/outcomes", "Record or rate an outcome"),
    _row(_CONTEXT, "GetOutcome", "GET", "/api/outcomes/{subject_id}", "Get an outcome"),
    _row(_CONTEXT, "RecommendApproach", "POST", "/api/recommendations", "Recommend an approach"),
    _row(_NOTIFICATION, "ListWebhooks", "GET", "/api/webhooks", "List webhooks"),
    _row(_NOTIFICATION, "CreateWebhook", "POST", "/api/webhooks", "Create a webhook", status=201),
    _row(_NOTIFICATION, "DeleteWebhook", "DELETE", "/api/webhooks/{webhook_id}", "Delete a webhook"),
    _row(_NOTIFICATION, "TestWebhook", "POST", "/api/webhooks/{webhook_id}/test", "Test a webhook"),
    _row(
        _NOTIFICATION, "ListDeliveries", "GET", "/api/webhooks/{webhook_id}/deliveries", "List a webhook's deliveries"
    ),
)
"""In the order in which the documents show them."""
