"""Jobs: assignments as messages to a runner of containers, and their outcomes; and which releases work together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum, StrEnum
from functools import cache
from importlib.metadata import version
from typing import Any, get_args, get_type_hints

from swe_ai_fleet.domain.assignment import ASSIGNMENT_TYPES, Assignment, AssignmentKind, CheckAssignment
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.event import EventBody


class JobPriority(StrEnum):
    """The classes of waiting jobs; those of a higher class start first."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @classmethod
    def of(cls, priority: int) -> JobPriority:
        """The class of a task's priority, 0 to 9."""
        return cls.HIGH if priority >= 6 else cls.LOW if priority < 1 else cls.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One assignment to run in a container of its own.

    Attributes:
        job_id: Its permanent id: the same id is the same job, however often the message arrives.
        kind: The kind of assignment.
        tenant: The tenant of the task.
        task_id: The task.
        execution_id: The execution.
        agent_id: The run in the log that it does; for checks the candidate's.
        generation: Of that run; a job of a higher generation takes over the run.
        errand: The assignment, as plain JSON; empty where it is in `blob`.
        blob: The assignment's JSON where it is too long for a message.
        release: That of the orchestrator, which containers must match; empty: any does.
    """

    job_id: str
    kind: AssignmentKind
    tenant: str
    task_id: str
    execution_id: str
    agent_id: str
    generation: int = 1
    errand: Mapping[str, object] = field(default_factory=dict[str, object])
    blob: BlobRef | None = None
    release: str = ""

    @property
    def ids(self) -> dict[str, str]:
        """The fields of log lines about it."""
        return {"tenant": self.tenant, "execution_id": self.execution_id, "agent_id": self.agent_id}

    @property
    def run_id(self) -> str:
        """The id that all generations of the same run share."""
        return job_id(self.tenant, self.execution_id, str(self.kind), self.agent_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """How a job ended: with a value (as JSON, or in a blob), or with a fault.

    Attributes:
        value: The assignment's result, as JSON.
        blob: The result's JSON where it is too long for a message.
        fault: The class name of the `FleetError` that it ended with; empty: none.
        message: The fault's text.
        field: The field that the fault names.
        hint: The fault's hint.
        reason: Why the container ended without reporting an outcome (`OOMKilled`, `Evicted`, …); empty: it reported.
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


def seconds_of(assignment: Assignment[object]) -> float:
    """How long the work itself may take, in seconds: the task's limit, for checks plus twice the limits of all checks.

    Each check runs on the baseline as well as on the candidate.
    """
    constraints = assignment.task.constraints
    if isinstance(assignment, CheckAssignment):
        return 2 * sum(check.timeout_seconds for check in constraints.checks) + constraints.limits.timeout_seconds
    return constraints.limits.timeout_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The version of a process; both empty: older than the handshake.

    Attributes:
        version: Of the code, such as `1.4.0`.
        wire: Digest of the types that orchestrators and agent hosts exchange: assignments, their results, events.
    """

    version: str = ""
    wire: str = ""

    @classmethod
    def of(cls, text: str) -> Release:
        """The release that `str` wrote."""
        version, _, wire = text.partition("+")
        return cls(version=version, wire=wire)

    def __str__(self) -> str:
        return f"{self.version}+{self.wire}" if self.version else ""

    def misfit(self, host: Release) -> str:
        """Why an agent host of that release may not work for an orchestrator of this one; empty: it may.

        Patch versions work together. A different wire format does not, not even one with more optional fields: an older
        host would ignore a part of its assignment, and write events that its driver reads differently.
        """
        if self.wire == host.wire and _minor(self) == _minor(host):
            return ""
        return f"the host is {str(host) or 'older'}, the orchestrator {self}"


def _minor(release: Release) -> list[str]:
    return release.version.split(".")[:2]


@cache
def this_release() -> Release:
    """The release of this process."""
    description = "\n".join(sorted(_described((*ASSIGNMENT_TYPES.values(), Job, JobOutcome, *get_args(EventBody)))))
    return Release(version=version("swe-ai-fleet"), wire=hashlib.sha256(description.encode()).hexdigest()[:12])


def misfit(job: Job) -> str:
    """Why this process may not run a job; empty: it may."""
    return Release.of(job.release).misfit(this_release()) if job.release else ""


def _described(types: Iterable[Any]) -> Iterator[str]:
    """A line for each dataclass and enumeration in these types, with its fields as the source has them."""
    # By identity, and referenced: the id of a collected alias could be reused by the next one.
    seen, pending = dict[int, Any](), list[Any](types)
    while pending:
        kind = pending.pop()
        if id(kind) in seen:
            continue
        seen[id(kind)] = kind
        if isinstance(kind, type) and is_dataclass(kind):
            yield f"{kind.__qualname__}: {', '.join(f'{item.name}: {item.type}' for item in fields(kind))}"
            pending += [*get_type_hints(kind).values(), getattr(kind, "gives", None)]
        elif isinstance(kind, type) and issubclass(kind, Enum):
            yield f"{kind.__qualname__}: {', '.join(str(member.value) for member in kind)}"
        else:
            pending += get_args(kind)
