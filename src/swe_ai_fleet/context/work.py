"""What an ended execution did, from its events."""

from __future__ import annotations

from collections.abc import Iterable

from swe_ai_fleet.domain.context import WorkRecord
from swe_ai_fleet.domain.event import StoredEvent
from swe_ai_fleet.domain.execution import ExecutionState


def work_record(state: ExecutionState, events: Iterable[StoredEvent]) -> WorkRecord:
    """What is kept of an execution: its winner's commits, files and tests, and the tool calls of all its runs.

    Args:
        state: The fold of its events.
        events: The events themselves, those of its agents too.
    """
    raise NotImplementedError
