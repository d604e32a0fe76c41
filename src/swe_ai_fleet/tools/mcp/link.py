"""One server through a whole run: started, asked, started anew when it dies, given up when it keeps dying."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.sandbox.policy import SandboxPolicy
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.tools.failure import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.mcp.listing import Offer, ServerTool, offers
from swe_ai_fleet.tools.mcp.server import McpServer
from swe_ai_fleet.tools.secrets import Secrets

if TYPE_CHECKING:
    from swe_ai_fleet.tools.mcp.connection import Connection

MAX_RESTARTS = 3
"""In a row: an answered call in between starts the count again."""
_PING_SECONDS = 5.0


class Link:
    """A server and the tools of it that were offered when the run began; what it lists later is never taken up.

    Args:
        server: Which one.
        root: The agent's workspace on this host.
        policy: The limits of a confined server.
        restart_seconds: The wait before the first restart; it doubles with each further one.
    """

    def __init__(self, server: McpServer, root: Path, policy: SandboxPolicy, *, restart_seconds: float) -> None:
        self.server = server
        self.notes: list[str] = []
        self._root = root
        self._policy = policy
        self._restart_seconds = restart_seconds
        self._mask = Secrets(server.secrets)
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._listed: dict[str, ServerTool] = {}
        self._restarts = 0
        self._doubtful = False

    async def start(self) -> None:
        """Start the server and list its tools. Where it cannot be reached in time there is a note, and no tools."""
        await _session_kind()
        try:
            async with asyncio.timeout(self.server.start_seconds):
                await self._connect()
        except TimeoutError:
            self._note(f"it did not answer within {self.server.start_seconds:g} seconds; its tools are absent")
        except FleetError as error:
            self._note(f"its tools are absent: {error}")

    def offer(self, taken: Collection[str]) -> list[Offer]:
        """The tools that agents may see, named around names that are `taken`."""
        if self._connection is None:
            return []
        found, notes = offers(self.server, list(self._listed.values()), taken=taken, mask=self._mask)
        for note in notes:
            self._note(note)
        return found

    async def call(self, offer: Offer, arguments: Mapping[str, object]) -> ToolResult:
        """Call an offered tool. Raises ToolFailure, ToolRefusal."""
        try:
            connection = await self._connected()
            self._check(offer)
            # Models write halves of surrogate pairs, which no message can hold.
            sent = cast("dict[str, object]", _changed(arguments, well_formed))
            answer = await connection.call(offer.tool, sent)
        except asyncio.CancelledError:
            # Out of time, perhaps because the server hangs: it is asked before the next call whether it does.
            self._doubtful = True
            raise
        except FleetError as error:
            kind = ToolRefusal if isinstance(error, ToolRefusal) else ToolFailure
            raise kind(self._mask(str(error))) from None
        self._restarts = 0
        text = self._mask(answer.text)
        if answer.failed:
            raise ToolFailure(text or f"{offer.spec.name} failed and did not say why")
        metadata: dict[str, object] = {"server": self.server.name}
        if answer.structured is not None:
            metadata["structured"] = _changed(answer.structured, self._mask)
        return ToolResult(success=True, operation=offer.spec.name, content=text, metadata=metadata)

    async def close(self, *, grace_seconds: float) -> None:
        """Let go of the server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await uninterrupted(connection.close(grace_seconds=grace_seconds))

    async def _connected(self) -> Connection:
        """A connection that works, and what it lists at the moment."""
        async with self._connecting:
            connection = self._connection
            if connection is not None and not connection.ended and self._doubtful:
                # A part of what the call itself may take, or the question would use it up.
                patience = min(_PING_SECONDS, self.server.time_limit_seconds / 4)
                if not await connection.responds(within_seconds=patience):
                    await self.close(grace_seconds=0)
                self._doubtful = False
            connection = self._connection
            if connection is None or connection.ended:
                return await self._restart()
            if connection.tools_changed():
                self._listed = _by_name(await connection.tools())
            return connection

    async def _restart(self) -> Connection:
        if self._restarts >= MAX_RESTARTS:
            raise ToolFailure(
                f"the MCP server {self.server.name} was started anew {MAX_RESTARTS} times and keeps failing; "
                "do without its tools"
            )
        await self.close(grace_seconds=0)
        await asyncio.sleep(self._restart_seconds * 2**self._restarts)
        self._restarts += 1
        try:
            async with asyncio.timeout(self.server.start_seconds):
                return await self._connect()
        except TimeoutError:
            raise ToolFailure(f"the MCP server {self.server.name} could not be started anew in time") from None
        except FleetError as error:
            raise ToolFailure(f"the MCP server {self.server.name} could not be started anew: {error}") from None

    async def _connect(self) -> Connection:
        connection = await (await _session_kind()).open(self.server, self._root, self._policy)
        try:
            self._listed = _by_name(await connection.tools())
        except BaseException:
            await uninterrupted(connection.close(grace_seconds=0))
            raise
        self._connection = connection
        self._doubtful = False
        return connection

    def _check(self, offer: Offer) -> None:
        """Whether the tool is still the one that was offered. Raises ToolFailure, ToolRefusal."""
        tool = self._listed.get(offer.tool)
        if tool is None:
            raise ToolFailure(f"the MCP server {self.server.name} no longer has {offer.spec.operation!r}")
        if tool.fingerprint != offer.fingerprint:
            raise ToolRefusal(
                f"the MCP server {self.server.name} has changed what {offer.spec.operation!r} is since the run began; "
                "it is not called any more"
            )

    def _note(self, text: str) -> None:
        self.notes.append(self._mask(f"MCP server {self.server.name}: {text}"))


async def _session_kind() -> type[Connection]:
    # It brings the SDK, which takes half a second to load: the first server of a process does, beside the event loop.
    module = await asyncio.to_thread(import_module, "swe_ai_fleet.tools.mcp.connection")
    return cast("type[Connection]", module.Connection)


def _changed(value: object, change: Callable[[str], str]) -> object:
    """A JSON value with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        parts = cast("Mapping[str, object]", value).items()
        return {change(name): _changed(part, change) for name, part in parts}
    if isinstance(value, list):
        return [_changed(part, change) for part in cast("list[object]", value)]
    return value


def _by_name(tools: list[ServerTool]) -> dict[str, ServerTool]:
    """In the server's order; of two with one name, the first."""
    found: dict[str, ServerTool] = {}
    for tool in tools:
        found.setdefault(tool.name, tool)
    return found
