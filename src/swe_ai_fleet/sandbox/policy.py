"""The policy that a sandbox enforces."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class IsolationLevel(StrEnum):
    """How strongly commands are confined, strongest first."""

    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    NONE = "none"

    @property
    def mounts(self) -> bool:
        """Whether commands see files at places of the sandbox's choice: the workspace at `/workspace`."""
        return self is IsolationLevel.BUBBLEWRAP


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPolicy:
    """The isolation level and the limits of every workspace of a sandbox.

    `max_processes`, `max_memory_bytes` and `max_cpus` hold for one session (one running command and what it started);
    `max_file_bytes` is the largest single file a command can write, `max_disk_bytes` what a workspace, its home and its
    /tmp may hold together (measured while a command runs; `max_disk_bytes` is passed by what is written between two
    looks). A command whose time is up gets SIGTERM, `grace_seconds` to tidy up, then SIGKILL. Of one workspace at most
    `max_sessions` commands run at a time. What runs for nobody who was named runs for `tenant`. Where commands share
    the host's loopback (`landlock`) they never listen at `reserved_ports`.
    """

    level: IsolationLevel = IsolationLevel.BUBBLEWRAP
    max_processes: int = 512
    max_memory_bytes: int = 4 * 1024**3
    max_cpus: float = 2.0
    max_file_bytes: int = 2 * 1024**3
    max_disk_bytes: int = 10 * 1024**3
    grace_seconds: float = 2.0
    max_sessions: int = 8
    tenant: str = ""
    reserved_ports: frozenset[int] = frozenset()
