"""The messages that watchers get: one for each stored event, made by a fold over an execution's events.

The message of an event depends only on that event and on those before it, so that a client that resumes at a sequence
number gets the same messages as one that never left. Messages have the states of executions, agents, subtasks and
approvals as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain import event as events
from swe_ai_fleet.domain.approval import ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.event import (
    EXECUTION_SUBJECT,
    EventBody,
    ExecutionStatus,
    StoredEvent,
)
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.json_values import parse_json
from swe_ai_fleet.domain.run import AgentProgress
from swe_ai_fleet.domain.subtask import SKIPPED
from swe_ai_fleet.domain.task import PinnedRepository, Task
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.domain.workflow import JsonValue, NodeStatus
from swe_ai_fleet.watching.events import stored_event
from swe_ai_fleet.watching.narration import line_of
from swe_ai_fleet.watching.progress import (
    Level,
    Progress,
    ended_state,
    json_or_text,
    node_state,
    status_word,
    usage_state,
)
from swe_ai_fleet.watching.text import one_line

State = dict[str, JsonValue]
_MAX_DESCRIPTION_CHARS = 400
_TEXT_CHARS = 4_000
Fields = Mapping[str, JsonValue]
TERMINAL = "execution_finished"
TEXT_DELTA = "text_delta"
_ENDED_WELL = (ExecutionStatus.COMPLETED, ExecutionStatus.NO_WINNER)
_OVERHEAD_BYTES = 400


def task_state(task: Task, repository: PinnedRepository) -> State:
    return {
        "task_id": task.task_id,
        "kind": task.kind.value,
        "description": one_line(task.description[: 2 * _MAX_DESCRIPTION_CHARS], _MAX_DESCRIPTION_CHARS),
        "role": str(task.role),
        "num_agents": task.num_agents,
        "repository": repository.location,
        "commit": repository.commit,
    }


def agent_state(
    agent: AgentProgress | None,
    body: events.RunClaimed | events.RunStarted | events.RunFinished | events.RunLost | events.RunReassigned,
) -> State:
    """An agent's run at its start or end. `status` is a node's: running, waiting, completed, failed or pending."""
    progress = agent or AgentProgress(agent_id="")
    state: State = {
        "kind": "agent",
        "status": NodeStatus.RUNNING.value,
        "attempt": progress.attempt,
        "step": progress.step,
        "model": progress.model,
        "usage": usage_state(progress.usage),
    }
    match body:
        case events.RunClaimed(host=host, resumes=resumes):
            return {**state, "host": host, "resumes": resumes}
        case events.RunStarted(role=role, model=model, tools=tools):
            return {**state, "role": role, "model": model, "tools": len(tools)}
        case events.RunFinished(stop_reason=reason, artifacts=left, error=error):
            return {
                **state,
                "status": (NodeStatus.FAILED if error else NodeStatus.COMPLETED).value,
                "stop_reason": reason.value,
                "error": error[:_TEXT_CHARS],
                "usage": usage_state(body.usage),
                "files_changed": len(left.files_changed),
                "insertions": left.insertions,
                "deletions": left.deletions,
            }
        case events.RunLost(reason=reason):
            return {
                **state,
                "status": NodeStatus.FAILED.value,
                "stop_reason": "lost",
                "error": reason[:_TEXT_CHARS],
            }
        case events.RunReassigned(reason=reason):
            return {**state, "status": NodeStatus.PENDING.value, "error": reason[:_TEXT_CHARS]}


def subtask_state(body: events.SubtaskStarted | events.SubtaskEnded) -> State:
    if isinstance(body, events.SubtaskStarted):
        return {"kind": "subtask", "status": NodeStatus.RUNNING.value, "execution_id": body.execution_id}
    ended = body.outcome
    skipped = ended.status == SKIPPED
    status = NodeStatus.COMPLETED if ended.merged else NodeStatus.SKIPPED if skipped else NodeStatus.FAILED
    return {
        "kind": "subtask",
        "status": status.value,
        "execution_id": ended.execution_id,
        "execution_status": ended.status,
        "commit": ended.commit_sha,
        "error": ended.error[:_TEXT_CHARS],
        "usage": usage_state(ended.usage),
    }


def awaiting_approval(request: ApprovalRequest) -> State:
    """The request that waits for a person's decision."""
    return {
        "approval_id": request.approval_id,
        "agent_id": request.agent_id,
        "policy": request.policy.value,
        "call": request.call.name,
        "approach": request.approach[:_TEXT_CHARS],
        "reasons": list(request.reasons),
        "requested_at": request.requested_at,
        "expires_at": request.expires_at,
    }


def resolution_state(resolution: ApprovalResolution) -> State:
    """A person's decision."""
    return {
        "approval_id": resolution.approval_id,
        "decision": resolution.decision.value,
        "text": resolution.text[:_TEXT_CHARS],
        "approver": resolution.approver,
        "at": resolution.at,
    }


def result(state: ExecutionState) -> State:
    message = ended_state(
        state.status,
        error=state.error,
        usage=state.usage,
        duration_ms=state.duration_ms,
        output=json_or_text(state.output.output) if state.output is not None else None,
        winner_id=state.winner_id,
        verdict=state.verdict.value if state.verdict else "",
        verdict_reasons=state.best_report.reasons if state.best_report else (),
        candidates=[to_plain(ranked) for ranked in state.ranking],
    )
    if state.delivered is not None:
        message |= {"branch": state.delivered.branch, "commit": state.delivered.commit_sha}
    return message


class StreamMessage:
    """One message, as JSON that is made once for all watchers.

    `sequence` is that of its event, 0 if it is not in the log; `kind` is the message's type.
    """

    __slots__ = ("_event", "_full", "_short", "kind", "sequence", "size")

    def __init__(self, sequence: int, kind: str, short: bytes, event: bytes = b"") -> None:
        self.sequence = sequence
        self.kind = kind
        self._short = short
        self._event = event
        self._full = b""
        self.size = 2 * len(short) + len(event) + _OVERHEAD_BYTES

    def body(self, events: bool) -> bytes:
        """The message as UTF-8 JSON, with `events` including the whole stored event."""
        if not events or not self.sequence:
            return self._short
        if not self._full:
            self._full = b'%b,"event":%b}' % (self._short[:-1], self._event)
            self._event = b""
        return self._full


class Messages:
    """The fold: it must get every event of one execution, from the first one on."""

    def __init__(self) -> None:
        self._progress = Progress()
        self._begun = False
        self._sent_status = ("", "")
        self._approvals: set[str] = set()

    def of(self, event: pb.ExecutionEvent) -> StreamMessage:
        """The message of the next event, or of a piece of live text between two events."""
        if event.type == TEXT_DELTA:
            return _text(event)
        try:
            stored, level = stored_event(event), "info"
        except ValueError:
            stored, level = None, "warning"
        if stored is None:
            kind, fields = _log(level, f"{event.type}: this version does not know this event", event.agent_id)
        else:
            kind, fields = self._message(stored)
        head = {"type": kind, "execution_id": event.execution_id, "sequence": event.sequence, "at_ms": event.at_ms}
        return StreamMessage(
            event.sequence, kind, json_bytes({**head, **fields}), _stored_json(event, stored is not None)
        )

    def _message(self, stored: StoredEvent) -> tuple[str, Fields]:
        body = stored.event.body
        if not self._begun and not isinstance(body, events.ExecutionStarted):
            # A log without its first events still gets messages.
            return _log("warning", line_of(stored), stored.event.agent_id)
        self._begun = True
        self._progress.follow(stored)
        return self._node(stored.event.agent_id, body) or self._status(stored) or _end_or_log(stored, self._progress)

    def _node(self, agent_id: str, body: EventBody) -> tuple[str, Fields] | None:
        """The message of an event that starts or ends an agent's run, a subtask or a node; None for other events."""
        agents = self._progress.state.agents
        match body:
            case events.NodeUpdated(node_id=node_id):
                return _node_update(node_id, node_state(body))
            case events.RunClaimed() | events.RunStarted() | events.RunFinished() if agent_id != EXECUTION_SUBJECT:
                return _node_update(agent_id, agent_state(agents.get(agent_id), body))
            case events.RunLost(lost_agent_id=lost) | events.RunReassigned(lost_agent_id=lost):
                return _node_update(lost, agent_state(agents.get(lost), body))
            case events.SubtaskStarted(subtask_id=subtask):
                return _node_update(subtask, subtask_state(body))
            case events.SubtaskEnded(outcome=outcome):
                return _node_update(outcome.subtask_id, subtask_state(body))
            case _:
                return None

    def _status(self, stored: StoredEvent) -> tuple[str, Fields] | None:
        """The message of an event that changes the status of the whole execution; None for other events."""
        match stored.event.body:
            case events.ExecutionFinished():
                return None
            case events.ExecutionStarted(task=task, repository=repository):
                data = task_state(task, repository)
            case events.ApprovalRequested(request=request) | events.ApprovalAwaited(request=request) if (
                request.approval_id not in self._approvals
            ):
                self._approvals.add(request.approval_id)
                data = {"approval": awaiting_approval(request)}
            case events.ApprovalResolved(resolution=resolution):
                data = {"resolution": resolution_state(resolution)}
            case events.ExecutionClaimed() | events.CancelRequested() | events.ApprovalRefused():
                data = dict[str, JsonValue]()
            case _ if self._now() != self._sent_status:
                data = dict[str, JsonValue]()
            case _:
                return None
        self._sent_status = status, step = self._now()
        fields: Fields = {"step": step, "percent": self._progress.percent, "message": line_of(stored), **data}
        return "status", {"status": status, "data": fields}

    def _now(self) -> tuple[str, str]:
        return status_word(self._progress.state.status), self._progress.step


def json_bytes(value: object) -> bytes:
    """A value as compact UTF-8 JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _end_or_log(stored: StoredEvent, progress: Progress) -> tuple[str, Fields]:
    """The message of the execution's end, or else a log line."""
    body = stored.event.body
    if not isinstance(body, events.ExecutionFinished):
        return _log(_level(body), line_of(stored), stored.event.agent_id)
    end = result(progress.state)
    if body.status in _ENDED_WELL:
        return "completion", {"result": end}
    return "error", {"error": body.error or f"ended: {body.status.value}", "status": body.status.value, "result": end}


def _log(level: Level, message: str, agent_id: str) -> tuple[str, Fields]:
    return "log", {"log": {"level": level, "message": message, "agent_id": agent_id}}


def _node_update(node_id: str, state: Fields) -> tuple[str, Fields]:
    return "node_update", {"node_id": node_id, "node_state": state}


def _level(body: EventBody) -> Level:
    match body:
        case events.ToolStarted() | events.MessageAdded() | events.WorkspaceCheckpointed():
            return "debug"
        case events.LoopNoticed() | events.WorkspaceNotKept() | events.ModelAwaited(waited_ms=0):
            return "warning"
        case events.ToolFinished(entry=entry) if entry.outcome is not Outcome.SUCCESS:
            return "warning"
        case _:
            return "info"


def _stored_json(event: pb.ExecutionEvent, readable: bool) -> bytes:
    """The stored event as JSON; its payload is copied from the log, not parsed and written again."""
    payload = event.payload_json
    if not readable:
        try:
            parse_json(payload)
        except ValueError:
            payload = json.dumps(payload)
    head = {
        "sequence": event.sequence,
        "event_id": event.event_id,
        "agent_id": event.agent_id,
        "type": event.type,
        "at_ms": event.at_ms,
    }
    return b'%b,"payload":%b}' % (json_bytes(head)[:-1], payload.encode("utf-8", "replace"))


def _text(event: pb.ExecutionEvent) -> StreamMessage:
    piece = json.loads(event.payload_json)
    message = {
        "type": "text",
        "execution_id": event.execution_id,
        "agent_id": event.agent_id,
        "text": piece.get("text", ""),
        "begins": bool(piece.get("begins")),
    }
    return StreamMessage(0, "text", json_bytes(message))
