"""Everything that can be asked over HTTP: a row for each RPC of the contract."""

from __future__ import annotations

from services.gateway.rest.operation import Operation
from services.gateway.upstream import FILES

_FLEET = "fleet.orchestrator.v1.OrchestratorService"
_WORKFLOW = "fleet.workflow.v1.WorkflowService"
_CHAT = "fleet.conversation.v1.ConversationService"
_CONTEXT = "fleet.context.v1.ContextService"
_PLANNING = "fleet.planning.v1.PlanningService"
_NOTIFICATION = "fleet.notification.v1.NotificationService"

ELSEWHERE = frozenset({f"{_FLEET}.StreamExecution"})
"""RPCs without a row: the events of an execution have routes of their own."""
_EXECUTION = "/api/executions/{execution_id}"
# A model works on these, with several calls.
_MODEL_SECONDS = 600.0
_PLAN_SECONDS = 3600.0
_UPLOAD_SECONDS = 3600.0

_EXECUTIONS = (
    Operation(
        verb="POST",
        path="/api/executions",
        rpc=f"{_FLEET}.SubmitTask",
        summary="Submit a task",
        status=202,
        location=_EXECUTION,
    ),
    Operation(verb="GET", path="/api/executions", rpc=f"{_FLEET}.ListExecutions", summary="List executions"),
    Operation(verb="GET", path=_EXECUTION, rpc=f"{_FLEET}.GetExecution", summary="Get an execution"),
    Operation(verb="POST", path=f"{_EXECUTION}/cancel", rpc=f"{_FLEET}.CancelExecution", summary="Cancel an execution"),
    Operation(verb="POST", path=f"{_EXECUTION}/approval", rpc=f"{_FLEET}.ResolveApproval", summary="Decide what waits"),
    Operation(
        verb="GET",
        path=f"{_EXECUTION}/artifacts/{{digest}}",
        rpc=f"{_FLEET}.GetArtifact",
        summary="Get an artifact",
        kind="bytes",
    ),
    Operation(
        verb="POST",
        path="/api/deliberations",
        rpc=f"{_FLEET}.Deliberate",
        summary="Deliberate, and wait",
        kind="waiting",
        location=_EXECUTION,
        events=f"{_FLEET}.StreamDeliberation",
    ),
    Operation(
        verb="POST",
        path="/api/orchestrations",
        rpc=f"{_FLEET}.Orchestrate",
        summary="Orchestrate, and wait",
        kind="waiting",
        location=_EXECUTION,
        events=f"{_FLEET}.StreamOrchestration",
    ),
    Operation(
        verb="POST",
        path="/api/judgements",
        rpc=f"{_FLEET}.JudgePatches",
        summary="Judge patches, and wait",
        kind="waiting",
        location=_EXECUTION,
    ),
    Operation(
        verb="POST",
        path=f"{_EXECUTION}/deliveries",
        rpc=f"{_FLEET}.DeliverCandidate",
        summary="Deliver a candidate",
    ),
    Operation(
        verb="GET",
        path="/api/tasks/{task_id}/result",
        rpc=f"{_FLEET}.GetDeliberationResult",
        summary="Get a task's result",
    ),
    Operation(
        verb="POST",
        path="/api/repositories",
        rpc=f"{_FLEET}.UploadRepository",
        summary="Upload a repository",
        kind="upload",
        status=201,
        seconds=_UPLOAD_SECONDS,
    ),
)
_COUNCILS = (
    Operation(verb="GET", path="/api/councils", rpc=f"{_FLEET}.ListCouncils", summary="List councils"),
    Operation(verb="POST", path="/api/councils", rpc=f"{_FLEET}.CreateCouncil", summary="Create a council", status=201),
    Operation(verb="DELETE", path="/api/councils/{role}", rpc=f"{_FLEET}.DeleteCouncil", summary="Delete a council"),
    Operation(
        verb="POST",
        path="/api/councils/{role}/agents",
        rpc=f"{_FLEET}.RegisterAgent",
        summary="Register an agent",
        status=201,
    ),
    Operation(
        verb="DELETE",
        path="/api/councils/{role}/agents/{agent_id}",
        rpc=f"{_FLEET}.UnregisterAgent",
        summary="Unregister an agent",
    ),
)
_OPERATING = (
    Operation(
        verb="POST",
        path="/api/planning-events",
        rpc=f"{_FLEET}.ProcessPlanningEvent",
        summary="Hand in a planning event",
        seconds=_MODEL_SECONDS,
    ),
    Operation(
        verb="POST",
        path="/api/subtasks",
        rpc=f"{_FLEET}.DeriveSubtasks",
        summary="Split a plan into subtasks",
        seconds=_MODEL_SECONDS,
    ),
    Operation(verb="POST", path="/api/task-context", rpc=f"{_FLEET}.GetTaskContext", summary="Get a task's context"),
    Operation(verb="GET", path="/api/status", rpc=f"{_FLEET}.GetStatus", summary="Get the fleet's health"),
    Operation(verb="GET", path="/api/metrics", rpc=f"{_FLEET}.GetMetrics", summary="Get measurements"),
)
_WORKFLOWS = (
    Operation(verb="GET", path="/api/workflows", rpc=f"{_WORKFLOW}.ListWorkflows", summary="List workflows"),
    Operation(
        verb="POST", path="/api/workflows/validate", rpc=f"{_WORKFLOW}.ValidateWorkflow", summary="Validate a workflow"
    ),
    Operation(verb="GET", path="/api/workflows/{name}", rpc=f"{_WORKFLOW}.GetWorkflow", summary="Get a workflow"),
    Operation(
        verb="POST",
        path="/api/workflow-runs",
        rpc=f"{_WORKFLOW}.RunWorkflow",
        summary="Run a workflow",
        status=202,
        location="/api/workflow-runs/{execution_id}",
    ),
    Operation(
        verb="GET", path="/api/workflow-runs/{execution_id}", rpc=f"{_WORKFLOW}.GetRun", summary="Get a workflow's run"
    ),
    Operation(
        verb="POST",
        path="/api/workflow-runs/{execution_id}/steer",
        rpc=f"{_WORKFLOW}.SteerWorkflow",
        summary="Steer a workflow's run",
    ),
)
_CHATS = (
    Operation(
        verb="POST",
        path="/api/chat",
        rpc=f"{_CHAT}.Send",
        summary="Send a message to a chat",
        kind="last",
        answer="answer",
        events=f"{_CHAT}.Send",
        seconds=_MODEL_SECONDS,
    ),
    Operation(verb="GET", path="/api/conversations", rpc=f"{_CHAT}.ListConversations", summary="List chats"),
    Operation(verb="GET", path="/api/conversations/{session_id}", rpc=f"{_CHAT}.GetConversation", summary="Get a chat"),
    Operation(
        verb="DELETE", path="/api/conversations/{session_id}", rpc=f"{_CHAT}.EndConversation", summary="Forget a chat"
    ),
)
_PLANS = (
    Operation(
        verb="POST",
        path="/api/execute-plan",
        rpc=f"{_PLANNING}.ExecutePlan",
        summary="Propose an approach",
        seconds=_PLAN_SECONDS,
    ),
    Operation(
        verb="POST",
        path="/api/approve-approach",
        rpc=f"{_PLANNING}.ApproveApproach",
        summary="Decide about an approach",
        seconds=_PLAN_SECONDS,
    ),
    Operation(
        verb="POST",
        path="/api/continue-plan",
        rpc=f"{_PLANNING}.ContinuePlan",
        summary="Carry an approach out",
        seconds=_PLAN_SECONDS,
    ),
    Operation(verb="GET", path="/api/plan-sessions", rpc=f"{_PLANNING}.ListPlanSessions", summary="List plan sessions"),
    Operation(
        verb="GET",
        path="/api/plan-sessions/{session_id}",
        rpc=f"{_PLANNING}.GetPlanSession",
        summary="Get a plan session",
    ),
)
_CONTEXTS = (
    Operation(verb="POST", path="/api/context", rpc=f"{_CONTEXT}.GetContext", summary="Get a context"),
    Operation(verb="POST", path="/api/context/changes", rpc=f"{_CONTEXT}.UpdateContext", summary="Change a story"),
    Operation(
        verb="POST", path="/api/context/rehydrate", rpc=f"{_CONTEXT}.RehydrateSession", summary="Take a story up again"
    ),
    Operation(
        verb="POST", path="/api/context/validate-scope", rpc=f"{_CONTEXT}.ValidateScope", summary="Validate a scope"
    ),
    Operation(verb="GET", path="/api/stories", rpc=f"{_CONTEXT}.ListStories", summary="List stories"),
    Operation(verb="POST", path="/api/stories", rpc=f"{_CONTEXT}.CreateStory", summary="Begin a story", status=201),
    Operation(
        verb="POST",
        path="/api/stories/{story_id}/tasks",
        rpc=f"{_CONTEXT}.CreateTask",
        summary="Add a task to a story",
        fields={"story_id": "task.story_id"},
        status=201,
    ),
    Operation(
        verb="POST",
        path="/api/stories/{story_id}/phase",
        rpc=f"{_CONTEXT}.TransitionPhase",
        summary="Take a story to another phase",
    ),
    Operation(
        verb="POST",
        path="/api/decisions",
        rpc=f"{_CONTEXT}.AddProjectDecision",
        summary="Add a decision",
        status=201,
    ),
    Operation(verb="GET", path="/api/graph", rpc=f"{_CONTEXT}.GetGraphRelationships", summary="Look around in a graph"),
    Operation(verb="POST", path="/api/operations", rpc=f"{_CONTEXT}.RecordOperations", summary="Record work"),
    Operation(
        verb="POST",
        path="/api/memories/interactions",
        rpc=f"{_CONTEXT}.AddInteraction",
        summary="Remember a turn",
        status=201,
    ),
    Operation(
        verb="POST", path="/api/memories/facts", rpc=f"{_CONTEXT}.AddFact", summary="Remember a fact", status=201
    ),
    Operation(verb="POST", path="/api/memories/recall", rpc=f"{_CONTEXT}.Recall", summary="Recall memories"),
    Operation(verb="POST", path="/api/memories/clear", rpc=f"{_CONTEXT}.ClearMemory", summary="Forget memories"),
    Operation(verb="POST", path="/api/outcomes", rpc=f"{_CONTEXT}.RecordOutcome", summary="Record or rate an outcome"),
    Operation(
        verb="GET", path="/api/outcomes/{subject_id}", rpc=f"{_CONTEXT}.GetOutcome", summary="Get how something went"
    ),
    Operation(
        verb="POST",
        path="/api/recommendations",
        rpc=f"{_CONTEXT}.RecommendApproach",
        summary="Recommend an approach",
    ),
)
_WEBHOOKS = (
    Operation(verb="GET", path="/api/webhooks", rpc=f"{_NOTIFICATION}.ListWebhooks", summary="List webhooks"),
    Operation(
        verb="POST", path="/api/webhooks", rpc=f"{_NOTIFICATION}.CreateWebhook", summary="Create a webhook", status=201
    ),
    Operation(
        verb="DELETE",
        path="/api/webhooks/{webhook_id}",
        rpc=f"{_NOTIFICATION}.DeleteWebhook",
        summary="Delete a webhook",
    ),
    Operation(
        verb="POST",
        path="/api/webhooks/{webhook_id}/test",
        rpc=f"{_NOTIFICATION}.TestWebhook",
        summary="Try a webhook",
    ),
    Operation(
        verb="GET",
        path="/api/webhooks/{webhook_id}/deliveries",
        rpc=f"{_NOTIFICATION}.ListDeliveries",
        summary="List a webhook's deliveries",
    ),
)
_SERVED = frozenset(service.full_name for file in FILES for service in file.services_by_name.values())
OPERATIONS: tuple[Operation, ...] = tuple(
    row
    for row in (
        *_EXECUTIONS,
        *_COUNCILS,
        *_OPERATING,
        *_WORKFLOWS,
        *_CHATS,
        *_PLANS,
        *_CONTEXTS,
        *_WEBHOOKS,
    )
    if row.service in _SERVED
)
"""In the order in which documents show them."""
