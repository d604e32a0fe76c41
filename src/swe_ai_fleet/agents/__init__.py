"""Agents: the loop that turns a task, a model and a toolbox into a trajectory.

The agents that users make by name are put together further out, and looked up there when first asked for; their types
stand in `__init__.pyi`, since nothing here may import what lies further out.
"""

from __future__ import annotations

from importlib import import_module

_AGENTS = frozenset({"FunctionCallingAgent", "FunctionCallingClient", "ToolEnabledAgent"})


def __getattr__(name: str) -> object:
    if name not in _AGENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("swe_ai_fleet"), name)
