"""An errand of the fleet as a message: what an orchestrator hands to whoever starts containers, and what comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errand import CheckAssignment, Errand, ErrandKind


class JobPriority(StrEnum):
    """The classes in which jobs wait; those of a higher one are begun first."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @classmethod
    def of(cls, priority: int) -> JobPriority:
        """The class of a task's priority, 0 to 9."""
        return cls.HIGH if priority >= 6 else cls.LOW if priority < 1 else cls.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One errand to be carried out in a container of its own.

    Attributes:
        job_id: Names it for ever: the same id is the same job, however often its message comes.
        kind: Which errand.
        tenant: Whose.
        task_id: Which task it is for.
        execution_id: Which execution.
        agent_id: The run in the log that it carries out; for checks the candidate's.
        generation: Of that run; a job of a higher one takes the run over.
        errand: The assignment, as plain JSON; empty where it is in `blob`.
        blob: The assignment's JSON where it is too long for a message.
    """

    job_id: str
    kind: ErrandKind
    tenant: str
    task_id: str
    execution_id: str
    agent_id: str
    generation: int = 1
    errand: Mapping[str, object] = field(default_factory=dict[str, object])
    blob: BlobRef | None = None

    @property
    def run_id(self) -> str:
        """What all generations of the same run share."""
        return job_id(self.tenant, self.execution_id, str(self.kind), self.agent_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """How a job ended: with a value (as JSON, or in a blob), or with a fault.

    Attributes:
        value: What the errand gave, as JSON.
        blob: The same where it is too long for a message.
        fault: The `FleetError` that it ended with, by name; empty: none.
        message: Its text.
        field: What it names.
        hint: The way out.
        reason: Why the container ended without a word of its own (`OOMKilled`, `Evicted`, …); empty: it spoke.
    """

    value: str = ""
    blob: BlobRef | None = None
    fault: str = ""
    message: str = ""
    field: str = ""
    hint: str = ""
    reason: str = ""


def job_id(*parts: str) -> str:
    """An id that the same parts always give: 32 hexadecimal digits, fit for keys, labels and host names."""
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]


def seconds_of(errand: Errand[object]) -> float:
    """How long the work itself may take, in seconds: the task's limits, or its checks one after the other, twice.

    A check looks at the baseline as well as at the candidate.
    """
    constraints = errand.task.constraints
    if isinstance(errand, CheckAssignment):
        return 2 * sum(check.timeout_seconds for check in constraints.checks) + constraints.limits.timeout_seconds
    return constraints.limits.timeout_seconds
