"""A server that is a process of ours, one JSON message a line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from mcp.types import JSONRPCMessage, JSONRPCNotification

from swe_ai_fleet.sandbox.interactive import InteractiveCommand, InteractiveProcess
from swe_ai_fleet.sandbox.policy import SandboxPolicy
from swe_ai_fleet.tools.mcp.server import McpServer
from swe_ai_fleet.tools.mcp.wire import MAX_MESSAGE_BYTES, FloodError, Inbox

_CHUNK = 64 * 1024
# A server that does not read fills its pipe and then this; a notification beyond it is dropped, a request waits.
_UNREAD_BYTES = 1024 * 1024
_EXIT_SECONDS = 1.0
_SHOWN_ERRORS = 600


class StdioWire:
    """A running server process; implements `Wire`."""

    def __init__(self, process: InteractiveProcess) -> None:
        self.inbox = Inbox()
        self._process = process
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, server: McpServer, root: Path, policy: SandboxPolicy) -> StdioWire:
        """Start the server over a workspace's directory. Raises PreconditionFailed, Unavailable."""
        command = InteractiveCommand(
            argv=server.command,
            variables={**server.variables, **server.secret_variables},
            mounts=server.mounts,
            network=server.network or None,
            read_only_workspace=server.read_only_workspace,
            confined=server.confined,
        )
        return cls(await InteractiveProcess.start(root, command, policy=policy))

    async def send(self, message: JSONRPCMessage, *, headers: dict[str, str]) -> None:
        line = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        pipe = self._process.stdin
        droppable = isinstance(message, JSONRPCNotification)
        if self.inbox.ended or (droppable and pipe.transport.get_write_buffer_size() > _UNREAD_BYTES):
            return
        try:
            pipe.write(line)
            if not droppable:
                await pipe.drain()
        except ConnectionError:
            # The reading side notices the end and knows why.
            return

    async def close(self, *, grace_seconds: float) -> None:
        self.inbox.end("it was stopped")
        self._reading.cancel()
        await asyncio.wait({self._reading})
        await (self._process.close(grace_seconds=grace_seconds) if grace_seconds else self._process.kill())

    async def _read(self) -> None:
        try:
            async for line in _lines(self._process.stdout):
                if line.strip():
                    self.inbox.accept(line)
        except FloodError as flood:
            self.inbox.end(f"{flood} and was stopped")
            await self._process.kill()
            return
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                ending = f"it ended with exit code {await self._process.wait()}"
        except TimeoutError:
            ending = "it closed its output"
        said = self._process.errors().text().strip()[-_SHOWN_ERRORS:]
        self.inbox.end(f"{ending}; its last words: {said}" if said else ending)
        await self._process.kill()


async def _lines(stream: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    """The lines of a stream, none held that is longer than a message may be. Raises FloodError."""
    held = bytearray()
    while data := await stream.read(_CHUNK):
        searched = len(held)
        held += data
        start = 0
        while (end := held.find(b"\n", max(start, searched))) >= 0:
            yield bytes(held[start:end])
            start = end + 1
        del held[:start]
        if len(held) > MAX_MESSAGE_BYTES:
            raise FloodError(f"it sent a message of more than {MAX_MESSAGE_BYTES} bytes")
    if held:
        yield bytes(held)
