"""A long-running program that communicates through its pipes, confined over a workspace's directory."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from swe_ai_fleet.domain.command import NetworkGrant, Output
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import PreconditionFailed, Unavailable
from swe_ai_fleet.sandbox import jail, processes
from swe_ai_fleet.sandbox.disk import DiskGuard, DiskWatch
from swe_ai_fleet.sandbox.network import FilteringProxy
from swe_ai_fleet.sandbox.policy import ControlGroup, ControlGroups, IsolationLevel, SandboxPolicy
from swe_ai_fleet.sandbox.processes import Occupants, leave_session_keyring
from swe_ai_fleet.sandbox.runner import LAUNCHER_VARIABLES, Capture, exports, session_variables, shell_limits
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.sandbox.workspace import limits_per_namespace

_CHUNK = 64 * 1024
_STDERR_BYTES = 4096
_ENDING_SECONDS = 2.0
_ENDING_CHARS = 600
_MARKER = "FLEET_INTERACTIVE"
# Joins the control groups and becomes the sandbox; bubblewrap's report is discarded.
_OUTSIDE = """\
exec 6>/dev/null || exit 125
while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done
shift
exec "$@"
"""
# Inside, before the program: its variables, the limits that only work there, and its forwarders.
_INSIDE = """\
. {variables}
cd || exit 126
{limits}
{forward}
exec "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractiveCommand:
    """An argv that runs until its pipes are closed.

    The program starts in a new home that holds `files` (by relative path), not in the workspace, whose files it could
    otherwise load as its modules or programs. `variables` are added to the sandbox's own; of the repository's
    environment only `environment` is passed on. `gateway` is a unix socket that it reaches, besides its network, at a
    port of its own loopback. In arguments, variables and files `{workspace}` stands for the workspace's path as the
    program sees it, and `{gateway}` for the URL of that port.
    """

    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    mounts: tuple[Mount, ...] = ()
    environment: Environment = field(default_factory=Environment)
    network: NetworkGrant | None = None
    gateway: Path | None = None
    files: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    read_only_workspace: bool = False
    confined: bool = True

    def at(self, workspace: str) -> InteractiveCommand:
        """The command with its placeholders filled in, for a workspace seen at this path."""

        def filled(text: str) -> str:
            return text.replace("{workspace}", workspace).replace("{gateway}", jail.GATEWAY_URL)

        return replace(
            self,
            argv=tuple(map(filled, self.argv)),
            variables={name: filled(value) for name, value in self.variables.items()},
            files={path: filled(text) for path, text in self.files.items()},
        )


class LongLineError(Exception):
    """A program wrote a line that is too long."""


class InteractiveProcess:
    """A running program: write to `stdin`, read `lines` or `stdout`; the capture of its stderr is bounded."""

    def __init__(self, process: Process, resources: _Resources, marker: str, occupants: Occupants | None) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin = process.stdin
        self.stdout = process.stdout
        self._process = process
        self._resources = resources
        self._marker = marker
        self._errors = Capture(_STDERR_BYTES)
        self._guard = DiskGuard(resources.disk, lambda: processes.descendants(self.pid), self._on_full_disk)
        self._reading_errors = asyncio.create_task(self._read_errors(process.stderr))
        self._ending = asyncio.Lock()
        self._closed = False
        self._presence = ExitStack()
        if occupants is not None:
            self._presence.enter_context(occupants.present(self._tree))

    @classmethod
    async def start(
        cls, root: Path, command: InteractiveCommand, *, policy: SandboxPolicy, scratch: Path | None = None
    ) -> InteractiveProcess:
        """Start a command over the directory `root`, an absolute path without links.

        Raises PreconditionFailed if it cannot be confined as requested, Unavailable if it does not start.
        """
        if command.confined and policy.level is not IsolationLevel.BUBBLEWRAP:
            raise PreconditionFailed(f"it must run in bubblewrap, but the sandbox is {policy.level}")
        if command.gateway is not None and not command.confined:
            raise PreconditionFailed("a gateway is reached from inside of a sandbox only")
        occupants = Occupants.of(root) if command.confined and not command.read_only_workspace else None
        if occupants is not None:
            occupants.ever = True
        resources = await _Resources.prepare(root, command, policy, scratch)
        try:
            argv, variables, marker = await resources.launch(root, command)
            leave_session_keyring()
            process = await processes.started_group(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=variables,
                cwd=resources.scratch.home,
                limit=_CHUNK,
            )
        except BaseException as error:
            await uninterrupted(resources.remove())
            if isinstance(error, OSError | ValueError):
                raise Unavailable(f"it did not start: {error}") from None
            raise
        return cls(process, resources, marker, occupants)

    @property
    def pid(self) -> int:
        """The id of the process on the host; a confined program is its grandchild."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """128 + the signal's number where a signal ended it; None while it runs."""
        code = self._process.returncode
        return code if code is None or code >= 0 else 128 - code

    def errors(self) -> Output:
        """Its stderr so far."""
        return self._errors.output()

    async def lines(self, *, max_bytes: int) -> AsyncGenerator[bytes]:
        """The lines of its stdout, without their ends. Raises LongLineError for one above `max_bytes`."""
        buffer = bytearray()
        while data := await self.stdout.read(_CHUNK):
            searched, start = len(buffer), 0
            buffer += data
            while (end := buffer.find(b"\n", max(start, searched))) >= 0:
                yield bytes(buffer[start:end])
                start = end + 1
            del buffer[:start]
            if len(buffer) > max_bytes:
                raise LongLineError
        if buffer:
            yield bytes(buffer)

    async def ending(self) -> str:
        """Why its stdout ended, such as `ended with exit code 1; its last output: …`. Takes 2 seconds at most."""
        try:
            async with asyncio.timeout(_ENDING_SECONDS):
                reason = f"ended with exit code {await self.wait()}"
        except TimeoutError:
            reason = "closed its output"
        last_output = self.errors().text().strip()[-_ENDING_CHARS:]
        return f"{reason}; its last output: {last_output}" if last_output else reason

    async def wait(self) -> int:
        """Wait until it has ended or was killed, and return its exit code."""
        await self._process.wait()
        await asyncio.wait([self._reading_errors], timeout=1)
        return self.exit_code or 0

    async def close(self, *, grace_seconds: float) -> None:
        """Close its standard input, give it `grace_seconds` to end, then kill it and its children."""
        self.stdin.close()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await self._process.wait()
        finally:
            await self.kill()

    async def kill(self) -> None:
        """Kill it and its children, wait until they are gone, and remove its home."""
        await uninterrupted(self._kill())

    async def _kill(self) -> None:
        async with self._ending:
            if self._closed:
                return
            self._closed = True
            self._guard.stop()
            while self._process.returncode is None:
                self._end()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await self._process.wait()
            if not self._resources.bubblewrap:
                await self._sweep()
            self._presence.close()
            self._reading_errors.cancel()
            self.stdin.close()
            await self._resources.remove()

    def _tree(self) -> list[int]:
        """The process of a confined program, below the first process of its namespace."""
        pids = [pid for first in processes.children(self.pid) for pid in processes.descendants(first)]
        return pids if self._process.returncode is None else []

    def _on_full_disk(self) -> None:
        self._errors.feed(self._resources.disk.note("it was killed"))
        self._end()

    def _end(self) -> None:
        """Kill the sandbox's first process, which ends the others; bubblewrap itself ends after it."""
        below = processes.children(self.pid) if self._resources.bubblewrap else processes.descendants(self.pid)
        if not below or not self._resources.bubblewrap:
            # The whole group: a process that has just started may not be listed yet.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        processes.send_signal(below, signal.SIGKILL)

    async def _sweep(self) -> None:
        while stragglers := processes.stragglers(self.pid, self._marker.encode()):
            processes.send_signal(stragglers, signal.SIGKILL)
            await asyncio.sleep(0.002)

    async def _read_errors(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(_CHUNK):
            self._errors.feed(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resources:
    """The resources of one process, which are removed with it."""

    policy: SandboxPolicy
    bubblewrap: jail.Bubblewrap | None
    scratch: jail.Scratch
    group: ControlGroup | None
    disk: DiskWatch
    proxy: FilteringProxy | None

    @classmethod
    async def prepare(
        cls, root: Path, command: InteractiveCommand, policy: SandboxPolicy, parent: Path | None
    ) -> _Resources:
        bubblewrap = await jail.Bubblewrap.required() if command.confined else None
        scratch = jail.Scratch(parent)
        proxy = FilteringProxy(command.network) if command.confined and command.network is not None else None
        try:
            if proxy is not None:
                await proxy.start(scratch.proxy_socket)
            group = ControlGroups.discover().create(policy, policy.tenant)
        except BaseException:
            if proxy is not None:
                await uninterrupted(proxy.close())
            await uninterrupted(asyncio.to_thread(scratch.remove))
            raise
        return cls(
            policy=policy,
            bubblewrap=bubblewrap,
            scratch=scratch,
            group=group,
            disk=DiskWatch((root, scratch.home, scratch.tmp), policy.max_disk_bytes),
            proxy=proxy,
        )

    async def launch(self, root: Path, command: InteractiveCommand) -> tuple[list[str], dict[str, str], str]:
        """The argv, the variables, and the marker by which an unconfined process and its children are recognised."""
        command = command.at(jail.WORKSPACE if self.bubblewrap else str(root))
        argv = command.argv
        for name, text in command.files.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"{name!r} is not a path inside the home directory")
            (self.scratch.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.scratch.home / name).write_text(text)
        environment = replace(
            command.environment,
            variables={**command.environment.variables, **command.variables},
            mounts=(*command.environment.mounts, *command.mounts),
        )
        groups = [str(entrance) for entrance in self.group.entrances] if self.group else []
        outside = [jail.shell(), "-c", _OUTSIDE, "fleet", *groups, "--"]
        if self.bubblewrap is None:
            token, home, tmp = secrets.token_hex(16), str(self.scratch.home), str(self.scratch.tmp)
            variables = session_variables(environment, os.environ, home=home, tmp=tmp, isolated=False)
            return [*outside, *argv], variables | {_MARKER: token}, f"{_MARKER}={token}"
        networked = command.network is not None
        # In a file: standard input belongs to the program, and every user of the host can read arguments.
        self.scratch.variables.touch(mode=0o600)
        self.scratch.variables.write_text(
            exports(session_variables(environment, os.environ, proxy=jail.PROXY_URL if networked else ""))
        )
        arguments = jail.bubblewrap_arguments(
            self.bubblewrap,
            root=root,
            scratch=self.scratch,
            environment=environment,
            networked=networked,
            gateway=command.gateway,
            read_only=command.read_only_workspace,
        )
        forwarders = [jail.forwarding(environment)] if networked else []
        if command.gateway is not None:
            forwarders.append(jail.forwarding(environment, jail.GATEWAY_PORT, jail.GATEWAY))
        inside = _INSIDE.format(
            variables=jail.VARIABLES,
            limits=shell_limits(
                max_file_bytes=self.policy.max_file_bytes,
                max_processes=self.policy.max_processes if limits_per_namespace() else None,
            ),
            forward="\n".join(f"{shlex.join(argv)} </dev/null >/dev/null || exit 125" for argv in forwarders),
        )
        arguments += [*jail.runner(environment), "-c", inside, "fleet", *argv]
        return [*outside, *arguments], dict(LAUNCHER_VARIABLES), ""

    async def remove(self) -> None:
        if self.proxy is not None:
            await self.proxy.close()
        if self.group is not None:
            await self.group.remove()
        await asyncio.to_thread(self.scratch.remove)
