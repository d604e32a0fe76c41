"""JSON-RPC 2.0 with a program in the sandbox, one message a line: requests both ways, all of it within bounds.

The program is untrusted. What it writes that is no message is counted and passed over; where it floods, it is killed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from swe_ai_fleet.agents.external_agent import AgentFault
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.json_values import integer, json_object, mapping, string
from swe_ai_fleet.sandbox.interactive import InteractiveProcess

Parameters = Mapping[str, object]

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""The longest message that a program may send: the whole of a file may be in it."""
MAX_BYTES = 512 * 1024 * 1024
MAX_MESSAGES = 100_000
MAX_RUBBISH = 1_000
"""So many lines that are no messages are passed over: programs print warnings where they should not."""
MAX_REQUESTS = 32
"""Requests of the program that are answered at the same time; it waits with further ones."""
PROTOCOL_VERSION = 1
START_SECONDS = 180.0
"""How long a harness may take until it has a session: a large one that nobody has read before takes tens of seconds."""
NAME_CHARS = 100
METHOD_NOT_FOUND, INVALID_PARAMETERS, FAILED = -32601, -32602, -32603
_CHUNK = 64 * 1024
_EXIT_SECONDS = 2.0
_LAST_WORDS = 600


class RequestRefused(FleetError):
    """The answer to a request of the program is an error of this code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


class Peer:
    """A conversation with a program over its pipes.

    Args:
        answer: Answers its requests by method and parameters. Raises RequestRefused; anything else that it raises ends
            the conversation, as what `hear` raises does.
    """

    def __init__(
        self,
        process: InteractiveProcess,
        answer: Callable[[str, Parameters], Awaitable[object]],
        hear: Callable[[str, Parameters], None],
    ) -> None:
        self._process, self._answer, self._hear = process, answer, hear
        self._waiting: dict[int, asyncio.Future[Parameters]] = {}
        self._asked = self._bytes = self._messages = self._rubbish = 0
        self._room = asyncio.Semaphore(MAX_REQUESTS)
        self._answering: set[asyncio.Task[None]] = set()
        self._fault: BaseException | None = None
        self._reading = asyncio.create_task(self._read())
        self._reading.add_done_callback(self._over)

    async def request(self, method: str, parameters: Parameters) -> Parameters:
        """The result of a request, an object.

        Raises AgentFault where the answer is an error or the program has ended, and what hearing or answering raised.
        """
        if self._fault is not None:
            raise self._fault
        self._asked += 1
        number, answer = self._asked, asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await self._send({"id": number, "method": method, "params": parameters})
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def notify(self, method: str, parameters: Parameters) -> None:
        """Tell the program something."""
        await self._send({"method": method, "params": parameters})

    async def close(self) -> None:
        """Hear and answer nothing more; what was being carried out for the program is cancelled."""
        tasks = {self._reading, *self._answering}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _send(self, message: Parameters) -> None:
        # The reading side notices the end of the program, and knows why.
        with suppress(ConnectionError):
            self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            await self._process.stdin.drain()

    async def _read(self) -> None:
        """Hear the program to its end, which is always a fault of somebody."""
        try:
            await self._read_messages()
        except AgentFault:
            await self._process.kill()
            raise
        raise AgentFault(await self._ending())

    def _over(self, task: asyncio.Task[None]) -> None:
        """Tell whoever waits why nothing more will be heard."""
        self._answering.discard(task)
        if task.cancelled() or (fault := task.exception()) is None:
            return
        self._fault = self._fault or fault
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(fault)

    async def _read_messages(self) -> None:
        buffer = bytearray()
        while data := await self._process.stdout.read(_CHUNK):
            self._bytes += len(data)
            if self._bytes > MAX_BYTES:
                raise AgentFault(f"the agent wrote more than {MAX_BYTES} bytes, and was stopped")
            searched, start = len(buffer), 0
            buffer += data
            while (end := buffer.find(b"\n", max(start, searched))) >= 0:
                await self._take(bytes(buffer[start:end]))
                start = end + 1
            del buffer[:start]
            if len(buffer) > MAX_MESSAGE_BYTES:
                raise AgentFault(f"the agent sent a message of more than {MAX_MESSAGE_BYTES} bytes, and was stopped")

    async def _take(self, line: bytes) -> None:
        message = json_object(line)
        if not message:
            self._rubbish += bool(line.strip())
            if self._rubbish > MAX_RUBBISH:
                raise AgentFault(f"the agent wrote more than {MAX_RUBBISH} lines that are no messages")
            return
        self._messages += 1
        if self._messages > MAX_MESSAGES:
            raise AgentFault(f"the agent sent more than {MAX_MESSAGES} messages, and was stopped")
        method, number = string(message.get("method")), message.get("id")
        if not method:
            self._settle_request(message)
        elif number is None:
            self._hear(method, mapping(message.get("params")))
        else:
            # Until there is room nothing more is read: the program's pipe fills, and it waits.
            await self._room.acquire()
            task = asyncio.create_task(self._respond(number, method, mapping(message.get("params"))))
            self._answering.add(task)
            task.add_done_callback(self._over)
            task.add_done_callback(lambda _: self._room.release())

    def _settle_request(self, message: Parameters) -> None:
        waiting = self._waiting.get(integer(message.get("id")))
        if waiting is None or waiting.done():
            return
        if "error" in message:
            error = mapping(message["error"])
            words = string(error.get("message")) or "no reason given"
            details = error.get("data")
            more = f" {json.dumps(details)[:_LAST_WORDS]}" if details else ""
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

    async def _ending(self) -> str:
        """Why the program says nothing more."""
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                ending = f"the agent's program ended with exit code {await self._process.wait()}"
        except TimeoutError:
            ending = "the agent's program closed its output"
        last_words = self._process.errors().text().strip()[-_LAST_WORDS:]
        return f"{ending}; its last words: {last_words}" if last_words else ending


async def opened(peer: Peer, directory: str) -> tuple[str, str]:
    """The id of a new session in a directory, and how the agent calls itself and its version. Raises AgentFault."""
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
