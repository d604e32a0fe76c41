"""The contract between the workspace runner and a job's containers: their variables, exit codes and endings."""

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
"""Exit codes: the outcome is on the board; another process has the run; NATS does not answer; stopped by a signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLocation:
    """The job of a container, the path of its clone, and the credentials of the cloning container.

    `image_parts` is the directory for the fleet's files in the container of the task's image.
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
        """Read the variables of this process. Raises InvalidRequest naming a missing variable."""
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
    settings: Settings, location: JobLocation, *, name: str
) -> AsyncGenerator[tuple[JetStream, JobBoard, Job]]:
    """The log, the board and the job; further log lines have the job's ids.

    Raises NotFound, PreconditionFailed, Unavailable.
    """
    async with connect_log(settings, name=name, waits=TIMEOUT_SECONDS) as log:
        board = JobBoard(log.made_bucket(JOBS_BUCKET), log)
        job = await board.job(location.tenant, location.job_id)
        if job is None:
            raise NotFound(f"there is no job {location.job_id}", field=JOB_ID)
        bind_contextvars(**job.ids)
        yield log, board, job


def outcome_of(fault: FleetError, *, reason: str = "") -> JobOutcome:
    """A fault as the outcome of a job."""
    return JobOutcome(
        fault=type(fault).__name__, message=fault.message, field=fault.field, hint=fault.hint, reason=reason
    )


class EndReason(StrEnum):
    """Why a job's container ended, in Kubernetes' own words where there are any."""

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
    """A job in a backend: its name there, and its tenant."""

    name: str
    tenant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job to start. All generations of a run share its `run_id`; after `deadline_seconds` the job is killed.

    With a `login` its containers log in to NATS with it, and have no other login. Commands run in `image`, if there is
    one.
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
    """How a container ended. `message` has further details; `log` is the end of its output."""

    reason: EndReason
    message: str = ""
    log: str = ""

    def fault(self) -> FleetError:
        """The fault of a job whose container ended so without an outcome.

        AgentLost where another container may succeed: it continues from the log.
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
    """A job in a backend, running or ended."""

    ref: JobRef
    job_id: str
    run_id: str
    generation: int
    ended: bool


class Backend(Protocol):
    """Starts jobs and reports how they end."""

    async def start(self, spec: JobSpec) -> bool:
        """Start a job; False if it already exists and is adopted. Raises Unavailable, PreconditionFailed."""
        ...

    async def ended(self, ref: JobRef) -> ContainerEnding:
        """Wait until a job has ended, or cannot begin any more. Raises Unavailable."""
        ...

    async def stop(self, ref: JobRef) -> None:
        """Stop a job and remove it with everything that belongs to it; does nothing for an unknown job.

        Returns once its processes were signalled. Raises Unavailable.
        """
        ...

    async def finish(self, ref: JobRef, *, failed: bool) -> None:
        """Clean up after a job with an outcome; a failed one may be kept for some time. Raises Unavailable."""
        ...

    async def held(self) -> tuple[HeldJob, ...]:
        """The existing jobs. Raises Unavailable."""
        ...
