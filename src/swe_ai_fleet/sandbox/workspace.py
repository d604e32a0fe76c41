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

# Sessions kept idle for the next command; further ones are closed after theirs. A new one takes some milliseconds.
_IDLE_SESSIONS = 2
# Commands that one workspace runs at a time.
_MAX_SESSIONS = 8
_MARKER = "FLEET_SESSION"
# The runner's control pipe: the launcher opened it as descriptor 4.
_CONTROL = "/proc/self/fd/4"
IMAGES_HINT = "container images need bubblewrap 0.11 or later: pip install 'swe-ai-fleet[images]'"
# Before Linux 5.14 the limit on processes counts all processes of the user, whatever their namespace.
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
        """Look at this host. Raises PreconditionFailed if it lacks the tool of the policy's level."""
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
        """The argv prefix that confines a program of the fleet to these paths; empty with the level `none`."""
        if self.landlock is not None:
            return tuple(landlock_helper(self.landlock, readable=readable, writable=writable))
        if self.bubblewrap is not None:
            return tuple(jail.helper_arguments(self.bubblewrap, readable=readable, writable=writable))
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resources:
    """What the sessions of a workspace share, made with its first command."""

    host: SandboxHost
    scratch: jail.Scratch
    proxy_url: str
    disk: DiskWatch
    identity: Identity
    handover: Handover


class LocalWorkspace:
    """A directory that commands run in; implements `ports.Workspace`.

    Commands see it at `/workspace` (with the levels `landlock` and `none`: at its own path), and a home and a /tmp that
    all commands of the workspace share and that are removed with it. Sessions start with the first command. Where the
    fleet is root, files that commands write belong to root: keep the directory below one that nobody else may enter.
    With `landlock` root gives the directory to a user of the workspace's own until the workspace is closed.
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
        self._resources: _Resources | None = None
        self._preparing = asyncio.Lock()
        self._starting = asyncio.Lock()
        # The kernel allows a writable layer to be mounted once at a time.
        self._room = asyncio.Semaphore(1 if environment.image is not None and level.mounts else _MAX_SESSIONS)
        self._sessions: set[SandboxSession] = set()
        self._idle: list[SandboxSession] = []
        self._closed = False
        self._opened_at = time.time()
        self._occupants = Occupants.of(self.root)

    @property
    def mount(self) -> str:
        """The path at which commands see the directory."""
        return jail.WORKSPACE if self._level.mounts else str(self.root)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def refusals(self) -> tuple[ProxyRefusal, ...]:
        """The hosts that commands asked for and the proxy did not connect to; readable after `close` too."""
        return self._proxy.refusals if self._proxy is not None else ()

    async def run(self, command: Command) -> CommandResult:
        """Run a command to its end. Every process it started is dead when this returns or is cancelled.

        A command that makes the workspace hold more than `max_disk_bytes` is killed; while it holds more, commands can
        only remove files. Their stderr says so. Raises InvalidRequest for arguments that no process can be given,
        PreconditionFailed if the sandbox does not start.
        """
        before = jail.forwarding(self.environment) if self._proxy is not None and self._level.mounts else ()
        source = render(command, mount=self.mount, before=before)
        resources = await self._prepare()
        disk = resources.disk
        if disk.exceeded or disk.shrunk:
            await disk.measure()
        if resources.handover.due:
            await asyncio.to_thread(resources.handover.give)
        full = disk.exceeded
        if full:
            source = render(command, mount=self.mount, before=before, writing=False)
        async with self._slot(resources.host.slots, command), self._room:
            session = await self._take(resources)
            guard = DiskGuard(disk, session.commands, session.end)
            with self._occupants.present(session.tree):
                try:
                    result = await session.run(source, command, grace_seconds=resources.host.policy.grace_seconds)
                except BaseException:
                    await uninterrupted(self._discard(session))
                    raise
                finally:
                    guard.stop()
            if full or guard.tripped:
                result = _with_disk_note(result, command, disk, killed=guard.tripped)
            if session.usable and len(self._idle) < _IDLE_SESSIONS and not self._closed:
                self._idle.append(session)
            else:
                await uninterrupted(self._discard(session))
            return result

    async def confining(self, *, readable: tuple[Path, ...] = (), writable: tuple[Path, ...] = ()) -> tuple[str, ...]:
        """The argv prefix that confines a program of the fleet that reads files which commands have written.

        The program can read the workspace's directory and `readable`, and write `writable`, at their own paths, and
        nothing else. Unconfined, it could be led anywhere by a live process of the workspace that swaps a directory for
        a link. The prefix is empty with the level `none`. Raises PreconditionFailed if the sandbox does not work.
        """
        return (await self._host()).confining((self.root, *readable), writable)

    @property
    def used(self) -> bool:
        """Whether a command or a confined program has ever run in the directory."""
        return self._occupants.ever

    @asynccontextmanager
    async def frozen(self) -> AsyncGenerator[None]:
        """Stop the processes in the directory for as long as the context lasts, as far as possible.

        See `Occupants.frozen`. New commands of this workspace start after the context: do not wait for one inside it.
        """
        async with self._starting, self._occupants.frozen():
            yield

    async def warm(self) -> None:
        """Start a session ahead of the first command. Raises like `run`."""
        resources = await self._prepare()
        async with self._room:
            self._idle.append(await self._take(resources))

    async def close(self) -> None:
        """Kill all processes and remove home and /tmp; the directory itself stays."""
        self._closed = True
        async with self._preparing:
            resources, self._resources = self._resources, None
            await asyncio.gather(*(self._discard(session) for session in list(self._sessions)))
            self._idle.clear()
            if resources is not None:
                if self._proxy is not None:
                    await self._proxy.close()
                await asyncio.to_thread(resources.scratch.remove)
                await asyncio.to_thread(resources.handover.take_back)
                if resources.host.landlock is not None:
                    await asyncio.to_thread(remove_shared_memory, resources.identity, self._opened_at)

    async def _prepare(self) -> _Resources:
        async with self._preparing:
            if self._closed:
                raise PreconditionFailed("the workspace is closed")
            if self._resources is not None:
                return self._resources
            # Even if the caller is cancelled: `close` has to know of everything that was made.
            return await uninterrupted(self._acquire(await self._host()))

    async def _acquire(self, host: SandboxHost) -> _Resources:
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
        self._resources = _Resources(
            host=host,
            scratch=scratch,
            proxy_url=proxy_url,
            disk=DiskWatch((*shared, scratch.layer), host.policy.max_disk_bytes),
            identity=identity,
            handover=handover,
        )
        return self._resources

    async def _take(self, resources: _Resources) -> SandboxSession:
        # One start at a time: the session that another caller is starting may soon be idle.
        async with self._starting:
            while self._idle:
                session = self._idle.pop()
                if session.usable:
                    return session
                await uninterrupted(self._discard(session))
            session = await SandboxSession.start(self._launch(resources))
            self._sessions.add(session)
        if self._closed:
            await uninterrupted(self._discard(session))
            raise PreconditionFailed("the workspace is closed")
        return session

    async def _discard(self, session: SandboxSession) -> None:
        self._sessions.discard(session)
        await session.kill()

    def _launch(self, resources: _Resources) -> Launch:
        host, policy, scratch = resources.host, resources.host.policy, resources.scratch
        image = self.environment.image
        container = host.container if image is not None else None
        if image is not None and container is None and not (host.bubblewrap and host.bubblewrap.overlays):
            fault, field = "this sandbox cannot show a container image", "environment.container_image"
            raise PreconditionFailed(fault, field=field, hint=IMAGES_HINT)
        kept, marker, max_processes = False, None, None
        variables = self._variables(resources)
        if host.landlock is not None:
            arguments = landlock_arguments(
                host.landlock,
                resources.identity,
                runner=scratch.runner,
                environment=self.environment,
                writable=self._shared(scratch),
                policy=policy,
                proxy=urlsplit(resources.proxy_url).port or 0,
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

    def _variables(self, resources: _Resources) -> dict[str, str]:
        if self._level.mounts:
            return session_variables(self.environment, os.environ, proxy=resources.proxy_url)
        # The host's files are at their own paths.
        return session_variables(
            self.environment,
            os.environ,
            home=str(resources.scratch.home),
            tmp=str(resources.scratch.tmp),
            proxy=resources.proxy_url,
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
