"""The role that each RPC needs: a row for every method that the fleet serves."""

from __future__ import annotations

from collections.abc import Mapping

from swe_ai_fleet.domain.access import AccessRole, Principal
from swe_ai_fleet.domain.errors import PermissionDenied

_FLEET = "fleet.orchestrator.v1.OrchestratorService"
_WORKFLOW = "fleet.workflow.v1.WorkflowService"
_CHAT = "fleet.conversation.v1.ConversationService"
_PLANNING = "fleet.planning.v1.PlanningService"
_NOTIFICATION = "fleet.notification.v1.NotificationService"
_CONTEXT = "fleet.context.v1.ContextService"

# Read the tenant's data; they change nothing and use no model.
_VIEWER = {
    _FLEET: (
        "GetDeliberationResult GetArtifact GetExecution ListExecutions StreamExecution ListCouncils "
        "GetStatus GetMetrics"
    ),
    _WORKFLOW: "ListWorkflows GetWorkflow ValidateWorkflow GetRun",
    _CHAT: "GetConversation ListConversations",
    _PLANNING: "GetPlanSession ListPlanSessions",
    _CONTEXT: (
        "GetContext RehydrateSession ValidateScope ListStories GetGraphRelationships Recall "
        "GetOutcome RecommendApproach"
    ),
}
# Start work of agents or models, cancel work, and add to the tenant's knowledge.
_SUBMITTER = {
    _FLEET: (
        "Deliberate StreamDeliberation Orchestrate StreamOrchestration SubmitTask JudgePatches "
        "UploadRepository CancelExecution ProcessPlanningEvent DeriveSubtasks GetTaskContext"
    ),
    _WORKFLOW: "RunWorkflow SteerWorkflow",
    _CHAT: "Send EndConversation",
    _PLANNING: "ExecutePlan ContinuePlan",
    _CONTEXT: (
        "UpdateContext CreateStory CreateTask AddProjectDecision TransitionPhase RecordOperations "
        "AddInteraction AddFact RecordOutcome"
    ),
}
# Make the decisions that agents wait for.
_APPROVER = {
    _FLEET: "ResolveApproval DeliverCandidate",
    _PLANNING: "ApproveApproach",
}
# Decide which agents work for the tenant, where its data is sent, and what is deleted.
_ADMIN = {
    _FLEET: "RegisterAgent UnregisterAgent CreateCouncil DeleteCouncil Drain Erase",
    _NOTIFICATION: "CreateWebhook ListWebhooks DeleteWebhook TestWebhook ListDeliveries",
    _CONTEXT: "ClearMemory",
}
ROLES: Mapping[str, AccessRole] = {
    f"{service}.{rpc}": role
    for role, services in (
        (AccessRole.VIEWER, _VIEWER),
        (AccessRole.SUBMITTER, _SUBMITTER),
        (AccessRole.APPROVER, _APPROVER),
        (AccessRole.ADMIN, _ADMIN),
    )
    for service, rpcs in services.items()
    for rpc in rpcs.split()
}
"""The role that each RPC needs, by the method's full name, such as `fleet.context.v1.ContextService.Recall`."""


def role_for(method: str) -> AccessRole:
    """The role that an RPC needs; admin if it has no row. `method` is its full name or its gRPC path."""
    return ROLES.get(method.removeprefix("/").replace("/", "."), AccessRole.ADMIN)


def check_role(who: Principal, method: str) -> None:
    """Check that a caller may call an RPC. The fleet's services may, since they have checked their own callers.

    Raises:
        PermissionDenied: The role is missing.
    """
    needed = role_for(method)
    if not (who.may(needed) or who.may(AccessRole.SERVICE)):
        roles = ", ".join(sorted(role.value for role in who.roles)) or "none"
        raise PermissionDenied(
            f"this needs the role {needed.value!r}",
            field="authorization",
            hint=f"your roles: {roles}; an operator grants roles in the access file",
        )
