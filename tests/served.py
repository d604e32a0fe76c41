"""Which RPCs of the contract this tree serves: those of an extension that was deleted are UNIMPLEMENTED."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.descriptor import MethodDescriptor

from services.gateway.upstream import FILES
from swe_ai_fleet.extension_registry import extensions

_EXTENSION: Mapping[str, str] = {
    "ConversationService": "chat",
    "NotificationService": "webhooks",
    "PlanningService": "plans",
    "WorkflowService": "workflows",
}
SERVED: tuple[MethodDescriptor, ...] = tuple(
    method
    for file in FILES
    for service in file.services_by_name.values()
    for method in service.methods
    if service.name not in _EXTENSION or _EXTENSION[service.name] in extensions()
)
