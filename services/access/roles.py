"""Which role each RPC takes: a row for every method that the fleet serves."""

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

# Reads what the tenant has; changes nothing, and no model works for it.
_VIEWER = (
    f"{_FLEET}.GetDeliberationResult",
    f"{_FLEET}.GetArtifact",
    f"{_FLEET}.GetExecution",
    f"{_FLEET}.ListExecutions",
    f"{_FLEET}.StreamExecution",
    f"{_FLEET}.ListCouncils",
    f"{_FLEET}.GetTaskContext",
    f"{_FLEET}.GetStatus",
    f"{_FLEET}.GetMetrics",
    f"{_WORKFLOW}.ListWorkflows",
    f"{_WORKFLOW}.GetWorkflow",
    f"{_WORKFLOW}.ValidateWorkflow",
    f"{_WORKFLOW}.GetRun",
    f"{_CHAT}.GetConversation",
    f"{_CHAT}.ListConversations",
    f"{_PLANNING}.GetPlanSession",
    f"{_PLANNING}.ListPlanSessions",
    f"{_CONTEXT}.GetContext",
    f"{_CONTEXT}.RehydrateSession",
    f"{_CONTEXT}.ValidateScope",
    f"{_CONTEXT}.ListStories",
    f"{_CONTEXT}.GetGraphRelationships",
    f"{_CONTEXT}.Recall",
    f"{_CONTEXT}.GetOutcome",
    f"{_CONTEXT}.RecommendApproach",
)
# Has agents or a model work, ends what was begun, adds to what the tenant knows.
_SUBMITTER = (
    f"{_FLEET}.Deliberate",
    f"{_FLEET}.StreamDeliberation",
    f"{_FLEET}.Orchestrate",
    f"{_FLEET}.StreamOrchestration",
    f"{_FLEET}.SubmitTask",
    f"{_FLEET}.JudgePatches",
    f"{_FLEET}.UploadRepository",
    f"{_FLEET}.CancelExecution",
    f"{_FLEET}.ProcessPlanningEvent",
    f"{_FLEET}.DeriveSubtasks",
    f"{_WORKFLOW}.RunWorkflow",
    f"{_WORKFLOW}.SteerWorkflow",
    f"{_CHAT}.Send",
    f"{_CHAT}.EndConversation",
    f"{_PLANNING}.ExecutePlan",
    f"{_PLANNING}.ContinuePlan",
    f"{_CONTEXT}.UpdateContext",
    f"{_CONTEXT}.CreateStory",
    f"{_CONTEXT}.CreateTask",
    f"{_CONTEXT}.AddProjectDecision",
    f"{_CONTEXT}.TransitionPhase",
    f"{_CONTEXT}.RecordOperations",
    f"{_CONTEXT}.AddInteraction",
    f"{_CONTEXT}.AddFact",
    f"{_CONTEXT}.RecordOutcome",
)
# Decides for people what agents wait for.
_APPROVER = (
    f"{_FLEET}.ResolveApproval",
    f"{_FLEET}.DeliverCandidate",
    f"{_PLANNING}.ApproveApproach",
)
# Decides who works for the tenant, where its data goes, and what it forgets.
_ADMIN = (
    f"{_FLEET}.RegisterAgent",
    f"{_FLEET}.UnregisterAgent",
    f"{_FLEET}.CreateCouncil",
    f"{_FLEET}.DeleteCouncil",
    f"{_NOTIFICATION}.CreateWebhook",
    f"{_NOTIFICATION}.ListWebhooks",
    f"{_NOTIFICATION}.DeleteWebhook",
    f"{_NOTIFICATION}.TestWebhook",
    f"{_NOTIFICATION}.ListDeliveries",
    f"{_CONTEXT}.ClearMemory",
)
_REFLECTION = (
    "grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo",
    "grpc.reflection.v1.ServerReflection.ServerReflectionInfo",
)

ROLES: Mapping[str, AccessRole] = {
    **dict.fromkeys((*_VIEWER, *_REFLECTION), AccessRole.VIEWER),
    **dict.fromkeys(_SUBMITTER, AccessRole.SUBMITTER),
    **dict.fromkeys(_APPROVER, AccessRole.APPROVER),
    **dict.fromkeys(_ADMIN, AccessRole.ADMIN),
}
"""The least role of each RPC, by the method's full name such as `fleet.context.v1.ContextService.Recall`."""


def role_for(method: str) -> AccessRole:
    """What an RPC takes; the admin's role where it has no row. `method`: full name, or a path as gRPC has it."""
    return ROLES.get(method.removeprefix("/").replace("/", "."), AccessRole.ADMIN)


def check_role(who: Principal, method: str) -> None:
    """That somebody may call an RPC. Services of the fleet may: they ask on behalf of whom they have checked.

    Raises:
        PermissionDenied: The role is missing.
    """
    needed = role_for(method)
    if not (who.may(needed) or who.may(AccessRole.SERVICE)):
        roles = ", ".join(sorted(role.value for role in who.roles)) or "none"
        raise PermissionDenied(
            f"this takes the role {needed.value!r}",
            field="authorization",
            hint=f"yours: {roles}; an operator gives others in the access file",
        )
