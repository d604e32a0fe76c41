"""A client of the container engine; only this module imports the Docker SDK. Calls run in threads, with time limits."""

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
"""Bytes kept of an output's beginning, and again of its end."""

_HEADER_BYTES = 8
_PIECE_BYTES = 64 * 1024


class Printout:
    """The output of a command, both streams in order of arrival; readable at any time.

    Args:
        limit: The most bytes that are read.
    """

    def __init__(self, limit: int) -> None:
        self._kept = Capture(KEPT_BYTES)
        self._limit = limit

    @property
    def flooded(self) -> bool:
        """Whether the output exceeded the limit."""
        return self._kept.total > self._limit

    @property
    def output(self) -> Output:
        return self._kept.output()

    def text(self) -> str:
        """The output as text; a note stands for the bytes left out of its middle."""
        return self.output.text().rstrip("\n")

    def add(self, data: bytes) -> bool:
        """Add bytes; False once the limit is exceeded."""
        self._kept.feed(data)
        return not self.flooded

    def collect(self, stream: EngineStream) -> None:
        """Read a multiplexed stream (frames with a header of eight bytes) to its end or to the limit."""
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
    """A streamed answer of the engine, read in a thread; another thread can `stop` the reading."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._lock = threading.Lock()
        self._closed = False

    def read(self, amount: int) -> bytes:
        return self._response.raw.read(amount)

    def pieces(self) -> Generator[bytes]:
        yield from self._response.iter_content(_PIECE_BYTES)

    def stop(self) -> None:
        """Wake a waiting reader; it then reads the end of the stream."""
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
        call_seconds: The time limit of a request without a stream; streams have their own limits.

    Every method raises ToolFailure if the engine is absent, does not answer or refuses.
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
        """Whether a request has reached the engine."""
        return self._client is not None

    async def containers(self, label: str) -> list[Mapping[str, Any]]:
        return await self._call(lambda client: client.containers(all=True, filters={"label": label}))

    async def container(self, reference: str) -> Mapping[str, Any]:
        return await self._call(lambda client: client.inspect_container(reference))

    async def create(self, config: Mapping[str, object], name: str) -> str:
        """Create a container and return its id; if the caller is cancelled, the container is removed."""
        future = self._threads(
            self._control, self._ask, lambda client: client.create_container_from_config(config, name)
        )
        try:
            return (await _finished(future, self._call_seconds + _SPARE_SECONDS, self._host))["Id"]
        except asyncio.CancelledError:
            if future.done() and future.exception() is None:
                await uninterrupted(self.remove(future.result()["Id"]))
            raise

    async def start(self, reference: str) -> None:
        await self._call(lambda client: client.start(reference))

    async def stop(self, reference: str, seconds: int) -> None:
        """Stop a container: SIGTERM, and SIGKILL after some seconds."""
        await self._call(lambda client: client.stop(reference, timeout=seconds), seconds + self._call_seconds)

    async def kill(self, reference: str) -> None:
        """Kill a container; one that has already ended is no error."""
        with suppress(ToolFailure):
            await self._call(lambda client: client.kill(reference))

    async def restart(self, reference: str) -> None:
        """Kill every process of a container and start it again."""
        await self._call(lambda client: client.restart(reference, timeout=0))

    async def wait(self, reference: str, seconds: float) -> None:
        """Wait until a container has ended."""
        future = self._threads(self._streams, self._ask, lambda client: client.wait(reference, timeout=seconds))
        # A cancelled caller does not wait for this thread, which ends when the container does.
        await asyncio.shield(future)

    async def remove(self, reference: str) -> None:
        """Remove a container with its anonymous volumes, running or not; a missing one is no error."""
        with suppress(MissingOnEngine):
            await self._call(lambda client: client.remove_container(reference, force=True, v=True))

    async def images(self, label: str) -> list[Mapping[str, Any]]:
        return await self._call(lambda client: client.images(filters={"label": label}))

    async def image(self, reference: str) -> Mapping[str, Any]:
        return await self._call(lambda client: client.inspect_image(reference))

    async def remove_image(self, reference: str) -> None:
        """Remove an image with its unnamed parents; a missing one is no error."""
        with suppress(MissingOnEngine):
            await self._call(lambda client: client.remove_image(reference, force=True))

    async def attached(
        self, reference: str, printout: Printout, *, start: Callable[[], Awaitable[None]], seconds: float
    ) -> None:
        """Read a container's whole output; `start` is called once the stream is open, so that none of it is missed."""
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
        """Run a command in a running container; returns its exit code, None if it still runs."""
        created = await self._call(
            lambda client: client.exec_create(reference, list(command), stdin=False, workdir=directory or None)
        )
        stream = await self._open(f"/exec/{created['Id']}/start", body={"Detach": False, "Tty": False}, seconds=seconds)
        await self._read(stream, lambda: printout.collect(stream))
        state = await self._call(lambda client: client.exec_inspect(created["Id"]))
        return None if state["Running"] else state["ExitCode"]

    async def build(self, context: IO[bytes], printout: Printout, *, params: Mapping[str, str], seconds: float) -> str:
        """Build an image; returns the error, empty after success. Cancellation ends the build."""
        stream = await self._open("/build", params=params, upload=context, seconds=seconds)
        return await self._read(stream, lambda: _build_error(stream, printout))

    async def close(self) -> None:
        """Close the connection. Threads that wait for an answer end at their own time limits."""
        self._closed = True
        self._control.shutdown(wait=False)
        self._streams.shutdown(wait=False)
        client, self._client = self._client, None
        if client is not None:
            client.close()

    async def _call(self, ask: Callable[[Any], T], seconds: float | None = None) -> T:
        """Send a request in a thread. A cancelled caller still waits for the answer: no request stays half done."""
        limit = (self._call_seconds if seconds is None else seconds) + _SPARE_SECONDS
        future = self._threads(self._control, self._ask, ask)
        return await _finished(future, limit, self._host)

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
                # A silent stream is no fault: the reader has its own time limit.
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
            future.add_done_callback(_close_unused)
            raise

    async def _read(self, stream: EngineStream, read: Callable[[], T]) -> T:
        """Read in a thread; if the caller is cancelled, the reading is stopped and waited for."""
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
        """Raises ToolFailure for errors of the SDK and of the HTTP client below it."""
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
                # Agents must not use this process's proxies, nor its user's registry credentials.
                client.trust_env = False
                client.reload_config(os.devnull)
                self._client = client
            return self._client


async def _finished(future: asyncio.Future[T], limit: float, host: str) -> T:
    """The result of a request; a cancelled caller waits for its end, too."""
    try:
        await asyncio.wait([future], timeout=limit)
    except asyncio.CancelledError:
        await asyncio.wait([future], timeout=limit)
        if future.done() and not future.cancelled():
            future.exception()  # retrieved, or asyncio logs it
        raise
    if not future.done():
        raise ToolFailure(f"the container engine at {host} did not answer within {limit:g} seconds")
    return future.result()


def _close_unused(future: asyncio.Future[EngineStream]) -> None:
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
    """The error of a build from its progress stream (a JSON object a line); its output goes to the printout."""
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
