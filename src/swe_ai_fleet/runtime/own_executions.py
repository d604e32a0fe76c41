"""Executions in a program without a fleet: only the kinds whose model works in this process, in a log in memory."""

from __future__ import annotations

import secrets
from typing import TypeVar

from swe_ai_fleet.domain.assignment import Assignment
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.execution_context import ExecutionDeps
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.runtime.factories import workspace_provider
from swe_ai_fleet.settings import Settings

T = TypeVar("T")


class _NoFleet:
    async def run(self, assignment: Assignment[T]) -> T:
        raise InvalidRequest("there is no fleet here", field="task", hint="`fleet up` starts one")


def own_executions(settings: Settings, model: ChatModel) -> Executions:
    """Executions in the memory of this process, without agents."""
    log = MemoryLog()
    return Executions(
        ExecutionDeps(
            log=log,
            blobs=log,
            results=log,
            fleet=_NoFleet(),
            workspaces=workspace_provider(settings),
            model=model,
            owner=f"process-{secrets.token_hex(4)}",
        )
    )
