"""What executions stand on, where nothing is given: a log in memory, scripted agents, repositories and a model."""

from __future__ import annotations

from typing import Any

from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.execution_context import ExecutionDeps
from tests.scripted_fleet import ScriptedFleet, ScriptedModel
from tests.scripted_workspaces import ScriptedWorkspaces


def execution_deps(log: Any = None, **given: Any) -> ExecutionDeps:
    """ExecutionDeps over one log, for events, blobs and results."""
    log = log or MemoryLog()
    around: dict[str, Any] = {"model": ScriptedModel(), "owner": "test", "pauses": (0.0,), **given}
    around.setdefault("workspaces", ScriptedWorkspaces())
    fleet = around.pop("fleet", None) or ScriptedFleet(storage=log)
    return ExecutionDeps(log=log, blobs=log, results=log, fleet=fleet, **around)
