"""Workflows: read, checked, drawn and run.

Exported names are imported when first used; their types are declared in `__init__.pyi`.
"""

from __future__ import annotations

from importlib import import_module

from swe_ai_fleet.extension_registry import Extension, entry

_HOMES = {
    **dict.fromkeys(
        (
            "AgentConfig", "AgentMode", "BranchCase", "Condition", "Edge", "Node", "NodeStatus", "NodeType", "Workflow",
            "WorkflowInput",
        ),
        "swe_ai_fleet.domain.workflow",
    ),
    "ApprovalDecision": "swe_ai_fleet.domain.approval",
    "ExecutionState": "swe_ai_fleet.extensions.workflows.runner",
    "ExecutionStatus": "swe_ai_fleet.domain.event",
    "InvalidWorkflow": "swe_ai_fleet.extensions.workflows.documents",
    "LLMAgent": "swe_ai_fleet.extensions.workflows.local_nodes",
    "NodeApproval": "swe_ai_fleet.extensions.workflows.runner",
    "NodeDecision": "swe_ai_fleet.extensions.workflows.runner",
    "NodeOutcome": "swe_ai_fleet.extensions.workflows.runner",
    "Update": "swe_ai_fleet.extensions.workflows.runner",
    "WorkflowExecutor": "swe_ai_fleet.extensions.workflows.executor",
    "WorkflowFault": "swe_ai_fleet.extensions.workflows.documents",
    "mermaid": "swe_ai_fleet.extensions.workflows.reading",
    "read_catalog": "swe_ai_fleet.extensions.workflows.reading",
    "read_workflow": "swe_ai_fleet.extensions.workflows.reading",
    "workflow_schema": "swe_ai_fleet.extensions.workflows.schema",
}  # fmt: skip
EXTENSION = Extension(
    services="service:open_service",
    groups={"workflow": "Workflows of agents, tools and people."},
    commands={
        "workflow list": entry(
            "extensions.workflows.commands",
            "Show the fleet's workflows, with their inputs.",
            "fleet workflow list",
        ),
        "workflow run": entry(
            "extensions.workflows.command_runs:run",
            "Run a workflow; show the progress of its nodes, then its outputs.",
            "fleet workflow run review.yaml --input branch=main --repo .",
        ),
        "workflow validate": entry(
            "extensions.workflows.command_runs:validate",
            "Show every fault of workflow files, as `file:line: node: message`; needs no fleet.",
            "fleet workflow validate review.yaml",
        ),
        "workflow graph": entry(
            "extensions.workflows.command_runs:graph",
            "Draw a workflow as Mermaid text; needs no fleet.",
            "fleet workflow graph review.yaml -o review.mmd",
        ),
        "workflow show": entry(
            "extensions.workflows.command_runs:show",
            "Show the state of a run: its nodes, the inputs of paused ones, its outputs.",
            "fleet workflow show nightly-review",
        ),
        "workflow steer": entry(
            "extensions.workflows.commands",
            "Pause a run before its next nodes, release paused nodes, or continue the run.",
            "fleet workflow steer nightly-review step --node merge",
        ),
    },
    workflows="drive:WORKFLOWS",
    exports=("LLMAgent", "WorkflowExecutor"),
)
__all__ = ["EXTENSION", *sorted(_HOMES)]  # pyrefly: ignore[unresolvable-dunder-all]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
