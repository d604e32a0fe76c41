"""What people tell executions: their decisions about what waits, and how a workflow goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime

from swe_ai_fleet.domain.approval import ApprovalResolution
from swe_ai_fleet.domain.errors import PermissionDenied, PreconditionFailed
from swe_ai_fleet.domain.event import ApprovalRefused, ApprovalResolved
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.orchestrator.approvals import check_approver, check_resolution, check_same, chosen, control
from swe_ai_fleet.orchestrator.steering import words
from swe_ai_fleet.ports import EventLog


class Decisions:
    """Writes what people decide into the log, one after another.

    Args:
        log: Where it stands.
        get: An execution as its events tell it now. Raises NotFound.
    """

    def __init__(self, log: EventLog, get: Callable[[str, str], Awaitable[ExecutionState]]) -> None:
        self._log = log
        self._get = get
        self._deciding = asyncio.Lock()

    async def resolve(
        self, tenant: str, execution_id: str, resolution: ApprovalResolution, *, by: str = ""
    ) -> ExecutionState:
        """Answer what an execution waits for; the decision is durable when this returns, and the agent goes on.

        Without an `approval_id` the only request that waits is meant. The same answer again changes nothing. `by` is
        who authenticated, where callers can be told apart: nobody lets through what they handed in. Raises
        InvalidRequest, NotFound, AlreadyExists (it was decided otherwise), PreconditionFailed, PermissionDenied.
        """
        check_resolution(resolution)
        request = chosen(await self._get(tenant, execution_id), resolution.approval_id)
        resolution = replace(resolution, approval_id=request.approval_id, at=datetime.now(UTC).isoformat())
        async with self._deciding:
            state = await self._get(tenant, execution_id)
            await self._check_approver(state, resolution, by)
            known = state.resolutions.get(request.approval_id)
            if known is None:
                if state.status.terminal:
                    raise PreconditionFailed(f"the execution has ended: {state.status}", field="execution_id")
                await self._log.tell(control(state.task), ApprovalResolved(resolution=resolution))
                state = await self._get(tenant, execution_id)
                # Of several replicas that hear decisions at once, the first in the log is the one that decided.
                known = state.resolutions.get(request.approval_id, resolution)
        check_same(known, resolution)
        return state

    async def _check_approver(self, state: ExecutionState, resolution: ApprovalResolution, by: str) -> None:
        """Refuse a decision about what one handed in oneself, and record that. Raises PermissionDenied."""
        try:
            check_approver(state, resolution, by)
        except PermissionDenied:
            if not state.status.terminal and (resolution.approval_id, by) not in state.refused:
                refused = ApprovalRefused(approval_id=resolution.approval_id, decision=resolution.decision, caller=by)
                await self._log.tell(control(state.task), refused)
            raise

    async def steer(
        self, tenant: str, execution_id: str, action: str, node_id: str = "", *, by: str = ""
    ) -> ExecutionState:
        """Pause a workflow, let paused nodes go one by one, or have it continue; durable when this returns.

        The same again changes nothing. Raises InvalidRequest, NotFound, PreconditionFailed.
        """
        async with self._deciding:
            state = await self._get(tenant, execution_id)
            for word in words(state, action, node_id, by=by):
                await self._log.tell(control(state.task), word)
        return await self._get(tenant, execution_id)
