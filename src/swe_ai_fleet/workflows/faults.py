"""What is wrong with a workflow, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swe_ai_fleet.domain.errors import InvalidRequest

_MOST_TOLD = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowFault:
    """One thing that is wrong. `line` counts from 1, 0 is in no file; `node` is an id, empty where it is in none."""

    message: str
    line: int = 0
    node: str = ""
    hint: str = ""
    file: str = ""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line or "") if part)
        parts = (place, f"node {self.node}" if self.node else "", self.message)
        said = ": ".join(part for part in parts if part)
        return f"{said} ({self.hint})" if self.hint else said


class InvalidWorkflow(InvalidRequest):
    """A workflow that cannot run as it stands; `faults` are all that is wrong with it, in the order of its lines."""

    def __init__(self, faults: Sequence[WorkflowFault]) -> None:
        self.faults = tuple(faults)
        told = [str(fault) for fault in self.faults[:_MOST_TOLD]]
        left = len(self.faults) - len(told)
        super().__init__("\n".join([*told, f"and {left} more"] if left else told), field="workflow")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.faults,)
