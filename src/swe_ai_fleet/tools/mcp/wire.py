"""What a session sends to a server and reads from it, within bounds."""

from __future__ import annotations

import asyncio
from typing import Protocol, Self

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

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""The longest message a server may send."""

# What a server may send that answers none of our requests, between two answers.
MAX_UNASKED_MESSAGES = 10_000
MAX_UNASKED_BYTES = 64 * 1024 * 1024
MAX_UNASKED_REQUESTS = 200

FAILED = -32010
REFUSED = -32011
"""Error codes of answers that we make up for a server that could not, or must not, be asked."""


class FloodError(Exception):
    """A server sends more than anybody asked for; the message says what."""


class Inbox:
    """The messages of a server as a session reads them; implements the SDK's `ReadStream`.

    Answers are passed on, and the few requests that a session refuses by itself. Notifications are counted and dropped:
    nothing here depends on them, and a server may send as many as it likes.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[SessionMessage | None] = asyncio.Queue()
        self._awaited: set[str] = set()
        self._unasked = self._unasked_bytes = self._requests = 0
        self.tools_changed = False
        self.ended = ""

    def expect(self, request_id: RequestId) -> None:
        """Say that a request with this id is on its way."""
        self._awaited.add(str(request_id))

    def forget(self, request_id: object) -> None:
        """Say that nobody waits any more for the answer to a request."""
        self._awaited.discard(str(request_id))

    def is_settled(self, request_id: RequestId) -> bool:
        """Whether nobody waits for the answer to a request, because it is there or for another reason."""
        return str(request_id) not in self._awaited

    def accept(self, text: bytes | str) -> None:
        """Take what a server sent as one message. Raises FloodError."""
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
        """Pass on an answer."""
        self.forget(message.id)
        self._queue.put_nowait(SessionMessage(message))

    def fail(self, request_id: RequestId, code: int, text: str) -> None:
        """Make up the answer to a request that the server will not answer."""
        self.answer(JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=text)))

    def end(self, reason: str) -> None:
        """Say that nothing will come any more, and why; every request that still waits fails."""
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

    async def aclose(self) -> None:
        """Nothing is held open here."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exc_type: object, exc_val: object, exc_tb: object) -> None:
        await self.aclose()


class Wire(Protocol):
    """A way to one server: what is sent goes out here, what comes back arrives in the inbox."""

    @property
    def inbox(self) -> Inbox: ...

    async def send(self, message: JSONRPCMessage, *, headers: dict[str, str]) -> None:
        """Send one message; returns once it is on its way."""
        ...

    async def close(self, *, grace_seconds: float) -> None:
        """Let go of the server; a process of ours ends within the grace period or is killed."""
        ...


class Outbox:
    """A wire as a session writes to it; implements the SDK's `WriteStream`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        if isinstance(message, JSONRPCRequest):
            self._wire.inbox.expect(message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._wire.inbox.forget((message.params or {}).get("requestId"))
        headers = getattr(item.metadata, "headers", None)
        await self._wire.send(message, headers=headers or {})

    async def aclose(self) -> None:
        """The wire is closed by whoever opened it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exc_type: object, exc_val: object, exc_tb: object) -> None:
        await self.aclose()
