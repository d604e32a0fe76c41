"""A vLLM server as a child process: started, watched, restarted after a crash, drained at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import secrets
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from swe_ai_fleet.domain.errors import PreconditionFailed, Unavailable
from swe_ai_fleet.runtime.vllm_command import (
    INSTALL_HINT,
    VLLMOrder,
    vllm_arguments,
    vllm_environment,
    vllm_version,
)

_GUARDIAN = Path(__file__).with_name("vllm_guardian.py")
_POLL_SECONDS = 0.25
_REPLY_BYTES = 256 * 1024
_TAIL_BYTES, _TAIL_LINES = 8192, 15
_LINE_CHARACTERS = 160
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A served model: its base URL, its key, its name there, the guardian's process id."""

    url: str
    api_key: str = field(repr=False)
    model: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The supervisor's timeouts and intervals in seconds.

    `ready`: for loading the weights, which may include their download; `status`: between two messages about that.
    `reply`: for an answer to a health check, made every `looked`; `unwell`: how long all of these may fail.
    `pause`: before the restart after a crash, doubled by each further crash up to `longest_pause`, and reset after
    `steady` without one. `killed`: after the drain, until the server is killed.
    """

    ready: float = 3600.0
    status: float = 10.0
    unwell: float = 120.0
    looked: float = 5.0
    reply: float = 10.0
    pause: float = 1.0
    longest_pause: float = 60.0
    steady: float = 300.0
    killed: float = 15.0


@asynccontextmanager
async def vllm_served(
    order: VLLMOrder,
    *,
    interpreter: str,
    log: Path,
    tell: Callable[[str], None],
    timeouts: Timeouts | None = None,
) -> AsyncGenerator[ServedModel]:
    """Serve a model on loopback until the context ends, on one port and with one key across restarts.

    A crashed server is restarted, with growing pauses; callers wait meanwhile. At the end, new requests are refused,
    running ones may finish for `order.drain_seconds`, and then every process of the server is ended. That also happens
    when this process ends in any way.

    Args:
        log: The file for the server's output, overwritten.

    Raises:
        PreconditionFailed: The interpreter has no vLLM.
        InvalidRequest: Arguments that cannot be passed to vLLM.
        Unavailable: The server ended, or was not ready in time; the message has the end of its log.
    """
    version = await vllm_version(interpreter)
    if not version:
        raise PreconditionFailed(f"{interpreter} has no vLLM", field="vllm_python", hint=INSTALL_HINT)
    supervisor = _Supervisor(order, interpreter=interpreter, log=log, tell=tell, timeouts=timeouts or Timeouts())
    tell(f"starting vLLM {version} with {order.model}; its log is {log}")
    try:
        await supervisor.start()
        watching = asyncio.create_task(supervisor.watch())
        try:
            yield supervisor.served
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
    finally:
        await supervisor.stop()


class _Supervisor:
    def __init__(
        self, order: VLLMOrder, *, interpreter: str, log: Path, tell: Callable[[str], None], timeouts: Timeouts
    ) -> None:
        self._log = log
        self._tell = tell
        self._timeouts = timeouts
        self._port = _free_port()
        self._key = secrets.token_urlsafe(32)
        self._argv = (interpreter, *vllm_arguments(order, port=self._port))
        self._grace = order.drain_seconds + timeouts.killed
        self._process: asyncio.subprocess.Process | None = None
        self._ready = False
        self._model = ""

    @property
    def served(self) -> ServedModel:
        assert self._process is not None
        url = f"http://127.0.0.1:{self._port}/v1"
        return ServedModel(url=url, api_key=self._key, model=self._model, pid=self._process.pid)

    async def start(self) -> None:
        """Start the server and wait until it answers."""
        self._log.unlink(missing_ok=True)
        await self._until_ready(await self._spawn())

    async def watch(self) -> None:
        """Restart the server whenever it ends or stops answering."""
        clock = asyncio.get_running_loop().time
        crashes = 0
        while True:
            assert self._process is not None
            began = clock()
            status = await self._ended(self._process)
            crashes = 0 if clock() - began >= self._timeouts.steady else crashes
            pause = min(self._timeouts.longest_pause, self._timeouts.pause * 2**crashes) * random.uniform(0.8, 1.2)  # noqa: S311
            crashes += 1
            last = self._tail(1)
            _log.warning("vllm.ended", status=status, again_in_seconds=round(pause, 1), last=last)
            self._tell(f"vLLM ended with status {status}; agents wait; restart in {pause:.0f} s: {last}")
            await asyncio.sleep(pause)
            try:
                await self._until_ready(await self._spawn())
            except Unavailable as error:
                _log.warning("vllm.not_started", error=error.message)
            else:
                _log.info("vllm.ready_again")
                self._tell("vLLM is available again")

    async def stop(self) -> None:
        """Let running requests finish, then end every process of the server."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                # A server that is not ready has no requests to drain.
                process.send_signal(signal.SIGTERM if self._ready else signal.SIGQUIT)
            async with asyncio.timeout(self._grace + 2 * self._timeouts.killed):
                await process.wait()
        except (TimeoutError, asyncio.CancelledError) as error:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGQUIT)
            if isinstance(error, asyncio.CancelledError):
                raise
            await process.wait()

    async def _spawn(self) -> asyncio.subprocess.Process:
        self._ready = False
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_GUARDIAN), str(os.getpid()), str(self._grace)),
                *self._argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=vllm_environment(os.environ, self._key),
                start_new_session=True,  # Ctrl-C in a terminal is the fleet's, which stops first
            )
        finally:
            os.close(descriptor)
        return self._process

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        clock = asyncio.get_running_loop().time
        began = last_told = clock()
        while not await self._healthy():
            if process.returncode is not None:
                raise Unavailable(
                    f"vLLM ended with status {process.returncode} before it was ready:\n{self._tail(_TAIL_LINES)}",
                    field="vllm",
                    hint=f"see {self._log}",
                )
            if clock() - began > self._timeouts.ready:
                await self.stop()
                raise Unavailable(
                    f"vLLM was not ready after {self._timeouts.ready:g} s:\n{self._tail(_TAIL_LINES)}", field="vllm"
                )
            if clock() - last_told >= self._timeouts.status:
                last_told = clock()
                self._tell(f"vLLM is loading, {last_told - began:.0f} s: {self._tail(1)}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await process.wait()
        self._model = await self._served_name()
        self._ready = True

    async def _ended(self, process: asyncio.subprocess.Process) -> int:
        """Wait until the server has ended; one that has not answered for `unwell` seconds is killed."""
        clock = asyncio.get_running_loop().time
        answered = clock()
        while process.returncode is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timeouts.looked):
                    return await process.wait()
            if await self._healthy():
                answered = clock()
            elif clock() - answered > self._timeouts.unwell:
                self._tell(f"vLLM has not answered for {self._timeouts.unwell:g} s")
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGQUIT)
                return await process.wait()
        return process.returncode

    async def _healthy(self) -> bool:
        try:
            return (await self._get("/health"))[0] == 200
        except (OSError, ValueError, asyncio.IncompleteReadError):
            return False

    async def _served_name(self) -> str:
        with contextlib.suppress(OSError, ValueError, TimeoutError, LookupError, TypeError):
            status, body = await self._get("/v1/models")
            if status == 200:
                return str(json.loads(body)["data"][0]["id"])
        raise Unavailable("vLLM does not list its models", field="vllm", hint=f"see {self._log}")

    async def _get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a small reply, over HTTP/1.0, so that the body ends with the connection."""
        async with asyncio.timeout(self._timeouts.reply):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                request = f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._key}\r\n\r\n"
                writer.write(request.encode())
                reply = bytearray()
                while len(reply) < _REPLY_BYTES and (part := await reader.read(_REPLY_BYTES)):
                    reply += part
            finally:
                writer.close()
        head, _, body = bytes(reply).partition(b"\r\n\r\n")
        return int(head.split(None, 2)[1:2][0] if head.startswith(b"HTTP/") else b""), body

    def _tail(self, lines: int) -> str:
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""
        # Progress bars overwrite their line.
        log_lines = [line.rsplit("\r", 1)[-1].strip() for line in text.rstrip().splitlines()]
        return "\n".join(line[:_LINE_CHARACTERS] for line in [line for line in log_lines if line][-lines:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
