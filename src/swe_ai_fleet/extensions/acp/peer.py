"""JSON-RPC 2.0 with a program in the sandbox, one message a line, with requests both ways and limits on all of it.

The program is untrusted. Lines that are no messages are counted and skipped; a program that floods is killed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from swe_ai_fleet.agents.external_agent import AgentFault
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.json_values import integer, json_object, mapping, string
from swe_ai_fleet.sandbox.interactive import InteractiveProcess, LongLineError

Parameters = Mapping[str, object]

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""The longest message that a program may send, since it may hold a whole file."""
MAX_BYTES = 512 * 1024 * 1024
MAX_MESSAGES = 100_000
MAX_INVALID_LINES = 1_000
"""The most lines that are no messages: some programs print warnings to standard output."""
MAX_REQUESTS = 32
"""The most concurrent requests of the program; further ones wait."""
PROTOCOL_VERSION = 1
START_SECONDS = 180.0
"""The time limit until a harness has a session: a large one takes tens of seconds to load for the first time."""
NAME_CHARS = 100
METHOD_NOT_FOUND, INVALID_PARAMETERS, FAILED = -32601, -32602, -32603
_MAX_ERROR_CHARS = 600


class RequestRefused(FleetError):
    """The answer to a request of the program is an error of this code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


class Peer:
    """A JSON-RPC connection with a program over its pipes.

    Args:
        answer: Called with the method and the parameters of a request; returns the result, or raises RequestRefused.
        on_notification: Called with the method and the parameters of a notification.

    Other exceptions of either end the connection.
    """

    def __init__(
        self,
        process: InteractiveProcess,
        answer: Callable[[str, Parameters], Awaitable[object]],
        on_notification: Callable[[str, Parameters], None],
    ) -> None:
        self._process, self._answer, self._on_notification = process, answer, on_notification
        self._replies: dict[int, asyncio.Future[Parameters]] = {}
        self._last_id = self._bytes = self._messages = self._invalid_lines = 0
        self._request_slots = asyncio.Semaphore(MAX_REQUESTS)
        self._answering: set[asyncio.Task[None]] = set()
        self._fault: BaseException | None = None
        self._reading = asyncio.create_task(self._read())
        self._reading.add_done_callback(self._finished)

    async def request(self, method: str, parameters: Parameters) -> Parameters:
        """Send a request and return its result, an object.

        Raises AgentFault if the reply is an error or the program has ended, else what ended the connection.
        """
        if self._fault is not None:
            raise self._fault
        self._last_id += 1
        number, answer = self._last_id, asyncio.get_running_loop().create_future()
        self._replies[number] = answer
        try:
            await self._send({"id": number, "method": method, "params": parameters})
            return await answer
        finally:
            self._replies.pop(number, None)

    async def notify(self, method: str, parameters: Parameters) -> None:
        """Send a notification."""
        await self._send({"method": method, "params": parameters})

    async def close(self) -> None:
        """Stop reading, and cancel the requests of the program that are being answered."""
        tasks = {self._reading, *self._answering}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _send(self, message: Parameters) -> None:
        # A broken pipe is the end of the program, which the reading task reports with the reason.
        with suppress(ConnectionError):
            self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            await self._process.stdin.drain()

    async def _read(self) -> None:
        """Read until the program ends; an end while the connection is open is a fault."""
        try:
            async for line in self._process.lines(max_bytes=MAX_MESSAGE_BYTES):
                self._bytes += len(line) + 1
                if self._bytes > MAX_BYTES:
                    raise AgentFault(f"the agent wrote more than {MAX_BYTES} bytes, and was stopped")
                await self._take(line)
        except LongLineError:
            await self._process.kill()
            fault = f"the agent sent a message of more than {MAX_MESSAGE_BYTES} bytes, and was stopped"
            raise AgentFault(fault) from None
        except AgentFault:
            await self._process.kill()
            raise
        raise AgentFault(f"the agent's program {await self._process.ending()}")

    def _finished(self, task: asyncio.Task[None]) -> None:
        """Fail the pending requests if a task of the connection has failed."""
        self._answering.discard(task)
        if task.cancelled() or (fault := task.exception()) is None:
            return
        self._fault = self._fault or fault
        for answer in self._replies.values():
            if not answer.done():
                answer.set_exception(fault)

    async def _take(self, line: bytes) -> None:
        message = json_object(line)
        if not message:
            self._invalid_lines += bool(line.strip())
            if self._invalid_lines > MAX_INVALID_LINES:
                raise AgentFault(f"the agent wrote more than {MAX_INVALID_LINES} lines that are no messages")
            return
        self._messages += 1
        if self._messages > MAX_MESSAGES:
            raise AgentFault(f"the agent sent more than {MAX_MESSAGES} messages, and was stopped")
        method, number = string(message.get("method")), message.get("id")
        if not method:
            self._settle_request(message)
        elif number is None:
            self._on_notification(method, mapping(message.get("params")))
        else:
            # Nothing more is read until a slot is free: the pipe fills, and the program waits.
            await self._request_slots.acquire()
            task = asyncio.create_task(self._respond(number, method, mapping(message.get("params"))))
            self._answering.add(task)
            task.add_done_callback(self._finished)
            task.add_done_callback(lambda _: self._request_slots.release())

    def _settle_request(self, message: Parameters) -> None:
        waiting = self._replies.get(integer(message.get("id")))
        if waiting is None or waiting.done():
            return
        if "error" in message:
            error = mapping(message["error"])
            words = string(error.get("message")) or "no reason given"
            details = error.get("data")
            more = f" {json.dumps(details)[:_MAX_ERROR_CHARS]}" if details else ""
            waiting.set_exception(
                AgentFault(f"the agent answers with error {integer(error.get('code'))}: {words}{more}")
            )
        else:
            waiting.set_result(mapping(message.get("result")))

    async def _respond(self, number: object, method: str, parameters: Parameters) -> None:
        try:
            answer: Parameters = {"result": await self._answer(method, parameters)}
        except RequestRefused as refused:
            answer = {"error": {"code": refused.code, "message": refused.message}}
        await self._send({"id": number, **answer})


async def open_session(peer: Peer, directory: str) -> tuple[str, str]:
    """Open a session in a directory; returns its id, and the agent's own name and version. Raises AgentFault."""
    capabilities = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
    client = {"name": "swe-ai-fleet", "version": str(PROTOCOL_VERSION)}
    hello = {"protocolVersion": PROTOCOL_VERSION, "clientCapabilities": capabilities, "clientInfo": client}
    try:
        async with asyncio.timeout(START_SECONDS):
            reply = await peer.request("initialize", hello)
            if reply.get("protocolVersion") != PROTOCOL_VERSION:
                raise AgentFault(f"the agent speaks version {str(reply.get('protocolVersion'))[:20]} of the protocol")
            new = await peer.request("session/new", {"cwd": directory, "mcpServers": []})
    except TimeoutError:
        raise AgentFault(f"the agent had no session after {START_SECONDS:g} seconds") from None
    session_id, info = string(new.get("sessionId")), mapping(reply.get("agentInfo"))
    if not session_id:
        raise AgentFault("the agent has begun no session")
    return session_id, " ".join(filter(None, (string(info.get("name")), string(info.get("version")))))[:NAME_CHARS]
