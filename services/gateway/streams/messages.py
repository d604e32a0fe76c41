"""What watchers are told: one message for each stored event, made by a fold over an execution's events.

The message of an event depends on that event and on those before it, never on who watches since when, so that
whoever resumes behind a sequence number gets exactly what they would have got.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.gateway.streams.states import agent_state, asked, decided, result, started, subtask_state
from swe_ai_fleet.domain.event import (
    EXECUTION_SUBJECT,
    ApprovalAwaited,
    ApprovalRefused,
    ApprovalRequested,
    ApprovalResolved,
    CancelRequested,
    EventBody,
    ExecutionClaimed,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    LoopNoticed,
    MessageAdded,
    NodeUpdated,
    RunClaimed,
    RunFinished,
    RunLost,
    RunReassigned,
    RunStarted,
    StoredEvent,
    SubtaskEnded,
    SubtaskStarted,
    ToolFinished,
    ToolStarted,
    WorkspaceCheckpointed,
    WorkspaceNotKept,
)
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.domain.workflow import JsonValue
from swe_ai_fleet.watching.events import stored_event
from swe_ai_fleet.watching.lines import line_of
from swe_ai_fleet.watching.progress import Progress
from swe_ai_fleet.workflows.updates import Level, node_state

Fields = Mapping[str, JsonValue]
TERMINAL = "execution_finished"
TEXT_DELTA = "text_delta"
_ENDED_WELL = (ExecutionStatus.COMPLETED, ExecutionStatus.NO_WINNER)
_OVERHEAD_BYTES = 400


class Message:
    """One message, as JSON that is made once for all who watch.

    `sequence` is that of its event, 0 for what has no place in the log; `kind` is the message's type.
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
        """The message as UTF-8 JSON, with `events` the whole stored event beside it."""
        if not events or not self.sequence:
            return self._short
        if not self._full:
            self._full = b'%b,"event":%b}' % (self._short[:-1], self._event)
            self._event = b""
        return self._full


class Messages:
    """The fold: give it every event of one execution, from the first one on."""

    def __init__(self) -> None:
        self._progress = Progress()
        self._begun = False
        self._told = ("", "")
        self._approvals: set[str] = set()

    def of(self, event: pb.ExecutionEvent) -> Message:
        """The message of the next event, or of a piece of text that was said in between."""
        if event.type == TEXT_DELTA:
            return _text(event)
        try:
            stored, level = stored_event(event), "info"
        except ValueError:
            stored, level = None, "warning"
        if stored is None:
            kind, fields = _log(level, f"{event.type}: this version cannot read it", event.agent_id)
        else:
            kind, fields = self._message(stored)
        head = {"type": kind, "execution_id": event.execution_id, "sequence": event.sequence, "at_ms": event.at_ms}
        return Message(event.sequence, kind, json_bytes({**head, **fields}), _stored_json(event, stored is not None))

    def _message(self, stored: StoredEvent) -> tuple[str, Fields]:
        body = stored.event.body
        if not self._begun and not isinstance(body, ExecutionStarted):
            # A log that does not begin with its beginning is told all the same.
            return _log("warning", line_of(stored), stored.event.agent_id)
        self._begun = True
        self._progress.follow(stored)
        return self._node(stored.event.agent_id, body) or self._standing(stored) or _ending(stored, self._progress)

    def _node(self, agent_id: str, body: EventBody) -> tuple[str, Fields] | None:
        """The message of what begins or ends, an agent's run or a node."""
        agents = self._progress.state.agents
        match body:
            case NodeUpdated(node_id=node_id):
                return _node_update(node_id, {"kind": "node", **node_state(body)})
            case RunClaimed() | RunStarted() | RunFinished() if agent_id != EXECUTION_SUBJECT:
                return _node_update(agent_id, agent_state(agents.get(agent_id), body))
            case RunLost(lost_agent_id=lost) | RunReassigned(lost_agent_id=lost):
                return _node_update(lost, agent_state(agents.get(lost), body))
            case SubtaskStarted(subtask_id=subtask):
                return _node_update(subtask, subtask_state(body))
            case SubtaskEnded(outcome=outcome):
                return _node_update(outcome.subtask_id, subtask_state(body))
            case _:
                return None

    def _standing(self, stored: StoredEvent) -> tuple[str, Fields] | None:
        """The message of what changes where the execution as a whole stands."""
        match stored.event.body:
            case ExecutionFinished():
                return None
            case ExecutionStarted(task=task, repository=repository):
                data = started(task, repository)
            case ApprovalRequested(request=request) | ApprovalAwaited(request=request) if (
                request.approval_id not in self._approvals
            ):
                self._approvals.add(request.approval_id)
                data = {"approval": asked(request)}
            case ApprovalResolved(resolution=resolution):
                data = {"resolution": decided(resolution)}
            case ExecutionClaimed() | CancelRequested() | ApprovalRefused():
                data = dict[str, JsonValue]()
            case _ if self._now() != self._told:
                data = dict[str, JsonValue]()
            case _:
                return None
        self._told = status, step = self._now()
        told: Fields = {"step": step, "percent": self._progress.percent, "message": line_of(stored), **data}
        return "status", {"status": status, "data": told}

    def _now(self) -> tuple[str, str]:
        return self._progress.state.status.value, self._progress.step


def json_bytes(value: object) -> bytes:
    """A value as compact UTF-8 JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _ending(stored: StoredEvent, progress: Progress) -> tuple[str, Fields]:
    """The last message, or else a line of the log."""
    body = stored.event.body
    if not isinstance(body, ExecutionFinished):
        return _log(_level(body), line_of(stored), stored.event.agent_id)
    told = result(progress.state)
    if body.status in _ENDED_WELL:
        return "completion", {"result": told}
    return "error", {"error": body.error or f"ended: {body.status.value}", "status": body.status.value, "result": told}


def _log(level: Level, message: str, agent_id: str) -> tuple[str, Fields]:
    return "log", {"log": {"level": level, "message": message, "agent_id": agent_id}}


def _node_update(node_id: str, state: Fields) -> tuple[str, Fields]:
    return "node_update", {"node_id": node_id, "node_state": state}


def _level(body: EventBody) -> Level:
    match body:
        case ToolStarted() | MessageAdded() | WorkspaceCheckpointed():
            return "debug"
        case LoopNoticed() | WorkspaceNotKept():
            return "warning"
        case ToolFinished(entry=entry) if entry.outcome is not Outcome.SUCCESS:
            return "warning"
        case _:
            return "info"


def _stored_json(event: pb.ExecutionEvent, readable: bool) -> bytes:
    """The stored event as JSON; its payload as it stands in the log, not read and written again."""
    payload = event.payload_json
    if not readable:
        try:
            json.loads(payload)
        except (ValueError, RecursionError):
            payload = json.dumps(payload)
    head = {
        "sequence": event.sequence,
        "event_id": event.event_id,
        "agent_id": event.agent_id,
        "type": event.type,
        "at_ms": event.at_ms,
    }
    return b'%b,"payload":%b}' % (json_bytes(head)[:-1], payload.encode("utf-8", "replace"))


def _text(event: pb.ExecutionEvent) -> Message:
    piece = json.loads(event.payload_json)
    told = {
        "type": "text",
        "execution_id": event.execution_id,
        "agent_id": event.agent_id,
        "text": piece.get("text", ""),
        "begins": bool(piece.get("begins")),
    }
    return Message(0, "text", json_bytes(told))
