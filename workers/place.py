"""What the containers of a job are told by their environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.domain.job import Job
from swe_ai_fleet.runtime.job_board import JobBoard
from swe_ai_fleet.settings import listed

JOB_ID, TENANT, WORKSPACE, GIT_CREDENTIALS, CLONE_FROM, CLONE_HOSTS, LOGIN = (
    "FLEET_JOB_ID",
    "FLEET_JOB_TENANT",
    "FLEET_WORKSPACE",
    "FLEET_GIT_CREDENTIALS",
    "FLEET_CLONE_PROTOCOLS",
    "FLEET_CLONE_HOSTS",
    "FLEET_NATS_LOGIN",
)
DEFAULT_WORKSPACE = "/workspace"
TOLD, FENCED, UNREACHABLE, STOPPED = 0, 76, 69, 143
"""Exit codes: the outcome stands on the board; another process has the run; NATS does not answer; told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which job, where its clone is, and where the container that clones finds credentials."""

    job_id: str
    tenant: str
    workspace: Path
    credentials: Path | None = None
    protocols: tuple[str, ...] = ("https", "ssh")
    hosts: tuple[str, ...] = ("*",)

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None) -> Place:
        """What this process was started with. Raises InvalidRequest naming the variable that is missing."""
        given = os.environ if environment is None else environment
        for name in (JOB_ID, TENANT):
            if not given.get(name):
                raise InvalidRequest(f"{name} is not set", field=name, hint="the workspace runner sets it")
        credentials = given.get(GIT_CREDENTIALS, "")
        return cls(
            job_id=given[JOB_ID],
            tenant=given[TENANT],
            workspace=Path(given.get(WORKSPACE) or DEFAULT_WORKSPACE),
            credentials=Path(credentials) if credentials else None,
            protocols=listed(given.get(CLONE_FROM, "")) or ("https", "ssh"),
            hosts=listed(given.get(CLONE_HOSTS, "")) or ("*",),
        )

    async def job(self, board: JobBoard) -> Job:
        """The job as it stands on the board. Raises NotFound, Unavailable."""
        found = await board.job(self.tenant, self.job_id)
        if found is None:
            raise NotFound(f"there is no job {self.job_id}", field=JOB_ID)
        return found
