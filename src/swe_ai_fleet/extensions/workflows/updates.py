"""Updates of a workflow's run, as its watchers are told: the messages of the WebSocket, and of a library's iterator.

The state of a run says where it stands, as a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NotRequired, TypedDict

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.event import ExecutionStatus, NodeUpdated
from swe_ai_fleet.domain.workflow import JsonValue
from swe_ai_fleet.watching.nodes import Level, node_state, status_word, usage_state


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
    """One line of what a node tells of itself."""

    level: Level
    message: str


class Update(TypedDict):
    """One message; which of the last fields there are depends on its type. `sequence` grows."""

    type: Literal["status", "node_update", "log", "completion", "error"]
    execution_id: str
    sequence: int
    status: NotRequired[str]
    data: NotRequired[Mapping[str, JsonValue]]
    node_id: NotRequired[str]
    node_state: NotRequired[Mapping[str, JsonValue]]
    log: NotRequired[Log]
    result: NotRequired[Mapping[str, JsonValue]]
    error: NotRequired[str]


def status_update(
    execution_id: str, sequence: int, status: ExecutionStatus, data: Mapping[str, JsonValue] | None = None
) -> Update:
    """Where the run as a whole stands."""
    return Update(
        type="status", execution_id=execution_id, sequence=sequence, status=status_word(status), data=dict(data or {})
    )


def node_update(execution_id: str, sequence: int, update: NodeUpdated) -> Update:
    """Where a node stands."""
    return Update(
        type="node_update",
        execution_id=execution_id,
        sequence=sequence,
        node_id=update.node_id,
        node_state=node_state(update),
    )


def log_update(execution_id: str, sequence: int, level: Level, message: str) -> Update:
    """A line of what a node tells of itself."""
    return Update(type="log", execution_id=execution_id, sequence=sequence, log=Log(level=level, message=message))


def end_update(execution_id: str, sequence: int, state: ExecutionState) -> Update:
    """The last message: `completion` with the result, or `error`."""
    if state.status is not ExecutionStatus.COMPLETED:
        return Update(
            type="error", execution_id=execution_id, sequence=sequence, error=state.error or state.status.value
        )
    result = {"status": state.status.value, "outputs": dict(state.outputs), "usage": usage_state(state.usage)}
    return Update(type="completion", execution_id=execution_id, sequence=sequence, result=result)
