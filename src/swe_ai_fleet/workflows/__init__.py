"""Workflows: read, checked, drawn and run.

What users name is looked up when first asked for: the values here, `WorkflowExecutor` and `LLMAgent` further out, where
they are put together. The types stand in `__init__.pyi`, since nothing here may import what lies further out.
"""

from __future__ import annotations

from importlib import import_module

_HOMES = {
    **dict.fromkeys(
        (
            "AgentConfig", "AgentMode", "BranchCase", "Condition", "Edge", "Node", "NodeStatus", "NodeType", "Workflow",
            "WorkflowInput",
        ),
        "swe_ai_fleet.domain.workflow",
    ),
    "ApprovalDecision": "swe_ai_fleet.domain.approval",
    "ExecutionState": "swe_ai_fleet.workflows.updates",
    "ExecutionStatus": "swe_ai_fleet.domain.event",
    "InvalidWorkflow": "swe_ai_fleet.workflows.documents",
    "LLMAgent": "swe_ai_fleet",
    "NodeApproval": "swe_ai_fleet.workflows.runner",
    "NodeDecision": "swe_ai_fleet.workflows.runner",
    "Update": "swe_ai_fleet.workflows.updates",
    "WorkflowExecutor": "swe_ai_fleet",
    "WorkflowFault": "swe_ai_fleet.workflows.documents",
    "mermaid": "swe_ai_fleet.workflows.drawing",
    "read_workflow": "swe_ai_fleet.workflows.reading",
    "workflow_schema": "swe_ai_fleet.workflows.schema",
}  # fmt: skip
__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
