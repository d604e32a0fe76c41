"""What one execution waits for: requests found in its log, decisions written to it, and the time that runs out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime

from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.errors import AlreadyExists, FleetError, InvalidRequest, NotFound, PreconditionFailed
from swe_ai_fleet.domain.event import ApprovalResolved
from swe_ai_fleet.domain.execution import ExecutionState, advance
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.ports import EventLog, Journal

MAX_TEXT_CHARS = 16_000
MAX_APPROVER_CHARS = 200
TIME_OUT = "time-out"
"""Who rejects what nobody answered in time."""


class Approvals:
    """The approvals of one driven execution.

    Args:
        log: Where agents ask.
        journal: The execution's own, where decisions are written.
        task: Whose execution it is.
        told: Hears of each request that is waited for.
    """

    def __init__(
        self, log: EventLog, journal: Journal, task: Task, *, told: Callable[[Task, ApprovalRequest], None]
    ) -> None:
        self._log = log
        self._journal = journal
        self._task = task
        self._told = told
        self._state: ExecutionState | None = None
        self._reading = asyncio.Lock()
        self._decisions: dict[str, ApprovalResolution] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._written: dict[str, asyncio.Event] = {}

    async def refresh(self) -> ExecutionState:
        """The execution as its log tells it now; only what is new is read."""
        async with self._reading:
            start = self._state.last_sequence + 1 if self._state else 0
            events = self._log.read(self._task.tenant, self._task.execution_id, from_sequence=start)
            async with aclosing(events) as new:
                async for stored in new:
                    self._state = advance(self._state, stored)
        if self._state is None:
            raise RuntimeError("an execution without events is driven")
        return self._state

    async def settled(self, agent_id: str) -> None:
        """Wait until everything that an agent asked for is decided, by a person or by the clock."""
        state = await self.refresh()
        waiting = [request for request in state.pending if request.agent_id == agent_id]
        async with asyncio.TaskGroup() as group:
            for request in waiting:
                self._told(self._task, request)
                group.create_task(self._decided(request))

    async def resolve(self, resolution: ApprovalResolution) -> None:
        """Write a decision; durable when this returns. The same one again changes nothing.

        Raises AlreadyExists where it was decided otherwise, Fenced, Unavailable.
        """
        name = resolution.approval_id
        known = self._decisions.get(name) or (self._state.resolutions.get(name) if self._state else None)
        if known is None:
            self._decisions[name] = resolution
            self._writing[name] = asyncio.create_task(self._write(resolution), name=f"decision {name}")
        else:
            check_same(known, resolution)
        if name in self._writing:
            # Whoever decided may go away: what is on its way into the log is written, and then holds.
            await asyncio.shield(self._writing[name])

    async def _write(self, resolution: ApprovalResolution) -> None:
        name = resolution.approval_id
        try:
            await self._journal.append(ApprovalResolved(resolution=resolution))
        except FleetError:
            del self._decisions[name], self._writing[name]
            raise
        self._event(name).set()

    async def _decided(self, request: ApprovalRequest) -> None:
        try:
            async with asyncio.timeout(_seconds_left(request)):
                await self._event(request.approval_id).wait()
                return
        except TimeoutError:
            pass
        late = ApprovalResolution(
            approval_id=request.approval_id,
            decision=ApprovalDecision.REJECTED,
            text="nobody decided in time",
            approver=TIME_OUT,
            at=datetime.now(UTC).isoformat(),
        )
        try:
            await self.resolve(late)
        except AlreadyExists:
            # Somebody decided in the last moment, and is being written.
            await self._event(request.approval_id).wait()

    def _event(self, approval_id: str) -> asyncio.Event:
        return self._written.setdefault(approval_id, asyncio.Event())


def chosen(state: ExecutionState, approval_id: str) -> ApprovalRequest:
    """The request that a caller means; without an id, the only one that waits.

    Raises NotFound, PreconditionFailed (none waits, or several do).
    """
    if approval_id:
        if approval_id not in state.requests:
            raise NotFound(f"no approval {approval_id[:200]!r} was asked for", field="approval_id")
        return state.requests[approval_id]
    if state.status.terminal:
        raise PreconditionFailed(f"the execution has ended: {state.status}", field="execution_id")
    if len(state.pending) == 1:
        return state.pending[0]
    if not state.pending:
        raise PreconditionFailed("the execution waits for no approval", field="execution_id")
    waiting = ", ".join(request.approval_id for request in state.pending[:8])
    raise PreconditionFailed(f"{len(state.pending)} approvals wait", field="approval_id", hint=f"name one of {waiting}")


def check_resolution(resolution: ApprovalResolution) -> None:
    """Refuse a decision that says too little or too much. Raises InvalidRequest."""
    if resolution.decision is ApprovalDecision.ADJUSTED and not resolution.text.strip():
        raise InvalidRequest("no adjustment given", field="adjustment", hint="say what is to be done otherwise")
    if len(resolution.text) > MAX_TEXT_CHARS:
        field = "adjustment" if resolution.decision is ApprovalDecision.ADJUSTED else "comment"
        raise InvalidRequest(
            f"the text has {len(resolution.text)} characters", field=field, hint=f"at most {MAX_TEXT_CHARS}"
        )
    if len(resolution.approver) > MAX_APPROVER_CHARS:
        raise InvalidRequest("the name is too long", field="approver", hint=f"at most {MAX_APPROVER_CHARS} characters")
    if resolution.approver == TIME_OUT:
        raise InvalidRequest(f"{TIME_OUT!r} is the clock's name", field="approver")


def check_same(known: ApprovalResolution, given: ApprovalResolution) -> None:
    """Refuse another decision than the one that stands. Raises AlreadyExists."""
    if (known.decision, known.text) != (given.decision, given.text):
        raise AlreadyExists(
            f"{known.approval_id} was {known.decision} by {known.approver or 'somebody'} at {known.at}",
            field="approval_id",
        )


def _seconds_left(request: ApprovalRequest) -> float | None:
    """How long people still have; None: for ever. It counts from the request, whoever drives the execution by now."""
    if not request.expires_at:
        return None
    return max(0.0, (datetime.fromisoformat(request.expires_at) - datetime.now(UTC)).total_seconds())
