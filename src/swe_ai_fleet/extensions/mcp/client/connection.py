"""A session with one MCP server. Imports the MCP SDK, which is slow to load.

A tool's answer has text for models and structured output for programs.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    AudioContent,
    BlobResourceContents,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ClientRequest,
    ContentBlock,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    Implementation,
    ListToolsRequest,
    ListToolsResult,
    PaginatedRequestParams,
    PingRequest,
    ResourceLink,
    TextContent,
)
from pydantic import BaseModel, ValidationError

from swe_ai_fleet.extensions.mcp.client.listing import MAX_TOOLS, McpServer, ServerTool, plain
from swe_ai_fleet.extensions.mcp.client.transports import REFUSED, HttpWire, StdioWire, Wire
from swe_ai_fleet.sandbox.policy import SandboxPolicy
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal

MAX_STRUCTURED_CHARS = 16_384
_SHOWN_CHARS = 300
_MAX_PAGES = 32
_ERROR_CHARS = 1_000
_IDENTITY = Implementation(name="swe-ai-fleet", version="0.1.0")
Result = TypeVar("Result", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpAnswer:
    """A tool's answer; `structured` is its JSON value if it has one, or the size and digest of a too large one."""

    text: str
    structured: object = None
    failed: bool = False


def answer(result: CallToolResult) -> McpAnswer:
    """Read an answer. Content other than text is described by its kind, size and digest."""
    text = "\n".join(_text(part) for part in result.content)
    value: object = result.structured_content
    if value is None:
        return McpAnswer(text=text, failed=result.is_error)
    written = json.dumps(value, ensure_ascii=False)
    if len(written) > MAX_STRUCTURED_CHARS:
        data = written.encode()
        value = {"left_out": True, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return McpAnswer(text=text or written, structured=value, failed=result.is_error)


def _text(part: ContentBlock) -> str:
    match part:
        case TextContent():
            return part.text
        case ImageContent() | AudioContent():
            return _described(part.type, part.mime_type, part.data)
        case ResourceLink():
            about = plain(part.description or "", _SHOWN_CHARS)
            return f"[link to {plain(part.name, _SHOWN_CHARS)}: {_address(part.uri)}]" + (f" {about}" if about else "")
        case EmbeddedResource(resource=BlobResourceContents() as held):
            return _described(f"resource {_address(held.uri)}", held.mime_type or "", held.blob)
        case EmbeddedResource():
            return f"[resource {_address(part.resource.uri)}]\n{getattr(part.resource, 'text', '')}"


def _described(kind: str, mime_type: str, encoded: str) -> str:
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return f"[{kind} {plain(mime_type, 80)}: {len(encoded)} characters that are not base64]"
    digest = hashlib.sha256(data).hexdigest()
    return f"[{kind} {plain(mime_type, 80)}: {len(data)} bytes, not shown, sha256 {digest}]"


def _address(uri: object) -> str:
    return plain(str(uri), _SHOWN_CHARS)


class LostServer(ToolFailure):
    """The server has ended; a new one must be started."""


class McpConnection:
    """A running session, without capabilities: a server's requests (sampling, roots, elicitation) are refused."""

    def __init__(self, server: McpServer, wire: Wire) -> None:
        self._name = server.name
        self._wire = wire
        self._ready: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        # One task enters and leaves the session: its cancel scopes belong to the task that made them.
        self._task = asyncio.create_task(self._serve())

    @classmethod
    async def open(cls, server: McpServer, root: Path, policy: SandboxPolicy) -> McpConnection:
        """Connect to a server and initialise the session. Raises ToolFailure, PreconditionFailed, Unavailable."""
        wire = HttpWire.open(server) if server.url else await StdioWire.open(server, root, policy)
        connection = cls(server, wire)
        try:
            await asyncio.wait({connection._ready}, timeout=server.start_seconds)
            if not connection._ready.done():
                raise ToolFailure(f"it did not answer within {server.start_seconds:g} seconds")
            connection._ready.result()
        except BaseException:
            await uninterrupted(connection.close(grace_seconds=0))
            raise
        return connection

    async def _serve(self) -> None:
        async with ClientSession(self._wire.inbox, self._wire, client_info=_IDENTITY) as session:
            try:
                await session.initialize()
            except MCPError as error:
                self._ready.set_exception(self._failure(error))
            except (RuntimeError, ValidationError) as error:
                self._ready.set_exception(ToolFailure(f"it does not speak MCP as we know it: {_brief(error)}"))
            else:
                self._ready.set_result(session)
                await self._leave.wait()

    @property
    def ended(self) -> str:
        """Why the session has ended; empty while it lasts."""
        return self._wire.inbox.ended or ("its session broke" if self._task.done() else "")

    def tools_changed(self) -> bool:
        """Whether the server announced a change of its tools since the last call of this."""
        changed, self._wire.inbox.tools_changed = self._wire.inbox.tools_changed, False
        return changed

    async def tools(self) -> dict[str, ServerTool]:
        """The server's tools by name, up to a limit; of two with one name, the first. Raises ToolFailure."""
        server_tools: dict[str, ServerTool] = {}
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(_MAX_PAGES):
            params = PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await self._ask(ListToolsRequest(params=params), ListToolsResult)
            for tool in page.tools:
                reads = bool(tool.annotations and tool.annotations.read_only_hint)
                described = ServerTool(
                    name=tool.name, description=tool.description or "", schema=tool.input_schema, read_only=reads
                )
                server_tools.setdefault(tool.name, described)
            cursor = page.next_cursor
            if not cursor or cursor in seen or len(server_tools) > 16 * MAX_TOOLS:
                break
            seen.add(cursor)
        return server_tools

    async def call(self, tool: str, arguments: Mapping[str, object]) -> McpAnswer:
        params = CallToolRequestParams(name=tool, arguments=dict(arguments))
        return answer(await self._ask(CallToolRequest(params=params), CallToolResult))

    async def responds(self, *, within_seconds: float) -> bool:
        """Whether the server answers a ping."""
        try:
            async with asyncio.timeout(within_seconds):
                await self._ask(PingRequest(), EmptyResult)
        except (TimeoutError, LostServer):
            return False
        except ToolFailure:
            pass  # an error is an answer, too
        return True

    async def close(self, *, grace_seconds: float) -> None:
        self._leave.set()
        await self._wire.close(grace_seconds=grace_seconds)
        if not self._ready.done():
            self._task.cancel()
        await asyncio.wait({self._task})
        for done in (self._task, self._ready):
            if done.done() and not done.cancelled():
                done.exception()

    async def _ask(self, request: ClientRequest, kind: type[Result]) -> Result:
        try:
            return await self._ready.result().send_request(request, kind)
        except MCPError as error:
            raise self._failure(error) from None
        except ValidationError as error:
            raise ToolFailure(f"the MCP server {self._name} sent an answer that is not MCP: {_brief(error)}") from None

    def _failure(self, error: MCPError) -> ToolFailure:
        if error.code == CONNECTION_CLOSED and self.ended:
            return LostServer(f"the MCP server {self._name} has ended: {self.ended}")
        message = plain(error.message, _ERROR_CHARS)
        if error.code == REFUSED:
            return ToolRefusal(message)
        return ToolFailure(f"the MCP server {self._name}: {message}")


def _brief(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{plain('.'.join(map(str, detail['loc'])), 80)}: {plain(detail['msg'], 120)}"
            for detail in error.errors()[:2]
        )
    return plain(str(error), 200)
