"""What the services ask of single fields, as JSON schema has it; only what is certain."""

from __future__ import annotations

from collections.abc import Mapping

_FLEET = "fleet.orchestrator.v1"
_CONTEXT = "fleet.context.v1"
_CHAT = "fleet.conversation.v1"
_PLANNING = "fleet.planning.v1"
_IDENTIFIER: Mapping[str, object] = {"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"}
_EXECUTION_ID: Mapping[str, object] = {"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}
_SESSION_ID: Mapping[str, object] = {"pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"}
_COUNT: Mapping[str, object] = {"minimum": 0}

_OF_FIELDS: Mapping[str, Mapping[str, object]] = {
    f"{_FLEET}.GetExecutionRequest.execution_id": _EXECUTION_ID,
    f"{_FLEET}.CancelExecutionRequest.execution_id": _EXECUTION_ID,
    f"{_FLEET}.CancelExecutionRequest.reason": {"maxLength": 4_000},
    f"{_FLEET}.ResolveApprovalRequest.execution_id": _EXECUTION_ID,
    f"{_FLEET}.GetArtifactRequest.execution_id": _EXECUTION_ID,
    f"{_FLEET}.GetArtifactRequest.digest": {"pattern": "^[0-9a-f]{64}$"},
    f"{_FLEET}.GetDeliberationResultRequest.task_id": _IDENTIFIER,
    f"{_FLEET}.DeliberateRequest.task_id": _IDENTIFIER,
    f"{_FLEET}.OrchestrateRequest.task_id": _IDENTIFIER,
    f"{_FLEET}.ListExecutionsRequest.page_size": {"maximum": 500, **_COUNT},
    f"{_CONTEXT}.ListStoriesRequest.page_size": {"maximum": 500, **_COUNT},
    f"{_CONTEXT}.GetGraphRelationshipsRequest.page_size": {"maximum": 1_000, **_COUNT},
    f"{_CONTEXT}.GetGraphRelationshipsRequest.depth": {"maximum": 5, **_COUNT},
    f"{_CONTEXT}.RecallRequest.query": {"maxLength": 4_000},
    f"{_CONTEXT}.RecallRequest.limit": {"maximum": 100, **_COUNT},
    f"{_CONTEXT}.Rating.rating": {"minimum": 1, "maximum": 5},
    f"{_CONTEXT}.Story.title": {"maxLength": 300},
    f"{_CONTEXT}.Task.title": {"maxLength": 300},
    f"{_CONTEXT}.Decision.title": {"maxLength": 300},
    f"{_CHAT}.SendRequest.session_id": _SESSION_ID,
    f"{_CHAT}.SendRequest.text": {"maxLength": 16_000},
    f"{_CHAT}.GetConversationRequest.session_id": _SESSION_ID,
    f"{_CHAT}.EndConversationRequest.session_id": _SESSION_ID,
    f"{_CHAT}.ListConversationsRequest.page_size": {"maximum": 200, **_COUNT},
    f"{_PLANNING}.ListPlanSessionsRequest.page_size": {"maximum": 200, **_COUNT},
    f"{_PLANNING}.ExecutePlanRequest.goal": {"maxLength": 20_000},
    f"{_PLANNING}.ExecutePlanRequest.selected_entities": {"maxItems": 30},
}


def limits_of(field: str) -> Mapping[str, object]:
    """Of a field by its full name; nothing where nothing is certain."""
    return _OF_FIELDS.get(field, {})


def limited() -> frozenset[str]:
    """The fields there is something to say of."""
    return frozenset(_OF_FIELDS)
