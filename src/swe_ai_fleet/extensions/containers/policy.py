"""The policy for the containers of a run: images, networks, limits, and options that are never granted.

A call with such an option is refused with the reason, rather than as an unknown argument.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import mapping
from swe_ai_fleet.domain.tool import OperationSpec, ToolResult
from swe_ai_fleet.tools.definition import CalledToolkit, Definition, ToolRefusal

NO_NETWORK = "none"
DEFAULT_HOST = "unix:///var/run/docker.sock"

_MIN_MEMORY_MB = 8
_MIN_CPUS = 0.01
_MIN_PIDS = 4
_SCHEMES = ("unix://", "tcp://")
_NETWORK = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}")
_NOT_GRANTABLE = frozenset({"host", "container", "ns", "default"})
_IMAGE = re.compile(r"(?!.*//)[a-zA-Z0-9][a-zA-Z0-9._:/-]{0,254}(@sha256:[0-9a-f]{64})?")
_HUB = ("docker.io/library/", "docker.io/", "index.docker.io/library/")
_WORDS_OF_NEVER = (
    "privileged cap_add capabilities security_opt sysctls group_add pid pid_mode ipc ipc_mode uts uts_mode userns "
    "userns_mode cgroupns cgroupns_mode cgroup_parent network_mode net device devices device_cgroup_rules gpus runtime "
    "volume volumes volumes_from bind binds mount mounts v memory mem_limit memory_swap memswap_limit oom_kill_disable "
    "ulimits cpu_quota cpu_period nano_cpus pids_limit oom_score_adj shm_size publish ports publish_all user"
)
_NEVER = frozenset(_WORDS_OF_NEVER.split())
"""Options of the engine that are never granted."""
_REASON = (
    "containers run without capabilities, with no devices, in their own namespaces and never as root; they get the "
    "workspace (say workspace='ro', 'rw' or 'none') and limits (memory_mb, cpus, pids); docker_exec reaches their ports"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimits:
    """Memory in MiB (swap included), CPUs and processes of one container. All of them are always set."""

    memory_mb: int = 512
    cpus: float = 1.0
    pids: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerPolicy:
    """The permissions and limits of the containers of a run.

    Args:
        host: The engine, `unix:///path` or `tcp://host:port`; of docker or of podman.
        images: Globs of images that may be run and built upon (`python:3.*`), as `name:tag`. Images built in the same
            run are always allowed; without globs, only those.
        networks: Names of the engine's networks that may be requested. Their access is the engine's: name an internal
            one, not `bridge`, if containers must not reach this host. `none` is always allowed; `host` and the
            networks of other containers never are.
        pull: Whether a build may fetch an allowed image that the engine does not have.
        defaults: The limits if the caller names none.
        ceiling: The highest limits that a caller gets, for build steps too (except processes, for which builds have
            no setting).
        user: `uid:gid` in containers; None: the owner of the workspace, or 65534 if that is root.
        read_only_root: Whether the own files of every container are read-only, not only if the caller asks for it.
        max_containers: Containers of a run at the same time.
        max_images: Images of a run at the same time.
        max_output_bytes: Output of one command after which it is stopped.
        max_context_bytes: Size of a build's context.
        max_context_files: Entries of a build's context.
        max_build_seconds: Time limit of one build.
        call_seconds: How long the engine may take over a single request.

    Raises:
        InvalidRequest: `host` is not a valid address of an engine, or `networks` names what is never granted.
    """

    host: str = DEFAULT_HOST
    images: tuple[str, ...] = ()
    networks: frozenset[str] = frozenset()
    pull: bool = False
    defaults: ContainerLimits = field(default_factory=ContainerLimits)
    ceiling: ContainerLimits = field(default_factory=lambda: ContainerLimits(memory_mb=4096, cpus=4.0, pids=1024))
    user: str | None = None
    read_only_root: bool = False
    max_containers: int = 8
    max_images: int = 16
    max_output_bytes: int = 32 * 1024 * 1024
    max_context_bytes: int = 256 * 1024 * 1024
    max_context_files: int = 50_000
    max_build_seconds: float = 900.0
    call_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not self.host.startswith(_SCHEMES):
            raise InvalidRequest("give the engine as unix:///path or tcp://host:port", field="host")
        for name in self.networks:
            if name in _NOT_GRANTABLE or not _NETWORK.fullmatch(name):
                raise InvalidRequest(f"the network {name!r} can't be granted to containers", field="networks")

    @property
    def local(self) -> bool:
        """Whether the engine sees the same files as this process."""
        return self.host.startswith("unix://")

    def allows_image(self, image: str) -> bool:
        """Whether one of the globs matches a canonical image name."""
        return any(fnmatchcase(image, glob) or fnmatchcase(image, canonical(glob)) for glob in self.images)

    def network(self, name: str) -> str:
        """The network, if it is granted. Raises ToolRefusal."""
        if name in (NO_NETWORK, *self.networks):
            return name
        granted = ", ".join((NO_NETWORK, *sorted(self.networks)))
        raise ToolRefusal(f"the network {name[:80]!r} is not granted; networks: {granted}")

    def limits(
        self, memory_mb: int | None, cpus: float | None, pids: int | None, *, unset: ContainerLimits | None = None
    ) -> ContainerLimits:
        """The limits of one container, `unset` (or the defaults) for None. Raises ToolRefusal above the ceiling."""
        rest = unset or self.defaults
        limits = ContainerLimits(
            memory_mb=rest.memory_mb if memory_mb is None else memory_mb,
            cpus=rest.cpus if cpus is None else cpus,
            pids=rest.pids if pids is None else pids,
        )
        _within("memory_mb", limits.memory_mb, _MIN_MEMORY_MB, self.ceiling.memory_mb)
        _within("cpus", limits.cpus, _MIN_CPUS, self.ceiling.cpus)
        _within("pids", limits.pids, _MIN_PIDS, self.ceiling.pids)
        return limits


def canonical(image: str) -> str:
    """An image name with its tag and without the default registry's prefix."""
    for prefix in _HUB:
        image = image.removeprefix(prefix)
    if "@" in image or ":" in image.rpartition("/")[2]:
        return image
    return f"{image}:latest"


def checked_image(image: str) -> str:
    """The canonical name of an image. Raises ToolRefusal for a malformed one."""
    if not _IMAGE.fullmatch(image):
        raise ToolRefusal(f"{image[:100]!r} is not an image name; it looks like app or python:3.12-slim")
    return canonical(image)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise ToolRefusal(f"{name} is always limited: give a number from {low:g} to {high:g}, not {value:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedOperation:
    """A definition that refuses options that are never granted, with the reason; implements `Definition`."""

    inner: Definition

    @property
    def spec(self) -> OperationSpec:
        return self.inner.spec

    def validate(self, arguments: Mapping[str, object]) -> dict[str, object]:
        properties = mapping(self.spec.parameters.get("properties"))
        for name in arguments:
            if name.strip("-").replace("-", "_").lower() in _NEVER and name not in properties:
                raise ToolRefusal(f"{name[:40]!r} is never granted: {_REASON}")
        return self.inner.validate(arguments)

    async def run(self, toolkit: CalledToolkit, arguments: Mapping[str, object]) -> ToolResult:
        return await self.inner.run(toolkit, arguments)
