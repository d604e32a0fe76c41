"""A workspace on this host: a directory, and the sessions that run commands in it."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from swe_ai_fleet.domain.command import NOBODY, Command, CommandResult, NetworkGrant, Owner
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.sandbox import images, jail
from swe_ai_fleet.sandbox.concealment import own_interpreter, stand_ins
from swe_ai_fleet.sandbox.cpu_slots import CpuSlots
from swe_ai_fleet.sandbox.disk import DiskGuard, DiskWatch
from swe_ai_fleet.sandbox.images import ImageContainer
from swe_ai_fleet.sandbox.landlock import (
    Handover,
    Identity,
    Landlock,
    check_mounts,
    landlock_arguments,
    landlock_helper,
    remove_shared_memory,
    require_landlock,
)
from swe_ai_fleet.sandbox.network import FilteringProxy, ProxyRefusal
from swe_ai_fleet.sandbox.policy import ControlGroups, IsolationLevel, SandboxPolicy
from swe_ai_fleet.sandbox.processes import Occupants
from swe_ai_fleet.sandbox.runner import Sweep, prologue, render, session_variables
from swe_ai_fleet.sandbox.session import Launch, SandboxSession
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

# More idle sessions than this are closed when their command has ended; a new one takes some milliseconds.
_KEPT_SESSIONS = 2
_MARKER = "FLEET_SESSION"
# The runner's control pipe: the launcher opened it as descriptor 4.
_CONTROL = "/proc/self/fd/4"
IMAGES_HINT = "container images need bubblewrap 0.11 or later: pip install 'swe-ai-fleet[images]'"
# Before Linux 5.14 the limit on processes counts all processes of the user, in whatever namespace.
_LIMIT_PER_NAMESPACE_SINCE = (5, 14)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxHost:
    """The resources of workspaces: policy, slots, control groups, and the tools of the isolation level."""

    policy: SandboxPolicy
    slots: CpuSlots | None
    groups: ControlGroups
    bubblewrap: jail.Bubblewrap | None = None
    landlock: Landlock | None = None
    container: ImageContainer | None = None

    @classmethod
    async def find(
        cls, policy: SandboxPolicy, slots: CpuSlots | None = None, container: ImageContainer | None = None
    ) -> SandboxHost:
        """Look at this host. Raises PreconditionFailed where it lacks the tool of the policy's level."""
        level, groups = policy.level, ControlGroups.discover()
        if slots is not None:
            slots.on_crowd = lambda tenant, crowd: groups.weigh(tenant, crowd=crowd)
        return cls(
            policy=policy,
            slots=slots,
            groups=groups,
            bubblewrap=await jail.Bubblewrap.required() if level is IsolationLevel.BUBBLEWRAP else None,
            landlock=require_landlock() if level is IsolationLevel.LANDLOCK else None,
            container=container,
        )

    def confining(self, readable: tuple[Path, ...], writable: tuple[Path, ...]) -> tuple[str, ...]:
        """The argv before a program of ours that is to see these places alone; empty with the level `none`."""
        if self.landlock is not None:
            return tuple(landlock_helper(self.landlock, readable=readable, writable=writable))
        if self.bubblewrap is not None:
            return tuple(jail.helper_arguments(self.bubblewrap, readable=readable, writable=writable))
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    host: SandboxHost
    scratch: jail.Scratch
    proxy_url: str
    disk: DiskWatch
    identity: Identity
    handover: Handover


class LocalWorkspace:
    """A directory that commands run in; implements `ports.Workspace`.

    Commands see it at `/workspace` (with the levels `landlock` and `none`: where it is), beside it a home and a /tmp
    which all commands of the workspace share and which vanish with it. Sessions start with the first command. Where
    the fleet is root, what commands write belongs to root: keep the directory below one that nobody else may enter.
    With `landlock` root hands the directory over to a user of the workspace's own until it is closed.
    """

    def __init__(
        self,
        host: Callable[[], Awaitable[SandboxHost]],
        root: Path,
        *,
        policy: SandboxPolicy,
        environment: Environment,
        network: NetworkGrant | None,
        writable: tuple[Mount, ...],
        scratch: Path | None,
        owner: Owner = NOBODY,
    ) -> None:
        level = policy.level
        if level is IsolationLevel.NONE and (environment.mounts or writable):
            raise PreconditionFailed(
                "without a sandbox nothing can be mounted into a workspace",
                hint="install bubblewrap, or build in place",
            )
        if level is IsolationLevel.LANDLOCK:
            check_mounts((*environment.mounts, *writable))
        self._host = host
        self.root = root.resolve()
        """The path of the directory on this host. Its content is untrusted."""
        self._level = level
        self.environment = environment
        self._proxy = FilteringProxy(network) if network is not None and level is not IsolationLevel.NONE else None
        self._writable = writable
        self._scratch_parent = scratch
        self._owner = owner
        self._ground: _Ground | None = None
        self._preparing = asyncio.Lock()
        self._starting = asyncio.Lock()
        # The kernel allows a writable layer to be mounted once at a time.
        self._room = asyncio.Semaphore(1 if environment.image is not None and level.mounts else policy.max_sessions)
        self._sessions: set[SandboxSession] = set()
        self._idle: list[SandboxSession] = []
        self._closed = False
        self._opened_at = time.time()
        self._occupants = Occupants.of(self.root)

    @property
    def mount(self) -> str:
        """The path that commands see."""
        return jail.WORKSPACE if self._level.mounts else str(self.root)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def refusals(self) -> tuple[ProxyRefusal, ...]:
        """The hosts that commands asked for and the proxy did not connect to; also after the workspace was closed."""
        return self._proxy.refusals if self._proxy is not None else ()

    async def run(self, command: Command) -> CommandResult:
        """Run a command to its end. Every process it started is dead when this returns or is cancelled.

        One that makes the workspace hold more than `max_disk_bytes` is killed; while it holds more, commands can only
        make room. What they wrote on stderr says so. Raises InvalidRequest for what no process can be given,
        PreconditionFailed where the sandbox does not start.
        """
        before = jail.forwarding(self.environment) if self._proxy is not None and self._level.mounts else ()
        source = render(command, mount=self.mount, before=before)
        ground = await self._prepare()
        disk = ground.disk
        if disk.exceeded or disk.shrunk:
            await disk.measure()
        if ground.handover.due:
            await asyncio.to_thread(ground.handover.give)
        full = disk.exceeded
        if full:
            source = render(command, mount=self.mount, before=before, writing=False)
        async with self._slot(ground.host.slots, command), self._room:
            session = await self._take(ground)
            guard = DiskGuard(disk, session.commands, session.end)
            with self._occupants.present(session.tree):
                try:
                    result = await session.run(source, command, grace_seconds=ground.host.policy.grace_seconds)
                except BaseException:
                    await uninterrupted(self._discard(session))
                    raise
                finally:
                    guard.stop()
            if full or guard.tripped:
                result = _with_disk_note(result, command, disk, killed=guard.tripped)
            if session.usable and len(self._idle) < _KEPT_SESSIONS and not self._closed:
                self._idle.append(session)
            else:
                await uninterrupted(self._discard(session))
            return result

    async def confining(self, *, readable: tuple[Path, ...] = (), writable: tuple[Path, ...] = ()) -> tuple[str, ...]:
        """The argv before a program of ours that reads what commands have written, so that it sees nothing else.

        It reads the workspace's directory and `readable`, and writes `writable`, all at their own places. Without it a
        process of the workspace that lives could swap a directory for a link to any place while the program works. With
        the level `none` there is nothing before it. Raises PreconditionFailed where the sandbox is not to be had.
        """
        return (await self._host()).confining((self.root, *readable), writable)

    @property
    def used(self) -> bool:
        """Whether anybody has run in the directory: a command, or a confined program over it."""
        return self._occupants.ever

    @asynccontextmanager
    async def frozen(self) -> AsyncGenerator[None]:
        """Nobody runs in the directory for as long as the context lasts, as far as that can be had.

        See `Occupants.frozen`. Commands of this workspace begin after it: inside, none can be waited for.
        """
        async with self._starting, self._occupants.frozen():
            yield

    async def warm(self) -> None:
        """Start a session ahead of the first command, while something else is waited for. Raises as `run` does."""
        ground = await self._prepare()
        async with self._room:
            self._idle.append(await self._take(ground))

    async def close(self) -> None:
        """Kill what still runs and remove home and /tmp; the directory itself stays."""
        self._closed = True
        async with self._preparing:
            ground, self._ground = self._ground, None
            await asyncio.gather(*(self._discard(session) for session in list(self._sessions)))
            self._idle.clear()
            if ground is not None:
                if self._proxy is not None:
                    await self._proxy.close()
                await asyncio.to_thread(ground.scratch.remove)
                await asyncio.to_thread(ground.handover.take_back)
                if ground.host.landlock is not None:
                    await asyncio.to_thread(remove_shared_memory, ground.identity, self._opened_at)

    async def _prepare(self) -> _Ground:
        async with self._preparing:
            if self._closed:
                raise PreconditionFailed("the workspace is closed")
            if self._ground is not None:
                return self._ground
            # Whoever asked may be cancelled meanwhile; `close` must know of what was laid.
            return await uninterrupted(self._lay(await self._host()))

    async def _lay(self, host: SandboxHost) -> _Ground:
        scratch = jail.Scratch(self._scratch_parent)
        identity = Identity.choose() if host.landlock is not None else Identity.own()
        shared = self._shared(scratch)
        handover = Handover(identity, shared)
        proxy_url = ""
        try:
            await asyncio.to_thread(handover.give)
            if self._proxy is not None and self._level.mounts:
                await self._proxy.start(scratch.proxy_socket)
                proxy_url = jail.PROXY_URL
            elif self._proxy is not None:
                proxy_url = await self._proxy.start_on_loopback()
        except BaseException:
            await asyncio.to_thread(scratch.remove)
            with suppress(OSError):
                await asyncio.to_thread(handover.take_back)
            raise
        self._ground = _Ground(
            host=host,
            scratch=scratch,
            proxy_url=proxy_url,
            disk=DiskWatch((*shared, scratch.layer), host.policy.max_disk_bytes),
            identity=identity,
            handover=handover,
        )
        return self._ground

    async def _take(self, ground: _Ground) -> SandboxSession:
        # Whoever comes while a session is being started waits for it: it may be idle at once.
        async with self._starting:
            while self._idle:
                session = self._idle.pop()
                if session.usable:
                    return session
                await uninterrupted(self._discard(session))
            session = await SandboxSession.start(self._launch(ground))
            self._sessions.add(session)
        if self._closed:
            await uninterrupted(self._discard(session))
            raise PreconditionFailed("the workspace is closed")
        return session

    async def _discard(self, session: SandboxSession) -> None:
        self._sessions.discard(session)
        await session.kill()

    def _launch(self, ground: _Ground) -> Launch:
        host, policy, scratch = ground.host, ground.host.policy, ground.scratch
        image = self.environment.image
        container = host.container if image is not None else None
        if image is not None and container is None and not (host.bubblewrap and host.bubblewrap.overlays):
            fault, field = "this sandbox cannot show a container image", "environment.container_image"
            raise PreconditionFailed(fault, field=field, hint=IMAGES_HINT)
        kept, marker, max_processes = False, None, None
        variables = self._variables(ground)
        if host.landlock is not None:
            arguments = landlock_arguments(
                host.landlock,
                ground.identity,
                runner=scratch.runner,
                environment=self.environment,
                writable=self._shared(scratch),
                policy=policy,
                proxy=urlsplit(ground.proxy_url).port or 0,
            )
            arguments += images.RUNNER if container else (str(scratch.runner),)
            # Git treats an unreadable file as a fault, unlike a missing one.
            variables = {"GIT_CONFIG_NOSYSTEM": "1", **variables}
            kept, sweep = True, Sweep.DOMAIN if host.landlock.keeps_signals else Sweep.NOTHING
        elif host.bubblewrap is not None:
            arguments = jail.bubblewrap_arguments(
                host.bubblewrap,
                root=self.root,
                scratch=scratch,
                environment=self.environment,
                writable=self._writable,
                networked=self._proxy is not None,
            )
            arguments += jail.runner(self.environment)
            sweep, max_processes = Sweep.NAMESPACE, policy.max_processes if limits_per_namespace() else None
        else:
            arguments, sweep = [jail.shell()], Sweep.NOTHING
            marker = f"{_MARKER}={secrets.token_hex(16)}".encode()
        return Launch(
            argv=(*arguments, _CONTROL),
            prologue=prologue(
                variables, max_file_bytes=policy.max_file_bytes, max_processes=max_processes, sweep=sweep
            ),
            group=host.groups.create(policy, self._owner.tenant) if container is None else None,
            marker=marker,
            kept=kept,
            container=container,
        )

    def _shared(self, scratch: jail.Scratch) -> tuple[Path, ...]:
        """The directories that commands write to."""
        return (self.root, scratch.home, scratch.tmp, *(Path(mount.source) for mount in self._writable))

    def _slot(self, slots: CpuSlots | None, command: Command) -> AbstractAsyncContextManager[None]:
        return nullcontext() if slots is None or command.light else slots.hold(self._owner)

    def _variables(self, ground: _Ground) -> dict[str, str]:
        if self._level.mounts:
            return session_variables(self.environment, os.environ, proxy=ground.proxy_url)
        # The host's files are at their own places.
        return session_variables(
            self.environment,
            os.environ,
            home=str(ground.scratch.home),
            tmp=str(ground.scratch.tmp),
            proxy=ground.proxy_url,
            isolated=self._level is not IsolationLevel.NONE,
            interpreters=str(stand_ins().interpreter(own_interpreter(), linked=True)),
        )


def _with_disk_note(result: CommandResult, command: Command, disk: DiskWatch, *, killed: bool) -> CommandResult:
    note = disk.note("the command was killed for that" if killed else "no file can grow until files are removed")
    output = result.stdout if command.merge_stderr else result.stderr
    output = replace(output, tail=output.tail + note, total=output.total + len(note))
    return replace(result, stdout=output) if command.merge_stderr else replace(result, stderr=output)


def limits_per_namespace() -> bool:
    release = os.uname().release.split(".")
    return (int(release[0]), int(release[1].partition("-")[0])) >= _LIMIT_PER_NAMESPACE_SINCE
