"""MCP servers as tools."""

from swe_ai_fleet.tools.mcp.server import McpServer
from swe_ai_fleet.tools.mcp.toolkit import McpTool

__all__ = ["McpServer", "McpTool"]
