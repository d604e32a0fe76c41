"""A well-behaved MCP server made with the SDK: `python small_mcp_server.py [PORT]`, stdio without a port."""

from __future__ import annotations

import os
import sys

import anyio
from mcp.server.mcpserver import MCPServer

server = MCPServer("small")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def leave() -> str:
    """End the server."""
    os._exit(7)


@server.tool()
async def wait() -> str:
    """Wait for ever."""
    await anyio.sleep_forever()
    return "never"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
