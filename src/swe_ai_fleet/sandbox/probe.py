"""Which rung this host can hold, and what that closes."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed
from swe_ai_fleet.sandbox.control_groups import ControlGroups
from swe_ai_fleet.sandbox.jail import Bubblewrap
from swe_ai_fleet.sandbox.policy import Rung, SandboxPolicy
from swe_ai_fleet.sandbox.workspace import Host, LocalWorkspace

Requested = Literal["auto", "bubblewrap", "none"]

_INSTALLERS = {
    "apt-get": "apt-get install bubblewrap",
    "dnf": "dnf install bubblewrap",
    "apk": "apk add bubblewrap",
    "pacman": "pacman -S bubblewrap",
    "zypper": "zypper install bubblewrap",
}
_NAMESPACES_HINT = "allow user namespaces: sysctl -w user.max_user_namespaces=15000"
_APPARMOR_HINT = "allow user namespaces: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
_APPARMOR_SWITCH = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_GROUPS_HINT = "run the fleet as an ordinary user, or name FLEET_SANDBOX=bubblewrap to go on without this limit"


class Attack(StrEnum):
    """What a command may try against the host."""

    FILES = "reading or writing files outside the workspace"
    NETWORK = "reaching the network, loopback included"
    PROCESSES = "seeing, tracing or killing other processes; outliving the call"
    PRIVILEGES = "mounting, making devices, writing kernel settings"
    FORK_BOMB = "fork bombs"
    MEMORY = "using up the memory"
    FILE_SIZE = "writing files without end"
    DISK = "filling the disk with many files"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxReport:
    """The rung that holds here, which attacks it closes, and what an operator should know besides."""

    rung: Rung
    closes: tuple[Attack, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def leaves_open(self) -> tuple[Attack, ...]:
        return tuple(attack for attack in Attack if attack not in self.closes)


async def choose_rung(requested: Requested) -> Rung:
    """The rung for a request: `auto` is the strongest that holds, by trying it; `none` must be named.

    Raises PreconditionFailed, its hint being the one command that mends it.
    """
    return (await examine_sandbox(requested)).rung


async def examine_sandbox(requested: Requested) -> SandboxReport:
    """Try the requested rung and report on it. Raises PreconditionFailed as `choose_rung` does."""
    if requested == "none":
        return SandboxReport(
            rung=Rung.NONE,
            closes=(Attack.FILE_SIZE,),
            notes=(
                "commands run as the fleet's own user, with its files and its network",
                "a process that sheds both its session and its environment outlives its call",
            ),
        )
    bubblewrap = await Bubblewrap.find()
    if bubblewrap is None:
        raise PreconditionFailed("bubblewrap is not installed", hint=install_hint())
    groups = ControlGroups.discover()
    await _try(bubblewrap, groups)
    root = os.geteuid() == 0
    notes: list[str] = []
    closes = [Attack.FILES, Attack.NETWORK, Attack.PROCESSES, Attack.PRIVILEGES, Attack.FILE_SIZE]
    if root and not groups.processes:
        if requested == "auto":
            raise PreconditionFailed(
                "the fleet is root and no pids control group is writable, so nothing would stop a fork bomb",
                hint=_GROUPS_HINT,
            )
        notes.append("the fleet is root and no pids control group is writable: fork bombs are not stopped")
    else:
        closes.append(Attack.FORK_BOMB)
    if groups.memory:
        closes.append(Attack.MEMORY)
    else:
        notes.append("no memory control group is writable: a command can use all memory")
    if "--disable-userns" not in bubblewrap.options:
        notes.append("this bubblewrap (before 0.8) lets commands make user namespaces of their own")
    notes.append("the disk is not limited: keep workspaces on a file system with a quota where that matters")
    return SandboxReport(rung=Rung.BUBBLEWRAP, closes=tuple(closes), notes=tuple(notes))


def install_hint() -> str:
    """The command that installs bubblewrap here."""
    found = [command for installer, command in _INSTALLERS.items() if shutil.which(installer)]
    return found[0] if found else "install bubblewrap with your system's package manager"


async def _try(bubblewrap: Bubblewrap, groups: ControlGroups) -> None:
    async def host() -> Host:
        return Host(policy=SandboxPolicy(), slots=None, groups=groups, bubblewrap=bubblewrap)

    with tempfile.TemporaryDirectory(prefix="fleet-probe-") as root:
        workspace = LocalWorkspace(
            host,
            Path(root),
            confined=True,
            max_sessions=1,
            environment=Environment(),
            network=None,
            writable=(),
            scratch=None,
        )
        async with workspace:
            try:
                result = await workspace.run(Command(argv=("true",), timeout_seconds=30, light=True))
            except FleetError as error:
                raise PreconditionFailed(f"bubblewrap does not work here: {error.message}", hint=_mend()) from error
    if not result.ok:
        raise PreconditionFailed(f"bubblewrap does not work here: `true` ended with {result.exit_code}")


def _mend() -> str:
    with suppress(OSError):
        if os.geteuid() and _APPARMOR_SWITCH.read_text().strip() == "1":
            return _APPARMOR_HINT
    return _NAMESPACES_HINT
