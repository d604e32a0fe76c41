"""Containers for agents: built, run and removed on a docker or podman engine, within a policy."""

from swe_ai_fleet.tools.docker.ownership import Owner, Reaped, reap
from swe_ai_fleet.tools.docker.policy import DockerPolicy, Limits
from swe_ai_fleet.tools.docker.tool import DockerTool

__all__ = ["DockerPolicy", "DockerTool", "Limits", "Owner", "Reaped", "reap"]
