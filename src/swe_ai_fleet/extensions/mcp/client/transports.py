"""Transports of MCP: standard input and output of a command, one JSON message a line; and streamable HTTP.

Over HTTP each message is one POST, answered as JSON or as a stream of events.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx2
from mcp.shared._stream_protocols import ReadStream
from mcp.shared.message import SessionMessage
from mcp.types import (
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from mcp.types.jsonrpc import jsonrpc_message_adapter
from pydantic import ValidationError

from swe_ai_fleet.extensions.mcp.client.listing import McpServer
from swe_ai_fleet.sandbox.interactive import InteractiveCommand, InteractiveProcess, LongLineError
from swe_ai_fleet.sandbox.policy import SandboxPolicy
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.http_transport import GuardedTransport, HttpPolicy, parse_url, port_of

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""The longest message a server may send."""
_LONG_MESSAGE = f"it sent a message of more than {MAX_MESSAGE_BYTES} bytes"

# The most messages between two answers that answer no request.
MAX_UNASKED_MESSAGES = 10_000
MAX_UNASKED_BYTES = 64 * 1024 * 1024
MAX_UNASKED_REQUESTS = 200

FAILED = -32010
REFUSED = -32011
"""Error codes of our own answers, to requests that could not, or must not, reach the server."""


class FloodError(Exception):
    """A server floods; the message says with what."""


class _Stream:
    """A stream whose close does nothing: the owner of the connection closes it."""

    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exc_type: object, exc_val: object, exc_tb: object) -> None:
        await self.aclose()


class Inbox(_Stream):
    """The messages of a server for a session; implements the SDK's `ReadStream`.

    It passes on answers, and a server's requests, which the session refuses. Notifications are counted and dropped,
    since nothing depends on them.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[SessionMessage | None] = asyncio.Queue()
        self._awaited: set[str] = set()
        self._unasked = self._unasked_bytes = self._requests = 0
        self.tools_changed = False
        self.ended = ""

    def expect(self, request_id: RequestId) -> None:
        self._awaited.add(str(request_id))

    def forget(self, request_id: object) -> None:
        self._awaited.discard(str(request_id))

    def is_settled(self, request_id: RequestId) -> bool:
        """Whether a request is answered or given up."""
        return str(request_id) not in self._awaited

    def accept(self, text: bytes | str) -> None:
        """Take one message of the server. Raises FloodError."""
        try:
            message = jsonrpc_message_adapter.validate_json(text, by_name=False)
        except ValidationError:
            self._count(len(text))
            return
        if isinstance(message, JSONRPCResponse | JSONRPCError) and str(message.id) in self._awaited:
            self._unasked = self._unasked_bytes = self._requests = 0
            self.answer(message)
            return
        self._count(len(text))
        if isinstance(message, JSONRPCRequest):
            self._requests += 1
            if self._requests > MAX_UNASKED_REQUESTS:
                raise FloodError(f"it sent more than {MAX_UNASKED_REQUESTS} requests of its own")
            self._queue.put_nowait(SessionMessage(message))
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/tools/list_changed":
            self.tools_changed = True

    def answer(self, message: JSONRPCResponse | JSONRPCError) -> None:
        self.forget(message.id)
        self._queue.put_nowait(SessionMessage(message))

    def fail(self, request_id: RequestId, code: int, text: str) -> None:
        self.answer(JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=text)))

    def end(self, reason: str) -> None:
        """End the stream with a reason; pending requests fail."""
        if not self.ended:
            self.ended = reason
            self._queue.put_nowait(None)

    def _count(self, size: int) -> None:
        self._unasked += 1
        self._unasked_bytes += size
        if self._unasked > MAX_UNASKED_MESSAGES or self._unasked_bytes > MAX_UNASKED_BYTES:
            raise FloodError(f"it sent {self._unasked} messages that nobody asked for")

    async def receive(self) -> SessionMessage | Exception:
        return await anext(self)

    def __aiter__(self) -> ReadStream[SessionMessage | Exception]:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        item = await self._queue.get()
        if item is None:
            raise StopAsyncIteration
        return item


class Wire(_Stream, ABC):
    """A connection to one server: sends the session's messages; the server's arrive in the inbox.

    Implements the SDK's `WriteStream`.
    """

    def __init__(self) -> None:
        self.inbox = Inbox()

    async def send(self, item: SessionMessage, /) -> None:
        """Send one message, without waiting for its answer."""
        message = item.message
        if isinstance(message, JSONRPCRequest):
            self.inbox.expect(message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self.inbox.forget((message.params or {}).get("requestId"))
        await self._transmit(message, getattr(item.metadata, "headers", None) or {})

    @abstractmethod
    async def _transmit(self, message: JSONRPCMessage, headers: dict[str, str]) -> None: ...

    @abstractmethod
    async def close(self, *, grace_seconds: float) -> None:
        """Disconnect; a command ends within the grace period or is killed."""


def _encoded(message: JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


# If a server does not read and more than this is buffered, notifications are dropped, and requests wait.
_UNREAD_BYTES = 1024 * 1024


class StdioWire(Wire):
    """A running server process."""

    def __init__(self, process: InteractiveProcess) -> None:
        super().__init__()
        self._process = process
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, server: McpServer, root: Path, policy: SandboxPolicy) -> StdioWire:
        """Start the server in a workspace's directory. Raises PreconditionFailed, Unavailable."""
        command = InteractiveCommand(
            argv=server.command,
            variables={**server.variables, **server.secret_variables},
            mounts=server.mounts,
            network=server.network or None,
            read_only_workspace=server.read_only_workspace,
            confined=server.confined,
        )
        return cls(await InteractiveProcess.start(root, command, policy=policy))

    async def _transmit(self, message: JSONRPCMessage, headers: dict[str, str]) -> None:
        pipe = self._process.stdin
        droppable = isinstance(message, JSONRPCNotification)
        if self.inbox.ended or (droppable and pipe.transport.get_write_buffer_size() > _UNREAD_BYTES):
            return
        # A broken pipe is the end of the server, which the reading task reports with the reason.
        with suppress(ConnectionError):
            pipe.write(_encoded(message) + b"\n")
            if not droppable:
                await pipe.drain()

    async def close(self, *, grace_seconds: float) -> None:
        self.inbox.end("it was stopped")
        self._reading.cancel()
        await asyncio.wait({self._reading})
        await (self._process.close(grace_seconds=grace_seconds) if grace_seconds else self._process.kill())

    async def _read(self) -> None:
        try:
            async for line in self._process.lines(max_bytes=MAX_MESSAGE_BYTES):
                if line.strip():
                    self.inbox.accept(line)
        except LongLineError:
            self.inbox.end(f"{_LONG_MESSAGE} and was stopped")
        except FloodError as flood:
            self.inbox.end(f"{flood} and was stopped")
        else:
            self.inbox.end(f"it {await self._process.ending()}")
        await self._process.kill()


_SESSION = "mcp-session-id"
_VERSION = "mcp-protocol-version"
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,512}")
_NOTIFICATION_SECONDS = 10.0
_SPARE_SECONDS = 5.0
_MAX_PENDING = 64
_STATUS = {
    401: "it needs other credentials (HTTP 401)",
    403: "it refuses these credentials (HTTP 403)",
    404: "there is nothing at this address (HTTP 404)",
}


class HttpWire(Wire):
    """A session with a server over streamable HTTP.

    It opens no stream for the server's own messages.
    """

    def __init__(self, server: McpServer, transport: GuardedTransport) -> None:
        super().__init__()
        self._server = server
        self._url = parse_url(server.url)
        self._transport = transport
        self._session_id = ""
        self._version = ""
        self._posts: dict[str, asyncio.Task[None]] = {}
        self._notifications: set[asyncio.Task[None]] = set()

    @classmethod
    def open(cls, server: McpServer) -> HttpWire:
        url = parse_url(server.url)
        host = f"[{url.host}]" if ":" in url.host else url.host
        policy = HttpPolicy(
            allowed_hosts=() if server.private else (host,),
            private_hosts=(host,) if server.private else (),
            ports=(port_of(url),),
        )
        return cls(server, GuardedTransport(policy))

    async def _transmit(self, message: JSONRPCMessage, headers: dict[str, str]) -> None:
        self._version = headers.get(_VERSION, self._version)
        if isinstance(message, JSONRPCRequest):
            task = asyncio.create_task(self._ask(message))
            self._posts[str(message.id)] = task
            task.add_done_callback(lambda _: self._posts.pop(str(message.id), None))
            return
        if isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            abandoned = self._posts.get(str((message.params or {}).get("requestId")))
            if abandoned is not None:
                abandoned.cancel()
        if isinstance(message, JSONRPCNotification) and message.method == "notifications/initialized":
            # Sent before any request, since the server accepts none earlier.
            await self._notify(message)
        elif len(self._notifications) < _MAX_PENDING:
            task = asyncio.create_task(self._notify(message))
            self._notifications.add(task)
            task.add_done_callback(self._notifications.discard)

    async def close(self, *, grace_seconds: float) -> None:
        self.inbox.end("it was disconnected")
        if self._session_id and grace_seconds:
            with suppress(TimeoutError, ToolFailure):
                async with asyncio.timeout(grace_seconds):
                    response = await self._transport.handle_async_request(self._request("DELETE", b""))
                    await response.aclose()
        tasks = (*self._posts.values(), *self._notifications)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._transport.aclose()

    async def _notify(self, message: JSONRPCMessage) -> None:
        # No answer is expected; if the server is gone, the next request fails.
        with suppress(TimeoutError, ToolFailure):
            async with asyncio.timeout(_NOTIFICATION_SECONDS):
                response = await self._transport.handle_async_request(self._request("POST", _encoded(message)))
                await response.aclose()

    async def _ask(self, message: JSONRPCRequest) -> None:
        limit = max(self._server.time_limit_seconds, self._server.start_seconds) + _SPARE_SECONDS
        try:
            async with asyncio.timeout(limit):
                response = await self._transport.handle_async_request(self._request("POST", _encoded(message)))
                try:
                    await self._answer(message, response)
                finally:
                    await response.aclose()
        except TimeoutError:
            self.inbox.fail(message.id, FAILED, f"it did not answer within {limit:g} seconds")
        except FloodError as flood:
            self.inbox.end(f"{flood} and was disconnected")
        except (ToolFailure, httpx2.HTTPError, httpx2.StreamError, ValueError) as error:
            self.inbox.fail(message.id, REFUSED if isinstance(error, ToolRefusal) else FAILED, str(error))

    async def _answer(self, message: JSONRPCRequest, response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ToolFailure("it compresses its answer, which it was asked not to do")
        if response.status_code == 404 and self._session_id:
            self.inbox.end("it has forgotten the session")
            return
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code >= 400 and kind != "application/json":
            raise ToolFailure(_STATUS.get(response.status_code, f"it answered HTTP {response.status_code}"))
        if not 200 <= response.status_code < 300 and response.status_code < 400:
            raise ToolFailure(f"it answered HTTP {response.status_code}; redirects are not followed")
        if message.method == "initialize":
            session = response.headers.get(_SESSION, "")
            self._session_id = session if _SESSION_ID.fullmatch(session) else ""
        if kind == "text/event-stream":
            response.request = self._request("POST", b"")
            async for event in httpx2.EventSource(response, max_event_size=MAX_MESSAGE_BYTES):
                if event.event == "message" and event.data:
                    self.inbox.accept(event.data)
                if self.inbox.is_settled(message.id):
                    return
            raise ToolFailure("its answer broke off")
        if kind != "application/json":
            raise ToolFailure(f"its answer is {kind[:80] or 'of no type'!r}, which is not MCP")
        received = bytearray()
        async for part in response.aiter_raw():
            received += part
            if len(received) > MAX_MESSAGE_BYTES:
                raise FloodError(_LONG_MESSAGE)
        self.inbox.accept(bytes(received))
        if not self.inbox.is_settled(message.id):
            status = _STATUS.get(response.status_code, f"HTTP {response.status_code}")
            raise ToolFailure(f"its answer ({status}) does not match the request")

    def _request(self, method: str, body: bytes) -> httpx2.Request:
        headers = {
            "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": "swe-ai-fleet",
        }
        headers |= {_SESSION: self._session_id} if self._session_id else {}
        headers |= {_VERSION: self._version} if self._version else {}
        return httpx2.Request(method, self._url, headers={**headers, **self._server.headers}, content=body)
