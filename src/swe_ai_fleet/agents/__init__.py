"""Agents: the loop that turns a task, a model and a toolbox into a trajectory.

The agents that users make by name are put together further out, and looked up there when first asked for; their types
stand in `__init__.pyi`, since nothing here may import what lies further out. The runs, one for each kind of assignment,
and the gateway of agents of others are loaded when first asked for, too. Everything else is imported from its own
module, or from the package whose `__init__` names it.
"""

from __future__ import annotations

from importlib import import_module

# pyright: reportUnsupportedDunderAll=false

__all__ = [
    "AgentResult",
    "DeliberateAsync",
    "FunctionCallingAgent",
    "FunctionCallingClient",
    "ToolEnabledAgent",
    "VLLMAgentJob",
]
_MODULES = {
    "AnswerRun": "answering",
    "CodingRun": "coding_run",
    "Consent": "solving",
    "ModelGateway": "model_gateway",
    "OpeningRun": "coding_run",
    "OperateRun": "answering",
    "ReviewRun": "reviewing",
    "RubricJudge": "scoring",
    "ScoreRun": "scoring",
    "Solver": "solving",
    "run_agent": "spec",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("swe_ai_fleet"), name)
