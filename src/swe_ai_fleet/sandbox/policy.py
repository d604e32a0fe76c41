"""The policy that a sandbox enforces, and the control groups by which its limits bind root too."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from swe_ai_fleet.sandbox.processes import send_signal


class IsolationLevel(StrEnum):
    """How strongly commands are confined, strongest first."""

    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    NONE = "none"

    @property
    def mounts(self) -> bool:
        """Whether the sandbox chooses the paths of files: the workspace is at `/workspace`."""
        return self is IsolationLevel.BUBBLEWRAP


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPolicy:
    """The isolation level and the limits of every workspace of a sandbox.

    `max_processes`, `max_memory_bytes` and `max_cpus` hold for one session (one running command and what it started);
    `max_file_bytes` is the largest single file a command can write, `max_disk_bytes` what a workspace, its home and its
    /tmp may hold together (measured while a command runs, so exceeded by what is written between two measurements). A
    command whose time is up gets SIGTERM, `grace_seconds` to tidy up, then SIGKILL. Commands without an owner run for
    `tenant`. Where commands share the host's loopback (`landlock`) they never listen at `reserved_ports`.
    """

    level: IsolationLevel = IsolationLevel.BUBBLEWRAP
    max_processes: int = 512
    max_memory_bytes: int = 4 * 1024**3
    max_cpus: float = 2.0
    max_file_bytes: int = 2 * 1024**3
    max_disk_bytes: int = 10 * 1024**3
    grace_seconds: float = 2.0
    tenant: str = ""
    reserved_ports: frozenset[int] = frozenset()


_PREFIX = "fleet-"
_TENANT = "fleet-of-"
# By controller: the file of the limit, and the amount written there (see ControlGroups.create).
_VERSION_1 = {
    "pids": ("pids.max", "processes"),
    "memory": ("memory.limit_in_bytes", "memory"),
    "cpu": ("cpu.cfs_quota_us", "cpu"),
}
_VERSION_2 = {
    "pids": ("pids.max", "processes"),
    "memory": ("memory.max", "memory"),
    "cpu": ("cpu.max", "cpu of a period"),
}
_REMOVE_ATTEMPTS = 50
_WEIGHTS = {"cpu.shares": (1024, 512), "cpu.weight": (100, 50)}
_SUBTREE_CONTROL = "cgroup.subtree_control"
_PERIOD_MICROSECONDS = 100_000
"""The kernel's default period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroup:
    """The directories of one group, one per hierarchy."""

    directories: tuple[Path, ...]

    @property
    def entrances(self) -> tuple[Path, ...]:
        """The files that a process writes itself into to join."""
        return tuple(directory / "cgroup.procs" for directory in self.directories)

    async def remove(self) -> None:
        """Remove the group once its processes are dead; the next `reap` removes a group that is still busy."""
        for directory in self.directories:
            for _ in range(_REMOVE_ATTEMPTS):
                # A group stays busy until its last process is reaped, which is not awaited here.
                try:
                    directory.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    await asyncio.sleep(0.002)
                else:
                    break


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parent:
    """A directory for new groups; with `shared_by_tenants` those of a tenant lie in the tenant's own group there."""

    directory: Path
    limits: tuple[tuple[str, str], ...]
    shared_by_tenants: bool

    def make(self, name: str, tenant: str) -> Path:
        """Make the directory of a group."""
        if not self.shared_by_tenants or not tenant:
            directory = self.directory / name
            directory.mkdir(exist_ok=True)
            return directory
        while True:
            above = self.directory / f"{_TENANT}{tenant}"
            above.mkdir(exist_ok=True)
            _delegate(above)
            directory = above / name
            try:
                directory.mkdir(exist_ok=True)
            except FileNotFoundError:
                continue  # another process removed the tenant's empty group
            return directory


class ControlGroups:
    """Where this process may create groups: cgroup v1 or v2, whichever is writable.

    The groups of a tenant lie in one group, among which the kernel divides CPUs: busy tenants get equal parts,
    however many processes each has.
    """

    _numbers = itertools.count()
    """One counter for the whole process: two of its sandboxes must not share a group."""

    def __init__(self, mountinfo: str, membership: str) -> None:
        """Take the texts of /proc/self/mountinfo and /proc/self/cgroup."""
        self._parents: list[_Parent] = []
        own, mounts = _own_paths(membership), _mounts(mountinfo)
        limited: set[str] = set()
        for controller, point, root in mounts:
            if controller not in ("", *limited):
                directory = _below(point, root, own.get(controller, "/"))
                limited |= self._adopt(directory, {controller: _VERSION_1[controller]})
        for _, point, root in (mount for mount in mounts if not mount[0]):
            for directory in (_below(point, root, own.get("", "/")), point):
                if "pids" not in limited:
                    limited |= self._adopt_unified(directory)
        self.processes, self.memory, self.cpu = (controller in limited for controller in _VERSION_1)

    @classmethod
    def discover(cls) -> ControlGroups:
        """Find where this process may create groups, and remove groups that dead processes left there."""
        try:
            groups = cls(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
        except FileNotFoundError:
            return cls("", "")
        groups.reap()
        return groups

    def _adopt(self, directory: Path, limits: Mapping[str, tuple[str, str]]) -> set[str]:
        """Use a directory for new groups with these limits by controller; the controllers, none if not writable."""
        if not os.access(directory, os.W_OK):
            return set()
        parent = _Parent(directory=directory, limits=tuple(limits.values()), shared_by_tenants="cpu" in limits)
        self._parents.append(parent)
        return set(limits)

    def _adopt_unified(self, directory: Path) -> set[str]:
        _delegate(directory)
        enabled: list[str] = []
        with suppress(OSError):
            enabled = (directory / _SUBTREE_CONTROL).read_text().split()
        limits = {controller: limit for controller, limit in _VERSION_2.items() if controller in enabled}
        return self._adopt(directory, limits) if "pids" in limits else set()

    def create(self, policy: SandboxPolicy, tenant: str = "") -> ControlGroup | None:
        """A new group with a policy's limits for a tenant's processes, or None if none can be created."""
        quota = max(1_000, round(policy.max_cpus * _PERIOD_MICROSECONDS))
        amounts = {
            "processes": policy.max_processes,
            "memory": policy.max_memory_bytes,
            "cpu": quota,
            "cpu of a period": f"{quota} {_PERIOD_MICROSECONDS}",
        }
        name = f"{_PREFIX}{os.getpid()}-{next(self._numbers)}"
        directories: list[Path] = []
        for parent in self._parents:
            directory = parent.make(name, tenant)
            for file, amount in parent.limits:
                (directory / file).write_text(str(amounts[amount]))
            directories.append(directory)
        return ControlGroup(directories=tuple(directories)) if directories else None

    def weigh(self, tenant: str, *, crowd: bool) -> None:
        """Give a tenant that runs several commands (a crowd) half the weight of one that runs a single command.

        On each CPU the kernel divides a group's weight by the share of its processes there. With equal weights a single
        process beside a crowd would get two thirds of its CPU; with half the weight for the crowd it gets four fifths.
        """
        for parent in self._parents:
            if parent.shared_by_tenants:
                for file, (whole, half) in _WEIGHTS.items():
                    path = parent.directory / f"{_TENANT}{tenant}" / file
                    # A tenant without a group has no weight; each cgroup version has only one of the files.
                    with suppress(OSError):
                        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
                        try:
                            os.write(descriptor, str(half if crowd else whole).encode())
                        finally:
                            os.close(descriptor)

    def reap(self) -> None:
        """Remove the groups whose creators are dead, and kill the processes in them.

        There are few such processes: a sandbox dies with its creator unless it was just being started.
        """
        for parent in self._parents:
            above = _groups_in(parent.directory)
            of_tenants = [directory for directory in above if directory.name.startswith(_TENANT)]
            for directory in (*(group for tenant in of_tenants for group in _groups_in(tenant)), *above):
                creator = directory.name.removeprefix(_PREFIX).partition("-")[0]
                if creator.isdigit() and not Path("/proc", creator).exists():
                    send_signal(_members(directory), signal.SIGKILL)
                elif not directory.name.startswith(_TENANT):
                    continue
                # Refused while processes or groups are left in it.
                with suppress(OSError):
                    directory.rmdir()


def _delegate(directory: Path) -> None:
    """Let the groups below have limits of their own (cgroup v2)."""
    control = directory / _SUBTREE_CONTROL
    if control.exists():
        for controller in ("+pids", "+memory", "+cpu"):
            # Refused if the group holds processes itself, or the controller is not delegated to it.
            with suppress(OSError):
                control.write_text(controller)


def _groups_in(directory: Path) -> list[Path]:
    """The fleet's groups in a directory, which another process may be removing."""
    try:
        return [group for group in directory.iterdir() if group.name.startswith(_PREFIX)]
    except FileNotFoundError:
        return []


def _members(group: Path) -> list[int]:
    """The processes in a group that are in our process namespace (the kernel lists others as 0)."""
    try:
        pids = [int(line) for line in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []
    return [pid for pid in pids if pid > 0]


def _own_paths(membership: str) -> dict[str, str]:
    paths: dict[str, str] = {}
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _mounts(mountinfo: str) -> list[tuple[str, Path, str]]:
    """(controller, mount point, root within the hierarchy) of every cgroup mount; v2 has the controller ""."""
    mounts: list[tuple[str, Path, str]] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split(" ")[3:5]
        if kind == "cgroup2":
            mounts.append(("", Path(point), root))
        elif kind == "cgroup":
            mounts += [(option, Path(point), root) for option in options.split(",") if option in _VERSION_1]
    return mounts


def _below(point: Path, root: str, own: str) -> Path:
    """The directory of our own group; in a container the mount may hold only a part of the hierarchy."""
    inside = own.removeprefix(root.rstrip("/")) if own.startswith(root) else "/"
    directory = point / inside.lstrip("/")
    return directory if directory.is_dir() else point
