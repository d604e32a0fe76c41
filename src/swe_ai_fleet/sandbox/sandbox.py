"""The sandbox of a process: a policy, CPU slots, and the workspaces opened with them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from swe_ai_fleet.domain.command import NOBODY, NetworkGrant, Owner
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.sandbox.concealment import runtime_directory
from swe_ai_fleet.sandbox.control_groups import ControlGroups
from swe_ai_fleet.sandbox.cpu_slots import CpuSlots
from swe_ai_fleet.sandbox.image_container import ImageContainer
from swe_ai_fleet.sandbox.jail import Bubblewrap
from swe_ai_fleet.sandbox.landlock import require_landlock
from swe_ai_fleet.sandbox.policy import IsolationLevel, SandboxPolicy
from swe_ai_fleet.sandbox.probe import choose_isolation_level, install_hint
from swe_ai_fleet.sandbox.workspace import Host, LocalWorkspace

_BARE = Environment()


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
        self._host: Host | None = None
        self._looking = asyncio.Lock()

    def workspace(
        self,
        root: Path,
        *,
        environment: Environment = _BARE,
        network: NetworkGrant | None = None,
        writable: tuple[Mount, ...] = (),
        scratch: Path | None = None,
        owner: Owner = NOBODY,
    ) -> LocalWorkspace:
        """A workspace over the directory `root`, which must exist; an async context manager.

        `environment.mounts` are shown read-only, `writable` mounts read-write. Without a network grant commands reach
        nothing but themselves. Home and /tmp lie in a directory of their own below `scratch` (None: the system's
        temporary directory). `owner` is who commands run for: tenants share slots and CPUs evenly, then the executions
        of one. With the isolation level `none` mounts raise PreconditionFailed and the network is the host's; with
        `landlock` mounts must stand at their own place.
        """
        return LocalWorkspace(
            self._look,
            root,
            level=self.policy.level,
            max_sessions=self.policy.max_sessions,
            environment=environment,
            network=environment.network if network is None else network,
            writable=writable,
            scratch=scratch,
            owner=owner if owner != NOBODY else Owner(tenant=self.policy.tenant),
        )

    async def confining(self, readable: tuple[Path, ...], writable: tuple[Path, ...]) -> tuple[str, ...]:
        """The argv before a program of ours that reads what others may be writing to, so that it sees nothing else.

        See `LocalWorkspace.confining`.
        """
        return (await self._look()).confining(readable, writable)

    async def _look(self) -> Host:
        async with self._looking:
            if self._host is None:
                bubblewrap = None
                if self.policy.level is IsolationLevel.BUBBLEWRAP:
                    bubblewrap = await Bubblewrap.find()
                    if bubblewrap is None:
                        raise PreconditionFailed("bubblewrap is not installed", hint=install_hint())
                landlock = None
                if self.policy.level is IsolationLevel.LANDLOCK:
                    landlock = require_landlock()
                groups = ControlGroups.discover()
                if self.slots is not None:
                    self.slots.on_crowd = lambda tenant, crowd: groups.weigh(tenant, crowd=crowd)
                self._host = Host(
                    policy=self.policy,
                    slots=self.slots,
                    groups=groups,
                    bubblewrap=bubblewrap,
                    landlock=landlock,
                    container=self.container,
                )
            return self._host


def default_slots() -> CpuSlots:
    """As many slots as this process may use CPUs, shared with all fleet processes of the same user on this node."""
    return CpuSlots(runtime_directory() / "fleet-slots", len(os.sched_getaffinity(0)))


@asynccontextmanager
async def open_workspace(
    path: Path, *, environment: Environment = _BARE, network: NetworkGrant | None = None
) -> AsyncGenerator[LocalWorkspace]:
    """A workspace over `path` with the default policy on the strongest level there is. Raises PreconditionFailed."""
    sandbox = Sandbox(SandboxPolicy(level=await choose_isolation_level("auto")), default_slots())
    async with sandbox.workspace(path, environment=environment, network=network) as workspace:
        yield workspace
