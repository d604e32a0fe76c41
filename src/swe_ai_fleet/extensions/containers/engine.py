"""The engine behind its socket: the only place that knows the Docker SDK. Calls run in threads, for a bounded time."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any, ParamSpec, TypeVar

from swe_ai_fleet.domain.command import Output
from swe_ai_fleet.domain.json_values import json_object
from swe_ai_fleet.sandbox.runner import Capture
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.tools.definition import ToolFailure

KEPT_BYTES = 256 * 1024
"""Of each stream, so many bytes from the head and as many from the tail."""

_HEADER_BYTES = 8
_PIECE_BYTES = 64 * 1024


class Printout:
    """Both streams of a command in the order in which they came; it can be read at any time.

    Args:
        limit: Bytes after which nothing more is taken.
    """

    def __init__(self, limit: int) -> None:
        self._kept = Capture(KEPT_BYTES)
        self._limit = limit

    @property
    def flooded(self) -> bool:
        """Whether there was more than the limit."""
        return self._kept.total > self._limit

    @property
    def output(self) -> Output:
        return self._kept.output()

    def text(self) -> str:
        """The output as text, with the elided count in its place."""
        return self.output.text().rstrip("\n")

    def add(self, data: bytes) -> bool:
        """Take the next bytes; whether more are wanted."""
        self._kept.feed(data)
        return not self.flooded

    def collect(self, stream: EngineStream) -> None:
        """Read a multiplexed stream (eight bytes of header, then so many of output) to its end or to the limit."""
        for data in _frames(stream):
            if not self.add(data):
                return


def _frames(stream: EngineStream) -> Iterator[bytes]:
    while len(header := _exactly(stream, _HEADER_BYTES)) == _HEADER_BYTES:
        remaining = int.from_bytes(header[4:], "big")
        while remaining:
            data = stream.read(min(remaining, _PIECE_BYTES))
            if not data:
                return
            remaining -= len(data)
            yield data


def _exactly(stream: EngineStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = stream.read(size - len(data))
        if not piece:
            break
        data += piece
    return data


P = ParamSpec("P")
T = TypeVar("T")

_CONTROL_THREADS = 2
_STREAM_THREADS = 8
_SPARE_SECONDS = 5.0
_MAX_MESSAGE_CHARS = 1_000
_MAX_LINE_BYTES = 1024 * 1024


class MissingOnEngine(ToolFailure):
    """The engine has no such container or image."""


class EngineStream:
    """An answer of the engine that is read piece by piece in a thread; `stop` ends the reading from outside."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._lock = threading.Lock()
        self._closed = False

    def read(self, amount: int) -> bytes:
        return self._response.raw.read(amount)

    def pieces(self) -> Generator[bytes]:
        yield from self._response.iter_content(_PIECE_BYTES)

    def stop(self) -> None:
        """Wake a reader that waits; what it reads from now on is the end."""
        with self._lock:
            if not self._closed:
                with suppress(OSError, ValueError):
                    self._response.raw.shutdown()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._response.close()


class DockerEngine:
    """A docker or podman engine.

    Args:
        host: `unix:///path` or `tcp://host:port`.
        call_seconds: How long a single request may take that only asks or commands; streams have their own limits.

    Every method raises ToolFailure where the engine is absent, does not answer or says no.
    """

    def __init__(self, host: str, *, call_seconds: float = 30.0) -> None:
        self._host = host
        self._call_seconds = call_seconds
        self._connecting = threading.Lock()
        self._client: Any = None
        self._closed = False
        self._control = ThreadPoolExecutor(_CONTROL_THREADS, "docker-control")
        self._streams = ThreadPoolExecutor(_STREAM_THREADS, "docker-stream")

    @property
    def connected(self) -> bool:
        """Whether the engine was reached at all."""
        return self._client is not None

    async def containers(self, label: str) -> list[Mapping[str, Any]]:
        return await self._call(lambda client: client.containers(all=True, filters={"label": label}))

    async def container(self, reference: str) -> Mapping[str, Any]:
        return await self._call(lambda client: client.inspect_container(reference))

    async def create(self, config: Mapping[str, object], name: str) -> str:
        """A new container's id; a cancelled caller leaves none behind."""
        future = self._threads(
            self._control, self._ask, lambda client: client.create_container_from_config(config, name)
        )
        try:
            return (await _seen_through(future, self._call_seconds + _SPARE_SECONDS, self._host))["Id"]
        except asyncio.CancelledError:
            if future.done() and future.exception() is None:
                await uninterrupted(self.remove(future.result()["Id"]))
            raise

    async def start(self, reference: str) -> None:
        await self._call(lambda client: client.start(reference))

    async def stop(self, reference: str, seconds: int) -> None:
        """End a container's process: asked first, killed after some seconds."""
        await self._call(lambda client: client.stop(reference, timeout=seconds), seconds + self._call_seconds)

    async def kill(self, reference: str) -> None:
        """End a container's process at once; one that has ended already is no error."""
        with suppress(ToolFailure):
            await self._call(lambda client: client.kill(reference))

    async def restart(self, reference: str) -> None:
        """End everything that runs in a container and start its own process afresh."""
        await self._call(lambda client: client.restart(reference, timeout=0))

    async def wait(self, reference: str, seconds: float) -> None:
        """Return when a container's process has ended."""
        future = self._threads(self._streams, self._ask, lambda client: client.wait(reference, timeout=seconds))
        # A caller who gives up does not wait for this thread: it ends with the container.
        await asyncio.shield(future)

    async def remove(self, reference: str) -> None:
        """Remove a container with its anonymous volumes, running or not; one that is gone already is no error."""
        with suppress(MissingOnEngine):
            await self._call(lambda client: client.remove_container(reference, force=True, v=True))

    async def images(self, label: str) -> list[Mapping[str, Any]]:
        return await self._call(lambda client: client.images(filters={"label": label}))

    async def image(self, reference: str) -> Mapping[str, Any]:
        return await self._call(lambda client: client.inspect_image(reference))

    async def remove_image(self, reference: str) -> None:
        """Remove an image with the unnamed ones beneath it; one that is gone already is no error."""
        with suppress(MissingOnEngine):
            await self._call(lambda client: client.remove_image(reference, force=True))

    async def attached(
        self, reference: str, printout: Printout, *, start: Callable[[], Awaitable[None]], seconds: float
    ) -> None:
        """Take what a container prints, from its very start to its end. `start` is called when all will be heard."""
        query = {"stream": "1", "stdout": "1", "stderr": "1"}
        stream = await self._open(f"/containers/{reference}/attach", params=query, seconds=seconds)
        try:
            await start()
        except BaseException:
            stream.close()
            raise
        await self._read(stream, lambda: printout.collect(stream))

    async def logs(self, reference: str, printout: Printout, *, lines: int) -> None:
        query = {"stdout": "1", "stderr": "1", "tail": str(lines)}
        path = f"/containers/{reference}/logs"
        stream = await self._open(path, method="GET", params=query, seconds=self._call_seconds)
        await self._read(stream, lambda: printout.collect(stream))

    async def execute(
        self, reference: str, command: Sequence[str], printout: Printout, *, directory: str, seconds: float
    ) -> int | None:
        """The exit code of another command in a running container; None where it still runs."""
        created = await self._call(
            lambda client: client.exec_create(reference, list(command), stdin=False, workdir=directory or None)
        )
        stream = await self._open(f"/exec/{created['Id']}/start", body={"Detach": False, "Tty": False}, seconds=seconds)
        await self._read(stream, lambda: printout.collect(stream))
        state = await self._call(lambda client: client.exec_inspect(created["Id"]))
        return None if state["Running"] else state["ExitCode"]

    async def build(self, context: IO[bytes], printout: Printout, *, params: Mapping[str, str], seconds: float) -> str:
        """The error of a build; empty where it succeeded. Leaving it early ends the build."""
        stream = await self._open("/build", params=params, upload=context, seconds=seconds)
        return await self._read(stream, lambda: _build_error(stream, printout))

    async def close(self) -> None:
        """Let go of the engine. Threads that wait for it end by their own limits."""
        self._closed = True
        self._control.shutdown(wait=False)
        self._streams.shutdown(wait=False)
        client, self._client = self._client, None
        if client is not None:
            client.close()

    async def _call(self, ask: Callable[[Any], T], seconds: float | None = None) -> T:
        """Ask in a thread. A cancelled caller waits until the engine has answered: what was begun is then known."""
        limit = (self._call_seconds if seconds is None else seconds) + _SPARE_SECONDS
        future = self._threads(self._control, self._ask, ask)
        return await _seen_through(future, limit, self._host)

    async def _open(
        self,
        path: str,
        *,
        method: str = "POST",
        params: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
        upload: IO[bytes] | None = None,
        seconds: float,
    ) -> EngineStream:
        def opened(client: Any) -> EngineStream:
            headers = {"Content-Type": "application/x-tar"} if upload is not None else {}
            response = client.request(
                method,
                f"{client.base_url}/v{client.api_version}{path}",
                params=params,
                json=body,
                data=upload,
                headers=headers,
                stream=True,
                # Silence is no fault of a stream; whoever reads it counts the time.
                timeout=(self._call_seconds, seconds + _SPARE_SECONDS),
            )
            if response.status_code >= 400:
                message = response.raw.read(_MAX_LINE_BYTES, decode_content=True)
                response.close()
                raise _failure_of(response.status_code, message)
            return EngineStream(response)

        future = self._threads(self._streams, self._ask, opened)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(_close_unheard)
            raise

    async def _read(self, stream: EngineStream, read: Callable[[], T]) -> T:
        """Read in a thread; a cancelled reader is woken and waited for."""
        reading = self._threads(self._streams, self._guarded, read)
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            stream.stop()
            await asyncio.wait([reading], timeout=_SPARE_SECONDS)
            raise
        finally:
            if reading.done():
                stream.close()
            else:
                reading.add_done_callback(lambda _: stream.close())

    def _threads(
        self, threads: ThreadPoolExecutor, work: Callable[[Callable[P, T]], T], argument: Callable[P, T]
    ) -> asyncio.Future[T]:
        if self._closed:
            raise ToolFailure("this tool is closed; make another")
        return asyncio.get_running_loop().run_in_executor(threads, work, argument)

    def _ask(self, ask: Callable[[Any], T]) -> T:
        return self._guarded(lambda: ask(self._connected()))

    def _guarded(self, work: Callable[[], T]) -> T:
        """Errors of the SDK and of what lies beneath it, as failures of the tool."""
        try:
            import docker.errors
            import requests
            import urllib3
        except ImportError as error:
            raise ToolFailure(
                f"the docker tool needs the Docker SDK ({error.name or error}): install swe-ai-fleet[docker]"
            ) from None
        try:
            return work()
        except docker.errors.APIError as error:
            raise _failure_of(error.status_code or 500, str(error.explanation or error).encode()) from None
        except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise ToolFailure(
                f"no container engine answers at {self._host}: {str(error)[:_MAX_MESSAGE_CHARS]}. "
                "Go on without containers, or have somebody start docker or podman there"
            ) from None

    def _connected(self) -> Any:
        import docker

        with self._connecting:
            if self._client is None:
                make: Any = docker.APIClient  # it is annotated to take whole seconds only
                client = make(base_url=self._host, version="auto", timeout=self._call_seconds)
                # Neither proxies of this process nor the credentials of whoever runs it are an agent's to use.
                client.trust_env = False
                client.reload_config(os.devnull)
                self._client = client
            return self._client


async def _seen_through(future: asyncio.Future[T], limit: float, host: str) -> T:
    """The answer; a cancelled caller waits for it all the same."""
    try:
        await asyncio.wait([future], timeout=limit)
    except asyncio.CancelledError:
        await asyncio.wait([future], timeout=limit)
        if future.done() and not future.cancelled():
            future.exception()  # nobody is left to hear it
        raise
    if not future.done():
        raise ToolFailure(f"the container engine at {host} did not answer within {limit:g} seconds")
    return future.result()


def _close_unheard(future: asyncio.Future[EngineStream]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()


def _failure_of(status: int, body: bytes) -> ToolFailure:
    text = body.decode("utf-8", "replace").strip()
    with suppress(ValueError, TypeError, KeyError):
        text = str(json.loads(text)["message"])
    text = text[:_MAX_MESSAGE_CHARS]
    kind = MissingOnEngine if status == 404 else ToolFailure
    return kind(f"the container engine refused ({status}): {text}")


def _build_error(stream: EngineStream, printout: Printout) -> str:
    """The error out of the JSON objects, one a line, that tell of a build; what it prints goes to the printout."""
    error, pending = "", b""
    for piece in stream.pieces():
        *lines, pending = (pending + piece).split(b"\n")
        if len(pending) > _MAX_LINE_BYTES:
            pending = b""
        for line in lines:
            progress = json_object(line)
            error = str(progress.get("error") or error)
            if not printout.add(str(progress.get("stream") or "").encode("utf-8", "replace")):
                return error
    return error
