"""Executions that are parts of others."""

from __future__ import annotations

from typing import Protocol

from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import PinnedRepository, Task


class Parts(Protocol):
    """Executions that are parts of others."""

    async def begin(self, task: Task, repository: PinnedRepository) -> str:
        """Accept a part, to start from a commit that is pinned already; its execution's id. Raises FleetError."""
        ...

    async def wait(self, tenant: str, execution_id: str) -> ExecutionState:
        """The whole state of an execution once it has ended. Raises FleetError."""
        ...

    async def cancel(self, tenant: str, execution_id: str, reason: str = "") -> ExecutionState:
        """Cancel an execution and wait for its end. Raises FleetError."""
        ...
