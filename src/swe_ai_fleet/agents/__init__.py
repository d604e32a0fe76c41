"""Agents: the loop that turns a task, a model and a toolbox into a trajectory.

The agents that users make by name are put together further out, and looked up there when first asked for; their types
stand in `__init__.pyi`, since nothing here may import what lies further out. Everything else is imported from its own
module, or from the package whose `__init__` names it.
"""

from __future__ import annotations

from importlib import import_module

__all__ = [
    "AgentResult",
    "DeliberateAsync",
    "FunctionCallingAgent",
    "FunctionCallingClient",
    "ToolEnabledAgent",
    "VLLMAgentJob",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("swe_ai_fleet"), name)
