"""The tools of the operator's MCP servers, for what runs in no clone: chats and plans."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from swe_ai_fleet.runtime.sandboxes import make_sandbox, sandbox_policy
from swe_ai_fleet.runtime.tool_services import tool_access
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.mcp import McpTool

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def operator_tools(
    settings: Settings, directory: Path, *, reserved: Collection[str]
) -> AsyncGenerator[tuple[McpTool, ...]]:
    """One toolkit with all of them while the context lasts; none where no server is configured.

    Args:
        settings: The servers, and a sandbox that works here (see `with_rung`).
        directory: Where servers that are commands run; made where it is not there.
        reserved: Names that their tools cannot have.
    """
    servers = tool_access(settings).mcp_servers
    if not servers:
        yield ()
        return
    await asyncio.to_thread(directory.mkdir, mode=0o700, parents=True, exist_ok=True)
    async with (
        make_sandbox(settings).workspace(directory) as workspace,
        McpTool(workspace, servers=servers, sandbox=sandbox_policy(settings), reserved=frozenset(reserved)) as kit,
    ):
        for note in kit.notes:
            _log.warning("operator_tools.missing", note=note)
        yield (kit,)
