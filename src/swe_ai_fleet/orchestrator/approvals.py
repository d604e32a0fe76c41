"""Decisions of people about an execution: pending requests, their expiry, and the steering of workflows.

Requests and decisions are events in the execution's log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import structlog

from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.budget import RequestLimits
from swe_ai_fleet.domain.errors import AlreadyExists, InvalidRequest, NotFound, PermissionDenied, PreconditionFailed
from swe_ai_fleet.domain.event import (
    CONTROL_SUBJECT,
    ApprovalAwaited,
    ApprovalRefused,
    ApprovalResolved,
    BreakpointsSet,
    StoredEvent,
    Writer,
)
from swe_ai_fleet.domain.execution import ExecutionState, Fold
from swe_ai_fleet.domain.task import Task, TaskKind
from swe_ai_fleet.domain.text import check_length
from swe_ai_fleet.domain.workflow import NodeStatus
from swe_ai_fleet.ports import EventLog

MAX_TEXT_CHARS = 20_000
MAX_APPROVER_CHARS = 200
TIME_OUT = "time-out"
"""The approver of the rejection of an expired request."""

_log = structlog.get_logger(__name__)
PAUSE, STEP, CONTINUE = "pause", "step", "continue"
ACTIONS = (PAUSE, STEP, CONTINUE)


class Approvals:
    """The approvals of one driven execution.

    Decisions are in the log, whichever replica wrote them; `decided` wakes the requests that wait for one here.
    `listeners` are called with each event that is read, once and in order.
    """

    def __init__(self, log: EventLog, task: Task, listeners: Sequence[Callable[[StoredEvent], object]] = ()) -> None:
        self._log = log
        self._task = task
        self._listeners = listeners
        self._fold = Fold()
        self._next = 0
        self._requested = self._served = 0
        self._reading = asyncio.Lock()
        self._decisions: dict[str, asyncio.Event] = {}

    async def refresh(self) -> ExecutionState:
        """The execution's state by its log now; only new events are read, once for all concurrent callers."""
        self._requested = number = self._requested + 1
        async with self._reading:
            if self._served < number:
                served = self._requested
                events = self._log.read(self._task.tenant, self._task.execution_id, from_sequence=self._next)
                async with aclosing(events) as new:
                    async for stored in new:
                        self._fold.take(stored)
                        self._next = stored.sequence + 1
                        for listener in self._listeners:
                            listener(stored)
                self._served = served
        if (state := self._fold.state) is None:
            raise RuntimeError("an execution without events is driven")
        return state

    def decided(self, resolution: ApprovalResolution) -> None:
        """Called when a decision is in the log."""
        self._event(resolution.approval_id).set()

    async def settled(self, agent_id: str) -> ExecutionState:
        """Wait until all requests of an agent are decided or expired; returns the state from before the wait."""
        state = await self.refresh()
        waiting = [request for request in state.pending if request.agent_id == agent_id]
        async with asyncio.TaskGroup() as group:
            for request in waiting:
                group.create_task(self._decided(request))
        return state

    async def ask(
        self, request: ApprovalRequest, asked: Callable[[], Awaitable[None]] | None = None
    ) -> ApprovalResolution:
        """The decision about a request of the execution itself; a request with the same id is asked once only.

        `asked` is awaited once the request is in the log.
        """
        state = await self.refresh()
        if request.approval_id not in state.resolutions:
            await self._decided(state.requests.get(request.approval_id, request), asked)
            state = await self.refresh()
        return state.resolutions[request.approval_id]

    async def _decided(self, request: ApprovalRequest, asked: Callable[[], Awaitable[None]] | None = None) -> None:
        # The agent's own event has the details; this one is for readers of the executions' events alone.
        shown_request = replace(request, memory="", diff="")
        await self._log.tell(control(self._task), ApprovalAwaited(request=shown_request))
        if asked is not None:
            await asked()
        with suppress(TimeoutError):
            async with asyncio.timeout(_seconds_left(request)):
                await self._event(request.approval_id).wait()
                return
        late = ApprovalResolution(
            approval_id=request.approval_id,
            decision=ApprovalDecision.REJECTED,
            text="the approval expired",
            approver=TIME_OUT,
            at=datetime.now(UTC).isoformat(),
        )
        # A decision of the last moment comes before this one in the log, and the first one counts.
        await self._log.tell(control(self._task), ApprovalResolved(resolution=late))

    def _event(self, approval_id: str) -> asyncio.Event:
        return self._decisions.setdefault(approval_id, asyncio.Event())


def control(task: Task) -> Writer:
    """The writer of callers' events to an execution; every replica may write them."""
    return Writer(
        tenant=task.tenant,
        execution_id=task.execution_id,
        task_id=task.task_id,
        agent_id=CONTROL_SUBJECT,
        generation=0,
    )


def chosen(state: ExecutionState, answer: ApprovalResolution) -> ApprovalRequest:
    """The request that a caller means; without an id, the only pending one.

    Where none is pending and the last decision equals the given one, the caller repeats it, or an equal call came
    first: its request is meant. Raises NotFound, PreconditionFailed (none is pending, or several are).
    """
    if approval_id := answer.approval_id:
        if approval_id not in state.requests:
            raise NotFound(f"no approval {approval_id[:200]!r}", field="approval_id")
        return state.requests[approval_id]
    if len(state.pending) == 1:
        return state.pending[0]
    if not state.pending:
        last = max(state.resolutions.values(), key=lambda resolution: resolution.at, default=None)
        same = last and (last.decision, last.text, last.approver) == (answer.decision, answer.text, answer.approver)
        if last and same and (request := state.requests.get(last.approval_id)):
            return request
        ended = state.status.terminal
        reason = f"the execution has ended: {state.status}" if ended else "the execution is not awaiting approval"
        raise PreconditionFailed(reason, field="execution_id")
    waiting = ", ".join(request.approval_id for request in state.pending[:8])
    raise PreconditionFailed(
        f"{len(state.pending)} approvals are pending", field="approval_id", hint=f"name one of {waiting}"
    )


def check_resolution(resolution: ApprovalResolution) -> None:
    """Refuse a decision with missing or too long texts. Raises InvalidRequest."""
    adjusted = resolution.decision is ApprovalDecision.ADJUSTED
    if adjusted and not resolution.text.strip():
        raise InvalidRequest("no adjustment given", field="adjustment", hint="describe what to do instead")
    check_length(resolution.text, MAX_TEXT_CHARS, field="adjustment" if adjusted else "comment")
    check_length(resolution.approver, MAX_APPROVER_CHARS, field="approver")
    if resolution.approver == TIME_OUT:
        raise InvalidRequest(f"{TIME_OUT!r} is reserved", field="approver")


def _is_question(state: ExecutionState, approval_id: str) -> bool:
    """Whether a request is a question of a plan's model, which the submitter of the goal may answer."""
    return state.task.kind is TaskKind.PLAN and approval_id.startswith("question-")


def _seconds_left(request: ApprovalRequest) -> float | None:
    """The seconds until a request expires; None: it never does. A takeover of the execution does not extend them."""
    if not request.expires_at:
        return None
    return max(0.0, (datetime.fromisoformat(request.expires_at) - datetime.now(UTC)).total_seconds())


def steering_events(
    state: ExecutionState, action: str, node_id: str = "", *, by: str = ""
) -> tuple[BreakpointsSet, ...]:
    """The events to write for an action; none where it has taken effect already.

    Paused nodes are released by name, so that it is clear to a later driver, too, which ones. Raises InvalidRequest,
    NotFound (no such node), PreconditionFailed (not a workflow, it has ended, nothing is paused).
    """
    if (workflow := state.task.workflow) is None:
        raise PreconditionFailed("the execution is not a workflow run", field="execution_id")
    if action not in ACTIONS:
        raise InvalidRequest(f"unknown action {action[:40]!r}", field="action", hint=f"one of {', '.join(ACTIONS)}")
    if state.status.terminal:
        raise PreconditionFailed(f"the execution has ended: {state.status}", field="execution_id")
    if node_id and action != STEP:
        raise InvalidRequest(f"{action} applies to the whole run", field="node_id", hint="leave it out, or use step")
    by = by[:MAX_APPROVER_CHARS]
    released = {step.node_id for step in state.steering if step.action == STEP}
    paused = [name for name, node in state.nodes.items() if node.status is NodeStatus.PAUSED and name not in released]
    steps = tuple(BreakpointsSet(action=STEP, node_id=name, by=by) for name in paused)
    match action:
        case "pause":
            return () if _holding(state) else (BreakpointsSet(action=PAUSE, by=by),)
        case "continue":
            return (*steps, BreakpointsSet(action=CONTINUE, by=by)) if steps or _holding(state) else ()
        case _ if node_id:
            if node_id.partition("/")[0].partition("[")[0] not in {node.id for node in workflow.workflow.nodes}:
                raise NotFound(f"the workflow has no node {node_id[:64]!r}", field="node_id")
            started = node_id in state.nodes and state.nodes[node_id].status is not NodeStatus.PAUSED
            return () if started or node_id in released else (BreakpointsSet(action=STEP, node_id=node_id, by=by),)
        case _:
            if not steps:
                raise PreconditionFailed("no node is paused", field="action", hint="see the list of nodes")
            return steps


def _holding(state: ExecutionState) -> bool:
    """Whether nodes that have not started are held back, apart from breakpoints."""
    return bool(state.steering) and state.steering[-1].action != CONTINUE


@dataclass
class Decisions:
    """Writes decisions of people into the log, one after another. `_get` reads an execution's current state."""

    _log: EventLog
    _get: Callable[[str, str], Awaitable[ExecutionState]]
    _deciding: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def resolve(
        self, tenant: str, execution_id: str, resolution: ApprovalResolution, *, by: str = ""
    ) -> ExecutionState:
        """Decide about a request of an execution; the decision is durable when this returns, and the agent continues.

        Without an `approval_id` the only pending request is meant. The same decision again changes nothing. `by` is the
        authenticated caller, where callers can be told apart: they cannot approve what they submitted. Raises
        InvalidRequest, NotFound, AlreadyExists (there is a different decision), PreconditionFailed, PermissionDenied.
        """
        check_resolution(resolution)
        state = await self._get(tenant, execution_id)
        request = chosen(state, resolution)
        if _is_question(state, request.approval_id) and resolution.decision is ApprovalDecision.APPROVED:
            raise PreconditionFailed(
                "the model asks a question; there is no proposal yet", field="decision", hint="adjusted, and the answer"
            )
        resolution = replace(resolution, approval_id=request.approval_id, at=datetime.now(UTC).isoformat())
        async with self._deciding:
            state = await self._get(tenant, execution_id)
            await self._check_approver(state, resolution, by)
            earlier = state.resolutions.get(request.approval_id)
            if earlier is None:
                if state.status.terminal:
                    raise PreconditionFailed(f"the execution has ended: {state.status}", field="execution_id")
                await self._log.tell(control(state.task), ApprovalResolved(resolution=resolution))
                state = await self._get(tenant, execution_id)
                # If several replicas write decisions at the same time, the first in the log counts.
                earlier = state.resolutions.get(request.approval_id, resolution)
        if (earlier.decision, earlier.text) != (resolution.decision, resolution.text):
            raise AlreadyExists(
                f"{earlier.approval_id} was {earlier.decision} by {earlier.approver or 'somebody'} at {earlier.at}",
                field="approval_id",
            )
        return state

    async def _check_approver(self, state: ExecutionState, resolution: ApprovalResolution, by: str) -> None:
        """Refuse an approval by the submitter of the task, who may only reject.

        The refusal is recorded, and logged with both names. Raises PermissionDenied.
        """
        approval_id, decision = resolution.approval_id, resolution.decision
        is_question = _is_question(state, approval_id)
        if not by or by != state.task.caller or is_question or decision is ApprovalDecision.REJECTED:
            return
        _log.warning(
            "approval.refused",
            tenant=state.task.tenant,
            execution_id=state.execution_id,
            approval_id=approval_id,
            caller=by,
            decision=str(decision),
        )
        if not state.status.terminal and (approval_id, by) not in state.refused:
            refused = ApprovalRefused(approval_id=approval_id, decision=decision, caller=by)
            await self._log.tell(control(state.task), refused)
        raise PermissionDenied(
            "the submitter of a task cannot approve it", field="decision", hint="ask another approver, or reject it"
        )

    async def steer(
        self, tenant: str, execution_id: str, action: str, node_id: str = "", *, by: str = ""
    ) -> ExecutionState:
        """Pause a workflow, release paused nodes one by one, or continue it; durable when this returns.

        The same action again changes nothing. Raises InvalidRequest, NotFound, PreconditionFailed.
        """
        async with self._deciding:
            state = await self._get(tenant, execution_id)
            for event in steering_events(state, action, node_id, by=by):
                await self._log.tell(control(state.task), event)
        return await self._get(tenant, execution_id)

    async def carry_on(
        self, tenant: str, execution_id: str, limits: RequestLimits | None = None, *, by: str = ""
    ) -> ExecutionState:
        """Start an approved plan within limits; durable when this returns, and a second call changes nothing."""
        async with self._deciding:
            state = await self._get(tenant, execution_id)
            if not state.status.terminal and (not state.steering or _holding(state)):
                await self._log.tell(control(state.task), BreakpointsSet(action=CONTINUE, by=by, limits=limits))
                state = await self._get(tenant, execution_id)
        return state
