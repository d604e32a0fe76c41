"""Containers: the requests that create them, what callers see of them, and commands run in them within a time limit."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.extensions.containers.engine import DockerEngine, Printout
from swe_ai_fleet.extensions.containers.ownership import OwnedEntry
from swe_ai_fleet.extensions.containers.policy import ContainerLimits
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.tools.definition import ToolFailure, time_limit

MAX_VARIABLES = 100
MAX_ARGUMENT_BYTES = 128 * 1024
MOUNT = "/workspace"
_MIB = 1024 * 1024
_CPU = 1_000_000_000
_OPEN_FILES = 4096
_LOG = {"Type": "json-file", "Config": {"max-size": "4m", "max-file": "1"}}
_TEMPORARY_MB = 64


class Access(StrEnum):
    """The mount of the workspace in a container."""

    READ_ONLY = "ro"
    READ_WRITE = "rw"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """The request for a new container.

    `root` is the workspace on the engine's host. `hidden` are directories of it that a container with write access
    sees empty. `user` is `uid:gid`. With `logged`, the engine keeps the output, within bounds.
    """

    image: str
    command: Sequence[str]
    variables: Mapping[str, str]
    labels: Mapping[str, str]
    limits: ContainerLimits
    network: str
    user: str
    root: Path
    access: Access
    working_directory: str = ""
    hidden: Sequence[str] = ()
    read_only_root: bool = False
    logged: bool = False

    def config(self) -> dict[str, object]:
        """The body of the engine's `POST /containers/create`: each protection is spelled out."""
        config: dict[str, object] = {
            "Image": self.image,
            "Env": [f"{name}={value}" for name, value in self.variables.items()],
            "Labels": dict(self.labels),
            "User": self.user,
            "Tty": False,
            "OpenStdin": False,
            "AttachStdin": False,
            "AttachStdout": True,
            "AttachStderr": True,
            "HostConfig": self._host_config(),
        }
        if self.command:
            config["Cmd"] = list(self.command)
        if self.working_directory:
            config["WorkingDir"] = self.working_directory
        return config

    def _host_config(self) -> dict[str, object]:
        memory = self.limits.memory_mb * _MIB
        return {
            "NetworkMode": self.network,
            "PidMode": "",
            "IpcMode": "private",
            "UTSMode": "",
            "UsernsMode": "",
            "CgroupnsMode": "private",
            "CgroupParent": "",
            "Privileged": False,
            "CapAdd": [],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "GroupAdd": [],
            "Devices": [],
            "DeviceRequests": [],
            "DeviceCgroupRules": [],
            "Memory": memory,
            "MemorySwap": memory,
            "NanoCpus": math.ceil(self.limits.cpus * _CPU),
            "PidsLimit": self.limits.pids,
            "OomKillDisable": False,
            "ShmSize": min(_TEMPORARY_MB, self.limits.memory_mb) * _MIB,
            "Ulimits": [
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "nofile", "Soft": _OPEN_FILES, "Hard": _OPEN_FILES},
            ],
            "ReadonlyRootfs": self.read_only_root,
            "Binds": [],
            "VolumesFrom": [],
            "Mounts": self._mounts(),
            "PortBindings": {},
            "PublishAllPorts": False,
            "AutoRemove": False,
            "RestartPolicy": {"Name": "no"},
            "Init": False,
            "LogConfig": _LOG if self.logged else {"Type": "none"},
        }

    def _mounts(self) -> list[dict[str, object]]:
        mounts: list[dict[str, object]] = []
        if self.read_only_root:
            mounts.append(_temporary("/tmp", 0o1777, _TEMPORARY_MB))  # noqa: S108 (the container's)
        if self.access is Access.NONE:
            return mounts
        writable = self.access is Access.READ_WRITE
        bind = {"Propagation": "rprivate", "NonRecursive": True}
        source = {"Type": "bind", "Source": str(self.root), "Target": MOUNT, "ReadOnly": not writable}
        mounts.append({**source, "BindOptions": bind})
        # A path below the workspace is never a mount's source: the engine would follow a link that was put there a
        # moment ago. Directories that must not be written are covered by an empty mount instead.
        mounts += [_temporary(f"{MOUNT}/{name}", 0o555, 1) for name in self.hidden if writable]
        return mounts


def _temporary(target: str, mode: int, size_mb: int) -> dict[str, object]:
    options = {"SizeBytes": size_mb * _MIB, "Mode": mode}
    return {"Type": "tmpfs", "Target": target, "ReadOnly": False, "TmpfsOptions": options}


def safe_facts(inspected: Mapping[str, Any], name: str) -> dict[str, object]:
    """The facts of a container that callers may see: no values of variables, no paths of the host."""
    state, config, host = inspected["State"], inspected["Config"], inspected["HostConfig"]
    return {
        "name": name,
        "id": inspected["Id"][:12],
        "image": config["Image"],
        "command": [str(part) for part in (inspected.get("Path", ""), *(inspected.get("Args") or ()))],
        "status": state["Status"],
        "exit_code": state["ExitCode"],
        "out_of_memory": bool(state.get("OOMKilled")),
        "started_at": state.get("StartedAt", ""),
        "finished_at": state.get("FinishedAt", ""),
        "user": config.get("User", ""),
        "working_directory": config.get("WorkingDir", ""),
        "variables": _names_of(config),
        "network": host["NetworkMode"],
        "memory_mb": host["Memory"] // _MIB,
        "cpus": host["NanoCpus"] / _CPU,
        "pids": host["PidsLimit"],
        "read_only_root": host["ReadonlyRootfs"],
        "mounts": [f"{mount['Target']} ({_described(mount)})" for mount in host.get("Mounts") or ()],
    }


def _described(mount: Mapping[str, Any]) -> str:
    if mount["Type"] != "bind":
        return "temporary"
    return "the workspace, read-only" if mount.get("ReadOnly") else "the workspace, writable"


def image_facts(name: str, inspected: Mapping[str, Any]) -> dict[str, object]:
    config: Mapping[str, Any] = inspected.get("Config") or {}
    return {
        "name": name,
        "id": short_id(inspected["Id"]),
        "created": inspected.get("Created", ""),
        "size_mib": round(inspected["Size"] / _MIB, 1),
        "entrypoint": config.get("Entrypoint") or [],
        "command": config.get("Cmd") or [],
        "working_directory": config.get("WorkingDir") or "",
        "variables": _names_of(config),
    }


def short_id(identifier: str) -> str:
    """The short form of an engine's id."""
    return identifier.removeprefix("sha256:")[:12]


def _names_of(config: Mapping[str, Any]) -> list[str]:
    return sorted(str(variable).partition("=")[0] for variable in config.get("Env") or ())


async def run_to_end(
    engine: DockerEngine, request: ContainerRequest, name: str, *, seconds: float, limit: int
) -> ToolResult:
    """Run a new container to its end and always remove it. Raises ToolFailure."""
    printout = Printout(limit)
    identifier = await engine.create(request.config(), name)
    started_at = time.monotonic()
    try:
        async with time_limit(seconds) as scope:
            await engine.attached(identifier, printout, start=lambda: engine.start(identifier), seconds=seconds)
            if not printout.flooded:
                await engine.wait(identifier, seconds)
        if scope.expired() or printout.flooded:
            await engine.kill(identifier)
        state = (await engine.container(identifier))["State"]
    finally:
        # If the engine is gone, `reap` removes the container later.
        with suppress(ToolFailure):
            await uninterrupted(engine.remove(identifier))
    note = f" (it ran out of its {request.limits.memory_mb} MiB of memory)" if state.get("OOMKilled") else ""
    return ended("docker_run", printout, code=state["ExitCode"], late=scope.expired(), started_at=started_at, note=note)


async def start(engine: DockerEngine, request: ContainerRequest, name: str) -> str:
    """Start a container and return its id; one that does not start is removed. Raises ToolFailure."""
    identifier = await engine.create(request.config(), name)
    try:
        await engine.start(identifier)
    except BaseException:
        with suppress(ToolFailure):
            await uninterrupted(engine.remove(identifier))
        raise
    return identifier


async def execute(
    engine: DockerEngine, entry: OwnedEntry, command: Sequence[str], *, directory: str, seconds: float, limit: int
) -> ToolResult:
    """Run a command in a running container. Raises ToolFailure.

    The engine cannot end a single command of a container: if one takes too long or prints too much, the container is
    restarted; if it is cancelled, the container is killed.
    """
    if entry.listed.get("State") != "running":
        raise ToolFailure(f"the container {entry.name} does not run ({entry.listed.get('Status')}); run another")
    started_at, printout = time.monotonic(), Printout(limit)
    code: int | None = None
    try:
        async with time_limit(seconds) as scope:
            code = await engine.execute(entry.id, command, printout, directory=directory, seconds=seconds)
    except asyncio.CancelledError:
        await uninterrupted(engine.kill(entry.id))
        raise
    note = ""
    if code is None:
        await uninterrupted(engine.restart(entry.id))
        note = f"; to end it the container {entry.name} was restarted"
    return ended("docker_exec", printout, code=code, late=scope.expired(), started_at=started_at, note=note)


def ended(
    operation: str, printout: Printout, *, code: int | None, late: bool, started_at: float, note: str = ""
) -> ToolResult:
    """The result of a command that ended."""
    outcome, error = Outcome.SUCCESS, ""
    if late:
        outcome = Outcome.TIMEOUT
        error = f"stopped after {time.monotonic() - started_at:.1f} seconds, its time limit{note}"
    elif printout.flooded:
        outcome, error = Outcome.ERROR, f"stopped: it printed {printout.output.total // _MIB} MiB and more{note}"
    elif code != 0:
        outcome, error = Outcome.ERROR, f"exit code {code}{note}" if code is not None else f"it did not end{note}"
    return ToolResult(
        success=outcome is Outcome.SUCCESS,
        operation=operation,
        content=printout.text(),
        error=error,
        exit_code=code,
        metadata={"output_bytes": printout.output.total, "flooded": printout.flooded},
        outcome=outcome,
        truncated=printout.output.elided > 0,
    )


def bounded(values: Mapping[str, str], name: str) -> None:
    """Raise ToolFailure for values that the engine or the kernel would not accept."""
    for key, value in values.items():
        if "\0" in key + value or (name != "command" and (not key or "=" in key)):
            raise ToolFailure(f"{name} holds a NUL character, or a name that is empty or has '=' in it")
    size = sum(len(key) + len(value) for key, value in values.items())
    if size > MAX_ARGUMENT_BYTES or (name != "command" and len(values) > MAX_VARIABLES):
        raise ToolFailure(f"{name} is too long; at most {MAX_ARGUMENT_BYTES} characters, {MAX_VARIABLES} variables")
