"""The contract between the workspace runner and a job's containers: what they are started with, and how they end."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from structlog.contextvars import bind_contextvars

from swe_ai_fleet.adapters.jetstream import TIMEOUT_SECONDS, JetStream
from swe_ai_fleet.domain.errors import (
    AgentLost,
    FleetError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
)
from swe_ai_fleet.domain.job import Job, JobOutcome
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.jobs import JOBS_BUCKET, JobBoard
from swe_ai_fleet.settings import Settings, listed

JOB_ID, TENANT, WORKSPACE, GIT_CREDENTIALS, CLONE_FROM, CLONE_HOSTS, LOGIN, IMAGE_PARTS, IMAGE_SOCKET = (
    "FLEET_JOB_ID",
    "FLEET_JOB_TENANT",
    "FLEET_WORKSPACE",
    "FLEET_GIT_CREDENTIALS",
    "FLEET_CLONE_PROTOCOLS",
    "FLEET_CLONE_HOSTS",
    "FLEET_NATS_LOGIN",
    "FLEET_IMAGE_PARTS",
    "FLEET_IMAGE_CONTAINER",
)
DEFAULT_WORKSPACE = "/workspace"
SETTLED, FENCED, UNREACHABLE, STOPPED = 0, 76, 69, 143
"""Exit codes: the outcome stands on the board; another process has the run; NATS does not answer; told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLocation:
    """Which job, where its clone is, and where the container that clones finds credentials.

    `image_parts` is the directory for what the container of the task's image is to see of the fleet.
    """

    job_id: str
    tenant: str
    workspace: Path
    credentials: Path | None = None
    protocols: tuple[str, ...] = ("https", "ssh")
    hosts: tuple[str, ...] = ("*",)
    image_parts: Path | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None) -> JobLocation:
        """What this process was started with. Raises InvalidRequest naming the variable that is missing."""
        variables = os.environ if environment is None else environment
        for name in (JOB_ID, TENANT):
            if not variables.get(name):
                raise InvalidRequest(f"{name} is not set", field=name, hint="the workspace runner sets it")
        credentials = variables.get(GIT_CREDENTIALS, "")
        return cls(
            job_id=variables[JOB_ID],
            tenant=variables[TENANT],
            workspace=Path(variables.get(WORKSPACE) or DEFAULT_WORKSPACE),
            credentials=Path(credentials) if credentials else None,
            protocols=listed(variables.get(CLONE_FROM, "")) or ("https", "ssh"),
            hosts=listed(variables.get(CLONE_HOSTS, "")) or ("*",),
            image_parts=Path(variables[IMAGE_PARTS]) if variables.get(IMAGE_PARTS) else None,
        )


@asynccontextmanager
async def open_job(
    settings: Settings, place: JobLocation, *, name: str
) -> AsyncGenerator[tuple[JetStream, JobBoard, Job]]:
    """The log, the board and the job of a place, which log lines are about from here on.

    Raises NotFound, PreconditionFailed, Unavailable.
    """
    async with connect_log(settings, name=name, waits=TIMEOUT_SECONDS) as log:
        board = JobBoard(log.made_bucket(JOBS_BUCKET), log)
        job = await board.job(place.tenant, place.job_id)
        if job is None:
            raise NotFound(f"there is no job {place.job_id}", field=JOB_ID)
        bind_contextvars(**job.ids)
        yield log, board, job


def outcome_of(fault: FleetError, *, reason: str = "") -> JobOutcome:
    """A fault as the end of a job."""
    return JobOutcome(
        fault=type(fault).__name__, message=fault.message, field=fault.field, hint=fault.hint, reason=reason
    )


class EndReason(StrEnum):
    """Why a job's container ended, in the words that Kubernetes has for it where it has any."""

    COMPLETED = "Completed"
    ERROR = "Error"
    FENCED = "Fenced"
    OUT_OF_MEMORY = "OOMKilled"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    DELETED = "Deleted"
    DEADLINE = "DeadlineExceeded"
    IMAGE = "ImagePullBackOff"
    CONFIGURATION = "CreateContainerConfigError"
    UNSCHEDULABLE = "Unschedulable"
    CLONE = "CloneFailed"
    REFUSED = "Refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRef:
    """A job where it runs: its name there, and whose it is."""

    name: str
    tenant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What a backend starts. `run_id` is shared by all generations of a run; `deadline_seconds` ends it by force.

    With a `login` its containers log in to NATS as themselves, and get nothing else to log in with. Commands run in
    `image`, where one is named.
    """

    ref: JobRef
    job_id: str
    run_id: str
    generation: int
    kind: str
    task_id: str
    execution_id: str
    agent_id: str
    clones: bool
    deadline_seconds: float
    image: str = ""
    login: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEnding:
    """How a container ended. `message` is what is known beside the reason; `log` the tail of what it printed."""

    reason: EndReason
    message: str = ""
    log: str = ""

    def fault(self) -> FleetError:
        """What a job is told to have met that ended so without a word of its own.

        AgentLost where another container may fare better: it goes on from the log.
        """
        text = f"the container of the job ended: {self.reason}"
        text += f" ({self.message[:500]})" if self.message else ""
        match self.reason:
            case EndReason.OUT_OF_MEMORY:
                return ResourceExhausted(text, hint="raise FLEET_RUNNER_MEMORY_LIMIT")
            case EndReason.DEADLINE:
                return ResourceExhausted(text, field="constraints.timeout_seconds", hint="raise the time limit")
            case EndReason.UNSCHEDULABLE:
                return ResourceExhausted(text, hint="add nodes, or lower what a container asks for")
            case EndReason.IMAGE:
                return PreconditionFailed(
                    text, hint="check FLEET_RUNNER_IMAGE, FLEET_RUNNER_PULL_SECRETS, FLEET_RUNNER_IMAGE_SECRETS"
                )
            case EndReason.CONFIGURATION | EndReason.REFUSED:
                return PreconditionFailed(text, hint="check the settings of the workspace runner")
            case _:
                return AgentLost(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldJob:
    """A job that a backend has, ended or not."""

    ref: JobRef
    job_id: str
    run_id: str
    generation: int
    ended: bool


class Backend(Protocol):
    """Starts jobs and tells how they end."""

    async def start(self, spec: JobSpec) -> bool:
        """Start a job; False where it already exists: then it is adopted. Raises Unavailable, PreconditionFailed."""
        ...

    async def ended(self, ref: JobRef) -> ContainerEnding:
        """Wait until a job has ended, or is beyond hope. Raises Unavailable."""
        ...

    async def stop(self, ref: JobRef) -> None:
        """End a job and remove it with all that belongs to it; nothing happens where there is none.

        Returns once its processes are told to end. Raises Unavailable.
        """
        ...

    async def finish(self, ref: JobRef, *, failed: bool) -> None:
        """Clear up behind a job that has told its outcome; what failed may be kept a while. Raises Unavailable."""
        ...

    async def held(self) -> tuple[HeldJob, ...]:
        """The jobs that are there. Raises Unavailable."""
        ...
