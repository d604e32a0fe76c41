"""The sandbox of a process, and the probe of its host: the isolation level that works, the attacks it prevents."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from swe_ai_fleet.domain.command import NOBODY, Command, NetworkGrant, Owner
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed
from swe_ai_fleet.sandbox.attacks import Attack, has_loopback, probe_workspace, successful_attacks
from swe_ai_fleet.sandbox.concealment import own_interpreter, runtime_directory
from swe_ai_fleet.sandbox.cpu_slots import CpuSlots
from swe_ai_fleet.sandbox.images import ImageContainer
from swe_ai_fleet.sandbox.jail import Bubblewrap
from swe_ai_fleet.sandbox.landlock import Landlock
from swe_ai_fleet.sandbox.policy import IsolationLevel, SandboxPolicy
from swe_ai_fleet.sandbox.seccomp import machine_known
from swe_ai_fleet.sandbox.workspace import IMAGES_HINT, LocalWorkspace, SandboxHost

_CONTAINER_FILES = {".dockerenv": "a Docker container", "run/.containerenv": "a Podman container"}
_CONTROL_GROUPS = ("docker", "kubepods", "containerd", "libpod", "lxc")
Requested = Literal["auto", "bubblewrap", "landlock", "none"]
_SWITCHES = {"user.max_user_namespaces": 15_000, "kernel.unprivileged_userns_clone": 1}
_APPARMOR_HINT = "on the host: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
_APPARMOR_SWITCH = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_USER_MAP, _WHOLE_MAP = Path("/proc/self/uid_map"), ["0", "0", "4294967295"]
_POD = "in a Pod: hostUsers: false, procMount: Unmasked and the profiles of deploy/k8s/components/userns"
# Tries what bubblewrap needs from the kernel, step by step, and prints the first refused step with its reason.
_NAMESPACES = """
import ctypes, os
library = ctypes.CDLL(None, use_errno=True)
user = os.geteuid()
def identity():
    with open("/proc/self/uid_map", "w") as file:
        file.write(f"{user} {user} 1")
def called(name, *arguments):
    if getattr(library, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)
def unfold():
    if child := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for step, act in (
    ("namespaces", lambda: called("unshare", 0x10000000)),
    ("capabilities", identity),
    ("mounts", lambda: called("unshare", 0x6C020000)),
    ("", unfold),
    ("mounts", lambda: called("mount", b"none", b"/", None, 0x84000, None)),
    ("mounts", lambda: called("mount", b"none", b"/tmp", b"tmpfs", 0, None)),
    ("proc", lambda: called("mount", b"proc", b"/proc", b"proc", 0, None)),
):
    try:
        act()
    except OSError as error:
        print(step, os.strerror(error.errno), flush=True)
        break
"""
_GROUPS_HINT = "run the fleet as an ordinary user, or set FLEET_SANDBOX=bubblewrap to run without this limit"


def surroundings(root: Path, variables: Mapping[str, str]) -> str:
    """The kind of container that the files below `root` (`/`) and this process's variables indicate, or "".

    gVisor and Kata Containers are named where their marks are present. Anybody could set these marks; the strength of
    that isolation is not checked.
    """
    container = next((name for file, name in _CONTAINER_FILES.items() if (root / file).exists()), "")
    if not container and any(mark in _text(root / "proc/1/cgroup") for mark in _CONTROL_GROUPS):
        container = "a container"
    if "KUBERNETES_SERVICE_HOST" in variables:
        container = "a Kubernetes pod"
    if "gVisor" in _text(root / "proc/version") or "gVisor" in _text(root / "proc/sys/kernel/osrelease"):
        return f"{container or 'a sandbox'} on gVisor"
    if "kata" in _text(root / "proc/cmdline"):
        return f"{container or 'a virtual machine'} on Kata Containers"
    return container


def confinement() -> str:
    """A description of this process's confinement, for operators: container, kernel, user, capabilities, filters."""
    status = dict(line.split(":\t", 1) for line in _text(Path("/proc/self/status")).splitlines() if ":\t" in line)
    host, landlock = os.uname(), Landlock.find()
    parts = [
        f"{surroundings(Path('/'), os.environ) or 'no container'}, {host.sysname} {host.release} ({host.machine})",
        f"user {os.geteuid()} of " + ("the host" if _text(_USER_MAP).split() == _WHOLE_MAP else "its own namespace"),
        "no capabilities" if not int(status.get("CapEff", "0"), 16) else f"capabilities {status['CapEff']}",
        "new privileges " + ("refused" if status.get("NoNewPrivs") == "1" else "allowed"),
        "a seccomp profile" if status.get("Seccomp") == "2" else "no seccomp profile",
        _profile() or "no AppArmor or SELinux profile",
        f"Landlock {landlock.version}" if landlock else "no Landlock",
    ]
    return "; ".join(parts)


def _profile() -> str:
    confined = _text(Path("/proc/self/attr/current")).strip("\0\n")
    return f"the security profile {confined}" if confined not in ("", "unconfined") else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxReport:
    """The isolation level that works here, the attacks that it prevents, and notes for an operator."""

    level: IsolationLevel
    closes: tuple[Attack, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def leaves_open(self) -> tuple[Attack, ...]:
        return tuple(attack for attack in Attack if attack not in self.closes)


async def choose_isolation_level(requested: Requested) -> IsolationLevel:
    """The isolation level for a request: `auto` is the strongest one that works when tried; `none` must be named.

    Raises PreconditionFailed, whose hint is the command that fixes it.
    """
    return (await _choose(requested)).policy.level


async def examine_sandbox(requested: Requested) -> SandboxReport:
    """Try the requested isolation level, then every attack from within it. Raises like `choose_isolation_level`."""
    around = surroundings(Path("/"), os.environ)
    notes = [f"the fleet itself runs in {around}"] if around else []
    host = await _choose(requested)
    if host.policy.level is IsolationLevel.NONE:
        # Commands could do everything, so there is nothing to try.
        return SandboxReport(
            level=IsolationLevel.NONE,
            closes=(Attack.FILE_SIZE, Attack.DISK),
            notes=(
                *notes,
                "commands run as the fleet's own user, with its files and its network",
                "a process that leaves both its session and its environment survives its call",
            ),
        )
    succeeded = await successful_attacks(host)
    if host.bubblewrap:
        notes += _bubblewrap_notes(host.bubblewrap)
    if host.bubblewrap is None or not host.bubblewrap.overlays:
        notes.append(IMAGES_HINT)
    if host.landlock:
        notes += _landlock_notes(host.landlock, loopback=await has_loopback(host))
    if Attack.FORK_BOMB in succeeded and os.geteuid() == 0:
        notes.append("the fleet is root and no pids control group is writable: fork bombs are not stopped")
    if not host.groups.memory:
        notes.append("no memory control group is writable: a command can use all memory")
    if not host.groups.cpu:
        notes.append("no cpu control group is writable: a command, or a tenant with many, can use all CPUs")
    closes = tuple(attack for attack in Attack if attack not in succeeded)
    return SandboxReport(level=host.policy.level, closes=closes, notes=tuple(notes))


def _bubblewrap_notes(bubblewrap: Bubblewrap) -> list[str]:
    if machine_known(os.uname().machine):
        return []
    notes = ["there is no filter of system calls for this machine: commands can make all that the kernel allows them"]
    if "--disable-userns" not in bubblewrap.options:
        notes.append("this bubblewrap (before 0.8) lets commands make user namespaces of their own")
    return notes


def _landlock_notes(landlock: Landlock, *, loopback: bool) -> list[str]:
    if loopback:
        notes = [
            "commands have TCP on loopback and unix streams, for themselves alone, but no UDP, and no /tmp but $TMPDIR",
            "ports that a command opens can be reached by other processes of the host",
        ]
    else:
        notes = [
            "commands have no sockets here: tests that start servers fail, set-up commands cannot install anything (a "
            "supervisor needs seccomp's user notification, /proc/PID/mem and sock_diag)",
            "commands have no /tmp but $TMPDIR",
        ]
    notes.append(
        "POSIX shared memory is the host's: commands can open existing segments if they know their random name"
    )
    if os.geteuid() == 0:
        notes.append("the fleet is root: a workspace belongs to a user of its own while it is open")
    else:
        notes.append("commands can change modes and times (not the content) of all files of the fleet's user")
    if not landlock.keeps_signals:
        notes.append("this kernel (before 6.12) lets commands send signals to other processes of their user")
    return notes


async def _choose(requested: Requested) -> SandboxHost:
    """The host with the tested isolation level of a request. Raises like `choose_isolation_level`."""
    if requested != "auto":
        return await _tried(IsolationLevel(requested))
    try:
        host = await _tried(IsolationLevel.BUBBLEWRAP)
        if os.geteuid() == 0 and not host.groups.processes:
            raise PreconditionFailed(
                "the fleet is root and no pids control group is writable, so nothing would stop a fork bomb",
                hint=_GROUPS_HINT,
            )
        return host
    except PreconditionFailed as refused:
        try:
            return await _tried(IsolationLevel.LANDLOCK)
        except PreconditionFailed:
            raise refused from None


async def _tried(level: IsolationLevel) -> SandboxHost:
    """This host with a level at which a command was run. Raises PreconditionFailed if that does not work."""
    host = await SandboxHost.find(SandboxPolicy(level=level))
    if level is IsolationLevel.NONE:
        return host
    with tempfile.TemporaryDirectory(prefix="fleet-probe-") as root:
        async with probe_workspace(host, Path(root)) as workspace:
            try:
                result = await workspace.run(Command(argv=("true",), timeout_seconds=30, light=True))
            except FleetError as error:
                why, hint = await _refused_namespaces() if host.bubblewrap else ("", "")
                message = f"{level} does not work here: {why or error.message}"
                raise PreconditionFailed(message, hint=hint or error.hint) from error
    if not result.ok:
        raise PreconditionFailed(f"{level} does not work here: `true` ended with {result.exit_code}")
    return host


async def _refused_namespaces() -> tuple[str, str]:
    """Which of bubblewrap's needs the kernel refuses this process, and a hint; ("", "") where none is refused."""
    process = await asyncio.create_subprocess_exec(
        *(str(own_interpreter()), "-I", "-S", "-c", _NAMESPACES), stdout=asyncio.subprocess.PIPE
    )
    step, _, reason = (await process.communicate())[0].decode().strip().partition(" ")
    profile = _profile()
    switch = next((name for name in _SWITCHES if _text(Path("/proc/sys", name.replace(".", "/"))).strip() == "0"), "")
    match step:
        case "namespaces" if switch:
            return f"{switch} is 0", f"on the host: sysctl -w {switch}={_SWITCHES[switch]}"
        case "namespaces":
            filtered = "\nSeccomp:\t2" in _text(Path("/proc/self/status"))
            by = "a seccomp profile" if filtered else profile or "the kernel"
            return f"{by} refuses user namespaces: {reason}", _POD
        case "capabilities" | "mounts":
            if _text(_APPARMOR_SWITCH).strip() == "1" and not profile:
                return f"AppArmor refuses {step} in user namespaces: {reason}", f"{_APPARMOR_HINT}; {_POD}"
            return f"{profile or 'the kernel'} refuses {step} in user namespaces: {reason}", _POD
        case "proc":
            return f"parts of /proc are masked, so that no other can be mounted: {reason}", _POD
        case _:
            return "", ""


_EMPTY = Environment()


class Sandbox:
    """Opens workspaces under one policy; heavy commands take their CPU slot from `slots` (None: no limit).

    Without namespaces, commands of an environment with an image run in its `container`.

    It looks at the host (bubblewrap, control groups) once, with the first command.
    """

    def __init__(
        self, policy: SandboxPolicy, slots: CpuSlots | None = None, container: ImageContainer | None = None
    ) -> None:
        self.policy = policy
        self.slots = slots
        self.container = container
        self._host: SandboxHost | None = None
        self._looking = asyncio.Lock()

    def workspace(
        self,
        root: Path,
        *,
        environment: Environment = _EMPTY,
        network: NetworkGrant | None = None,
        writable: tuple[Mount, ...] = (),
        scratch: Path | None = None,
        owner: Owner = NOBODY,
    ) -> LocalWorkspace:
        """A workspace over the directory `root`, which must exist; an async context manager.

        `environment.mounts` are read-only, `writable` mounts read-write. Without a network grant commands reach nothing
        but themselves. Home and /tmp lie in a new directory below `scratch` (None: the system's temporary directory).
        `owner` is the tenant and execution that commands run for: tenants share slots and CPUs evenly, and so do the
        executions of a tenant. With the isolation level `none` mounts raise PreconditionFailed and the network is the
        host's; with `landlock` the target of a mount must be its source.
        """
        return LocalWorkspace(
            self._look,
            root,
            policy=self.policy,
            environment=environment,
            network=environment.network if network is None else network,
            writable=writable,
            scratch=scratch,
            owner=owner if owner != NOBODY else Owner(tenant=self.policy.tenant),
        )

    async def confining(self, readable: tuple[Path, ...], writable: tuple[Path, ...]) -> tuple[str, ...]:
        """The argv prefix that confines a program of the fleet to these paths. See `LocalWorkspace.confining`."""
        return (await self._look()).confining(readable, writable)

    async def _look(self) -> SandboxHost:
        async with self._looking:
            if self._host is None:
                self._host = await SandboxHost.find(self.policy, self.slots, self.container)
            return self._host


def default_slots() -> CpuSlots:
    """A slot for each CPU that this process may use, shared with all fleet processes of the same user on this node."""
    return CpuSlots(runtime_directory() / "fleet-slots", len(os.sched_getaffinity(0)))


@asynccontextmanager
async def open_workspace(
    path: Path, *, environment: Environment = _EMPTY, network: NetworkGrant | None = None
) -> AsyncGenerator[LocalWorkspace]:
    """A workspace over `path` with the default policy, at the strongest level here. Raises PreconditionFailed."""
    sandbox = Sandbox(SandboxPolicy(level=await choose_isolation_level("auto")), default_slots())
    async with sandbox.workspace(path, environment=environment, network=network) as workspace:
        yield workspace
