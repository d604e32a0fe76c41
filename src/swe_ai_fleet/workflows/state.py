"""Where a run of a workflow stands, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.event import ExecutionStatus, NodeUpdated
from swe_ai_fleet.domain.workflow import JsonValue


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
