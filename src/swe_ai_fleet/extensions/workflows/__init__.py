"""Workflows: read, checked, drawn and run.

Exported names are imported when first used; their types stand in `__init__.pyi`.
"""

from __future__ import annotations

from importlib import import_module

from swe_ai_fleet.extensions import Extension

_HOMES = {
    **dict.fromkeys(
        (
            "AgentConfig", "AgentMode", "BranchCase", "Condition", "Edge", "Node", "NodeStatus", "NodeType", "Workflow",
            "WorkflowInput",
        ),
        "swe_ai_fleet.domain.workflow",
    ),
    "ApprovalDecision": "swe_ai_fleet.domain.approval",
    "ExecutionState": "swe_ai_fleet.extensions.workflows.updates",
    "ExecutionStatus": "swe_ai_fleet.domain.event",
    "InvalidWorkflow": "swe_ai_fleet.extensions.workflows.documents",
    "LLMAgent": "swe_ai_fleet.extensions.workflows.local_nodes",
    "NodeApproval": "swe_ai_fleet.extensions.workflows.runner",
    "NodeDecision": "swe_ai_fleet.extensions.workflows.runner",
    "Update": "swe_ai_fleet.extensions.workflows.updates",
    "WorkflowExecutor": "swe_ai_fleet.extensions.workflows.executor",
    "WorkflowFault": "swe_ai_fleet.extensions.workflows.documents",
    "mermaid": "swe_ai_fleet.extensions.workflows.drawing",
    "read_workflow": "swe_ai_fleet.extensions.workflows.reading",
    "workflow_schema": "swe_ai_fleet.extensions.workflows.schema",
}  # fmt: skip
EXTENSION = Extension(
    services="service:open_service",
    commands="commands:COMMANDS",
    workflows="drive:WORKFLOWS",
    exports=("LLMAgent", "WorkflowExecutor"),
)
__all__ = ["EXTENSION", *sorted(_HOMES)]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
