"""Updates of a workflow's run for its watchers: the messages of the WebSocket, and of a library's iterator.

The state of a run says where it stands, as a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NotRequired, TypedDict

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.event import ExecutionStatus, NodeUpdated
from swe_ai_fleet.domain.workflow import JsonValue
from swe_ai_fleet.watching.progress import Level, ended_state, node_state, status_word


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionState:
    """A run as it stands or ended. `status` is in_progress, completed, failed, rejected or cancelled.

    `outputs` are those that the workflow names, or, where it names none, those of its last nodes by id. `nodes` are
    the last update of each node by its place in the run; `error` names the node that failed.
    """

    status: ExecutionStatus
    outputs: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    nodes: Mapping[str, NodeUpdated] = field(default_factory=dict[str, NodeUpdated])
    error: str = ""
    usage: Usage = field(default_factory=Usage)


class Log(TypedDict):
    """One log line of a node; `agent_id` is the node's."""

    level: Level
    message: str
    agent_id: str


class Update(TypedDict):
    """One message, as on the gateway's WebSocket; which of the last fields there are depends on its type.

    `sequence` grows, `at_ms` is the time since the Unix epoch. The `result` of the last one has, beside the fields
    that the gateway's has, `outputs`: the same as `output`.
    """

    type: Literal["status", "node_update", "log", "completion", "error"]
    execution_id: str
    sequence: int
    at_ms: int
    status: NotRequired[str]
    data: NotRequired[Mapping[str, JsonValue]]
    node_id: NotRequired[str]
    node_state: NotRequired[Mapping[str, JsonValue]]
    log: NotRequired[Log]
    result: NotRequired[Mapping[str, JsonValue]]
    error: NotRequired[str]


def started_update(workflow: str) -> Mapping[str, object]:
    """The first message: the run has begun."""
    data = {"step": "running", "percent": 0, "message": f"workflow {workflow} started", "workflow": workflow}
    return {"type": "status", "status": status_word(ExecutionStatus.IN_PROGRESS), "data": data}


def node_update(update: NodeUpdated) -> Mapping[str, object]:
    """Where a node stands."""
    return {"type": "node_update", "node_id": update.node_id, "node_state": node_state(update)}


def log_update(level: Level, message: str, node_id: str) -> Mapping[str, object]:
    """A log line of a node."""
    return {"type": "log", "log": Log(level=level, message=message, agent_id=node_id)}


def end_update(state: ExecutionState, *, duration_ms: int) -> Mapping[str, object]:
    """The last message: `completion`, or `error`; both have the result."""
    ended = ended_state(
        state.status, error=state.error, usage=state.usage, duration_ms=duration_ms, output=dict(state.outputs)
    )
    result = {**ended, "outputs": dict(state.outputs)}
    if state.status is ExecutionStatus.COMPLETED:
        return {"type": "completion", "result": result}
    error = state.error or f"ended: {state.status.value}"
    return {"type": "error", "error": error, "status": state.status.value, "result": result}
