"""Notifications for webhooks: the main facts of an execution's event, masked and shortened.

Facts that the event itself lacks are read from the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from swe_ai_fleet.domain.approval import ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.domain.event import (
    CONTROL_SUBJECT,
    EXECUTION_SUBJECT,
    ApprovalAwaited,
    ApprovalResolved,
    Event,
    EventBody,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    StoredEvent,
)
from swe_ai_fleet.domain.execution import ExecutionState, advance
from swe_ai_fleet.domain.task import Role, Task, TaskKind
from swe_ai_fleet.domain.text import shortened, well_formed
from swe_ai_fleet.extensions.webhooks.webhook import EventType, Webhook
from swe_ai_fleet.ports import EventLog, SecretMask

PROPOSAL_CHARS = 4_000
TEXT_CHARS = 2_000
GOAL_CHARS = 1_000
_REASONS = 10
_REASON_CHARS = 300
_MASKED_FACTOR = 4
"""The masked part of a text, in multiples of its limit: enough for a secret across the cut, little of a huge text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """A notification. `event_id` is the same in every delivery, `at` (ISO 8601, UTC) the time of the event.

    `data` is for programs; `facts` are names and values that people in a chat read under the `title`. The values are
    untrusted.
    """

    event_id: str
    type: EventType
    at: str
    title: str
    execution_id: str = ""
    task_id: str = ""
    role: Role | None = None
    status: ExecutionStatus | None = None
    part: bool = False
    data: Mapping[str, object] = field(default_factory=dict[str, object])
    facts: tuple[tuple[str, str], ...] = ()


def type_of(body: EventBody) -> EventType | None:
    """The webhook type of an event of the log; None for an event that webhooks never get."""
    match body:
        case ExecutionStarted():
            return EventType.EXECUTION_STARTED
        case ExecutionFinished():
            return EventType.EXECUTION_FINISHED
        case ApprovalAwaited():
            return EventType.APPROVAL_REQUESTED
        case ApprovalResolved():
            return EventType.APPROVAL_RESOLVED
        case _:
            return None


def wants(webhook: Webhook, notification: Notification) -> bool:
    """Whether a webhook subscribes to a notification."""
    only = webhook.filter
    if notification.type not in webhook.events or not notification.task_id.startswith(only.task_id_prefix):
        return False
    if only.roles and notification.role not in only.roles:
        return False
    finished = notification.type is EventType.EXECUTION_FINISHED
    if finished and only.statuses and notification.status not in only.statuses:
        return False
    about_approval = notification.type in (EventType.APPROVAL_REQUESTED, EventType.APPROVAL_RESOLVED)
    return about_approval or only.include_parts or not notification.part


def started(event: Event, task: Task, mask: SecretMask) -> Notification:
    """An execution was accepted."""
    goal = _safe(task.description, GOAL_CHARS, mask)
    return _of_task(
        event,
        task,
        EventType.EXECUTION_STARTED,
        title="Execution accepted",
        data={"description": goal},
        facts=(("Task", event.task_id), ("Execution", event.execution_id), ("Asked for", goal)),
    )


def finished(event: Event, state: ExecutionState, mask: SecretMask) -> Notification:
    """An execution has ended; `state` is the fold of its events up to this one."""
    task, usage = state.task, state.usage
    error = _safe(state.error, TEXT_CHARS, mask)
    branch = _safe(state.delivered.branch if state.delivered else "", _REASON_CHARS, mask)
    commit = state.delivered.commit_sha if state.delivered else ""
    winner = state.candidates.get(state.winner_id)
    agent = winner.agent_id if winner else ""
    verdict = str(state.verdict or "")
    reasons = [_safe(reason, _REASON_CHARS, mask) for reason in state.best_report.reasons] if state.best_report else []
    data: dict[str, object] = {
        "status": state.status.value,
        "winner": state.winner_id,
        "winner_agent_id": agent,
        "verdict": verdict,
        "verdict_reasons": reasons,
        "branch": branch,
        "commit_sha": commit,
        "error": error,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "model_calls": usage.model_calls,
            "tool_calls": usage.tool_calls,
            "cost": usage.cost,
        },
        "duration_ms": state.duration_ms,
        "started_at": state.started_at,
    }
    facts = (
        ("Task", event.task_id),
        ("Execution", event.execution_id),
        ("Branch", branch),
        ("Commit", commit[:12]),
        ("Winner", agent or state.winner_id),
        ("Verdict", ": ".join(part for part in (verdict, "; ".join(reasons)[:_REASON_CHARS]) if part)),
        ("Error", error),
    )
    return _of_task(
        event,
        task,
        EventType.EXECUTION_FINISHED,
        title=f"Execution ended: {state.status.value.replace('_', ' ')}{f', {verdict}' if verdict else ''}",
        status=state.status,
        data=data,
        facts=facts,
    )


def requested(event: Event, task: Task, request: ApprovalRequest, mask: SecretMask) -> Notification:
    """An agent waits for a person."""
    proposal = _safe(request.approach, PROPOSAL_CHARS, mask)
    goal = _safe(request.goal, GOAL_CHARS, mask)
    reasons = [_safe(reason, _REASON_CHARS, mask) for reason in request.reasons[:_REASONS]]
    approval: dict[str, object] = {
        "approval_id": request.approval_id,
        "agent_id": request.agent_id,
        "policy": request.policy.value,
        "goal": goal,
        "proposal": proposal,
        "tool": _safe(request.call.name, _REASON_CHARS, mask),
        "reasons": reasons,
        "requested_at": request.requested_at,
        "expires_at": request.expires_at,
    }
    return _of_task(
        event,
        task,
        EventType.APPROVAL_REQUESTED,
        event_id=_approval_event_id(event, "requested", request.approval_id),
        title="An agent waits for approval",
        data={"approval": approval},
        facts=(
            ("Task", event.task_id),
            ("Agent", request.agent_id),
            ("Proposal", proposal),
            ("Because", "; ".join(reasons)),
            ("Answer with", f"fleet approve {event.execution_id}, or fleet reject, or fleet adjust"),
        ),
    )


def resolved(
    event: Event, task: Task, resolution: ApprovalResolution, request: ApprovalRequest | None, mask: SecretMask
) -> Notification:
    """An approval was decided; `request` is its request, where it is known."""
    text = _safe(resolution.text, TEXT_CHARS, mask)
    agent = request.agent_id if request else ""
    approver = _safe(resolution.approver, _REASON_CHARS, mask)
    approval: dict[str, object] = {
        "approval_id": resolution.approval_id,
        "agent_id": agent,
        "decision": resolution.decision.value,
        "text": text,
        "approver": approver,
    }
    return _of_task(
        event,
        task,
        EventType.APPROVAL_RESOLVED,
        event_id=_approval_event_id(event, "resolved", resolution.approval_id),
        title=f"Approval decided: {resolution.decision.value}",
        data={"approval": approval},
        facts=(("Task", event.task_id), ("Agent", agent), ("By", approver), ("Said", text)),
    )


def trial(webhook: Webhook, *, name: str, at: str) -> Notification:
    """A test message; `name` makes its id unique."""
    return Notification(
        event_id=f"test/{webhook.webhook_id}/{name}",
        type=EventType.TEST,
        at=at,
        title="This is a test of a webhook",
        data={"webhook_id": webhook.webhook_id},
        facts=(("Webhook", webhook.webhook_id),),
    )


def _of_task(
    event: Event,
    task: Task,
    kind: EventType,
    *,
    title: str,
    data: Mapping[str, object],
    facts: tuple[tuple[str, str], ...],
    event_id: str = "",
    status: ExecutionStatus | None = None,
) -> Notification:
    about = {
        "execution_id": event.execution_id,
        "task_id": event.task_id,
        "role": task.role.value,
        "kind": task.kind.value,
        "parent_execution_id": task.parent_execution_id,
    }
    return Notification(
        event_id=event_id or event.id,
        type=kind,
        at=event.at,
        title=title,
        execution_id=event.execution_id,
        task_id=event.task_id,
        role=task.role,
        status=status,
        part=bool(task.parent_execution_id),
        data={**about, **data},
        facts=facts,
    )


def _approval_event_id(event: Event, stage: str, approval_id: str) -> str:
    """The same id for every repetition of the event: an orchestrator that takes over repeats the request.

    It has no full stops, unlike an approval's id, because full stops separate the parts of the signed text.
    """
    return f"{event.execution_id}/approval-{stage}/{hashlib.sha256(approval_id.encode()).hexdigest()[:32]}"


def _safe(text: str, limit: int, mask: SecretMask) -> str:
    """A text for a notification: whole characters, secrets masked, at most `limit` characters."""
    return shortened(mask(well_formed(text[: limit * _MASKED_FACTOR])), limit)


async def notification_of(stored: StoredEvent, log: EventLog, mask: SecretMask) -> Notification | None:
    """The notification of an event; None for an event that webhooks never get, and for a repetition.

    The same event always gives the same notification. Raises NotFound, PreconditionFailed (earlier events are gone or
    unreadable), Unavailable.
    """
    event = stored.event
    match event.body:
        case ExecutionStarted(task=task):
            return started(event, task, mask) if _is_told(task) else None
        case ExecutionFinished():
            state = await _state(stored, log)
            return finished(event, state, mask) if _is_told(state.task) else None
        case ApprovalAwaited(request=request):
            first, _ = await _first_request(stored, log, request.approval_id)
            return requested(event, await _task(event, log), request, mask) if first else None
        case ApprovalResolved(resolution=resolution):
            first, request = await _first_request(stored, log, resolution.approval_id)
            return resolved(event, await _task(event, log), resolution, request, mask) if first else None
        case _:
            return None


def _is_told(task: Task) -> bool:
    """Whether anybody beside who asked wants to hear of it: the answers of chats are read where they are asked for."""
    return task.kind is not TaskKind.CHAT


async def _state(stored: StoredEvent, log: EventLog) -> ExecutionState:
    """The execution's state as of this event."""
    state: ExecutionState | None = None
    async with aclosing(_subject(stored.event, log, EXECUTION_SUBJECT)) as events:
        async for logged in events:
            state = advance(state, logged)
            if logged.sequence >= stored.sequence:
                break
    if state is None:
        raise NotFound(f"the beginning of {stored.event.execution_id} is no longer in the log")
    return state


async def _task(event: Event, log: EventLog) -> Task:
    async with aclosing(_subject(event, log, EXECUTION_SUBJECT)) as events:
        async for logged in events:
            if isinstance(logged.event.body, ExecutionStarted):
                return logged.event.body.task
            break
    raise NotFound(f"the beginning of {event.execution_id} is no longer in the log")


async def _first_request(stored: StoredEvent, log: EventLog, approval_id: str) -> tuple[bool, ApprovalRequest | None]:
    """Whether an event is the first of its kind about an approval, and the approval's request.

    An orchestrator that takes over repeats the request, and a timeout may follow a person's decision: the first counts.
    """
    request: ApprovalRequest | None = None
    kind = type(stored.event.body)
    async with aclosing(_subject(stored.event, log, CONTROL_SUBJECT)) as events:
        async for logged in events:
            if logged.sequence >= stored.sequence:
                return True, request
            match logged.event.body:
                case ApprovalAwaited(request=asked) if asked.approval_id == approval_id:
                    request = asked
                case ApprovalResolved(resolution=decided) if decided.approval_id == approval_id:
                    pass
                case _:
                    continue
            if type(logged.event.body) is kind:
                return False, request
    return True, request


def _subject(event: Event, log: EventLog, agent_id: str) -> AsyncGenerator[StoredEvent, None]:
    return log.read(event.tenant, event.execution_id, agent_id=agent_id)
