"""A running sandbox that executes one command at a time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass

from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.errors import PreconditionFailed, Unavailable
from swe_ai_fleet.sandbox import processes
from swe_ai_fleet.sandbox.images import ContainerProcess, ImageContainer
from swe_ai_fleet.sandbox.jail import shell
from swe_ai_fleet.sandbox.policy import ControlGroup
from swe_ai_fleet.sandbox.processes import leave_session_keyring
from swe_ai_fleet.sandbox.runner import LAUNCHER, LAUNCHER_VARIABLES, Capture, Pipes
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

_CHUNK = 64 * 1024
# A pipe holds 1 MiB at most unless root enlarged it; output beyond that is not worth waiting for.
_DRAIN_READS = 64
_START_SECONDS = 60.0
_SWEEP_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The start of a session: the argv that ends in the runner, and the first text for the runner.

    `marker` is a variable (NAME=TEXT) that all commands inherit, by which their processes are recognised if there is
    neither a process namespace nor a keeper. `kept` says that the runner has a keeper above it (see
    landlock_launcher.py) in place of a process namespace. With a `container` the session runs in that container.
    """

    argv: tuple[str, ...]
    prologue: bytes
    group: ControlGroup | None = None
    marker: bytes | None = None
    kept: bool = False
    container: ImageContainer | None = None


class SandboxSession:
    """One sandbox process tree. Start it from the thread of the event loop: it ends when that thread does."""

    def __init__(self, launch: Launch, connection: socket.socket | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._launch = launch
        self._pipes = Pipes()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._reply: asyncio.Future[bytes | None] = self._loop.create_future()
        self.last_output_at = 0.0
        """The time of the command's start or last output, on the monotonic clock."""
        self._spent = False
        self._unwritten = b""
        self._status = b""
        self._first = self._runner = 0
        self._init: int | None = None
        self._captures = (Capture(0), Capture(0))
        groups = [str(entrance) for entrance in launch.group.entrances] if launch.group else []
        name, _, token = (launch.marker or b"").decode().partition("=")
        leave_session_keyring()
        self._process: ContainerProcess | subprocess.Popen[bytes]
        try:
            if connection is not None:
                self._process = ContainerProcess(connection, launch.argv, self._pipes.of_the_runner)
                self._outer = self._process.descriptor
            else:
                self._process = subprocess.Popen(
                    [shell(), "-c", LAUNCHER, "fleet", *self._pipes.paths, *groups, "--", *launch.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=self._pipes.output[1],
                    stderr=self._pipes.errors[1],
                    env={**LAUNCHER_VARIABLES, **({name: token} if name else {})},
                    start_new_session=True,
                )
                self._outer = os.pidfd_open(self._process.pid)
        except BaseException:
            self._pipes.close()
            raise
        self._pidfds = [self._outer]
        self._loop.add_reader(self._outer, self._on_exit)
        self._loop.add_reader(self._pipes.status[0], self._on_status)
        for capture, (read, _) in enumerate((self._pipes.output, self._pipes.errors)):
            self._loop.add_reader(read, self._on_output, read, capture)

    @classmethod
    async def start(cls, launch: Launch) -> SandboxSession:
        """Start a session and wait until its runner answers.

        Raises PreconditionFailed with the sandbox's error, Unavailable if nothing started or answered in time.
        """
        try:
            session = cls(launch, (await launch.container.connected())[0] if launch.container else None)
        except OSError as error:
            if launch.group is not None:
                await uninterrupted(launch.group.remove())
            raise Unavailable(f"the sandbox did not start: {error}") from error
        try:
            await session._handshake()
        except BaseException:
            await uninterrupted(session.kill())
            raise
        return session

    async def _handshake(self) -> None:
        self._captures = (Capture(_CHUNK), Capture(_CHUNK))
        self._write(self._launch.prologue)
        try:
            async with asyncio.timeout(_START_SECONDS):
                reply = await self._reply
        except TimeoutError:
            raise Unavailable(f"the sandbox did not start within {_START_SECONDS:.0f} s") from None
        if reply is None:
            self._drain()
            reason = self._captures[1].output().text().strip() or f"exit code {self._exited.result()}"
            raise PreconditionFailed(f"the sandbox did not start: {reason}")
        if self._launch.marker is not None:
            self._runner = self._process.pid
        elif self._launch.kept:
            self._first = self._process.pid
        else:
            self._first = int(json.loads(os.read(self._pipes.info[0], _CHUNK))["child-pid"])
            self._init = os.pidfd_open(self._first)
            self._pidfds.append(self._init)
        if self._first:
            (self._runner,) = processes.children(self._first)
        self._pipes.hand_over()

    @property
    def usable(self) -> bool:
        """Whether it can take another command."""
        return not self._spent and not self._exited.done()

    async def run(self, source: bytes, command: Command, *, grace_seconds: float) -> CommandResult:
        """Execute a rendered command to its end. After a timeout or a cancellation the session cannot be used again."""
        self._captures = (Capture(command.output_limit), Capture(command.output_limit))
        self._reply = self._loop.create_future()
        self._pipes.unblock_writers()
        started = self.last_output_at = time.monotonic()
        clock = _Clock(self, command, grace_seconds)
        try:
            if self._exited.done():
                self._reply.set_result(None)
            else:
                self._write(source)
            reply = await self._reply
            if reply is not None and reply.endswith(b"dying"):
                await self._wait_for_dying()
            if reply is not None and self._launch.kept:
                await self._clear()
        finally:
            clock.stop()
        if self._launch.marker is not None:
            await self._sweep(self._launch.marker)
        self._spent = not self._drain() or clock.expired
        exit_code = self._exited.result() if reply is None else int(reply.split()[0])
        output, errors = self._captures
        return CommandResult(
            exit_code=exit_code,
            stdout=output.output(),
            stderr=errors.output(),
            duration_ms=round((time.monotonic() - started) * 1000),
            timed_out=clock.expired,
            idle=clock.idle,
        )

    def terminate(self) -> None:
        """Ask every process of the command to end."""
        processes.send_signal(self.commands(), signal.SIGTERM)

    def commands(self) -> list[int]:
        """The process ids, on this host, of the running command."""
        if not self._first:
            return processes.descendants(self._runner)
        return [pid for pid in processes.descendants(self._first) if pid != self._runner]

    def tree(self) -> list[int]:
        """The process ids of the commands and the runner; empty once the session is over."""
        pids = (
            processes.descendants(self._first) if self._first else [self._runner, *processes.descendants(self._runner)]
        )
        # Checked after reading: once the first process has ended, another process may have its id.
        return pids if self._alive() else []

    def _alive(self) -> bool:
        try:
            for descriptor in self._pidfds:
                signal.pidfd_send_signal(descriptor, 0)
        except ProcessLookupError:
            return False
        return bool(self._pidfds)

    def end(self) -> None:
        """Kill the session at once, without waiting for it."""
        if self._exited.done():
            return
        if self._launch.marker is not None:
            processes.send_signal(processes.descendants(self._process.pid), signal.SIGKILL)
        # The first process of a namespace is gone only when all the others are, and bubblewrap waits for it.
        if self._init is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
        elif self._launch.kept:
            # SIGTERM, not SIGKILL: the keeper has to kill the others.
            self._process.terminate()
        else:
            # The whole group: a bubblewrap that has just forked has a child that would wait for it for ever.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def kill(self) -> None:
        """Kill the session and wait until all of its processes are gone."""
        self.end()
        await asyncio.wait([self._exited])
        if self._launch.marker is not None:
            await self._sweep(self._launch.marker)
        self._pipes.close()
        descriptors, self._pidfds = self._pidfds, []
        for descriptor in descriptors:
            os.close(descriptor)
        if self._launch.group is not None:
            await self._launch.group.remove()

    async def _wait_for_dying(self) -> None:
        """Wait until the runner is the only process of its namespace; all others have been killed already."""
        # The kernel does not announce the end of processes that are not our children.
        while not self._exited.done() and processes.descendants(self._first) != [self._runner]:  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    async def _clear(self) -> None:
        """Kill the processes that the command left to the keeper; end the session where some survive for too long."""
        give_up = time.monotonic() + _SWEEP_SECONDS
        while commands := self.commands():
            if self._exited.done():
                return
            if time.monotonic() > give_up:
                self.end()
                await asyncio.wait([self._exited])
                return
            processes.send_signal(commands, signal.SIGKILL)
            await asyncio.sleep(0.002)

    async def _sweep(self, marker: bytes) -> None:
        async with asyncio.timeout(_SWEEP_SECONDS):
            while stragglers := processes.stragglers(self._process.pid, marker):
                processes.send_signal(stragglers, signal.SIGKILL)
                await asyncio.sleep(0.002)

    def _write(self, data: bytes) -> None:
        self._unwritten += data
        self._on_writable()

    def _on_writable(self) -> None:
        control = self._pipes.control[1]
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(control, self._unwritten[:_CHUNK]) :]
        except BlockingIOError:
            self._loop.add_writer(control, self._on_writable)
            return
        except BrokenPipeError:
            self._unwritten = b""
        self._loop.remove_writer(control)

    def _on_output(self, descriptor: int, capture: int) -> bool:
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        self.last_output_at = time.monotonic()
        self._captures[capture].feed(data)
        return bool(data)

    def _drain(self) -> bool:
        """Read the pipes until they are empty; False if a process keeps writing."""
        if self._pipes.closed:
            return True
        reads = [(self._pipes.output[0], 0), (self._pipes.errors[0], 1)]
        for _ in range(_DRAIN_READS):
            reads = [(descriptor, capture) for descriptor, capture in reads if self._on_output(descriptor, capture)]
            if not reads:
                return True
        return False

    def _on_status(self) -> None:
        try:
            data = os.read(self._pipes.status[0], _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._pipes.status[0])
        self._status += data
        line, newline, rest = self._status.partition(b"\n")
        if newline:
            self._status = rest
            if not self._reply.done():
                self._reply.set_result(line)

    def _on_exit(self) -> None:
        code = self._process.poll()
        if code is None:
            return
        self._loop.remove_reader(self._outer)
        if self._init is None:
            self._finish(code)
        else:
            # The namespace of a killed bubblewrap dies too, but a moment later.
            self._loop.add_reader(self._init, self._finish, code)

    def _finish(self, code: int) -> None:
        if self._init is not None:
            self._loop.remove_reader(self._init)
        self._pipes.forget(self._loop)
        self._exited.set_result(code if code >= 0 else 128 - code)
        if not self._reply.done():
            self._reply.set_result(None)


class _Clock:
    """Ends a command whose time is up, or that has written nothing for too long."""

    def __init__(self, session: SandboxSession, command: Command, grace_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._session = session
        self._grace = grace_seconds
        self._silence = command.idle_timeout_seconds
        self._timers = [self._loop.call_later(command.timeout_seconds, self._expire)]
        self.expired = False
        self.idle = False
        if self._silence is not None:
            self._timers.append(self._loop.call_later(self._silence, self._check_output, self._silence))

    def _check_output(self, silence: float) -> None:
        remaining = silence - (time.monotonic() - self._session.last_output_at)
        if remaining > 0:
            self._timers.append(self._loop.call_later(remaining, self._check_output, silence))
            return
        self.idle = not self.expired
        self._expire()

    def _expire(self) -> None:
        if self.expired:
            return
        self.expired = True
        self._session.terminate()
        self._timers.append(self._loop.call_later(self._grace, self._session.end))

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
